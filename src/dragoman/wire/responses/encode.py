"""Encodes the events of an answer as Responses events or as one response object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from dragoman.core.event import (
    Delta,
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
from dragoman.core.fold import Fold
from dragoman.core.item import (
    JSON,
    Audio,
    CustomToolCall,
    FunctionCall,
    Item,
    Part,
    Refusal,
    Summary,
    Text,
    Thought,
)
from dragoman.core.lifecycle import FirstChoice, ItemSerializer
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.wire import error, json, sse
from dragoman.wire.protocol import STANDARD, Dialect

from .items import (
    WIRE,
    encode_annotation,
    encode_output,
    encode_parts,
    encode_tokens,
    hides,
    hosted,
    shown,
    without,
)
from .response import Echo, encode_object, item_id

Named = tuple[str, dict[str, JSON]]
"""The name of an event and its fields, all but its type and number."""

Encoded = tuple[str, bytes]
"""The name of an event and its JSON; `[DONE]` has no name."""

Inside = PartAdded | Delta | PartDone | ItemDone
ItemEvent = ItemAdded | Inside | Progress

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
"""What the deltas of a kind are called; the name for reasoning is the dialect's."""


class _Position:
    """Where an item stands in the output, and what of it has been encoded."""

    __slots__ = ("annotations", "contents", "fields", "kind")

    def __init__(self, item: Item, id: str, position: int) -> None:
        self.fields: dict[str, JSON] = {"item_id": id, "output_index": position}
        self.kind = hosted(item)
        self.contents: dict[int, int] = {}  # our number of a part: its number here
        self.annotations: dict[int, int] = {}  # our number of a part: how many so far

    def open(self, part: Part, number: int) -> dict[str, JSON] | None:
        """Where a part stands, from now on; None if it has no place here."""
        if isinstance(part, Summary):
            return {**self.fields, "summary_index": number}
        if encode_parts(part) is None:
            return None
        self.contents[number] = len(self.contents)
        return self.at(number)

    def at(self, number: int) -> dict[str, JSON] | None:
        """Where a part stands that is no summary."""
        position = self.contents.get(number)
        return None if position is None else {**self.fields, "content_index": position}


class ItemEvents:
    """The events about the items of one answer. `reasoning` is what raw reasoning is called."""

    def __init__(self, reasoning: str) -> None:
        self.response_id = ""
        self._names = {**_NAMES, "reasoning": reasoning}
        self._positions: dict[int, _Position] = {}  # by our index

    def encode(self, event: ItemEvent) -> Iterator[Named]:
        """The events of this wire for one about an item, or beside all items."""
        match event:
            case ItemAdded(index=index, item=item):
                yield from self._item_added(index, item)
            case Progress():
                yield from self._progress(event)
            case _ if (place := self._positions.get(event.index)) is not None:
                yield from self._inside(place, event)

    def _item_added(self, index: int, item: Item) -> Iterator[Named]:
        id, position = item_id(item, self.response_id, index), len(self._positions)
        encoded = encode_output(item, id)
        if encoded is not None:
            self._positions[index] = _Position(item, id, position)
            yield "response.output_item.added", {"output_index": position, "item": encoded}

    def _inside(self, place: _Position, event: Inside) -> Iterator[Named]:
        match event:
            case PartAdded(part=part):
                at = place.open(part, event.part_index)
                if at is not None:
                    family = "reasoning_summary" if isinstance(part, Summary) else "content"
                    yield f"response.{family}_part.added", {**at, "part": _full(part)}
            case Delta(kind="annotation"):
                yield from _annotation(place, event)
            case Delta():
                yield from self._delta(place, event)
            case PartDone():
                yield from self._part_done(place, event)
            case _:
                yield from _item_done(place, event.item)

    def _delta(self, place: _Position, event: Delta) -> Iterator[Named]:
        match event.kind:
            case "text" | "transcript" | "refusal" | "reasoning":
                at = place.at(event.part_index)
            case "summary":
                at = {**place.fields, "summary_index": event.part_index}
            case "arguments" | "input" if place.kind is None:
                at = place.fields
            case _:
                at = None  # the whole is in the item when it is done
        if at is None:
            return
        encoded = {**at, "delta": event.data}
        if event.kind in ("text", "transcript"):
            encoded["logprobs"] = encode_tokens(event.tokens)
        yield f"response.{self._names[event.kind]}.delta", encoded

    def _part_done(self, place: _Position, event: PartDone) -> Iterator[Named]:
        part = event.part
        if isinstance(part, Summary):
            at: dict[str, JSON] | None = {**place.fields, "summary_index": event.part_index}
        else:
            at = place.at(event.part_index)
        if at is None:
            return
        whole = _full(part)
        match part:
            case Text() | Audio():
                encoded = {name: whole[name] for name in ("text", "logprobs")}
                yield "response.output_text.done", {**at, **encoded}
            case Refusal():
                yield "response.refusal.done", {**at, "refusal": part.text}
            case Thought():
                yield f"response.{self._names['reasoning']}.done", {**at, "text": part.text}
            case Summary():
                yield "response.reasoning_summary_text.done", {**at, "text": part.text}
                yield "response.reasoning_summary_part.done", {**at, "part": whole}
                return
        yield "response.content_part.done", {**at, "part": whole}

    def _progress(self, event: Progress) -> Iterator[Named]:
        place = None if event.index is None else self._positions.get(event.index)
        if event.state == "raw":
            encoded = event.data.get(WIRE)
            if encoded is not None and (event.index is None or place is not None):
                where = place.fields if place else {}
                fields = {name: where.get(name, value) for name, value in encoded.items()}
                yield fields.pop("type"), fields
        elif place is not None and place.kind is not None:
            state = STATES.get(event.state, event.state)
            yield f"response.{place.kind}.{state}", {**place.fields, **(event.data or {})}


