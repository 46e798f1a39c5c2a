"""Encodes the events of an answer as Responses events or as one response object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO

from msgspec.structs import replace

from dragoman.core.event import (
    Delta,
    DeltaKind,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.fold import Fold, fold
from dragoman.core.item import (
    JSON,
    Audio,
    CustomToolCall,
    FunctionCall,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
)
from dragoman.core.lifecycle import FirstChoice, ItemSerializer
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.wire import error, json, sse
from dragoman.wire.pieces import LONG, Long, long
from dragoman.wire.protocol import STANDARD, Dialect

from .items import (
    ENCRYPTED,
    WIRE,
    encode_annotation,
    encode_item,
    encode_part,
    encode_tokens,
    hosted,
    shown,
)
from .response import Echo, derived_id, encode_object

STATES = {"partial": "partial_image"}
"""States of hosted tools that have another name on this wire."""

_NAMES = {
    "text": "output_text",
    "transcript": "output_text",
    "refusal": "refusal",
    "summary": "reasoning_summary_text",
    "arguments": "function_call_arguments",
    "input": "custom_tool_call_input",
}
_NAMED = {name: {**_NAMES, "reasoning": name} for name in ("reasoning_text", "reasoning")}
"""What the deltas of a kind are called; the name for reasoning is the dialect's."""


_HIDING = frozenset((Reasoning, Unknown))
"""The items of which `shown` may leave something out."""
_OBJECTS = re.compile(rb"\ndata: (\{.*)")
"""The objects in what a stream gets: JSON has no line ends in it, and `[DONE]` is none."""


class _Position:
    """Where an item stands in the output, and what of it has been encoded."""

    __slots__ = ("annotations", "contents", "fields", "kind")

    def __init__(self, fields: dict[str, JSON], kind: str | None) -> None:
        self.fields = fields
        self.kind = kind  # of a hosted tool
        self.contents: dict[int, dict[str, JSON]] = {}  # where a part stands, by our number of it
        self.annotations: dict[int, int] = {}  # our number of a part: how many so far


