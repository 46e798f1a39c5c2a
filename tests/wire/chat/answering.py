"""Short ways to write answers down: as chunks, as bytes in pieces, and as what was heard."""

import json
from collections.abc import Iterable
from typing import Any

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed
from dragoman.core.fold import fold, unfold
from dragoman.core.item import FunctionCall, Item, Message
from dragoman.core.lifecycle import check
from dragoman.core.request import Request, StreamOptions
from dragoman.core.response import Response
from dragoman.core.turn import Think, Turn
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from dragoman.wire.sse import SSEDecoder

DONE = b"data: [DONE]\n\n"
UPSTREAM = {"id": "up-1", "object": "chat.completion.chunk", "created": 7, "model": "big"}

ASKED = Request(model="m", items=(Message("user", "hello"),), stream=True)
WITH_USAGE = Request(
    model="m", items=ASKED.items, stream=True, stream_options=StreamOptions(include_usage=True)
)


def chunk(
    delta: Any = None, finish: Any = None, *, index: Any = 0, choice: Any = None, **fields: Any
) -> dict[str, Any]:
    """A chunk with one choice; `choice` has more fields of the choice, `fields` of the chunk."""
    said = {"index": index, "delta": delta or {}, "finish_reason": finish, **(choice or {})}
    return {**UPSTREAM, "choices": [said], **fields}


def sse(*chunks: Any, done: bool = True) -> bytes:
    """The chunks as a stream; bytes stand as the data they are."""
    data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in chunks]
    return b"".join(b"data: " + each + b"\n\n" for each in data) + (DONE if done else b"")


def whole(message: Any = None, finish: Any = "stop", *, choice: Any = None, **fields: Any) -> bytes:
    """A whole answer with one choice."""
    said = {"index": 0, "message": message, "finish_reason": finish, **(choice or {})}
    return json.dumps(
        {**UPSTREAM, "object": "chat.completion", "choices": [said], **fields}
    ).encode()


def hear(*pieces: bytes, think: Think = "inline") -> list[Event]:
    """The events of an answer that came in these pieces; they are legal, or the test fails."""
    decoder = CHAT.decoder(Turn("R", 5, "m", think=think))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check(events)
    assert decoder.ended
    return events


def heard(*chunks: Any, done: bool = True, think: Think = "inline") -> Response:
    """The answer that these chunks add up to."""
    return fold(hear(sse(*chunks, done=done), think=think))


def read(body: bytes) -> Response:
    """The answer in a body that came whole."""
    return fold(hear(body))


def output(*chunks: Any, done: bool = True) -> tuple[Item, ...]:
    return heard(*chunks, done=done).output


def failed(*pieces: bytes) -> Fault:
    """The fault with which an answer ends."""
    last = hear(*pieces)[-1]
    assert isinstance(last, Failed), last
    return last.fault


def tell(events: Iterable[Event], request: Request = ASKED, dialect: Dialect = STANDARD) -> bytes:
    """The stream that says these events."""
    encoder = CHAT.encoder(request, dialect)
    return b"".join(encoder.feed((event,)) for event in events)


def told(response: Response, request: Request = ASKED, dialect: Dialect = STANDARD) -> bytes:
    """The stream of an answer that is known whole."""
    return tell(unfold(response), request, dialect)


def chunks(stream: bytes) -> list[Any]:
    """What a stream says, event by event; `[DONE]` as text."""
    decoder = SSEDecoder()
    events = decoder.feed(stream)
    assert decoder.close() == []
    return [
        "[DONE]" if data == b"[DONE]" else json.loads(data) for name, data in events if not name
    ]


def deltas(stream: bytes, index: int = 0) -> list[dict[str, Any]]:
    """The deltas of one choice that say something."""
    choices = [c for each in chunks(stream) if isinstance(each, dict) for c in each["choices"]]
    return [c["delta"] for c in choices if c["index"] == index and c["delta"]]


def body(response: Response, request: Request = ASKED, dialect: Dialect = STANDARD) -> Any:
    """The answer said whole."""
    return json.loads(CHAT.encode_response(response, request, dialect))


def gathered(stream: bytes) -> Any:
    """A stream put together by a reader that knows nothing but the protocol."""
    total: dict[str, Any] = {}
    for each in chunks(stream):
        if isinstance(each, dict) and "error" not in each:
            total |= {k: v for k, v in each.items() if k not in ("choices", "usage")}
            if each.get("usage"):
                total["usage"] = each["usage"]
            for choice in each["choices"]:
                _gather_choice(total.setdefault("choices", {}), choice)
    choices = total.get("choices", {})
    return total | {"choices": [choices[number] for number in sorted(choices)]}


def _gather_choice(choices: dict[int, Any], piece: dict[str, Any]) -> None:
    choice = choices.setdefault(piece["index"], {"message": {}, "logprobs": None})
    assert choice.get("finish_reason") is None, "something came after the finish reason"
    _add(choice["message"], piece.pop("delta"))
    weighed = piece.pop("logprobs")
    if weighed is not None:
        have = choice["logprobs"] = choice["logprobs"] or {"content": None, "refusal": None}
        for kind, tokens in weighed.items():
            if tokens is not None:
                have[kind] = (have[kind] or []) + tokens
    choice.update(piece)


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        have = message.get(name)
        if name == "tool_calls":
            calls = message.setdefault(name, [])
            for fragment in value:
                index = fragment.pop("index")
                assert index <= len(calls), "a call with a gap before it"
                if index == len(calls):
                    calls.append({})
                _add(calls[index], fragment)
        elif name == "annotations":
            for note in value:
                place = note.pop("index", None)
                assert place == len(have or ()) or note["type"] != "url_citation"
                have = message.setdefault(name, [])
                have.append(note)
        elif have is None:
            message[name] = value
        elif isinstance(value, dict):
            _add(have, value)
        elif isinstance(value, str | list):
            message[name] = have + value
        else:
            assert value is None or value == have


# ---- the commonest pieces ----------------------------------------------------------------

TEXT = chunk({"role": "assistant", "content": "Hi"})
STOP = chunk({}, "stop")
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def call(**fragment: Any) -> dict[str, Any]:
    """A chunk with one fragment of a call: `index`, `id`, `name`, `arguments` as given."""
    names = [name for name in ("name", "arguments") if name in fragment]
    function = {name: fragment.pop(name) for name in names}
    return chunk({"tool_calls": [{**fragment, "function": function}]})


def calls(*chunks: Any) -> list[tuple[str, str, str]]:
    """The calls of a stream: id, name, arguments."""
    items = output(*chunks, chunk({}, "tool_calls"))
    return [(i.call_id, i.name, i.arguments) for i in items if isinstance(i, FunctionCall)]
