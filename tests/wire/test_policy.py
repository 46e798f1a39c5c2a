"""The table of fates has a row for every field of both protocols, and says why in each."""

import json
import re
from typing import Any

import pytest

from dragoman.wire import loss_table
from dragoman.wire.loss_table import ANSWER, REQUEST, Row
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
    (f"{side}-to-{target}", row)
    for side, tables in (("request", REQUEST), ("answer", ANSWER))
    for target, table in tables.items()
    for row in table.values()
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


def fields(table: dict[str, Row]) -> set[str]:
    return {row.field for row in table.values()}


def test_the_lists_are_whole() -> None:
    assert (len(CHAT_REQUEST), len(RESPONSES_REQUEST), len(INCLUDE)) == (37, 33, 8)


def test_p37_every_field_of_a_chat_request_has_a_row() -> None:
    assert fields(REQUEST["responses"]) >= CHAT_REQUEST | SAMPLING_OF_SERVERS


def test_p37_every_field_of_a_responses_request_has_a_row() -> None:
    assert fields(REQUEST["chat"]) >= RESPONSES_REQUEST | OPEN_RESPONSES


@pytest.mark.parametrize(
    ("document", "schema", "target"),
    [
        ("openai", "CreateChatCompletionRequest", "responses"),
        ("openai", "CreateResponse", "chat"),
        ("openresponses", "CreateResponseBody", "chat"),
    ],
)
def test_p37_every_field_of_the_published_requests_has_a_row(
    document: str, schema: str, target: str
) -> None:
    schemas = published(document)
    names = properties(schemas[schema], schemas)
    assert len(names) > 25
    assert names - fields(REQUEST[target]) == set()


def test_p37_every_field_of_the_published_messages_has_a_row() -> None:
    schemas = published("openai")
    messages = properties(schemas["ChatCompletionRequestMessage"], schemas)
    assert {"role", "content", "audio", "tool_call_id"} <= messages
    assert {f"messages[*].{name}" for name in messages} - fields(REQUEST["responses"]) == set()


def test_every_value_of_include_has_a_row() -> None:
    assert {f"include[{value}]" for value in INCLUDE} <= fields(REQUEST["chat"])


@pytest.mark.parametrize(("crossing", "row"), ROWS, ids=[f"{c}: {r.key}" for c, r in ROWS])
def test_every_row_gives_its_reason(crossing: str, row: Row) -> None:
    assert re.fullmatch(r"[^|\n]{4,70}", row.why)
    assert row.fate in ("carried", "emulated", "dropped", "refused")
    assert crossing.startswith("request") or row.fate != "refused", "an answer cannot be refused"


def test_no_case_has_two_fates() -> None:
    tables = (
        loss_table._CHAT_REQUEST,
        loss_table._RESPONSES_REQUEST,
        loss_table._CHAT_ANSWER,
        loss_table._RESPONSES_ANSWER,
    )
    for rows in tables:
        keys = [row.key for row in rows]
        assert len(keys) == len(set(keys))
