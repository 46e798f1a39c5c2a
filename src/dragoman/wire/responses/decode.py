"""Decodes Responses answers, streamed and whole, into the events of a turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, Fault, FaultError
from dragoman.core.event import DeltaKind, Event, State
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Summary,
    Text,
    Thought,
    Unknown,
)
from dragoman.core.turn import EMPTY, NAMELESS, Turn
from dragoman.wire import error, json, sse
from dragoman.wire.json import MAX_ANSWER
from dragoman.wire.sse import SSEDecoder

from .encode import STATES
from .items import WIRE, decode_annotation, decode_item, decode_part, decode_tokens, dense
from .response import FIELDS, REASONS, decode
from .tracker import CALLS, ItemState, ItemTracker, LastDelta, Types

_BEFORE = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first byte of a body: a byte order mark, blanks, blank lines."""

_FIELDS = b"deir:"
"""How the lines of a stream begin: data, event, id, retry, or a comment."""

_HEAD = 2048


class Incoming:
    """Feed it bytes; it gives the events of a stream, and keeps everything else.

    >>> incoming = Incoming()
    >>> incoming.feed(b'data: {"n": 1}\\n\\n'), incoming.feed(b"data: 2")
    ([('', b'{"n": 1}')], [])
    >>> incoming.close(), incoming.whole
    ([('', b'2')], None)
    """

    __slots__ = ("_begun", "_head", "_seen", "_sse", "_whole")

    def __init__(self) -> None:
        self._begun = False
        self._sse: SSEDecoder | None = None
        self._whole = bytearray()  # as long as it is no stream
        self._head = b""  # of a stream, as long as no event came
        self._seen = False

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that are whole now. Raises ValueError for what is too large."""
        if not self._begun:
            data = data.lstrip(_BEFORE)
            if data:
                self._begun = True
                self._sse = SSEDecoder() if data[0] in _FIELDS else None
        if self._sse is None:
            self._whole += data
            if len(self._whole) > MAX_ANSWER:
                raise ValueError(f"an answer that is larger than {MAX_ANSWER} bytes")
            return []
        if not self._seen:
            self._head = (self._head + data)[:_HEAD]
        return self._noted(self._sse.feed(data))

    def close(self) -> list[tuple[str, bytes]]:
        """The last event of a stream, if it ended without a blank line."""
        return self._noted(self._sse.close()) if self._sse is not None else []

    @property
    def whole(self) -> bytes | None:
        """What came instead of a stream; of one without a single event, its beginning."""
        if self._sse is None:
            return bytes(self._whole)
        return None if self._seen else self._head

    def _noted(self, events: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        self._seen = self._seen or bool(events)
        return events


_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls, and the field of what they are called with."""

_TEXTUAL = frozenset({"output_text", "refusal", "reasoning_text", "summary_text"})
"""Kinds of content that are words."""


def lenient_item(value: dict[str, JSON]) -> Item:
    """The item that is meant. A call may still have an empty name or call id."""
    said = value.get("type")
    kind = said if isinstance(said, str) else "message"
    try:
        if kind in _CALLS:
            return _call(value, _CALLS[kind])
        return decode_item(_repaired({**value, "type": kind}, kind))
    except FaultError:
        rest = {name: said for name, said in value.items() if name != "type"}
        id = value.get("id")
        return Unknown(WIRE, kind, rest, id if isinstance(id, str) else None)


def _call(value: dict[str, JSON], field: str) -> Item:
    """A call with what it has; the ids it lacks are given to it when it is opened."""
    said = value.get(field)
    text = said if isinstance(said, str) else "" if said is None else json.text(said)
    call_id, name = value.get("call_id") or value.get("id") or "", value.get("name") or ""
    whole = {**value, field: text, "call_id": call_id or "?", "name": name or "?"}
    call = decode_item(whole)
    return replace(call, call_id=call_id, name=name)


