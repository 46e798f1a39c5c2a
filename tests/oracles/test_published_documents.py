"""Schemathesis over both published documents: no request of theirs, or near, breaks the server.

Each answer has the status, the media type and the schema that the document says. A valid request is
refused with one of the sentences below only, each a false alarm of Schemathesis for its reason.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import cast

import pytest

from tests.oracle import DATA, Document, _check, problems
from tests.oracles.conftest import PYTHON
from tests.product import dragoman

EXAMPLES = 300
PATHS = {
    "openai": {
        "/v1/responses": "CreateResponse",
        "/v1/chat/completions": "CreateChatCompletionRequest",
    },
    "openresponses": {"/v1/responses": "CreateResponseBody"},
}
CHECKS = "not_a_server_error,content_type_conformance"
FALSE_ALARMS = {
    r"(\S+): is (missing|empty)": "needed, also where the document does not say so",
    r"\S+: is '.*', and no earlier call": "outputs follow their calls, which no schema can say",
    r"\S+: No tool call found": "the same over Responses",
    r"\S+: there is no response|There is no conversation|There is no item": "references to nothing",
    r"\S+: must be at (least|most)": "bounds of OpenAI's prose, which its document has not",
    r"\S+: .*cannot be (run|resolved|used|combined)": "what nothing here can do, by its name",
    r"(prompt|background|conversation|previous_response_id|tool_choice|tools)\S*: ": "the same",
    r"\S+: (names|demands|has|is|must|needs|takes)": "what OpenAI refuses too, in prose",
}
"""Valid requests that are refused all the same, and why."""


def document(name: Document, folder: Path) -> Path:
    """The published schemas as those of the routes that have them, for a model that is served."""
    text = (DATA / f"{name}.json").read_text().replace('"oneOf":', '"anyOf":')  # several may fit
    made = json.loads(text)
    model = {"required": ["model"], "properties": {"model": {"enum": ["script"]}}}
    made["paths"] = {}
    for path, asked in PATHS[name].items():
        body = {"allOf": [{"$ref": f"#/components/schemas/{asked}"}, model]}
        made["paths"][path.removeprefix("/v1")] = {
            "post": {
                "operationId": path,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": body}},
                },
                "responses": {
                    "200": {
                        "description": "An answer.",
                        "content": {"application/json": {}, "text/event-stream": {}},
                    },
                    "4XX": {"description": "A refusal.", "content": {"application/json": {}}},
                },
            }
        }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(made))
    return file


@pytest.mark.parametrize("name", PATHS)
def test_no_request_near_a_published_document_breaks_the_server(name, tmp_path) -> None:
    seed = random.randrange(2**31)
    with dragoman("script", "--store", "memory") as server:
        words = [
            *("run", str(document(name, tmp_path)), "--url", server.base_url, "--no-color"),
            *("--phases", "fuzzing", "--mode", "all", "--max-examples", str(EXAMPLES)),
            *("--seed", str(seed), "--checks", CHECKS, "--continue-on-failure"),
            *("--generation-database", "none", "--suppress-health-check", "all"),
            *("--report", "har", "--report-dir", str(tmp_path)),
        ]
        schemathesis = PYTHON.with_name("schemathesis")
        run = subprocess.run(
            [schemathesis, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{seed}: {run.stdout[-4_000:]}"
    (report,) = tmp_path.glob("har-*.json")
    accepted, alarms, wrong = 0, [], []
    for entry in json.loads(report.read_text())["log"]["entries"]:
        asked, answer = entry["request"], entry["response"]
        path = "/v1" + asked["url"].partition("/v1")[2]
        try:
            body = json.loads(asked["postData"]["text"])
        except (KeyError, ValueError):
            continue
        valid = not _check(cast(Document, name), PATHS[name][path], body)
        if answer["status"] >= 400:
            message = json.loads(answer["content"]["text"])["error"]["message"]
            if valid and not any(re.match(each, message) for each in FALSE_ALARMS):
                alarms.append((message, body))
            continue
        accepted += 1
        if answer["content"]["mimeType"].startswith("application/json"):
            value = json.loads(answer["content"]["text"])
            # Outside the schema, a tool that nothing here runs comes back as the client wrote it.
            value = value if valid or "tools" not in value else {**value, "tools": []}
            wrong += problems(value, cast(Document, name))
    assert not alarms, (seed, len(alarms), alarms[:3])
    assert not wrong, (seed, len(wrong), wrong[:3])
    assert accepted > EXAMPLES // 20 or name == "openresponses", accepted
