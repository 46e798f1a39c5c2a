"""A server that speaks Anthropic's Messages: any content, whole and as a stream.

It is written from the protocol and uses none of the package. One delta is one word; an answer to a
request that Anthropic's server would refuse is that refusal.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.mock import Asked, Reply, head, plain
from tests.sdk.behind import Player
from tests.wire.messages.schema import check_request

JSON = dict[str, Any]

USAGE = {
    "input_tokens": 9,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 2,
    "output_tokens": 4,
}


def blocks(*content: JSON, reason: str = "end_turn", usage: JSON = USAGE) -> Player:
    """A handler that gives this content to whoever asks, in the form that was asked for."""
    message = {
        "id": "msg_up",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": list(content),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }

    def answer(asked: Asked) -> Reply:
        try:
            check_request(asked.json)
        except (AssertionError, msgspec.ValidationError) as error:
            return refusal(400, "invalid_request_error", repr(error))
        if not asked.json.get("stream"):
            return plain(200, message)
        return Reply([head(200, "connection: close"), *map(_frame, _events(message))])

    return answer


def refusal(status: int, kind: str, message: str, *headers: str) -> Reply:
    """An error in the words of the protocol."""
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_up"}
    return plain(status, error, *headers)


def _frame(event: JSON) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _events(message: JSON) -> Iterator[JSON]:
    usage = {**message["usage"], "output_tokens": 1}
    begun = {**message, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        opening, deltas = _parts(block)
        yield {"type": "content_block_start", "index": index, "content_block": opening}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _parts(block: JSON) -> tuple[JSON, list[JSON]]:
    """A block as it opens, and the deltas that fill it."""
    match block:
        case {"type": "text", "text": text}:
            deltas = [{"type": "text_delta", "text": word} for word in _words(text)]
            return {**block, "text": ""}, deltas
        case {"type": "thinking", "thinking": text, "signature": signature}:
            deltas = [{"type": "thinking_delta", "thinking": word} for word in _words(text)]
            deltas.append({"type": "signature_delta", "signature": signature})
            return {**block, "thinking": "", "signature": ""}, deltas
        case {"type": "tool_use", "input": given}:
            pieces = ["", *_words(json.dumps(given))]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            return {**block, "input": {}}, deltas
        case _:
            return block, []


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*", text)


# ---- content -----------------------------------------------------------------------------


def text(said: str) -> JSON:
    return {"type": "text", "text": said}


def thinking(said: str, signature: str) -> JSON:
    return {"type": "thinking", "thinking": said, "signature": signature}


def tool_use(name: str, given: JSON, number: int = 1) -> JSON:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}
