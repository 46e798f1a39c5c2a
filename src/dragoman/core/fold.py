"""Events add up to a response, and a response falls apart into events.

`fold` and `unfold` are inverses, so that an answer given whole and the same answer streamed
cannot differ: there is one reducer for both. Neither knows a wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from .error import Fault
from .event import Delta, Event, Failed, Finished, ItemAdded, ItemDone, PartAdded, PartDone, Started
from .item import (
    Annotation,
    Audio,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
)
from .open_item import empty_item, empty_part, part_kind
from .response import Response

_CONTENT = frozenset(("text", "refusal", "reasoning", "audio", "transcript", "annotation"))
"""Deltas that belong to a part of the content."""
_UNEXPLAINED = Fault("upstream_error", "The answer failed, and nobody said why.", "upstream")
_REASONS = {"incomplete": "length"}
"""What ended an answer that does not say."""


class Fold:
    """Adds events up. `response` may be read at any time and holds all that came so far.

    >>> from dragoman.core.event import Finished, Started
    >>> fold = Fold()
    >>> fold.feed(Started("1", 0, "m")); fold.feed(Finished("completed"))
    >>> fold.response.status
    'completed'
    """

    __slots__ = ("_choices", "_end", "_items", "_open", "_start")

    def __init__(self) -> None:
        self._start: Started | None = None
        self._end: Finished | Failed | None = None
        self._items: list[Item] = []
        self._choices: list[int] = []
        self._open: dict[int, _Tally] = {}

    def feed(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Started():
                self._start = event
            case Finished() | Failed():
                self._end = event
            case Delta():
                self._open[event.index].delta(event)
            case ItemDone():
                self._items[event.index] = event.item
                self._open.pop(event.index, None)
            case ItemAdded():
                self._items.append(event.item)
                self._choices.append(event.choice)
                self._open[event.index] = _Tally(event.item)
            case PartAdded() | PartDone():
                self._open[event.index].part(event.part_index, event.part)

    def feed_all(self, events: Sequence[Event]) -> None:
        """Take several events."""
        if self._start is None and events and _is_good_end(events[-1]):
            self._feed_whole(events)
            return
        # Deltas are nearly all there is; the others are told apart by `feed`.
        items = self._open
        for event in events:
            if type(event) is Delta:
                items[event.index].delta(event)
            else:
                self.feed(event)

    def feed_deltas(self, run: Sequence[Delta]) -> None:
        """Take deltas that are all of one kind and belong to one place."""
        first = run[0]
        place = self._open[first.index].place(first)
        if place is None:
            self.feed_all(run)
        else:
            place += run

    def _feed_whole(self, events: Sequence[Event]) -> None:
        """Every item is done by the good end, so what led there need not be added up."""
        for event in events:
            if type(event) is ItemAdded:
                self._items.append(event.item)
                self._choices.append(event.choice)
            elif type(event) is ItemDone:
                self._items[event.index] = event.item
            elif type(event) is Started or type(event) is Finished:
                self.feed(event)

    @property
    def response(self) -> Response:
        """What has come so far, open items as far as they are."""
        start = self._start or Started("", 0, "")
        items = list(self._items)
        for index, tally in self._open.items():
            items[index] = tally.item()
        end = self._end
        finished = end if isinstance(end, Finished) else None
        failed = end if isinstance(end, Failed) else None
        return Response(
            id=start.id,
            created_at=start.created_at,
            model=start.model,
            status=finished.status if finished else "failed" if failed else "in_progress",
            output=tuple(items),
            choices=tuple(self._choices) if any(self._choices) else (),
            reasons=finished.reasons if finished else (),
            usage=end.usage if end else None,
            error=failed.fault if failed else None,
            completed_at=end.completed_at if end else None,
            losses=start.losses + (finished.losses if finished else ()),
            extra=_joined(start.extra, end.extra if end else None),
            guarantee=(finished.guarantee if finished else None) or start.guarantee,
        )


def _is_good_end(event: Event) -> bool:
    """Whether every item is done by then; one who is cancelled leaves items open."""
    return isinstance(event, Finished) and event.status != "cancelled"


class _Tally:
    """An item that is still open, as deltas tell of it."""

    __slots__ = ("content", "empty", "said", "summary")

    def __init__(self, item: Item) -> None:
        self.empty = item
        self.said: list[str] = []
        self.content: dict[int, _PartTally] = {}
        self.summary: dict[int, _PartTally] = {}

    def part(self, index: int, part: Part) -> None:
        parts = self.summary if isinstance(part, Summary) else self.content
        parts[index] = _PartTally(part)

    def delta(self, event: Delta) -> None:
        place = self.place(event)
        if place is None:
            self.said.append(event.data)
        else:
            place.append(event)

    def place(self, event: Delta) -> list[Delta] | None:
        """The deltas of the part that this one belongs to; None if it belongs to the item."""
        if event.kind in _CONTENT:
            return self.content[event.part_index].deltas
        return self.summary[event.part_index].deltas if event.kind == "summary" else None

    def item(self) -> Item:
        said = "".join(self.said)
        content = tuple(self.content[n].part() for n in sorted(self.content))
        match self.empty:
            case Message() as item:
                return replace(item, content=content)
            case Reasoning() as item:
                summary = tuple(self.summary[n].part() for n in sorted(self.summary))
                return replace(item, content=content, summary=summary)
            case FunctionCall() as item:
                return replace(item, arguments=said)
            case CustomToolCall() as item:
                return replace(item, input=said)
            case item:
                return item


class _PartTally:
    """A part as added or done, and the deltas since."""

    __slots__ = ("base", "deltas")

    def __init__(self, base: Part) -> None:
        self.base = base
        self.deltas: list[Delta] = []

    def part(self) -> Part:
        base = self.base
        words = "".join(d.data for d in self.deltas if d.kind not in ("annotation", "transcript"))
        tokens = tuple(token for d in self.deltas for token in d.tokens)
        match base:
            case Text():
                notes = tuple(d.data for d in self.deltas if d.kind == "annotation")
                return replace(
                    base,
                    text=base.text + words,
                    annotations=base.annotations + notes,
                    tokens=base.tokens + tokens,
                )
            case Refusal() | Thought():
                return replace(base, text=base.text + words, tokens=base.tokens + tokens)
            case Summary():
                return replace(base, text=base.text + words)
            case Audio():
                heard = "".join(d.data for d in self.deltas if d.kind == "transcript")
                return replace(
                    base,
                    data=((base.data or "") + words) or None,
                    transcript=((base.transcript or "") + heard) or None,
                )
            case _:
                return base


def fold(events: Iterable[Event]) -> Response:
    """The response that these events add up to."""
    total = Fold()
    for event in events:
        total.feed(event)
    return total.response


def unfold(response: Response) -> Iterator[Event]:
    """The events of an answer that came whole; of one still in progress, those so far.

    >>> response = Response(id="1", created_at=0, model="m", status="completed", reasons=("stop",))
    >>> fold(unfold(response)) == response
    True
    """
    yield Started(
        response.id,
        response.created_at,
        response.model,
        response.losses,
        extra=response.extra,
        guarantee=response.guarantee,
    )
    choices = response.choices or (0,) * len(response.output)
    closed = response.status not in ("failed", "in_progress")
    for index, (item, choice) in enumerate(zip(response.output, choices, strict=True)):
        yield from unfold_item(index, item, choice, closed=closed or item_closed(item))
    match response.status:
        case "in_progress":
            pass
        case "failed":
            yield Failed(response.error or _UNEXPLAINED, response.usage, response.completed_at)
        case status:
            reasons = response.reasons or (_REASONS.get(status, "stop"),)
            yield Finished(status, reasons, response.usage, response.completed_at)


def item_closed(item: Item) -> bool:
    """Whether an item says of itself that it is done."""
    return getattr(item, "status", None) in ("completed", "incomplete")


def unfold_item(index: int, item: Item, choice: int = 0, *, closed: bool = True) -> Iterator[Event]:
    """The events of one item that came whole."""
    opened = empty_item(item)
    yield ItemAdded(index, opened, choice)
    match item:
        case Message():
            parts: tuple[Part, ...] = item.parts
        case Reasoning():
            parts = (*item.summary, *item.content)
        case FunctionCall(arguments=said):
            parts = ()
            if said:
                yield Delta(index, 0, "arguments", said)
        case CustomToolCall(input=said):
            parts = ()
            if said:
                yield Delta(index, 0, "input", said)
        case _:
            parts = ()
    counts = [0, 0]
    for part in parts:
        summary = isinstance(part, Summary)
        yield from _unfold_part(index, counts[summary], part, closed=closed)
        counts[summary] += 1
    if closed:
        yield ItemDone(index, item)


def _unfold_part(index: int, number: int, part: Part, *, closed: bool) -> Iterator[Event]:
    yield PartAdded(index, number, empty_part(part))
    match part:
        case Text() | Refusal() | Thought() | Summary():
            tokens = () if isinstance(part, Summary) else part.tokens
            if part.text or tokens:
                yield Delta(index, number, part_kind(part), part.text, tokens)
            notes: tuple[Annotation, ...] = part.annotations if isinstance(part, Text) else ()
            for note in notes:
                yield Delta(index, number, "annotation", note)
        case Audio():
            if part.data:
                yield Delta(index, number, "audio", part.data)
            if part.transcript:
                yield Delta(index, number, "transcript", part.transcript)
        case _:
            pass
    if closed:
        yield PartDone(index, number, part)


def _joined(first: Extra | None, last: Extra | None) -> Extra | None:
    if not first or not last:
        return first or last
    return {wire: {**first.get(wire, {}), **last.get(wire, {})} for wire in {**first, **last}}