class Encoder:
    """Encodes the events of one answer.

    >>> encoder = Encoder(Request(model="m"))
    >>> encoder.feed([Started("1", 0, "m")]).splitlines()[0]
    b'event: response.created'
    """

    def __init__(self, request: Request, dialect: Dialect = STANDARD) -> None:
        self._echo = Echo(request)
        self._queued = bool(request.background)
        self._include = request.include
        self._hides = request.store is True and ENCRYPTED not in request.include
        self._nested_error = dialect.error_event == "nested"
        self._names = _NAMED[dialect.reasoning_events]
        self._id = ""  # of the response
        self._positions: dict[int, _Position] = {}  # of items, by our index
        self._fold = Fold()
        self._unfolded = StringIO()  # of deltas that the fold gets with the event after them
        self._serial = ItemSerializer()
        self._first: FirstChoice | None = None  # needed only where there are alternatives
        self._items = 0
        self._number = 0  # of the next event
        self._in_progress: Started | None = None  # until the answer is over
        self._over = False
        # The last delta, as most are of the kind of the one before: which it was, and what stands
        # before its number and after its data.
        self._key: tuple[int, DeltaKind, int] | None = None
        self._before = self._after = b""
        self._out: list[bytes] = []  # the frames of this batch

    def feed(self, events: Sequence[Event]) -> bytes:
        """The server-sent events for these; empty where this wire has none."""
        out = self._out = []
        place, count = 0, len(events)
        while place < count:
            run: list[str] = []  # the data of deltas that are like the last one
            key = self._key
            while place < count:
                event = events[place]
                if not isinstance(event, Delta) or event.tokens:
                    break
                if (event.index, event.kind, event.part_index) != key:
                    break
                run.append(event.data)
                place += 1
            if not run:
                self._one(events[place])
                place += 1
                continue
            self._unfolded.writelines(run)
            number, self._number = self._number, self._number + len(run)
            if len(run) == 1:
                text = run[0]
                if len(text) > LONG:
                    head = b'%b%d,"delta":' % (self._before, number)
                    out += (head, json.dump(Long(text)), self._after)
                    continue
                try:  # as `dump` does
                    data = json.encode(text)
                except UnicodeEncodeError:
                    data = json.dump(text)
                out.append(b'%b%d,"delta":%b%b' % (self._before, number, data, self._after))
                continue
            # As text, which is put together faster than bytes, and encoded once.
            texts = json.dump_all(run).decode().split("\n")
            opening, ending = self._before.decode(), self._after.decode()
            lines = [f'{opening}{n},"delta":{text}{ending}' for n, text in enumerate(texts, number)]
            out.append("".join(lines).encode())
        data = b"".join(out)
        out.clear()  # the client may be slow, or the next event late
        return data

    def frames(self, events: Sequence[Event]) -> list[bytes]:
        """The same for a WebSocket: a JSON object for each event of this wire."""
        return _OBJECTS.findall(self.feed(events))

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or `response.in_progress` once more; empty unless an answer is in progress."""
        if self._in_progress is None:
            return b""
        if not data:
            return sse.comment("still working")
        response = fold((self._in_progress,))
        self._out = []
        self._snapshot("response.in_progress", encode_object(response, self._echo))
        return b"".join(self._out)

    def _one(self, event: Event) -> None:
        """Encode an event that is no delta like the last."""
        if self._key is not None and (text := self._unfolded.getvalue()):
            index, kind, number = self._key
            self._fold.feed_all((Delta(index, number, kind, text),))
            self._unfolded = StringIO()
        if isinstance(event, ItemAdded):
            if event.choice and self._first is None:
                self._first, self._key = FirstChoice(self._items), None
            self._items += 1
        only = event if self._first is None else self._first.feed(event)
        if only is None or self._over:  # another choice, for which this wire has no place
            return
        if isinstance(only, ItemAdded | ItemDone) and (self._hides or type(only.item) is Unknown):
            (item,) = shown((only.item,), self._include, encrypted=not self._hides)
            only = replace(only, item=item)
        self._fold.feed_all((only,))
        for ready in self._serial.feed(only):
            self._encode(ready)

    def _encode(self, event: Event) -> None:
        match event:
            case Started():
                self._start(event)
            case ItemAdded(index=index, item=item):
                encoded = encode_item(item, item.id or derived_id(item, self._id, index))
                if encoded is not None:
                    place = len(self._positions)
                    fields = {"item_id": encoded["id"], "output_index": place}
                    self._positions[index] = _Position(fields, hosted(item))
                    added = {"output_index": place, "item": encoded}
                    self._emit("response.output_item.added", added)
            case Progress():
                self._progress(event)
            case Finished():
                # A cancelled answer has no event of its own: it is one that stopped early.
                status = "incomplete" if event.status == "cancelled" else event.status
                self._end(f"response.{status}")
                self._out.append(sse.DONE)
            case Failed():
                if self._in_progress:
                    self._end("response.failed")
                else:
                    self._error(event)
                if event.fault.code != "upstream_cut":  # the answer broke off before it was done
                    self._out.append(sse.DONE)
            case _ if (position := self._positions.get(event.index)) is not None:
                self._inside(position, event)

    def _inside(self, position: _Position, event: PartAdded | Delta | PartDone | ItemDone) -> None:
        """Encode what happens inside an item."""
        where = position.fields
        match event:
            case Delta():
                self._delta(position, event)
            case PartAdded(part_index=number, part=Summary() as part):
                at = {**where, "summary_index": number, "part": encode_part(part)}
                self._emit("response.reasoning_summary_part.added", at)
            case PartAdded(part_index=number, part=part):
                encoded = encode_part(part, "output_text", full=True)
                if encoded is not None:
                    at = {**where, "content_index": len(position.contents)}
                    position.contents[number] = at
                    self._emit("response.content_part.added", {**at, "part": encoded})
            case PartDone(part_index=number, part=Summary() as part):
                at = {**where, "summary_index": number}
                self._emit("response.reasoning_summary_text.done", {**at, "text": long(part.text)})
                whole = {**at, "part": encode_part(part)}
                self._emit("response.reasoning_summary_part.done", whole)
            case PartDone(part=part):
                if (content := position.contents.get(event.part_index)) is None:
                    return
                encoded = encode_part(part, "output_text", full=True) or {}
                match part:
                    case Text() | Audio():
                        done = {name: encoded[name] for name in ("text", "logprobs")}
                        self._emit("response.output_text.done", {**content, **done})
                    case Refusal():
                        self._emit("response.refusal.done", {**content, "refusal": long(part.text)})
                    case Thought():
                        name = f"response.{self._names['reasoning']}.done"
                        self._emit(name, {**content, "text": long(part.text)})
                self._emit("response.content_part.done", {**content, "part": encoded})
            case _:
                item = event.item
                match item:
                    case FunctionCall():
                        done = {"name": item.name, "arguments": long(item.arguments)}
                        self._emit("response.function_call_arguments.done", {**where, **done})
                    case CustomToolCall():
                        done = {"input": long(item.input)}
                        self._emit("response.custom_tool_call_input.done", {**where, **done})
                encoded = encode_item(item, where["item_id"])
                done = {"output_index": where["output_index"], "item": encoded}
                self._emit("response.output_item.done", done)

    def _delta(self, position: _Position, event: Delta) -> None:
        """Encode a delta, and remember the template for those that follow."""
        kind, at = event.kind, position.contents.get(event.part_index)
        if kind == "annotation":
            if at is not None:
                number = position.annotations.get(event.part_index, 0)
                position.annotations[event.part_index] = number + 1
                note = {"annotation_index": number, "annotation": encode_annotation(event.data)}
                self._emit("response.output_text.annotation.added", {**at, **note})
            return
        if kind == "summary":
            at = {**position.fields, "summary_index": event.part_index}
        elif kind in ("arguments", "input") and position.kind is None:
            at = position.fields
        elif kind not in self._names:
            at = None
        if at is None:
            return  # the whole is in the item when it is done
        name, text = f"response.{self._names[kind]}.delta", kind in ("text", "transcript")
        if event.tokens:
            probabilities = {"logprobs": encode_tokens(event.tokens)} if text else {}
            self._emit(name, {**at, "delta": event.data, **probabilities})
            return
        number, self._number = self._number, self._number + 1
        opening = json.dump({"type": name, **at})[:-1]
        self._before = b'event: %b\ndata: %b,"sequence_number":' % (name.encode(), opening)
        self._after = b',"logprobs":[]}\n\n' if text else b"}\n\n"
        if self._first is None:
            self._key = event.index, kind, event.part_index
        data = json.dump(long(event.data))
        self._out += (b'%b%d,"delta":' % (self._before, number), data, self._after)

    def _progress(self, event: Progress) -> None:
        position = None if event.index is None else self._positions.get(event.index)
        if event.state == "raw":
            encoded = event.data.get(WIRE)
            if encoded is not None and (event.index is None or position is not None):
                where = position.fields if position else {}
                fields = {name: where.get(name, value) for name, value in encoded.items()}
                self._emit(fields.pop("type"), fields)
        elif position is not None and position.kind is not None:
            name = f"response.{position.kind}.{STATES.get(event.state, event.state)}"
            self._emit(name, {**position.fields, **(event.data or {})})

    def _start(self, event: Started) -> None:
        """The first events; a run in the background begins as one that waits its turn."""
        self._id = event.id
        self._in_progress, response = event, self._fold.response
        begun = opening = encode_object(response, self._echo)
        if self._queued:
            opening = encode_object(replace(response, status="queued"), self._echo)
        self._snapshot("response.created", opening)
        if self._queued:
            self._snapshot("response.queued", opening)
        self._snapshot("response.in_progress", begun)

    def _end(self, name: str) -> None:
        self._in_progress, self._over, self._key = None, True, None
        self._snapshot(name, encode_object(self._fold.response, self._echo))

    def _error(self, event: Failed) -> None:
        """A failure of an answer that never began, and so has no response to fail."""
        self._over = True
        fields = error.error_object(event.fault)
        flat = {name: fields[name] for name in ("code", "message", "param")}
        self._emit("error", {"error": fields} if self._nested_error else flat)

    def _snapshot(self, name: str, response: bytes) -> None:
        number, self._number, label = self._number, self._number + 1, name.encode()
        head = b'event: %b\ndata: {"type":"%b","sequence_number":%d,"response":'
        self._out += (head % (label, label, number), response, b"}\n\n")  # it may be large

    def _emit(self, name: str, fields: dict[str, JSON]) -> None:
        number, self._number = self._number, self._number + 1
        data = json.dump({"type": name, "sequence_number": number, **fields})
        self._out += (b"event: %b\ndata: " % name.encode(), data, b"\n\n")


def encode_response(response: Response, request: Request, dialect: Dialect = STANDARD) -> bytes:
    """The answer as one JSON object: the very response that a stream's last event carries."""
    if response.choices:  # this wire has one alternative
        first = response.choice(0)
        response = replace(response, output=first, choices=(), reasons=response.reasons[:1])
    if not _HIDING.isdisjoint(map(type, response.output)):
        hidden = shown(response.output, request.include, encrypted=request.store is not True)
        response = replace(response, output=hidden)
    return encode_object(response, Echo(request))
