"""Reads what our server answers as a strict client would, by the letter of each protocol.

Written against the protocols and not with our own readers, so that a fault of those cannot hide
here. Anything a client could stumble over fails an assertion.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.wire.messages.gathering import frames, gathered

ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class Received:
    """An answer as a client understood it. `error` is the protocol's error object, if one came."""

    status: int
    retry_after: str | None = None
    id: str = ""
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[list[Any]] = field(default_factory=list)
    """Id, name and arguments: as text, or over Messages as the object they are."""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    """Whether `[DONE]` came."""


def read_answer(protocol: str, status: int, headers: dict[str, str], body: bytes) -> Received:
    """Read an answer of a protocol, streamed or whole."""
    received = Received(status, headers.get("retry-after"))
    stream, whole, error = READERS[protocol]
    kind = headers["content-type"].partition(";")[0]
    if kind == "text/event-stream":
        assert status == 200
        stream(received, body)
        return received
    assert kind == "application/json"
    assert int(headers["content-length"]) == len(body)
    value = json.loads(body)
    if status != 200:
        received.error = error(value)
    else:
        whole(received, value)
    return received


def blocks(body: bytes) -> list[tuple[str | None, str]]:
    """The events of a stream: LF only, each with one data line, no half block at the end."""
    assert b"\r" not in body
    assert body.endswith(b"\n\n")
    events: list[tuple[str | None, str]] = []
    for block in body.decode().split("\n\n")[:-1]:
        lines = block.split("\n")
        if all(line.startswith(":") for line in lines):
            continue
        name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
        assert len(lines) == 1, block
        assert lines[0].startswith("data: "), block
        events.append((name, lines[0].removeprefix("data: ")))
    return events


