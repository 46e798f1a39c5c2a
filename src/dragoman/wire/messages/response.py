"""Messages answers for clients, whole and streamed, with usage, errors and the model listing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.core.error import TOO_LONG, Fault
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Started,
)
from dragoman.core.interfaces import Model
from dragoman.core.item import (
    JSON,
    Audio,
    CustomToolCall,
    FunctionCall,
    Item,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import Request
from dragoman.core.response import Response, Usage
from dragoman.wire import error, json, sse
from dragoman.wire.json import merge
from dragoman.wire.pieces import LONG, Long
from dragoman.wire.protocol import Dialect

from .blocks import (
    NAME,
    encode_call,
    encode_citation,
    encode_item,
    encode_thinking,
    from_extra,
    is_search,
    restore,
    to_extra,
)

ID_PREFIX = "msg_"
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""The stop reasons, by our own; any other is `end_turn`."""
REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Our own reasons, by those of the protocol."""
STOPPED: dict[str, type] = {"stop_reason": str, "stop_sequence": str, "stop_details": dict}
"""The fields of the end of an answer; a stream has them in its `message_delta`."""


# ---- usage -------------------------------------------------------------------------------

_COUNTED = frozenset(
    {
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "output_tokens_details",
    }
)


def decode_usage(given: dict[str, JSON]) -> Usage | None:
    """The reported counts. On this wire input tokens exclude cached ones; the
    core counts all of them.

    >>> decode_usage({"input_tokens": 3, "cache_read_input_tokens": 4}).input_tokens
    7
    """
    if not given:
        return None
    read, written = (
        json.whole(given.get(f"cache_{how}_input_tokens")) for how in ("read", "creation")
    )
    asked, answered = (json.whole(given.get(f"{way}_tokens")) for way in ("input", "output"))
    if asked is not None:
        asked += (read or 0) + (written or 0)
    details = given.get("output_tokens_details")
    left = dict(details) if isinstance(details, dict) else {}
    thought = json.whole(left.pop("thinking_tokens", None))
    rest = {k: v for k, v in given.items() if k not in _COUNTED and v is not None}
    if left:
        rest["output_tokens_details"] = left
    return Usage(
        input_tokens=asked,
        output_tokens=answered,
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=thought,
        extra=to_extra(rest),
    )


def encode_usage(usage: Usage | None, searches: int = 0) -> dict[str, JSON]:
    """The counts under the protocol's names; two of them are required. `searches` are
    the web searches of our server."""
    usage = usage or Usage()
    read, written = usage.cached_tokens, usage.cache_write_tokens
    fresh = (usage.input_tokens or 0) - (read or 0) - (written or 0)
    counted: dict[str, JSON] = {"input_tokens": max(fresh, 0)}
    if written is not None:
        counted["cache_creation_input_tokens"] = written
    if read is not None:
        counted["cache_read_input_tokens"] = read
    counted["output_tokens"] = usage.output_tokens or 0
    if usage.reasoning_tokens is not None:
        counted["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    if searches:
        counted["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
    return restore(counted, usage.extra)


# ---- whole answers -----------------------------------------------------------------------


def encode_response(response: Response, request: Request, dialect: Dialect) -> bytes:
    """The body of an answer."""
    items = response.choice(0)
    called = any(isinstance(item, FunctionCall | CustomToolCall) for item in items)
    content = [block for item in items for block in encode_item(item)]
    usage = encode_usage(response.usage, sum(map(is_search, items)))
    body = _opening(response.id, response.model, usage) | {"content": content}
    body |= _stopped(response, called, from_extra(response.extra), request)
    return json.dump(restore(body, response.extra))


def _opening(id: str, model: str, usage: dict[str, JSON]) -> dict[str, JSON]:
    return {
        "id": ID_PREFIX + id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _stopped(
    end: Response | Finished, called: bool, own: dict[str, JSON], request: Request
) -> dict[str, JSON]:
    """Why an answer ended, with the upstream's own fields. `tool_use` is sent only for an answer
    with calls, whatever the upstream reports: Claude Code asks for missing calls without end. A
    stop string is named if it is one of the request's: some servers put other texts there."""
    own = {name: value for name, value in own.items() if name in STOPPED}
    reason, stop = end.reasons[0] if end.reasons else "stop", end.stop_sequence
    if reason in ("stop", "tool_calls"):
        reason = "tool_calls" if called else "stop"
    stopped = STOP_REASONS.get(reason, "end_turn")
    if stopped != "end_turn" or stop not in (request.sampling.stop or ()):
        stop = None
    return {"stop_reason": "stop_sequence" if stop else stopped, "stop_sequence": stop, **own}


