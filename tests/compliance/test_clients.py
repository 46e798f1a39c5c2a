"""What breaks a client when one thing is missing: every stream we give has them all.

The readers stand for clients that were seen to break; each must get the whole answer, and get the
same one as all others.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.compliance import readers
from tests.compliance.readers import ReaderError
from tests.sdk.behind import GO, Behind, behind
from tests.sdk.scenes import SCENES, USAGE

NAMES = pytest.mark.parametrize("name", SCENES)
PATHS = {"chat": "/chat/completions", "responses": "/responses"}


@pytest.fixture
async def server(name: str) -> AsyncIterator[Behind]:
    async with behind(SCENES[name].handler) as server:
        yield server


async def payloads(server: Behind, wire: str, fields: dict[str, Any]) -> list[Any]:
    """Everything that is said in a stream, without `[DONE]`, which must be there."""
    body = {"model": "mock", "stream": True, **GO[wire], **fields}
    async with httpx2.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{server.base_url}{PATHS[wire]}", json=body)
    assert answer.status_code == 200, answer.text
    lines = answer.text.split("\n")
    *said, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert done == "[DONE]"
    return [json.loads(each) for each in said]


async def events(server: Behind, name: str) -> list[Any]:
    return await payloads(server, "responses", SCENES[name].fields.get("responses", {}))


async def chunks(server: Behind, name: str) -> list[Any]:
    fields = SCENES[name].fields.get("chat", {})
    return await payloads(server, "chat", {**fields, "stream_options": {"include_usage": True}})


# ---- Responses -------------------------------------------------------------------------------


@NAMES
async def test_p15_every_responses_client_reads_the_whole_answer(server: Behind, name: str) -> None:
    said = await events(server, name)
    output = readers.last_event_reader(said)
    assert readers.item_collector(said) == output
    assert readers.strict_validator(said) == output
    kept = readers.snapshot_keeper(said)
    assert [item["id"] for item in kept] == [item["id"] for item in output]
    assert [words(item) for item in kept] == [words(item) for item in output]


def words(item: dict[str, Any]) -> str:
    """The text and the arguments of an item."""
    parts = item.get("content") or []
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    return text + str(item.get("arguments", ""))


LOSSES = {
    "response.created": readers.snapshot_keeper,
    "response.output_item.added": readers.strict_validator,
    "response.content_part.added": readers.snapshot_keeper,
    "response.output_item.done": readers.strict_validator,
    "response.completed": readers.item_collector,
}


@pytest.mark.parametrize("name", ["text"])
@pytest.mark.parametrize("missing", LOSSES)
async def test_reader_fails_without_an_event(server: Behind, name: str, missing: str) -> None:
    """The readers are no good if they take what real clients do not."""
    said = await events(server, name)
    left = [event for event in said if event["type"] != missing]
    assert len(left) < len(said)
    with pytest.raises((ReaderError, IndexError)):
        LOSSES[missing](left)


@pytest.mark.parametrize("name", ["text", "call after text", "reasoning"])
async def test_p17_every_event_has_its_ids_indexes_and_lists(server: Behind, name: str) -> None:
    said = await events(server, name)
    assert [event["sequence_number"] for event in said] == list(range(len(said)))
    for event in said:
        if "delta" in event:
            assert event["item_id"]
            assert isinstance(event["output_index"], int)
        if event["type"].startswith("response.output_text"):
            assert event["logprobs"] == []
            assert isinstance(event["content_index"], int)
        if event["type"] == "response.function_call_arguments.done":
            assert event["name"]
    assert {event["response"]["id"] for event in said if "response" in event} == {
        said[0]["response"]["id"]
    }


OPEN_RESPONSES = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "tool_choice": "auto",
    "truncation": "disabled",
    "background": False,
    "service_tier": "default",
    "tools": [],
}


@pytest.mark.parametrize("name", ["text", "call"])
async def test_o3_fields_required_by_the_schema_are_never_null(server: Behind, name: str) -> None:
    said = await payloads(server, "responses", {})
    for event in said:
        if "response" in event:
            assert {field: event["response"][field] for field in OPEN_RESPONSES} == OPEN_RESPONSES
        item = event.get("item", {})
        assert not item or (item["id"] and item["status"])


# ---- Chat ------------------------------------------------------------------------------------


@NAMES
async def test_every_chat_client_reads_the_whole_answer(server: Behind, name: str) -> None:
    said = await chunks(server, name)
    message = readers.accumulator(said)
    assert message["role"] == "assistant"
    assert message["content"] == SCENES[name].chat.get("content", "")
    calls = [(call["name"], call["arguments"]) for call in message["calls"]]
    assert calls == SCENES[name].chat.get("tool_calls", [])
    assert readers.usage_reader(said) == USAGE["total_tokens"]


# ---- needs of single clients -----------------------------------------------------------------


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_forced_tool_wins_over_the_response_format(wire: str) -> None:
    """Some get structured output by a forced tool, and send the form besides."""
    scene = SCENES["call"]
    form = {"type": "json_schema", "name": "f", "schema": {"type": "object"}, "strict": False}
    fields = {
        "chat": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": {}}},
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        "responses": {
            "text": {"format": form},
            "tool_choice": {"type": "function", "name": "weather"},
        },
    }
    async with behind(scene.handler) as server:
        answer = await server.whole(wire, **scene.fields[wire], **fields[wire])
        asked = server.up.asked[0].json
    assert "response_format" not in asked
    assert asked["tool_choice"] == fields["chat"]["tool_choice"]
    assert "weather" in json.dumps(answer.to_dict())


async def test_logprobs_false_is_accepted() -> None:
    """What `guidance` sends, in every request: an explicit false must be no reason to refuse."""
    async with behind(SCENES["text"].handler) as server:
        fields = {"max_completion_tokens": 9, "logprobs": False, "stream": True}
        said = await payloads(server, "chat", fields)
    assert readers.accumulator(said)["content"] == "Grüße, 🌍!"
    assert not any(choice["logprobs"] for chunk in said for choice in chunk["choices"])
