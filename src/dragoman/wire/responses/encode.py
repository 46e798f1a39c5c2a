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
from dragoman.wire.dialect import STANDARD, Dialect

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
from .response import echo, item_id, render

Said = tuple[str, dict[str, JSON]]
"""The name of an event and its fields, all but its type and number."""

Inside = PartAdded | Delta | PartDone | ItemDone
ItemEvent = ItemAdded | Inside | Progress

STATES = {"partial": "partial_image"}
"""States of hosted tools that are called otherwise on this wire."""

_WORDS = {
    "text": "output_text",
    "transcript": "output_text",
    "refusal": "refusal",
    "summary": "reasoning_summary_text",
    "arguments": "function_call_arguments",
    "input": "custom_tool_call_input",
}
"""What the deltas of a kind are called; reasoning is called as the dialect has it."""


class _Place:
    """Where an item stands in the output, and what of it has been said."""

    __slots__ = ("contents", "fields", "kind", "notes")

    def __init__(self, item: Item, id: str, position: int) -> None:
        self.fields: dict[str, JSON] = {"item_id": id, "output_index": position}
        self.kind = hosted(item)
        self.contents: dict[int, int] = {}  # our number of a part: its number here
        self.notes: dict[int, int] = {}  # our number of a part: annotations so far

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


class Wording:
    """Finds the words for the items of one answer. `reasoning` is what raw reasoning is called."""

    def __init__(self, reasoning: str) -> None:
        self.response_id = ""
        self._words = {**_WORDS, "reasoning": reasoning}
        self._places: dict[int, _Place] = {}  # by our index

    def say(self, event: ItemEvent) -> Iterator[Said]:
        """The events to say for one about an item, or beside all items."""
        match event:
            case ItemAdded(index=index, item=item):
                yield from self._item_added(index, item)
            case Progress():
                yield from self._progress(event)
            case _ if (place := self._places.get(event.index)) is not None:
                yield from self._inside(place, event)

    def _item_added(self, index: int, item: Item) -> Iterator[Said]:
        id, position = item_id(item, self.response_id, index), len(self._places)
        said = encode_output(item, id)
        if said is not None:
            self._places[index] = _Place(item, id, position)
            yield "response.output_item.added", {"output_index": position, "item": said}

    def _inside(self, place: _Place, event: Inside) -> Iterator[Said]:
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

    def _delta(self, place: _Place, event: Delta) -> Iterator[Said]:
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
        said = {**at, "delta": event.data}
        if event.kind in ("text", "transcript"):
            said["logprobs"] = encode_tokens(event.tokens)
        yield f"response.{self._words[event.kind]}.delta", said

    def _part_done(self, place: _Place, event: PartDone) -> Iterator[Said]:
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
                said = {name: whole[name] for name in ("text", "logprobs")}
                yield "response.output_text.done", {**at, **said}
            case Refusal():
                yield "response.refusal.done", {**at, "refusal": part.text}
            case Thought():
                yield f"response.{self._words['reasoning']}.done", {**at, "text": part.text}
            case Summary():
                yield "response.reasoning_summary_text.done", {**at, "text": part.text}
                yield "response.reasoning_summary_part.done", {**at, "part": whole}
                return
        yield "response.content_part.done", {**at, "part": whole}

    def _progress(self, event: Progress) -> Iterator[Said]:
        place = None if event.index is None else self._places.get(event.index)
        if event.state == "raw":
            said = event.data.get(WIRE)
            if said is not None and (event.index is None or place is not None):
                where = place.fields if place else {}
                told = {name: where.get(name, value) for name, value in said.items()}
                yield told.pop("type"), told
        elif place is not None and place.kind is not None:
            state = STATES.get(event.state, event.state)
            yield f"response.{place.kind}.{state}", {**place.fields, **(event.data or {})}


def _full(part: Part) -> dict[str, JSON]:
    return encode_parts(part, "output_text", full=True) or {}


def _annotation(place: _Place, event: Delta) -> Iterator[Said]:
    at = place.at(event.part_index)
    if at is not None:
        number = place.notes.get(event.part_index, 0)
        place.notes[event.part_index] = number + 1
        note = {"annotation_index": number, "annotation": encode_annotation(event.data)}
        yield "response.output_text.annotation.added", {**at, **note}


def _item_done(place: _Place, item: Item) -> Iterator[Said]:
    where = place.fields
    match item:
        case FunctionCall():
            said = {"name": item.name, "arguments": item.arguments}
            yield "response.function_call_arguments.done", {**where, **said}
        case CustomToolCall():
            yield "response.custom_tool_call_input.done", {**where, "input": item.input}
    whole = encode_output(item, where["item_id"])
    yield "response.output_item.done", {"output_index": where["output_index"], "item": whole}


_BLANK_LINE = 2
"""The bytes that end a frame."""


