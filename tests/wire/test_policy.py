"""Every field of the published protocols is one of the core, and every row gives its reason."""

import json
import re
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.wire.losses import Row
from dragoman.wire.registry import WIRES
from tests.architecture.tree import ROOT

CHAT_REQUEST = {
    *("messages", "model", "audio", "frequency_penalty", "function_call", "functions"),
    *("logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata"),
    *("modalities", "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort"),
    *("response_format", "safety_identifier", "seed", "service_tier", "stop", "store"),
    *("stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs"),
    *("top_p", "user", "verbosity", "web_search_options"),
}
SAMPLING_OF_SERVERS = {"top_k", "min_p", "repetition_penalty"}
RESPONSES_REQUEST = {
    *("access_programs", "background", "context_management", "conversation", "image"),
    *("include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("model", "moderation", "parallel_tool_calls", "previous_response_id", "prompt"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning"),
    *("safety_identifier", "service_tier", "store", "stream", "stream_options", "temperature"),
    *("text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
}
OPEN_RESPONSES = {"presence_penalty", "frequency_penalty"}
INCLUDE = {
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    *("code_interpreter_call.outputs", "reasoning.encrypted_content"),
    *("message.output_text.logprobs",),
}

ROWS = [
    (f"{side} on {wire.name}", row)
    for wire in WIRES.values()
    for side in ("request", "answer")
    for row in getattr(wire.losses, side).rows
]


def published(document: str) -> dict[str, Any]:
    """The schemas of a protocol's own description."""
    path = ROOT / "tests" / "data" / f"{document}.json"
    schemas: dict[str, Any] = json.loads(path.read_text())["components"]["schemas"]
    return schemas


def properties(schema: dict[str, Any], schemas: dict[str, Any]) -> set[str]:
    """The fields of a schema and of those it is made of, or is one of."""
    if "$ref" in schema:
        return properties(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    made_of = [part for kind in ("allOf", "anyOf", "oneOf") for part in schema.get(kind, [])]
    return set(schema.get("properties", {})).union(*(properties(p, schemas) for p in made_of))


BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "m", "input": "hi"},
}
PASSED_ON = {"access_programs", "image"}  # of Responses only: they stay in `extra`


def known(wire: str, names: set[str]) -> set[str]:
    """The fields that the wire decodes into some field of the core: a wrong type is an error, or
    the value is not found among the unknown ones."""
    found = set()
    for name in names:
        body = json.dumps(
            {**BODIES[wire], name: {"type": "object of no field"} if name != "text" else 7}
        ).encode()
        try:
            request = WIRES[wire].decode_request(body)
        except FaultError:
            found.add(name)
            continue
        if name not in (request.extra or {}).get(wire, {}):
            found.add(name)
    return found


def test_the_lists_are_whole() -> None:
    assert (len(CHAT_REQUEST), len(RESPONSES_REQUEST), len(INCLUDE)) == (37, 33, 8)


def test_p37_every_field_of_a_request_is_one_of_the_core() -> None:
    """Fields of the core have a row on every wire (test_loss): so these all have."""
    fields = CHAT_REQUEST | SAMPLING_OF_SERVERS
    assert fields - known("chat", fields) == set()
    fields = RESPONSES_REQUEST | OPEN_RESPONSES
    assert fields - known("responses", fields) == PASSED_ON


@pytest.mark.parametrize(
    ("document", "schema", "wire"),
    [
        ("openai", "CreateChatCompletionRequest", "chat"),
        ("openai", "CreateResponse", "responses"),
        ("openresponses", "CreateResponseBody", "responses"),
    ],
)
def test_p37_every_field_of_the_published_requests_is_one_of_the_core(
    document: str, schema: str, wire: str
) -> None:
    schemas = published(document)
    names = properties(schemas[schema], schemas)
    assert len(names) > 25
    assert names - known(wire, names) - PASSED_ON == set()


def test_every_value_of_include_has_a_row() -> None:
    assert {("Request.include", value) for value in INCLUDE} <= {
        *WIRES["chat"].losses.request.apart
    }


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[f"{t}: {r.field} {r.when}" for t, r in ROWS])
def test_every_row_gives_its_reason(table: str, row: Row) -> None:
    assert re.fullmatch(r"[^|\n]{4,70}", row.why)
    assert row.action in ("carried", "emulated", "dropped", "refused")
    assert (row.test is None) or row.when, "a test is put in words"


def test_no_case_has_two_actions() -> None:
    for wire in WIRES.values():
        for table in (wire.losses.request, wire.losses.answer):
            keys = [(row.field, row.when) for row in table.rows]
            assert len(keys) == len(set(keys))