def error_object(value: dict[str, Any]) -> dict[str, Any]:
    """The error object of a body, which must have all that the protocol's has."""
    error = value["error"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error.keys() >= {"message", "type", "param", "code"}
    return error


# ---- Chat ----------------------------------------------------------------------------------


def _chat_stream(received: Received, body: bytes) -> None:
    ids: set[str] = set()
    for _, data in blocks(body):
        assert not received.done, "something came after [DONE]"
        assert received.error is None, "something came after the error"
        if data == "[DONE]":
            received.done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            received.error = error_object(chunk)
            continue
        assert chunk["object"] == "chat.completion.chunk"
        assert {"id", "created", "model", "choices"} <= chunk.keys()
        ids.add(chunk["id"])
        if chunk.get("usage") is not None:
            assert received.finish, "usage came before the finish reason"
            received.usage = _counts(chunk["usage"])
        for choice in chunk["choices"]:
            _chat_choice(received, choice)
    assert len(ids) <= 1
    received.id = next(iter(ids), "")


def _counts(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """The counts by the names that they have on the other wires."""
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    return usage and {name: usage[own] for name, own in names.items()}


def _chat_choice(received: Received, choice: dict[str, Any]) -> None:
    assert choice["index"] == 0
    assert received.finish is None, "the choice went on after its finish reason"
    delta = choice["delta"]
    received.text += delta.get("content") or ""
    received.refusal += delta.get("refusal") or ""
    received.reasoning += _thought(delta)
    for fragment in delta.get("tool_calls") or ():
        index, function = fragment["index"], fragment["function"]
        if index == len(received.calls):
            assert fragment["type"] == "function"
            received.calls.append([fragment["id"], function["name"], ""])
        else:
            assert 0 <= index < len(received.calls), "an index was left out"
            assert not {"id", "type"} & fragment.keys(), "an id came twice"
            assert "name" not in function, "a name came twice"
        received.calls[index][2] += function["arguments"]
    if choice["finish_reason"] is not None:
        assert not delta.get("content"), "content stands beside the finish reason"
        received.finish = choice["finish_reason"]


def _chat_whole(received: Received, value: dict[str, Any]) -> None:
    assert value["object"] == "chat.completion"
    assert {"id", "created", "model"} <= value.keys()
    received.id = value["id"]
    received.usage = _counts(value.get("usage"))
    (choice,) = value["choices"]
    assert choice["index"] == 0
    message = choice["message"]
    assert message["role"] == "assistant"
    assert "content" in message
    received.text = message["content"] or ""
    received.refusal = message.get("refusal") or ""
    received.reasoning = _thought(message)
    for call in message.get("tool_calls") or ():
        assert call["type"] == "function"
        function = call["function"]
        received.calls.append([call["id"], function["name"], function["arguments"]])
    received.finish = choice["finish_reason"]
    received.done = True


def _thought(said: dict[str, Any]) -> str:
    thought = said.get("reasoning_content")
    assert thought == said.get("reasoning"), "the two spellings of reasoning differ"
    return thought or ""


# ---- Responses -----------------------------------------------------------------------------


def _responses_stream(received: Received, body: bytes) -> None:
    events = blocks(body)
    if events and events[-1] == (None, "[DONE]"):
        received.done = True
        events = events[:-1]
    parsed = [(name, json.loads(data)) for name, data in events]
    assert all(name == event["type"] for name, event in parsed)
    assert [event["sequence_number"] for _, event in parsed] == list(range(len(parsed)))
    kinds = [event["type"] for _, event in parsed]
    assert [kind for kind in kinds if kind in ENDS] == kinds[-1:], "one end, and at the end"
    assert kinds[0] == "response.created"
    final = parsed[-1][1]["response"]
    assert {event["response"]["id"] for _, event in parsed if "response" in event} == {final["id"]}
    _responses_whole(received, final)
    streamed = _Streamed()
    for _, event in parsed:
        streamed.feed(event)
    assert (received.text, received.refusal) == (streamed.text, streamed.refusal)
    assert received.reasoning == streamed.reasoning
    assert [call[2] for call in received.calls] == list(streamed.arguments.values())


class _Streamed:
    """What the deltas of a stream say, apart from its last word."""

    def __init__(self) -> None:
        self.text = self.refusal = self.reasoning = ""
        self.arguments: dict[int, str] = {}
        self.open: set[int] = set()
        self.added = 0

    def feed(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == self.added
                self.added += 1
                self.open.add(event["output_index"])
                if event["item"]["type"] == "function_call":
                    self.arguments[event["output_index"]] = ""
            case "response.output_item.done":
                self.open.remove(event["output_index"])
            case "response.output_text.delta":
                self.text += event["delta"]
            case "response.refusal.delta":
                self.refusal += event["delta"]
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                self.reasoning += event["delta"]
            case "response.function_call_arguments.delta":
                self.arguments[event["output_index"]] += event["delta"]
            case "response.completed" | "response.incomplete":
                assert not self.open, "items were left open at a good end"
            case _:
                return
        if "output_index" in event and not event["type"].startswith("response.output_item"):
            assert event["output_index"] in self.open, "something came for an item that is closed"


def _responses_whole(received: Received, value: dict[str, Any]) -> None:
    assert value["object"] == "response"
    received.id = value["id"]
    received.usage = value["usage"]
    for item in value["output"]:
        assert item["id"]
        match item["type"]:
            case "message":
                assert item["role"] == "assistant"
                for part in item["content"]:
                    received.text += part.get("text", "")
                    received.refusal += part.get("refusal", "")
            case "reasoning":
                parts = item.get("content") or item["summary"]
                received.reasoning += "".join(part["text"] for part in parts)
            case "function_call":
                received.calls.append([item["call_id"], item["name"], item["arguments"]])
    status, details = value["status"], value["incomplete_details"]
    assert (status == "incomplete") == (details is not None)
    assert (status == "failed") == (value["error"] is not None)
    received.error = value["error"]
    if status == "completed":
        received.finish = "tool_calls" if received.calls else "stop"
    elif status == "incomplete":
        reasons = {"max_output_tokens": "length", "content_filter": "content_filter"}
        received.finish = reasons[details["reason"]]


# ---- Messages ------------------------------------------------------------------------------

REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def messages_error(value: dict[str, Any]) -> dict[str, Any]:
    """The error object of a body or of an event."""
    error: dict[str, Any] = value["error"]
    assert value["type"] == "error"
    assert isinstance(error["message"], str)
    assert error["type"].endswith("_error") or error["type"] == "request_too_large"
    return error


def _messages_stream(received: Received, body: bytes) -> None:
    blocks(body)
    message = gathered(body)
    _message(received, message)
    if "error" in message:
        received.error = messages_error(message["error"])
        assert received.finish is None, "a stop reason came before the error"
    received.done = frames(body)[-1]["type"] == "message_stop"


def _messages_whole(received: Received, value: dict[str, Any]) -> None:
    _message(received, value)
    assert all(isinstance(input, dict) for *_, input in received.calls)


def _message(received: Received, value: dict[str, Any]) -> None:
    assert (value["type"], value["role"]) == ("message", "assistant")
    assert {"model", "stop_sequence"} <= value.keys()
    received.id, received.usage = value["id"], value["usage"]
    cached = [n for name, n in received.usage.items() if name.startswith("cache_")]
    received.usage["input_tokens"] += sum(cached)  # which are counted apart
    for block in value["content"]:
        match block["type"]:
            case "text":
                assert block["text"], "clients refuse to send an empty text back"
                received.text += block["text"]
            case "thinking":
                assert isinstance(block["signature"], str)
                received.reasoning += block["thinking"]
            case "tool_use":
                received.calls.append([block["id"], block["name"], block["input"]])
            case kind:
                raise AssertionError(f"a block of no known kind: {kind}")
    if value["stop_reason"] is not None:
        received.finish = REASONS.get(value["stop_reason"], "stop")  # new ones come as they are


READERS: dict[str, tuple[Any, Any, Any]] = {
    "chat": (_chat_stream, _chat_whole, error_object),
    "responses": (_responses_stream, _responses_whole, error_object),
    "messages": (_messages_stream, _messages_whole, messages_error),
}
"""How a protocol's streams, whole answers and errors are read."""