def _repaired(value: dict[str, JSON], kind: str) -> dict[str, JSON]:
    match kind:
        case "message":
            role = next((role for role in get_args(Role) if role == value.get("role")), "assistant")
            return {**value, "role": role, "content": _content(value.get("content"), None)}
        case "reasoning":
            content = _content(value.get("content"), "reasoning_text")
            summary = _content(value.get("summary"), "summary_text")
            return {**value, "content": content, "summary": summary}
        case "function_call_output" | "custom_tool_call_output" if value.get("output") is None:
            return {**value, "output": ""}
        case "compaction":
            return {**value, "encrypted_content": value.get("encrypted_content") or ""}
        case _:
            return value


def _content(said: JSON, kind: str | None) -> JSON:
    """Content as a list of pieces; a bare string stays one where no `kind` of piece is wanted."""
    match said:
        case str():
            return said if kind is None else [{"type": kind, "text": said}]
        case list(pieces):
            return [_piece(piece) for piece in pieces if isinstance(piece, dict)]
        case _:
            return []


def _piece(value: dict[str, JSON]) -> dict[str, JSON]:
    said = value.get("type")
    kind = said if isinstance(said, str) else "output_text"
    field = "refusal" if kind == "refusal" else "text"
    if kind in _TEXTUAL and not isinstance(value.get(field), str):
        return {**value, "type": kind, field: ""}
    return {**value, "type": kind}


def lenient_part(value: JSON, kind: str | None = None) -> Part | None:
    """The piece of content that is meant, if there is one; `kind` overrules its own."""
    if not isinstance(value, dict):
        return None
    try:
        return decode_part(_piece({**value, "type": kind} if kind else value))
    except FaultError:
        return None


Fields = dict[str, JSON]
"""One event of the wire, decoded."""

Read = Callable[[ItemTracker, Fields], None]
"""Reads an event into the items."""


class _DeltaEvent(Struct):
    """What matters of a delta. Anything else in it means nothing here."""

    type: str
    delta: str
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: list[Raw] = []


_read_lines = msgspec.json.Decoder(_DeltaEvent).decode_lines


class _Home(Struct, frozen=True):
    """Where something belongs: in an item of one of these types, or in one that is made up."""

    types: Types
    fresh: Item


_MESSAGE = _Home((Message,), Message("assistant"))
_THOUGHT = _Home((Reasoning,), Reasoning())
_ANYWHERE = _Home((Message, Reasoning), Message("assistant"))
_FUNCTION_CALL = _Home(CALLS, FunctionCall("", "", ""))
_CUSTOM_CALL = _Home(CALLS, CustomToolCall("", "", ""))


class _Family(Struct, frozen=True):
    """Events of one kind of delta: what they bring, where to, and the field of the whole."""

    kind: DeltaKind
    home: _Home
    whole: str
    number: str = "content_index"


_TEXT = _Family("text", _MESSAGE, "text")
_REFUSAL = _Family("refusal", _MESSAGE, "refusal")
_REASONING = _Family("reasoning", _THOUGHT, "text")
_SUMMARY = _Family("summary", _THOUGHT, "text", "summary_index")
_FUNCTION = _Family("arguments", _FUNCTION_CALL, "arguments")
_CUSTOM = _Family("input", _CUSTOM_CALL, "input")

_FAMILIES = {
    "output_text": _TEXT,
    "refusal": _REFUSAL,
    "reasoning_text": _REASONING,
    "reasoning": _REASONING,
    "reasoning_summary_text": _SUMMARY,
    "reasoning_summary": _SUMMARY,
    "function_call_arguments": _FUNCTION,
    "custom_tool_call_input": _CUSTOM,
}
_PARTS = {
    "content_part": None,
    "reasoning_part": "reasoning_text",
    "reasoning_summary_part": "summary_text",
}
"""Families of parts, and the kind all their parts are of."""

_HOMES: dict[type, _Home] = {
    Text: _MESSAGE,
    Refusal: _MESSAGE,
    Thought: _THOUGHT,
    Summary: _THOUGHT,
}
_STATES: dict[str, State] = {STATES.get(state, state): state for state in get_args(State)}
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_ADDRESS = ("type", "item_id", "output_index", "sequence_number")