# ---- streams -----------------------------------------------------------------------------


class _Block:
    """A content block: its first event, and the queued deltas.

    One that is not `wanted` opens with its first delta, or never.
    """

    __slots__ = ("deltas", "done", "number", "opening", "wanted")

    def __init__(self, opening: dict[str, JSON], *, wanted: bool = False) -> None:
        self.opening = opening
        self.wanted = wanted
        self.deltas: list[bytes] = []
        self.number: int | None = None
        self.done = False


class _Item:
    """An item, and its blocks that are not complete. `own` is the block of a call or of reasoning;
    `odd` says that a call's arguments are no object."""

    __slots__ = ("blocks", "done", "gap", "odd", "own", "parts")

    def __init__(self, item: Item) -> None:
        self.blocks: list[_Block] = []
        self.parts: dict[int, _Block] = {}
        self.own: _Block | None = None
        self.odd: bool | None = None
        self.gap = False  # another part of the thinking begins
        self.done = False
        match item:
            case Reasoning():
                opening: dict[str, JSON] = {"type": "thinking", "thinking": "", "signature": ""}
                self.own = self._add(restore(opening, item.extra) | opening)
            case FunctionCall() | CustomToolCall():
                self.own = self._add(encode_call(item) | {"input": {}}, wanted=True)
                if isinstance(item, CustomToolCall):
                    self.own.deltas.append(_arguments('{"input":"'))

    def read(self, event: PartAdded | Delta | PartDone | ItemDone) -> None:
        """The event's additions to the blocks."""
        own = self.own
        match event:
            case Delta():
                block = own or self.parts.get(event.part_index)
                if block is not None and event.data:
                    self._delta(block, event)
            case PartAdded(part=Thought() | Summary()):
                self.gap = own is not None and bool(own.deltas or own.number is not None)
            case PartAdded(part=Text() | Refusal() | Audio() as part):
                opening: dict[str, JSON] = {"type": "text", "text": ""}
                self.parts[event.part_index] = self._add(restore(opening, part.extra))
            case PartDone(part=UnknownPart(wire=wire, value=value)) if wire == NAME:
                self._add(value, wanted=True).done = True
            case PartDone():
                if (block := self.parts.get(event.part_index)) is not None:
                    block.done = True
            case ItemDone():
                self._complete(event.item, own)
                self.end()

    def end(self) -> None:
        """Complete the blocks."""
        self.done = True
        for block in self.blocks:
            block.done = True

    def _add(self, opening: dict[str, JSON], *, wanted: bool = False) -> _Block:
        block = _Block(opening, wanted=wanted)
        self.blocks.append(block)
        return block

    def _delta(self, block: _Block, event: Delta) -> None:
        data = event.data
        match event.kind:
            case "text" | "refusal" | "transcript":
                block.deltas.append(_delta(b"text_delta", b"text", data))
            case "reasoning" | "summary":
                if self.gap:
                    block.deltas.append(_delta(b"thinking_delta", b"thinking", "\n\n"))
                    self.gap = False
                block.deltas.append(_delta(b"thinking_delta", b"thinking", data))
            case "arguments":
                if self.odd is None and (begun := data.lstrip()):
                    self.odd = begun[0] != "{"
                if self.odd is False:  # Anthropic's SDK cannot read white space alone
                    block.deltas.append(_arguments(data))
            case "input":
                block.deltas.append(_arguments(json.text(data)[1:-1]))
            case "annotation":
                if (citation := encode_citation(data)) is not None:
                    delta = json.dump({"type": "citations_delta", "citation": citation})
                    block.deltas.append(delta)

    def _complete(self, item: Item, own: _Block | None) -> None:
        """Fields that only the complete item has."""
        match item:
            case Reasoning() if own is not None:
                block = encode_thinking(item)
                if block["type"] == "redacted_thinking":
                    own.opening, own.wanted = block, True
                elif signature := block["signature"]:
                    own.deltas.append(_delta(b"signature_delta", b"signature", signature))
            case FunctionCall() if own is not None and self.odd:
                own.deltas.append(_arguments(json.text(encode_call(item)["input"])))
            case CustomToolCall() if own is not None:
                own.deltas.append(_arguments('"}'))
            case Unknown():
                for whole in encode_item(item):
                    self._add(whole, wanted=True)