class Encoder:
    """Feed it the events of one answer; it gives the bytes of each.

    >>> encoder = Encoder(Request(model="m"))
    >>> encoder.feed([Started("1", 0, "m")]).splitlines()[0]
    b'event: response.created'
    """

    def __init__(self, request: Request, dialect: Dialect = STANDARD) -> None:
        self._repeated = echo(request)
        self._hides = hides(request)
        self._nested_error = dialect.error_event == "nested"
        self._wording = Wording(dialect.reasoning_events)
        self._fold = Fold()
        self._serial = ItemSerializer()
        self._first: FirstChoice | None = None  # needed only where there are alternatives
        self._items = 0
        self._number = 0  # of the next event
        self._beat: dict[str, JSON] | None = None  # the response, while it is in progress
        self._over = False
        # The frame of the last delta, as the next one is most likely of the same kind: what
        # stands before its number, between number and data, and after the data.
        self._key: tuple[int, str, int] | None = None
        self._before = self._after = b""

    def _one(self, event: Event) -> bytes:
        """The bytes for one event; empty where it has no word here, or must wait its turn."""
        if isinstance(event, Delta) and self._fits(event) and self._first is None:
            self._fold.feed(event)
            return self._next_delta(event.data)
        only = self._of_the_first(event)
        if only is None or self._over:
            return b""
        event = without(only) if self._hides else only
        self._fold.feed(event)
        return b"".join([self._say(ready) for ready in self._serial.feed(event)])

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for several events. Deltas of one kind in a row, as most are, are one step."""
        said: list[bytes] = []
        run: list[Delta] = []
        for event in events:
            if isinstance(event, Delta) and self._fits(event) and self._first is None:
                run.append(event)
                continue
            if run:
                said.append(self._deltas(run))
                run = []
            said.append(self._one(event))
        if run:
            said.append(self._deltas(run))
        return b"".join(said)

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or `response.in_progress` once more; empty unless an answer is being given."""
        if self._beat is None:
            return b""
        return self._in_progress() if data else sse.comment("still working")

    def _of_the_first(self, event: Event) -> Event | None:
        """The event, unless it belongs to an alternative: this wire has no place for one."""
        if isinstance(event, ItemAdded):
            if event.choice and self._first is None:
                self._first = FirstChoice(self._items)
            self._items += 1
        return event if self._first is None else self._first.feed(event)

    # ---- what is said --------------------------------------------------------------------

    def _say(self, event: Event) -> bytes:
        match event:
            case Delta():
                return self._delta(event)
            case Started():
                self._wording.response_id = event.id
                self._beat = self._snapshot()
                return self._opening(self._beat) + self._in_progress()
            case Finished():
                # A cancelled answer has no event of its own: it is one that stopped early.
                status = "incomplete" if event.status == "cancelled" else event.status
                return self._terminal(f"response.{status}") + sse.DONE
            case Failed():
                # Where the answer broke off, nobody said that it was done.
                done = b"" if event.fault.code == "upstream_cut" else sse.DONE
                begun = self._beat is not None
                return (self._terminal("response.failed") if begun else self._error(event)) + done
            case _:
                return b"".join([self._frame(*said) for said in self._wording.say(event)])

    def _opening(self, begun: dict[str, JSON]) -> bytes:
        """The first events; a run in the background begins as one that waits its turn."""
        if not self._repeated["background"]:
            return self._frame("response.created", begun)
        queued = {"response": {**begun["response"], "status": "queued"}}
        return self._frame("response.created", queued) + self._frame("response.queued", queued)

    def _in_progress(self) -> bytes:
        return self._frame("response.in_progress", self._beat or {})

    def _terminal(self, name: str) -> bytes:
        self._beat, self._over = None, True
        return self._frame(name, self._snapshot())

    def _snapshot(self) -> dict[str, JSON]:
        return {"response": render(self._fold.response, self._repeated)}

    def _error(self, event: Failed) -> bytes:
        """A failure of an answer that never began, and so has no response to fail."""
        self._over = True
        told = error.error_object(event.fault)
        if self._nested_error:
            return self._frame("error", {"error": told})
        return self._frame("error", {name: told[name] for name in ("code", "message", "param")})

    # ---- framing -------------------------------------------------------------------------

    def _frame(self, name: str, fields: dict[str, JSON]) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.frame(json.dump({"type": name, "sequence_number": number, **fields}), name)

    def _fits(self, event: Delta) -> bool:
        """Whether the frame of the last delta is the frame of this one."""
        return (event.index, event.kind, event.part_index) == self._key and not event.tokens

    def _next_delta(self, data: JSON) -> bytes:
        number, self._number = self._number, self._number + 1
        return b'%b%d,"delta":%b%b' % (self._before, number, json.dump(data), self._after)

    def _deltas(self, run: list[Delta]) -> bytes:
        """The frames of deltas that all fit the last one."""
        self._fold.feed_all(run)
        said = json.dump_all([event.data for event in run]).decode().split("\n")
        number, before, after = self._number, self._before.decode(), self._after.decode()
        self._number += len(run)
        # As text, which is put together faster than bytes, and encoded once.
        return "".join(
            [f'{before}{n},"delta":{each}{after}' for n, each in enumerate(said, number)]
        ).encode()

    def _delta(self, event: Delta) -> bytes:
        """Say a delta, and remember its frame for those that follow."""
        for name, fields in self._wording.say(event):
            if event.tokens or event.kind == "annotation":
                return self._frame(name, fields)
            del fields["delta"]
            listed = fields.pop("logprobs", None) is not None
            opening = json.dump({"type": name, **fields})[:-1] + b',"sequence_number":'
            self._before = sse.frame(opening, name)[:-_BLANK_LINE]
            self._after = (b',"logprobs":[]' if listed else b"") + b"}\n\n"
            self._key = (event.index, event.kind, event.part_index)
            return self._next_delta(event.data)
        return b""


def encode_response(response: Response, request: Request, dialect: Dialect = STANDARD) -> bytes:
    """The answer as one JSON object: the very response that a stream's last event carries."""
    if response.choices:  # this wire has a place for one alternative
        first = response.choice(0)
        response = replace(response, output=first, choices=(), reasons=response.reasons[:1])
    if hides(request):
        response = replace(response, output=shown(response.output))
    return json.dump(render(response, echo(request)))
