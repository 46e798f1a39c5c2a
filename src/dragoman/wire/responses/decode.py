"""Decodes Responses answers, streamed and whole, into the events of a turn."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, MAX_ITEMS, TOO_MANY, Fault, FaultError
from dragoman.core.event import DeltaKind, Event, State
from dragoman.core.fold import item_closed, unfold_item
from dragoman.core.item import (
    JSON,
    Annotation,
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
    Token,
)
from dragoman.core.open_item import OpenItem, empty_part, part_kind
from dragoman.core.turn import EMPTY, NAMELESS, Turn
from dragoman.wire import error, json, sse
from dragoman.wire.json import dense
from dragoman.wire.pieces import decode_in_pieces

from .encode import STATES
from .items import WIRE, decode_annotation, decode_tokens, hosted, lenient_item, lenient_part
from .response import FIELDS, REASONS, decode

# ---- items while they are sent -----------------------------------------------------------

CALLS: tuple[type[FunctionCall], type[CustomToolCall]] = (FunctionCall, CustomToolCall)
Fields = dict[str, JSON]
"""One event of the wire, decoded."""
Types = tuple[type[Item], ...]


class LastDelta(NamedTuple):
    """The last delta: the field that numbers its part, where it belongs for the upstream (item,
    output, part), and where more of it is written here."""

    number: str
    place: tuple[JSON, JSON, JSON]
    item: OpenItem
    kind: DeltaKind
    part: int | None


class _Family(NamedTuple):
    """Events that fill one thing: the kind of their deltas, the types of item they belong to, the
    item that is made up where none was announced, and the fields of the whole and of the part's
    number."""

    kind: DeltaKind
    types: Types
    fresh: Item
    whole: str = "text"
    number: str = "content_index"


_TEXT = _Family("text", (Message,), Message("assistant"))
_REFUSAL = _TEXT._replace(kind="refusal", whole="refusal")
_REASONING = _Family("reasoning", (Reasoning,), Reasoning())
_SUMMARY = _Family("summary", (Reasoning,), Reasoning(), number="summary_index")
_FAMILIES = {
    "output_text": _TEXT,
    "refusal": _REFUSAL,
    "reasoning_text": _REASONING,
    "reasoning": _REASONING,
    "reasoning_summary_text": _SUMMARY,
    "reasoning_summary": _SUMMARY,
    "function_call_arguments": _Family(
        "arguments", CALLS, FunctionCall("", "", ""), whole="arguments"
    ),
    "custom_tool_call_input": _Family("input", CALLS, CustomToolCall("", "", ""), whole="input"),
}
_PARTS = {
    "content_part": None,
    "reasoning_part": "reasoning_text",
    "reasoning_summary_part": "summary_text",
}
"""Families of parts, and the kind all their parts are of."""
_PART_FAMILIES: dict[type, _Family] = {
    Text: _TEXT,
    Refusal: _REFUSAL,
    Thought: _REASONING,
    Summary: _SUMMARY,
}
_ANY_PART = _TEXT._replace(types=(Message, Reasoning))


class _PartNumbers:
    """The numbers of the parts in one list of an item: as the upstream counts, and as we do."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._open: dict[str, int] = {}  # the last part of each kind, while it is open
        self._count = 0

    def begin(self, kind: str, given: JSON) -> int:
        """The number of a part that begins."""
        number, self._count = self._count, self._count + 1
        if isinstance(given, int):
            self._known[given] = number
        self._open[kind] = number
        return number

    def find(self, kind: str, given: JSON) -> int:
        """The number of the part that is meant: the one of that number, else the open one of
        that kind, else one that begins now."""
        number = self._known.get(given) if isinstance(given, int) else None
        if number is None:
            number = self._open.get(kind)
        return self.begin(kind, given) if number is None else number

    def end(self, kind: str, number: int) -> None:
        """The part is done: more of its kind without a known number is another part."""
        if self._open.get(kind) == number:
            del self._open[kind]