class Encoder:
    """Encodes the events of one answer. One block is open at a time: deltas of later ones
    are queued until the earlier ones are complete."""

    def __init__(self, request: Request, dialect: Dialect) -> None:
        self._request = request
        self._items: list[_Item] = []  # by index
        self._waiting: list[_Item] = []  # those that are not complete; the first is sent
        self._blocks = 0  # that were opened
        self._searches = 0
        self._called = False
        self._begun = False
        self._over = False
        self._own: dict[str, JSON] = {}  # fields of the upstream's `message_start`

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events."""
        encoded: list[bytes] = []
        for event in events:
            match event:
                case Delta() | PartAdded() | PartDone():
                    self._items[event.index].read(event)
                case ItemDone():
                    self._items[event.index].read(event)
                    self._searches += is_search(event.item)
                case ItemAdded():
                    self._items.append(_Item(event.item))
                    if not event.choice:  # those of the others are never sent
                        self._waiting.append(self._items[-1])
                        self._called |= isinstance(event.item, FunctionCall | CustomToolCall)
                case Started():
                    self._begun, self._own = True, from_extra(event.extra)
                    more = {k: v for k, v in self._own.items() if k not in STOPPED}
                    message = merge(_opening(event.id, event.model, encode_usage(None)), more)
                    encoded.append(_frame("message_start", {"message": message}))
                case Finished():
                    self._send(encoded)
                    self._finish(event, encoded)
                case Failed():
                    # An incomplete call stays open: clients run those that are closed.
                    for item in self._waiting:
                        if item.own is None or item.own.opening["type"] != "tool_use":
                            item.end()
                    self._send(encoded)
                    self._over = True
                    encoded.append(_frame("error", {"error": error_object(event.fault)}))
        self._send(encoded)
        return b"".join(encoded)

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A `ping`, which every client of this protocol ignores."""
        return _frame("ping", {}) if self._begun and not self._over else b""

    def _finish(self, event: Finished, encoded: list[bytes]) -> None:
        self._over = True
        late = from_extra(event.extra)
        delta = _stopped(event, self._called, self._own | late, self._request)
        kind, usage = "message_delta", encode_usage(event.usage, self._searches)
        fields: dict[str, JSON] = {"type": kind, "delta": delta, "usage": usage}
        for name, value in late.items():
            if name not in STOPPED:
                (delta if name == "container" else fields).setdefault(name, value)
        encoded += (_frame(kind, fields), _frame("message_stop", {}))

    def _send(self, encoded: list[bytes]) -> None:
        """Send the available deltas of the first incomplete blocks."""
        while self._waiting:
            item = self._waiting[0]
            while item.blocks:
                block = item.blocks[0]
                if block.number is None and (block.deltas or block.wanted):
                    block.number, self._blocks = self._blocks, self._blocks + 1
                    start: dict[str, JSON] = {"content_block": block.opening}
                    encoded.append(_frame("content_block_start", {"index": block.number} | start))
                if block.deltas:
                    head = b'event: content_block_delta\ndata: {"type":"content_block_delta",'
                    head += b'"index":%d,"delta":' % (block.number or 0)
                    encoded += [head + delta + b"}\n\n" for delta in block.deltas]
                    block.deltas.clear()
                if not block.done:
                    return
                if block.number is not None:
                    encoded.append(_frame("content_block_stop", {"index": block.number}))
                del item.blocks[0]
            if not item.done:
                return
            del self._waiting[0]


