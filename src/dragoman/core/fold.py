"""Folds events into a response, and unfolds a response into events.

`fold` and `unfold` are inverses: whole and streamed answers share one reducer, so that they cannot
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from .error import Fault
from .event import Delta, Event, Failed, Finished, ItemAdded, ItemDone, PartAdded, PartDone, Started
from .item import (
    Annotation,
    Audio,
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
)
from .open_item import EMPTY_PARTS, empty_item, empty_part, part_kind
from .response import Response

_place = attrgetter("index", "part_index", "kind")
_PARTS, _ENDS = (PartAdded, PartDone), (Finished, Failed)
_CALLS = (CustomToolCall, FunctionCall)
_UNFINISHED = Finished("in_progress", ())
_UNEXPLAINED = Fault("upstream_error", "The answer failed without a reason.", "upstream")
_REASONS = {"incomplete": "length"}
"""The default finish reason."""


class Fold(Struct, eq=False):
    """Folds events into a response. `response` may be read at any time and has all events so far.

    >>> from dragoman.core.event import Finished, Started
    >>> fold = Fold()
    >>> fold.feed(Started("1", 0, "m")); fold.feed(Finished("completed"))
    >>> fold.response.status
    'completed'
    """

    _start: Started | None = None
    _end: Finished | Failed | None = None
    _items: list[Item] = []
    _choices: list[int] = []
    _open: dict[int, list[PartAdded | PartDone | Delta]] = {}  # events of open items
    # The last event, if a delta, and the text of similar deltas since: separate deltas take
    # ten times the memory.
    _last: Delta | None = None
    _text: StringIO | None = None

    def feed(self, event: Event) -> None:
        """Add one event."""
        self.feed_all((event,))

    def feed_all(self, events: Iterable[Event]) -> None:
        """Add several events."""
        for event in events:
            last = self._last
            if last is not None:
                if isinstance(event, Delta) and not event.tokens and _place(event) == _place(last):
                    self._text = self._text or StringIO()
                    self._text.write(event.data)
                    continue
                self._last = None
                if self._text is not None:
                    self._add_text(last, self._text)
            if isinstance(event, Delta):
                self._open[event.index].append(event)
                if event.kind != "annotation":
                    self._last = event
            elif isinstance(event, _PARTS):
                self._open[event.index].append(event)
            elif isinstance(event, ItemDone):
                self._items[event.index] = event.item
                self._open.pop(event.index, None)
            elif isinstance(event, ItemAdded):
                self._items.append(event.item)
                self._choices.append(event.choice)
                self._open[event.index] = []
            elif isinstance(event, Started):
                self._start = event
            elif isinstance(event, _ENDS):
                self._end = event

    def _add_text(self, last: Delta, text: StringIO) -> None:
        """Merge similar deltas into one."""
        self._text = None
        self._open[last.index].append(replace(last, data=text.getvalue(), tokens=()))

    @property
    def response(self) -> Response:
        """The response so far, with open items."""
        if self._text is not None and self._last is not None:
            self._add_text(self._last, self._text)
        start = self._start or Started("", 0, "")
        items = list(self._items)
        for index, events in self._open.items():
            items[index] = item_so_far(items[index], events)
        end: Finished | Failed = self._end or _UNFINISHED
        fault = None
        if isinstance(end, Failed):
            fault = end.fault
            end = Finished("failed", (), end.usage, end.completed_at, extra=end.extra)
        extra = start.extra
        if end.extra:
            first = extra or {}
            extra = first | {w: {**first.get(w, {}), **more} for w, more in end.extra.items()}
        return Response(
            id=start.id,
            created_at=start.created_at,
            model=start.model,
            status=end.status,
            output=tuple(items),
            choices=tuple(self._choices) if any(self._choices) else (),
            reasons=end.reasons,
            usage=end.usage,
            error=fault,
            completed_at=end.completed_at,
            losses=start.losses + end.losses,
            extra=extra,
            guarantee=end.guarantee or start.guarantee,
            stop_sequence=end.stop_sequence,
        )


def item_so_far(item: Item, events: list[PartAdded | PartDone | Delta]) -> Item:
    """The partial value of an open item."""
    # The parts by their list (whether it is the summary) and their place in it.
    parts: dict[tuple[bool, int], tuple[Part, list[Delta]]] = {}
    own: list[str] = []  # deltas of the item itself: a call's arguments or input
    for event in events:
        if not isinstance(event, Delta):
            parts[isinstance(event.part, Summary), event.part_index] = event.part, []
        elif event.kind in EMPTY_PARTS:
            parts[event.kind == "summary", event.part_index][1].append(event)
        else:
            own.append(event.data)
    content, summary = (
        tuple([part_so_far(*parts[at]) for at in sorted(parts) if at[0] is which])
        for which in (False, True)
    )
    match item:
        case Message():
            return replace(item, content=content)
        case Reasoning():
            return replace(item, content=content, summary=summary)
        case FunctionCall():
            return replace(item, arguments="".join(own))
        case CustomToolCall():
            return replace(item, input="".join(own))
        case _:
            return item


def part_so_far(part: Part, deltas: list[Delta]) -> Part:
    """A part as it was added or done, and the deltas since."""
    data = "".join(d.data for d in deltas if d.kind not in ("annotation", "transcript"))
    tokens = tuple(token for d in deltas for token in d.tokens)
    match part:
        case Text():
            notes = tuple(d.data for d in deltas if d.kind == "annotation")
            return replace(
                part,
                text=part.text + data,
                annotations=part.annotations + notes,
                tokens=part.tokens + tokens,
            )
        case Refusal() | Thought():
            return replace(part, text=part.text + data, tokens=part.tokens + tokens)
        case Summary():
            return replace(part, text=part.text + data)
        case Audio():
            transcript = "".join(d.data for d in deltas if d.kind == "transcript")
            return replace(
                part,
                data=((part.data or "") + data) or None,
                transcript=((part.transcript or "") + transcript) or None,
            )
        case _:
            return part


def fold(events: Iterable[Event]) -> Response:
    """The response of these events."""
    total = Fold()
    total.feed_all(events)
    return total.response


def unfold(response: Response) -> Iterator[Event]:
    """The events of a whole answer; of one in progress, those so far.

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
            last = response.output[-1:]
            ends = "tool_calls" if isinstance(last[0] if last else None, _CALLS) else "stop"
            reasons = response.reasons or (_REASONS.get(status, ends),)
            usage, at, stop = response.usage, response.completed_at, response.stop_sequence
            yield Finished(status, reasons, usage, at, stop_sequence=stop)


def item_closed(item: Item) -> bool:
    """Whether the status of an item is a final one."""
    return getattr(item, "status", None) in ("completed", "incomplete")


def unfold_item(index: int, item: Item, choice: int = 0, *, closed: bool = True) -> Iterator[Event]:
    """The events of one whole item."""
    opened = empty_item(item)
    yield ItemAdded(index, opened, choice)
    parts: tuple[Part, ...] = ()
    match item:
        case Message():
            parts = item.parts
        case Reasoning():
            parts = (*item.summary, *item.content)
        case FunctionCall(arguments=text) if text:
            yield Delta(index, 0, "arguments", text)
        case CustomToolCall(input=text) if text:
            yield Delta(index, 0, "input", text)
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