def _full(part: Part) -> dict[str, JSON]:
    return encode_parts(part, "output_text", full=True) or {}


def _annotation(place: _Position, event: Delta) -> Iterator[Named]:
    at = place.at(event.part_index)
    if at is not None:
        number = place.annotations.get(event.part_index, 0)
        place.annotations[event.part_index] = number + 1
        note = {"annotation_index": number, "annotation": encode_annotation(event.data)}
        yield "response.output_text.annotation.added", {**at, **note}


def _item_done(place: _Position, item: Item) -> Iterator[Named]:
    where = place.fields
    match item:
        case FunctionCall():
            encoded = {"name": item.name, "arguments": item.arguments}
            yield "response.function_call_arguments.done", {**where, **encoded}
        case CustomToolCall():
            yield "response.custom_tool_call_input.done", {**where, "input": item.input}
    whole = encode_output(item, where["item_id"])
    yield "response.output_item.done", {"output_index": where["output_index"], "item": whole}


class Encoder:
    """Encodes the events of one answer.

    >>> encoder = Encoder(Request(model="m"))
    >>> encoder.feed([Started("1", 0, "m")]).splitlines()[0]
    b'event: response.created'
    """

    def __init__(self, request: Request, dialect: Dialect = STANDARD) -> None:
        self._echo = Echo(request)
        self._queued = bool(request.background)
        self._hides = hides(request)
        self._nested_error = dialect.error_event == "nested"
        self._item_events = ItemEvents(dialect.reasoning_events)
        self._fold = Fold()
        self._unfolded: list[Event] = []  # deltas that the fold gets with the event after them
        self._serial = ItemSerializer()
        self._first: FirstChoice | None = None  # needed only where there are alternatives
        self._items = 0
        self._number = 0  # of the next event
        self._in_progress = b""  # the response object, until the answer is over
        self._over = False
        # The last delta, as most are of the kind of the one before: which it was, its name, and
        # what stands before its number and after its data.
        self._key: tuple[int, str, int] | None = None
        self._label = self._before = self._after = b""

    def feed(self, events: Sequence[Event]) -> bytes:
        """The server-sent events for these; empty where this wire has none."""
        return b"".join(self._encode(events, framed=True))

    def frames(self, events: Sequence[Event]) -> list[bytes]:
        """The same for a WebSocket: a JSON object for each event of this wire."""
        return self._encode(events, framed=False)

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or `response.in_progress` once more; empty unless an answer is in progress."""
        if not self._in_progress:
            return b""
        if not data:
            return sse.comment("still working")
        name, encoded = self._snapshot("response.in_progress", self._in_progress)
        return sse.frame(encoded, name)

    def _encode(self, events: Sequence[Event], *, framed: bool) -> list[bytes]:
        found: list[bytes] = []
        place, count = 0, len(events)
        while place < count:
            run: list[str] = []  # the data of deltas that are like the last one
            start, key = place, self._key
            while place < count and key is not None:
                event = events[place]
                if not isinstance(event, Delta) or event.tokens:
                    break
                if (event.index, event.kind, event.part_index) != key:
                    break
                run.append(event.data)
                place += 1
            if not run:
                for name, data in self._one(events[place]):
                    if framed:
                        found.append(sse.frame(data, name or None))
                    elif name:
                        found.append(data)
                place += 1
                continue
            self._unfolded += events[start:place]
            before = self._label + self._before if framed else self._before
            after = self._after + b"\n\n" if framed else self._after
            number, self._number = self._number, self._number + len(run)
            if len(run) == 1:
                found.append(b'%b%d,"delta":%b%b' % (before, number, json.dump(run[0]), after))
                continue
            # As text, which is put together faster than bytes, and encoded once.
            texts = json.dump_all(run).decode().split("\n")
            opening, ending = before.decode(), after.decode()
            lines = [f'{opening}{n},"delta":{text}{ending}' for n, text in enumerate(texts, number)]
            found += ["".join(lines).encode()] if framed else [line.encode() for line in lines]
        return found

    def _one(self, event: Event) -> Iterator[Encoded]:
        """The events for one that is no delta like the last."""
        if isinstance(event, ItemAdded):
            if event.choice and self._first is None:
                self._first, self._key = FirstChoice(self._items), None
            self._items += 1
        only = event if self._first is None else self._first.feed(event)
        if only is None or self._over:  # another choice, for which this wire has no place
            return
        only = without(only) if self._hides else only
        self._fold.feed_all((*self._unfolded, only))
        self._unfolded.clear()
        for ready in self._serial.feed(only):
            yield from self._ready(ready)

    def _ready(self, event: Event) -> Iterator[Encoded]:
        match event:
            case Delta():
                for name, fields in self._item_events.encode(event):
                    yield self._delta(event, name, fields)
            case Started():
                yield from self._start(event)
            case Finished():
                # A cancelled answer has no event of its own: it is one that stopped early.
                status = "incomplete" if event.status == "cancelled" else event.status
                yield self._end(f"response.{status}")
                yield "", sse.END
            case Failed():
                begun = bool(self._in_progress)
                yield self._end("response.failed") if begun else self._error(event)
                if event.fault.code != "upstream_cut":  # the answer broke off before it was done
                    yield "", sse.END
            case _:
                for name, fields in self._item_events.encode(event):
                    yield self._event(name, fields)

    def _start(self, event: Started) -> Iterator[Encoded]:
        """The first events; a run in the background begins as one that waits its turn."""
        self._item_events.response_id = event.id
        response = self._fold.response
        self._in_progress = opening = encode_object(response, self._echo)
        if self._queued:
            opening = encode_object(replace(response, status="queued"), self._echo)
        yield self._snapshot("response.created", opening)
        if self._queued:
            yield self._snapshot("response.queued", opening)
        yield self._snapshot("response.in_progress", self._in_progress)

    def _end(self, name: str) -> Encoded:
        self._in_progress, self._over, self._key = b"", True, None
        return self._snapshot(name, encode_object(self._fold.response, self._echo))

    def _error(self, event: Failed) -> Encoded:
        """A failure of an answer that never began, and so has no response to fail."""
        self._over = True
        fields = error.error_object(event.fault)
        if self._nested_error:
            return self._event("error", {"error": fields})
        return self._event("error", {name: fields[name] for name in ("code", "message", "param")})

    def _snapshot(self, name: str, response: bytes) -> Encoded:
        number, self._number = self._number, self._number + 1
        fields = b'{"type":"%b","sequence_number":%d,"response":%b}'
        return name, fields % (name.encode(), number, response)

    def _event(self, name: str, fields: dict[str, JSON]) -> Encoded:
        number, self._number = self._number, self._number + 1
        return name, json.dump({"type": name, "sequence_number": number, **fields})

    def _delta(self, event: Delta, name: str, fields: dict[str, JSON]) -> Encoded:
        """A delta, of which the template is remembered for those that follow."""
        if event.tokens or event.kind == "annotation":
            return self._event(name, fields)
        number, self._number = self._number, self._number + 1
        data = json.dump(fields.pop("delta"))
        self._after = b',"logprobs":[]}' if fields.pop("logprobs", None) is not None else b"}"
        self._before = json.dump({"type": name, **fields})[:-1] + b',"sequence_number":'
        self._label = f"event: {name}\ndata: ".encode()
        if self._first is None:
            self._key = event.index, event.kind, event.part_index
        return name, b'%b%d,"delta":%b%b' % (self._before, number, data, self._after)


def encode_response(response: Response, request: Request, dialect: Dialect = STANDARD) -> bytes:
    """The answer as one JSON object: the very response that a stream's last event carries."""
    if response.choices:  # this wire has a place for one alternative
        first = response.choice(0)
        response = replace(response, output=first, choices=(), reasons=response.reasons[:1])
    if hides(request):
        response = replace(response, output=shown(response.output))
    return encode_object(response, Echo(request))