def _item_of(items: ItemTracker, fields: Fields, home: _Home) -> ItemState:
    """The item an event is about, made up where it was never announced."""
    id, place = fields.get("item_id"), fields.get("output_index")
    state = items.find(id, place, home.types)
    if state is None:
        fresh = replace(home.fresh, id=id if isinstance(id, str) else None)
        state = items.add(fresh, place)
    return state


def _delta(family: _Family) -> Read:
    def read(items: ItemTracker, fields: Fields) -> None:
        delta = fields.get("delta")
        if isinstance(delta, str):
            probabilities = fields.get("logprobs")
            tokens = decode_tokens(probabilities) if probabilities else ()
            state = _item_of(items, fields, family.home)
            number = fields.get(family.number)
            target = state.write(family.kind, delta, number, tokens)
            if target is not None:
                place = (fields.get("item_id"), fields.get("output_index"), number)
                items.last_delta = family.number, place, target

    return read


def _whole(family: _Family) -> Read:
    def read(items: ItemTracker, fields: Fields) -> None:
        text = fields.get(family.whole)
        if isinstance(text, str) and text:
            state = _item_of(items, fields, family.home)
            state.name(fields.get("name"), fields.get("call_id"))
            tokens = decode_tokens(fields.get("logprobs"))
            state.whole(family.kind, text, fields.get(family.number), tokens)

    return read


def _part(kind: str | None, then: Callable[[ItemState, Part, JSON], None]) -> Read:
    def read(items: ItemTracker, fields: Fields) -> None:
        part = lenient_part(fields.get("part"), kind)
        if part is not None:
            given = fields.get("summary_index", fields.get("content_index"))
            then(_item_of(items, fields, _HOMES.get(type(part), _ANYWHERE)), part, given)

    return read


def _annotation(items: ItemTracker, fields: Fields) -> None:
    value = fields.get("annotation")
    if isinstance(value, dict):
        state = _item_of(items, fields, _MESSAGE)
        state.annotate(decode_annotation(value), fields.get("content_index"))


def _item_added(items: ItemTracker, fields: Fields) -> None:
    value = fields.get("item")
    if isinstance(value, dict):
        items.add(lenient_item(value), fields.get("output_index"))


def _item_done(items: ItemTracker, fields: Fields) -> None:
    value = fields.get("item")
    if isinstance(value, dict):
        item, place = lenient_item(value), fields.get("output_index")
        state = items.find(item.id, place, (type(item),)) or items.add(item, place)
        state.end(item)


def _progress(items: ItemTracker, name: str, fields: Fields) -> None:
    """Progress of a hosted tool; or something we do not know, kept as it is.

    A name that could break out of its line is not repeated, and so neither is what it names.
    """
    if not _NAME.fullmatch(name):
        return
    state = items.any(fields.get("item_id"), fields.get("output_index"))
    index = None if state is None else state.index
    family, _, word = name.removeprefix("response.").rpartition(".")
    if state is not None and state.kind == family and word in _STATES:
        data = {field: value for field, value in fields.items() if field not in _ADDRESS}
        items.turn.progress(index, _STATES[word], data or None)
    else:
        kept = {field: value for field, value in fields.items() if field != "sequence_number"}
        items.turn.progress(index, "raw", {WIRE: {**kept, "type": name}})


_READ: dict[str, Read] = {
    "response.output_item.added": _item_added,
    "response.output_item.done": _item_done,
    "response.output_text.annotation.added": _annotation,
    **{f"response.{name}.delta": _delta(family) for name, family in _FAMILIES.items()},
    **{f"response.{name}.done": _whole(family) for name, family in _FAMILIES.items()},
    **{
        f"response.{name}.added": _part(kind, ItemState.begin_part) for name, kind in _PARTS.items()
    },
    **{f"response.{name}.done": _part(kind, ItemState.end_part) for name, kind in _PARTS.items()},
}
"""Every event about items, and what reads it."""