class ItemState:
    """An item under the names the upstream has for it: id, call id, place in the output."""

    def __init__(self, turn: Turn, item: Item, place: JSON, number: int = 0) -> None:
        self.number = number  # in the order in which they came
        self.type = type(item)
        self.id = item.id
        self.call_id = getattr(item, "call_id", None)
        self.kind = hosted(item)
        self.place = place
        self.done = False
        self.index: int | None = None  # in the turn, once it is open there
        self._announced = item
        self._turn = turn
        self._waiting: list[str] = []  # arguments of a call without a name
        self._numbers = {False: _PartNumbers(), True: _PartNumbers()}  # content, summary
        self.open(item)

    def is_open(self, wanted: Types) -> bool:
        """Whether the item is of one of these types and not done."""
        return not self.done and self.type in wanted

    def open(self, item: Item) -> None:
        """Open the item in the turn, unless it is a call that has no name."""
        if self.index is not None or (isinstance(item, CALLS) and not item.name):
            return
        self.index = self._turn.open(item)
        if self._waiting:
            self.write("arguments", "".join(self._waiting))

    def name(self, name: JSON, call_id: JSON) -> None:
        """A call that was still without a name has one now."""
        if self.index is None and isinstance(name, str) and name:
            id = call_id if isinstance(call_id, str) else self.call_id
            self.open(replace(self._announced, call_id=id, name=name))

    def write(
        self, kind: DeltaKind, data: str, given: JSON = None, tokens: tuple[Token, ...] = ()
    ) -> tuple[OpenItem, DeltaKind, int | None] | None:
        """More of the item, in the part the upstream gives a number for. Gives where the next piece
        of the same goes; None where that is not known."""
        if self.index is None:
            self._waiting.append(data)
            return None
        number = None
        if self.type in CALLS:
            kind = "input" if self.type is CustomToolCall else "arguments"
        else:
            number = self._numbers[kind == "summary"].find(kind, given)
        self._turn.write(self.index, kind, data, number, tokens)
        item = self._item
        return None if item is None else (item, kind, number)

    def whole(self, kind: DeltaKind, data: str, given: JSON, tokens: tuple[Token, ...]) -> None:
        """The whole of a part or of a call; it counts where no delta brought any of it."""
        item = self._item
        if item is None:
            self._waiting = self._waiting or [data]
            return
        written = item.data
        if self.type not in CALLS:
            events, part = item.at(kind, self._numbers[kind == "summary"].find(kind, given))
            self._turn.emit(events)
            written = part.data
        if not written.tell():
            self.write(kind, data, given, tokens)

    def annotate(self, note: Annotation, given: JSON) -> None:
        """A note on a part's text."""
        if (item := self._item) is not None:
            self._turn.emit(item.annotate(note, self._numbers[False].find("text", given)))

    def part(self, part: Part, given: JSON, *, done: bool) -> None:
        """A part begins, as a rule still empty, or is done, and is here whole."""
        if (item := self._item) is None:
            return
        numbers, kind = self._numbers[isinstance(part, Summary)], part_kind(part)
        number = numbers.find(kind, given) if done else numbers.begin(kind, given)
        events, opened = item.at(kind, number, empty_part(part))
        self._turn.emit(events)
        if done:
            self._turn.emit(item.close_part(opened, part))
            numbers.end(kind, number)
        elif text := getattr(part, "text", ""):
            self._turn.write(item.index, kind, text, number)

    def end(self, final: Item) -> None:
        """The item is done; it is here whole."""
        self.open(final)
        self.done = True
        if self.index is not None:
            self._turn.close(self.index, final)

    def leave(self, item: Item) -> None:
        """All there is of an item in an answer that failed: it stays open if it was."""
        if item_closed(item):
            self.end(item)
        elif self.index is not None:
            self._turn.emit([*unfold_item(self.index, item, closed=False)][1:])

    @property
    def _item(self) -> OpenItem | None:
        return None if self.index is None else self._turn.item(self.index)