def _frame(kind: str, fields: dict[str, JSON]) -> bytes:
    return sse.frame(json.dump({"type": kind, **fields}), kind)


def _delta(kind: bytes, name: bytes, text: str) -> bytes:
    data = json.dump(text if len(text) <= LONG else Long(text))
    return b'{"type":"%b","%b":%b}' % (kind, name, data)


def _arguments(piece: str) -> bytes:
    return _delta(b"input_json_delta", b"partial_json", piece)


# ---- errors ------------------------------------------------------------------------------

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The type of an error, by its status."""
OVERLOADED = 529
_TOO_LONG = TOO_LONG, "exceed_context_size_error"
"""The codes and types of other protocols for a prompt that exceeds the context."""
_PREFIX = "prompt is too long: "


def encode_error(fault: Fault, request_id: str) -> tuple[int, bytes]:
    """The status and the body of an error response."""
    body = {"type": "error", "error": error_object(fault), "request_id": request_id}
    return _status(fault), json.dump(body)


def error_object(fault: Fault) -> dict[str, JSON]:
    """The type and the message, and the upstream's extra fields.

    >>> error_object(Fault("overloaded", "Later."))
    {'type': 'overloaded_error', 'message': 'Later.'}
    """
    status, message = _status(fault), fault.message
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    exceeds = fault.upstream_code in _TOO_LONG or fault.upstream_type in _TOO_LONG
    if exceeds and not message.startswith(_PREFIX):
        # This protocol has no code for it: agents match this text, and compact.
        counts = sorted(re.findall(r"\b\d{3,}\b", message)[:2], key=int, reverse=True)
        size = "{} tokens > {} maximum. ".format(*counts) if len(counts) == 2 else ""
        message = f"{_PREFIX}{size}{message}"
    return {"type": kind, "message": message, **(fault.extra or {}).get("error", {})}


def _status(fault: Fault) -> int:
    return OVERLOADED if fault.code == "overloaded" else error.status(fault)


# ---- models ------------------------------------------------------------------------------


def encode_model(model: Model) -> bytes:
    """One model, as `GET /models/{id}` shows it."""
    return json.dump(_model(model))


def encode_models(models: Sequence[Model]) -> bytes:
    """All models, on one page."""
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    listing = {"data": [_model(model) for model in models], "has_more": False}
    return json.dump({**listing, "first_id": first, "last_id": last})


_CONTEXT = ("max_input_tokens", "context_window", "max_model_len", "context_length")
"""What engines and servers call the size of a context in their listings."""


def _model(model: Model) -> dict[str, JSON]:
    own = (model.extra or {}).get("models", {})
    sizes = [size for name in _CONTEXT if type(size := own.get(name)) is int]
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": _date(model.created),
        "lifecycle": "active",
        **({"max_input_tokens": sizes[0]} if sizes else {}),
    }


def _date(seconds: int) -> str:
    """A time as RFC 3339 has it, without the module that also knows what time it is.

    >>> _date(0), _date(1_767_225_599)
    ('1970-01-01T00:00:00Z', '2025-12-31T23:59:59Z')
    """
    days, rest = divmod(max(seconds, 0), 86_400)
    # Counted from the first of March of the year 0, so that a leap day is the last of its year.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day += 1 - (153 * month + 2) // 5
    year += 400 * era + (month > 9)
    month = month - 9 if month > 9 else month + 3
    clock = f"{rest // 3_600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{year:04}-{month:02}-{day:02}T{clock}Z"
