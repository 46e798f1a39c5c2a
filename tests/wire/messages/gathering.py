"""Reads a stream of Messages as its clients do, and checks the order of its events."""

import json
from typing import Any

from dragoman.core.item import Message
from dragoman.core.request import Request, Sampling
from tests.wire.messages.schema import check_event

ASKED = Request(
    model="m",
    items=(Message("user", "?"),),
    sampling=Sampling(stop=("END", "\n")),
    stream=True,
)

_EMPTY = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def frames(stream: bytes) -> list[dict[str, Any]]:
    """The events; each is named as its data is."""
    found = []
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        check_event(event)
        found.append(event)
    return found


def gathered(stream: bytes) -> dict[str, Any]:
    """The message that a stream adds up to. One block is open at a time, with the next number; the
    message begins first and stops last, or fails with the event in `error`; then a call is left
    open, since readers run those that are closed."""
    first, *events = frames(stream)
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    assert message["content"] == []
    block: dict[str, Any] | None = None
    pieces: list[str] = []
    if events[-1]["type"] == "error":
        message["error"] = events.pop()
    else:
        assert events.pop() == {"type": "message_stop"}
        assert events[-1]["type"] == "message_delta"
        last = events.pop()
        beside = {k: v for k, v in last.items() if k not in ("type", "delta", "usage")}
        message |= last["delta"] | beside
        message["usage"] |= last["usage"]
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert block is None
                assert event["index"] == len(message["content"])
                block, pieces = event["content_block"], []
                for name, empty in _EMPTY.get(block["type"], {}).items():
                    assert block[name] == empty
            case "content_block_delta":
                assert block is not None
                assert event["index"] == len(message["content"])
                match event["delta"]:
                    case {"type": "text_delta", "text": text}:
                        block["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        block["thinking"] += text
                    case {"type": "signature_delta", "signature": text}:
                        block["signature"] += text
                    case {"type": "input_json_delta", "partial_json": piece}:
                        pieces.append(piece)
                    case {"type": "citations_delta", "citation": citation}:
                        block.setdefault("citations", []).append(citation)
                    case delta:
                        raise AssertionError(f"a delta of no known kind: {delta}")
            case "content_block_stop":
                assert block is not None
                assert event["index"] == len(message["content"])
                message["content"].append(_closed(block, pieces))
                block = None
            case "ping":
                pass
            case kind:
                raise AssertionError(f"an event out of order: {kind}")
    if block is not None:
        assert "error" in message
        assert block["type"] == "tool_use"
        message["content"].append(_closed(block, pieces))
    return message


def _closed(block: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    """The block, with its input if it is a call; half of one, which a limit cut, is put into an
    object."""
    if block["type"] == "tool_use":
        text = "".join(pieces)
        try:
            block["input"] = json.loads(text or "{}")
        except ValueError:
            block["input"] = {"input": text}
    return block