class ItemTracker:
    """The items of one answer, as far as they have come."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._items: list[ItemState] = []
        self.last_delta: LastDelta | None = None  # if that was the last event
        self._last: ItemState | None = None
        # By id, by place, and the last of all; and those that are not done, by type too.
        self._latest: dict[tuple[str, JSON], ItemState] = {}
        self._open: dict[tuple[type[Item], str, JSON], list[ItemState]] = {}

    def read(self, name: str, fields: Fields) -> bool:
        """Read an event about items; false if it is none."""
        family, _, verb = name.removeprefix("response.").rpartition(".")
        item, place = fields.get("item"), _place(fields)
        known = _FAMILIES.get(family)
        if known is not None and verb == "delta":
            delta, logprobs = fields.get("delta"), fields.get("logprobs")
            if isinstance(delta, str):
                tokens = decode_tokens(logprobs) if logprobs else ()
                number = fields.get(known.number)
                state = self._meant(fields, known)
                target = state.write(known.kind, delta, number, tokens)
                if target is not None:
                    at = (fields.get("item_id"), place, number)
                    self.last_delta = LastDelta(known.number, at, *target)
        elif known is not None and verb == "done":
            text = fields.get(known.whole)
            if isinstance(text, str) and text:
                state = self._meant(fields, known)
                state.name(fields.get("name"), fields.get("call_id"))
                tokens = decode_tokens(fields.get("logprobs"))
                state.whole(known.kind, text, fields.get(known.number), tokens)
        elif family in _PARTS and verb in ("added", "done"):
            part = lenient_part(fields.get("part"), _PARTS[family])
            if part is not None:
                number = fields.get("summary_index", fields.get("content_index"))
                state = self._meant(fields, _PART_FAMILIES.get(type(part), _ANY_PART))
                state.part(part, number, done=verb == "done")
        elif name == "response.output_text.annotation.added":
            note = fields.get("annotation")
            if isinstance(note, dict):
                state = self._meant(fields, _TEXT)
                state.annotate(decode_annotation(note), fields.get("content_index"))
        elif name == "response.output_item.added":
            if isinstance(item, dict):
                self.add(lenient_item(item), place)
        elif name == "response.output_item.done":
            if isinstance(item, dict):
                final = lenient_item(item)
                found = self._find(final.id, place, (type(final),))
                (found or self.add(final, place)).end(final)
        else:
            return False
        return True

    def _meant(self, fields: Fields, family: _Family) -> ItemState:
        """The item an event is about, made up where it was never announced."""
        id, place = fields.get("item_id"), _place(fields)
        state = self._find(id, place, family.types)
        if state is None:
            state = self.add(replace(family.fresh, id=id if isinstance(id, str) else None), place)
        return state

    def add(self, item: Item, place: JSON) -> ItemState:
        """A new item."""
        state = self._last = ItemState(self._turn, item, place, len(self._items))
        self._items.append(state)
        for key in (("id", state.id), ("place", place), ("any", None)):
            self._latest[key] = state
            self._open.setdefault((state.type, *key), []).append(state)
        return state

    def _find(self, id: JSON, place: JSON, wanted: Types) -> ItemState | None:
        """The item that is meant, among those of the wanted types that are not done."""
        last = self._last
        if last is not None and last.id == id and last.place == place and last.is_open(wanted):
            return last
        found = self._last_open("id", id, wanted) if isinstance(id, str) else None
        if found is None and place is not None:
            found = self._last_open("place", place, wanted)
        elif found is None and id is None:
            found = self._last_open("any", None, wanted)
        self._last = found or last
        return found

    def _last_open(self, name: str, value: JSON, wanted: Types) -> ItemState | None:
        """The last one that is not done, of the wanted types, whose id or place this is."""
        found: list[ItemState] = []
        for kind in wanted:
            states = self._open.get((kind, name, value), [])
            while states and states[-1].done:
                states.pop()  # and is not looked at again: there may be many
            found += states[-1:]
        return max(found, key=_number, default=None)

    def progress(self, name: str, fields: Fields) -> None:
        """Progress of a hosted tool; or an event we do not know, which is carried unchanged.

        A name that could break out of its line is not repeated, and so neither is what it names.
        """
        if not _NAME.fullmatch(name):
            return
        id, place = fields.get("item_id"), _place(fields)
        state = None  # open or done, of whatever type
        if isinstance(id, str):
            state = self._latest.get(("id", id))
        elif id is None and place is not None:
            state = self._latest.get(("place", place))
        index = None if state is None else state.index
        family, _, word = name.removeprefix("response.").rpartition(".")
        if state is not None and state.kind == family and word in _STATES:
            data = {field: value for field, value in fields.items() if field not in _ADDRESS}
            self._turn.progress(index, _STATES[word], data or None)
        else:
            raw = {field: value for field, value in fields.items() if field != "sequence_number"}
            self._turn.progress(index, "raw", {WIRE: {**raw, "type": name}})

    def reconcile(self, output: list[Item], *, failed: bool = False) -> None:
        """The whole output: the last word on what was streamed, and on what was not."""
        known = self._matched(output)
        for place, item in enumerate(output):
            state = known.get(place)
            if state is None:
                state = self.add(item, place)
                if failed:
                    state.leave(item)
            if not failed:
                state.end(item)

    def _matched(self, output: list[Item]) -> dict[int, ItemState]:
        """By place in the output, the items that were streamed: first those that have the same
        id, then those left over of the same type, in their order."""
        known: dict[int, ItemState] = {}
        left: dict[Hashable, deque[ItemState]] = {}
        for state in self._items:
            for key in (*_keys(state.type, state.id, state.call_id), state.type):
                left.setdefault(key, deque()).append(state)
        matched: set[ItemState] = set()
        for by_id in (True, False):
            for place, item in enumerate(output):
                call_id = getattr(item, "call_id", None)
                found: list[ItemState] = []
                for key in _keys(type(item), item.id, call_id) if by_id else (type(item),):
                    states = left.get(key, deque())
                    while states and states[0] in matched:
                        states.popleft()
                    found += islice(states, 1)
                if place not in known and found:
                    known[place] = min(found, key=_number)
                    matched.add(known[place])
        return known

    @property
    def called(self) -> bool:
        """Whether any tool was called."""
        return any(state.type in CALLS for state in self._items)

    @property
    def nameless(self) -> bool:
        """Whether a call never got its name."""
        return any(state.index is None for state in self._items)


_number = attrgetter("number")


def _place(fields: Fields) -> JSON:
    """The place in the output that an event names, if that can be one."""
    place = fields.get("output_index")
    return None if isinstance(place, dict | list) else place


def _keys(kind: type[Item], id: str | None, call_id: str | None) -> list[Hashable]:
    """What tells that two items are one."""
    names = (("id", id), ("call_id", call_id or None))
    return [(kind, name, value) for name, value in names if value is not None]


_STATES: dict[str, State] = {STATES.get(state, state): state for state in get_args(State)}
_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
_ADDRESS = ("type", "item_id", "output_index", "sequence_number")


# ---- answers -----------------------------------------------------------------------------


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

_BEGINNINGS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
    "response.failed": "failed",
}
"""Terminal events, and the status of a response that has none of its own."""

_REASONS = {theirs: ours for ours, theirs in REASONS.items()}
_TIERS = frozenset({"auto", "default"})
"""Service tiers that tell a client nothing."""

_SILENT = Fault("upstream_error", "The model's server failed and did not say why.", "upstream")
_BLANK = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first byte of a body: a byte order mark, blanks, blank lines."""
_LINES = b"deir:"
"""How the lines of a stream begin: data, event, id, retry, or a comment."""
_HEAD = 2048


