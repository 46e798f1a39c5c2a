"""Decodes Responses answers, streamed and whole, into the events of a turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
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
    Summary,
    Text,
    Thought,
    Unknown,
)
from dragoman.core.turn import CUT, EMPTY, NAMELESS, Turn
from dragoman.wire import error, json, sse
from dragoman.wire.json import MAX_ANSWER
from dragoman.wire.sse import SSEDecoder

from .encode import STATES
from .items import ROLES, WIRE, decode_annotation, decode_items, decode_parts, decode_tokens, dense
from .response import FIELDS, REASONS, decode
from .tracker import CALLS, Heard, Hearing, Types

_BEFORE = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first byte that tells: a byte order mark, blanks, blank lines."""

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

    __slots__ = ("_begun", "_head", "_heard", "_sse", "_whole")

    def __init__(self) -> None:
        self._begun = False
        self._sse: SSEDecoder | None = None
        self._whole = bytearray()  # as long as it is no stream
        self._head = b""  # of a stream, as long as no event came
        self._heard = False

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
        if not self._heard:
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
        return None if self._heard else self._head

    def _noted(self, events: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        self._heard = self._heard or bool(events)
        return events


_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls, and the field of what they are called with."""

_WORDED = frozenset({"output_text", "refusal", "reasoning_text", "summary_text"})
"""Kinds of content that are words."""


def lenient_item(value: dict[str, JSON]) -> Item:
    """The item that is meant. A call may still have an empty name or call id."""
    said = value.get("type")
    kind = said if isinstance(said, str) else "message"
    try:
        if kind in _CALLS:
            return _call(value, _CALLS[kind])
        return decode_items(_mended({**value, "type": kind}, kind))
    except FaultError:
        rest = {name: said for name, said in value.items() if name != "type"}
        id = value.get("id")
        return Unknown(WIRE, kind, rest, id if isinstance(id, str) else None)


def _call(value: dict[str, JSON], field: str) -> Item:
    """A call with what it has: whoever opens it gives it the ids it lacks."""
    said = value.get(field)
    text = said if isinstance(said, str) else "" if said is None else json.text(said)
    call_id, name = value.get("call_id") or value.get("id") or "", value.get("name") or ""
    whole = {**value, field: text, "call_id": call_id or "?", "name": name or "?"}
    call = decode_items(whole)
    return replace(call, call_id=call_id, name=name)


def _mended(value: dict[str, JSON], kind: str) -> dict[str, JSON]:
    match kind:
        case "message":
            role = next((role for role in ROLES if role == value.get("role")), "assistant")
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
    if kind in _WORDED and not isinstance(value.get(field), str):
        return {**value, "type": kind, field: ""}
    return {**value, "type": kind}


def lenient_part(value: JSON, kind: str | None = None) -> Part | None:
    """The piece of content that is meant, if there is one; `kind` overrules its own."""
    if not isinstance(value, dict):
        return None
    try:
        return decode_parts(_piece({**value, "type": kind} if kind else value))
    except FaultError:
        return None


Told = dict[str, JSON]
"""One event of the wire, decoded."""

Hear = Callable[[Hearing, Told], None]


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


def _meant(hearing: Hearing, told: Told, home: _Home) -> Heard:
    """The item an event is about, made up where it was never announced."""
    id, place = told.get("item_id"), told.get("output_index")
    heard = hearing.find(id, place, home.types)
    if heard is None:
        fresh = replace(home.fresh, id=id if isinstance(id, str) else None)
        heard = hearing.add(fresh, place)
    return heard


def _delta(family: _Family) -> Hear:
    def hear(hearing: Hearing, told: Told) -> None:
        delta = told.get("delta")
        if isinstance(delta, str):
            probabilities = told.get("logprobs")
            tokens = decode_tokens(probabilities) if probabilities else ()
            heard = _meant(hearing, told, family.home)
            heard.write(family.kind, delta, told.get(family.number), tokens)

    return hear


def _whole(family: _Family) -> Hear:
    def hear(hearing: Hearing, told: Told) -> None:
        text = told.get(family.whole)
        if isinstance(text, str) and text:
            heard = _meant(hearing, told, family.home)
            heard.name(told.get("name"), told.get("call_id"))
            tokens = decode_tokens(told.get("logprobs"))
            heard.whole(family.kind, text, told.get(family.number), tokens)

    return hear


def _part(kind: str | None, then: Callable[[Heard, Part, JSON], None]) -> Hear:
    def hear(hearing: Hearing, told: Told) -> None:
        part = lenient_part(told.get("part"), kind)
        if part is not None:
            given = told.get("summary_index", told.get("content_index"))
            then(_meant(hearing, told, _HOMES.get(type(part), _ANYWHERE)), part, given)

    return hear


def _annotation(hearing: Hearing, told: Told) -> None:
    value = told.get("annotation")
    if isinstance(value, dict):
        heard = _meant(hearing, told, _MESSAGE)
        heard.annotate(decode_annotation(value), told.get("content_index"))


def _item_added(hearing: Hearing, told: Told) -> None:
    value = told.get("item")
    if isinstance(value, dict):
        hearing.add(lenient_item(value), told.get("output_index"))


def _item_done(hearing: Hearing, told: Told) -> None:
    value = told.get("item")
    if isinstance(value, dict):
        item, place = lenient_item(value), told.get("output_index")
        heard = hearing.find(item.id, place, (type(item),)) or hearing.add(item, place)
        heard.end(item)


def beside(hearing: Hearing, name: str, told: Told) -> None:
    """Progress of a hosted tool; or something we do not know, kept as it is.

    A name that could break out of its line is not repeated, and so neither is what it names.
    """
    if not _NAME.fullmatch(name):
        return
    heard = hearing.any(told.get("item_id"), told.get("output_index"))
    index = None if heard is None else heard.index
    family, _, word = name.removeprefix("response.").rpartition(".")
    if heard is not None and heard.kind == family and word in _STATES:
        data = {field: value for field, value in told.items() if field not in _ADDRESS}
        hearing.turn.progress(index, _STATES[word], data or None)
    else:
        kept = {field: value for field, value in told.items() if field != "sequence_number"}
        hearing.turn.progress(index, "raw", {WIRE: {**kept, "type": name}})


HEAR: dict[str, Hear] = {
    "response.output_item.added": _item_added,
    "response.output_item.done": _item_done,
    "response.output_text.annotation.added": _annotation,
    **{f"response.{name}.delta": _delta(family) for name, family in _FAMILIES.items()},
    **{f"response.{name}.done": _whole(family) for name, family in _FAMILIES.items()},
    **{f"response.{name}.added": _part(kind, Heard.begin_part) for name, kind in _PARTS.items()},
    **{f"response.{name}.done": _part(kind, Heard.end_part) for name, kind in _PARTS.items()},
}
"""Every event about items, and what hears it."""


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
"""Service tiers that tell a client nothing."""

_SILENT = Fault("upstream_error", "The model's server failed and did not say why.", "upstream")


class Decoder:
    """Hears the bytes of one answer.

    >>> decoder = Decoder(Turn("1", 0, "m"))
    >>> (event,) = decoder.feed(b'data: {"type": "response.created", "response": {}}\\n\\n')
    >>> event.id, event.model
    ('1', 'm')
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._incoming = Incoming()
        self._hearing = Hearing(turn)
        self._known: Told = {}  # unknown fields of the response that were told already
        self._fault: Fault | None = None  # told by an event of its own, before the response fails
        self._done = False  # `[DONE]` was said

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        if self._turn.over:
            return []
        try:
            for name, said in self._incoming.feed(data):
                self._event(name, said)
        except ValueError as problem:
            message = f"The model's server sent what cannot be read: {problem}."
            self._turn.fail(Fault("upstream_error", message, "upstream"))
        return self._turn.take()

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
            told = json.load(data)
        except ValueError:
            self._mend(name, data)
            return
        if isinstance(told, dict) and not self._turn.over:
            kind = told.get("type")
            self._told(kind if isinstance(kind, str) else name, told)

    def _mend(self, name: str, data: bytes) -> None:
        """Several events with no blank line between are taken apart. Anything else is passed
        over: what it said comes again when its part, its item or the answer is done."""
        lines = data.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                self._event(name, line)

    def _told(self, name: str, told: Told) -> None:
        hear = HEAR.get(name)
        if hear is not None:
            hear(self._hearing, told)
        elif name in _BEGINNINGS:
            self._header(_dict(told.get("response")))
        elif name in _ENDS:
            self._end(_dict(told.get("response")), _ENDS[name])
        elif name == "error" or (not name and told.get("error")):
            said = {n: v for n, v in told.items() if n not in ("type", "sequence_number")}
            self._fault = error.describe(said) or CUT
        elif name:
            beside(self._hearing, name, told)
        elif told.get("object") == "response":
            self._end(told, "failed")

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

    def _header(self, response: Told) -> None:
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

    def _end(self, response: Told, status: str) -> None:
        """The response is over, in the way it says itself or else as the event is called."""
        said = response.get("status")
        status = said if isinstance(said, str) else status
        failed = status in ("failed", "in_progress", "queued")
        self._header(response)
        output = response.get("output")
        items = output if isinstance(output, list) else []
        self._hearing.reconcile(
            [lenient_item(v) for v in items if isinstance(v, dict)], failed=failed
        )
        if failed:
            said = response.get("error") and error.describe({"error": response["error"]})
            self._turn.fail(said or self._fault or (_SILENT if status == "failed" else CUT))
        else:
            self._complete(status, response)

    def _complete(self, status: str, response: Told) -> None:
        if self._hearing.nameless:
            self._turn.fail(NAMELESS)
        elif status == "incomplete":
            reason = _dict(response.get("incomplete_details")).get("reason")
            word = reason if isinstance(reason, str) else "max_output_tokens"
            self._turn.complete("incomplete", (_REASONS.get(word, word),))
        elif status == "cancelled":
            self._turn.complete("cancelled", ("stop",))
        else:
            reasons = ("tool_calls" if self._hearing.called else "stop",)
            self._turn.complete("completed", reasons, json.whole(response.get("completed_at")))


def _dict(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}