_BEGINNINGS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
    "response.failed": "failed",
}
"""Terminal events, and the status of a response that does not say its own."""

_REASONS = {theirs: ours for ours, theirs in REASONS.items()}
_TIERS = frozenset({"auto", "default"})
"""Service tiers that are no news to a client."""

_SILENT = Fault("upstream_error", "The model's server failed and did not say why.", "upstream")


class Decoder:
    """Decodes the bytes of one answer.

    >>> decoder = Decoder(Turn("1", 0, "m"))
    >>> (event,) = decoder.feed(b'data: {"type": "response.created", "response": {}}\\n\\n')
    >>> event.id, event.model
    ('1', 'm')
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._incoming = Incoming()
        self._items = ItemTracker(turn)
        self._type = ""  # of the last event, and how its frame began
        self._label = b""
        self._whole_frames = False  # nothing of a frame waits for the rest of it
        self._known: Fields = {}  # unknown fields of the response that were passed on already
        self._fault: Fault | None = None  # in an event of its own, before the response fails
        self._done = False  # `[DONE]` was read

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        events: list[Event] = []
        alike = True  # whether deltas may be like the last one
        while data and not self._turn.over:
            last = self._items.last_delta
            if last is not None and alike and self._whole_frames:
                rest = self._read_deltas(last, data, events)
                alike, data = len(rest) < len(data), rest
                continue
            end = _end_of_delta(data, self._whole_frames) if alike else len(data)
            self._read_events(data[:end])
            self._whole_frames = data[end - 2 : end] == b"\n\n"
            data = data[end:]
            events += self._turn.take()
        return events

    def _read_events(self, data: bytes) -> None:
        try:
            for name, encoded in self._incoming.feed(data):
                self._event(name, encoded)
        except ValueError as problem:
            message = f"The model's server sent what cannot be read: {problem}."
            self._turn.fail(Fault("upstream_error", message, "upstream"))

    def _read_deltas(self, last: LastDelta, data: bytes, events: list[Event]) -> bytes:
        """Read the deltas like the last one that the bytes begin with, typed and at once, as most
        of a stream is such deltas. Gives the bytes after them, which are read one by one."""
        number, place, (item, kind, part) = last
        label, frames = self._label, data.split(b"\n\n")
        frames.pop()  # which is not whole, or empty
        lines = []
        for frame in frames:
            if not frame.startswith(label):
                break
            lines.append(frame[len(label) :])
        joined = b"\n".join(lines)
        if joined.count(b"\n") >= len(lines) or b"\r" in joined or len(data) > sse.MAX_EVENT:
            return data  # some frame has more than one line, or may be too large
        try:
            deltas = _read_lines(joined)
        except json.BROKEN:
            return data
        count = 0
        for delta in deltas:
            given = delta.content_index if number == "content_index" else delta.summary_index
            if (delta.item_id, delta.output_index, given) != place or delta.type != self._type:
                break
            if delta.logprobs:
                break
            events += item.write(kind, delta.delta, part)
            count += 1
        return data[sum(map(len, frames[:count])) + 2 * count :]

    def close(self) -> list[Event]:
        """No more bytes will come: what was not ended is ended now, as what it is."""
        if not self._turn.over:
            self._close()
        return self._turn.take()

    def _close(self) -> None:
        for name, said in self._incoming.close():
            self._event(name, said)
        whole = self._incoming.whole
        if whole is not None and not self._turn.over:
            self._whole(whole)
        if self._fault is not None:
            self._turn.fail(self._fault)
        elif self._done and self._turn.has_output:
            self._complete("completed", {})
        self._turn.fail(CUT)

    @property
    def ended(self) -> bool:
        """Whether the wire said that the answer is over."""
        return self._turn.over or self._done or self._fault is not None

    # ---- events --------------------------------------------------------------------------

    def _event(self, name: str, data: bytes) -> None:
        if data == sse.END:
            self._done = True
            return
        try:
            fields = json.load(data)
        except ValueError:
            self._repair(name, data)
            return
        if isinstance(fields, dict) and not self._turn.over:
            kind = fields.get("type")
            self._type = kind if isinstance(kind, str) else name
            self._label = f"event: {name}\ndata: ".encode() if name else b"data: "
            self._items.last_delta = None
            self._read(self._type, fields)

    def _repair(self, name: str, data: bytes) -> None:
        """Several events with no blank line between are taken apart. Anything else is passed
        over: what it said comes again when its part, its item or the answer is done."""
        lines = data.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                self._event(name, line)

    def _read(self, name: str, fields: Fields) -> None:
        read = _READ.get(name)
        if read is not None:
            read(self._items, fields)
        elif name in _BEGINNINGS:
            self._header(_dict(fields.get("response")))
        elif name in _ENDS:
            self._end(_dict(fields.get("response")), _ENDS[name])
        elif name == "error" or (not name and fields.get("error")):
            said = {n: v for n, v in fields.items() if n not in ("type", "sequence_number")}
            self._fault = error.describe(said) or CUT
        elif name:
            _progress(self._items, name, fields)
        elif fields.get("object") == "response":
            self._end(fields, "failed")

    def _whole(self, data: bytes) -> None:
        """An answer that is no stream."""
        try:
            value = json.load(data) if data else {}
        except ValueError:
            value = data.decode("utf-8", "replace")
        if isinstance(value, dict) and isinstance(value.get("output"), list):
            self._end(value, "completed")
        elif value:
            self._turn.fail(error.describe(value) or error.decode(200, data))
        else:
            self._turn.fail(EMPTY)

    # ---- the response --------------------------------------------------------------------

    def _header(self, response: Fields) -> None:
        """What a snapshot says of the whole: who answers, what was counted, what is unknown."""
        said = {n: v for n, v in dense(response).items() if n not in FIELDS}
        if isinstance(tier := response.get("service_tier"), str) and tier not in _TIERS:
            said["service_tier"] = tier
        news = {name: v for name, v in said.items() if self._known.get(name) != v}
        self._known |= news
        extra = {WIRE: news} if news else {}
        own = dense({name: response.get(name) for name in ("id", "created_at")})
        if own and not self._turn.started:
            extra["upstream"] = own
        model = response.get("model")
        self._turn.header(model if isinstance(model, str) else None, extra)
        self._turn.usage = decode(response.get("usage")) or self._turn.usage

    def _end(self, response: Fields, status: str) -> None:
        """The response is over, in the way it says itself or else as the event is called."""
        said = response.get("status")
        status = said if isinstance(said, str) else status
        failed = status in ("failed", "in_progress", "queued")
        self._header(response)
        output = response.get("output")
        items = output if isinstance(output, list) else []
        self._items.reconcile(
            [lenient_item(v) for v in items if isinstance(v, dict)], failed=failed
        )
        if failed:
            said = response.get("error") and error.describe({"error": response["error"]})
            self._turn.fail(said or self._fault or (_SILENT if status == "failed" else CUT))
        else:
            self._complete(status, response)

    def _complete(self, status: str, response: Fields) -> None:
        if self._items.nameless:
            self._turn.fail(NAMELESS)
        elif status == "incomplete":
            reason = _dict(response.get("incomplete_details")).get("reason")
            word = reason if isinstance(reason, str) else "max_output_tokens"
            self._turn.complete("incomplete", (_REASONS.get(word, word),))
        elif status == "cancelled":
            self._turn.complete("cancelled", ("stop",))
        else:
            reasons = ("tool_calls" if self._items.called else "stop",)
            self._turn.complete("completed", reasons, json.whole(response.get("completed_at")))


def _end_of_delta(data: bytes, whole_frames: bool) -> int:
    """Where the first frame with a delta ends, after which there may be more like it; or, where a
    frame has begun before, the end of that."""
    start = data.find(b'.delta"') if whole_frames else 0
    end = data.find(b"\n\n", start) if start >= 0 else -1
    return end + 2 if end >= 0 else len(data)


def _dict(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}