class Decoder:
    """Decodes the bytes of one answer.

    >>> decoder = Decoder(Turn("1", 0, "m"))
    >>> (event,) = decoder.feed(b'data: {"type": "response.created", "response": {}}\\n\\n')
    >>> event.id, event.model
    ('1', 'm')
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._items = ItemTracker(turn)
        self._sse: sse.SSEDecoder | None = None  # of a stream
        self._body = bytearray()  # of an answer that is none
        self._head = b""  # how a stream began, until an event came
        self._begun = False  # an event came
        self._type = ""  # of the last event, and how its frame began
        self._label = b""
        self._whole_frames = False  # nothing of a frame waits for the rest of it
        self._known: Fields = {}  # unknown fields of the response that were passed on already
        self._fault: Fault | None = None  # in an event of its own, before the response fails
        self._done = False  # `[DONE]` was read
        self._garbled = 0  # events that were no JSON

    def feed(self, data: bytes) -> list[Event]:
        """The events that became clear with these bytes."""
        if self._sse is None:
            data = data if self._body else data.lstrip(_BLANK)
            if self._body or not data or data[0] not in _LINES:
                self._body += data
                if len(self._body) > json.MAX_ANSWER:
                    self._fail(f"an answer that is larger than {json.MAX_ANSWER} bytes")
                return self._turn.take()
            self._sse = sse.SSEDecoder()
        if not self._begun:
            self._head = (self._head + data)[:_HEAD]
        events: list[Event] = []
        alike = True  # whether deltas may be like the last one
        while data and not self._turn.over:
            last = self._items.last_delta
            if last is not None and alike and self._whole_frames:
                rest = self._read_deltas(last, data, events)
                alike, data = len(rest) < len(data), rest
                continue
            end = _end_of_delta(data, self._whole_frames) if alike else len(data)
            try:
                for name, encoded in self._sse.feed(data[:end]):
                    self._event(name, encoded)
            except FaultError as error:  # what came before it, in other frames, stands
                self._turn.fail(error.fault)
            except ValueError as problem:
                self._fail(str(problem))
            self._whole_frames = data[end - 2 : end] == b"\n\n"
            data = data[end:]
            events += self._turn.take()
        return events

    def _fail(self, problem: str) -> None:
        message = f"The model's server sent what cannot be read: {problem}."
        self._turn.fail(Fault("upstream_error", message, "upstream"))

    def _read_deltas(self, last: LastDelta, data: bytes, events: list[Event]) -> bytes:
        """Read the deltas like the last one that the bytes begin with, typed and at once, as most
        of a stream is such deltas. Gives the bytes after them, which are read one by one."""
        number, place, item, kind, part = last
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
        for name, encoded in self._sse.close() if self._sse else ():
            self._event(name, encoded, last=True)
        if not (self._begun or self._turn.over):
            whole, self._body = self._head or bytes(self._body), bytearray()  # it may be large
            self._whole(whole)
        if self._fault is not None:
            self._turn.fail(self._fault)
        elif self._done and self._turn.has_output:
            self._complete("completed", {})
        self._turn.fail(CUT)

    @property
    def ended(self) -> bool:
        """Whether the server ended the answer."""
        return self._turn.over or self._done or self._fault is not None

    # ---- events --------------------------------------------------------------------------

    def _event(self, name: str, data: bytes, *, last: bool = False) -> None:
        self._begun = True
        if data == sse.END:
            self._done = True
            return
        try:
            fields = json.load(data)
        except ValueError:
            self._repair(name, data, last)
            return
        if isinstance(fields, dict) and not self._turn.over:
            kind = fields.get("type")
            self._type = kind if isinstance(kind, str) else name
            self._label = f"event: {name}\ndata: ".encode() if name else b"data: "
            self._items.last_delta = None
            self._read(self._type, fields)

    def _repair(self, name: str, data: bytes, last: bool) -> None:
        """Several events with no blank line between are taken apart. A piece of the answer that
        cannot be read fails it, but at the end, where it is a cut; what is no piece of one is
        passed over."""
        lines = data.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                if self._turn.over:
                    return
                self._event(name, line, last=last)
        elif error.is_corrupt(data) and not last:
            self._turn.fail(error.CORRUPT)
        else:
            self._garbled += 1
            if self._garbled > error.MAX_GARBLED:
                self._fail("events that are no JSON")

    def _read(self, name: str, fields: Fields) -> None:
        if self._items.read(name, fields):
            return
        if name in _BEGINNINGS:
            self._header(_dict(fields.get("response")))
        elif name in _ENDS:
            self._end(_dict(fields.get("response")), _ENDS[name])
        elif name == "error" or (not name and fields.get("error")):
            given = {n: v for n, v in fields.items() if n not in ("type", "sequence_number")}
            self._fault = error.describe(given) or CUT
        elif name:
            self._items.progress(name, fields)
        elif fields.get("object") == "response":
            self._end(fields, "failed")

    def _whole(self, data: bytes) -> None:
        """An answer that is no stream."""
        try:
            value = json.load(data, decode_in_pieces) if data else {}
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
        """What a snapshot has of the whole: who answers, what was counted, what is unknown."""
        unknown = {n: v for n, v in dense(response).items() if n not in FIELDS}
        if isinstance(tier := response.get("service_tier"), str) and tier not in _TIERS:
            unknown["service_tier"] = tier
        new = {name: v for name, v in unknown.items() if self._known.get(name) != v}
        self._known |= new
        extra = {WIRE: new} if new else {}
        own = dense({name: response.get(name) for name in ("id", "created_at")})
        if own and not self._turn.started:
            extra["upstream"] = own
        model = response.get("model")
        self._turn.header(model if isinstance(model, str) else None, extra)
        self._turn.usage = decode(response.get("usage")) or self._turn.usage

    def _end(self, response: Fields, named: str) -> None:
        """The response is over, with its own status or else as the event is `named`."""
        given, output = response.get("status"), response.get("output")
        status = given if isinstance(given, str) else named
        failed = status in ("failed", "in_progress", "queued")
        self._header(response)
        items = [v for v in output if isinstance(v, dict)] if isinstance(output, list) else []
        if len(items) > MAX_ITEMS:
            raise FaultError(TOO_MANY)
        self._items.reconcile([lenient_item(item) for item in items], failed=failed)
        if failed:
            fault = response.get("error") and error.describe({"error": response["error"]})
            self._turn.fail(fault or self._fault or (_SILENT if status == "failed" else CUT))
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
