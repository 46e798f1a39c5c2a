"""Checks the legal order of events by a table, and serialises or filters events for readers that
need one open item at a time, or one choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from .event import (
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
from .fold import item_so_far, part_so_far
from .item import (
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Summary,
)
from .open_item import EMPTY_PARTS, empty_part

Answer = Literal["new", "open", "over"]

TRANSITIONS: dict[Answer, dict[type, Answer]] = {
    "new": {Started: "open", Failed: "over"},
    "open": {
        **dict.fromkeys((ItemAdded, PartAdded, Delta, PartDone, ItemDone, Progress), "open"),
        **dict.fromkeys((Finished, Failed), "over"),
    },
    "over": {},
}
"""The legal transitions of the answer as a whole."""

PART_DELTAS = {kind: type(part) for kind, part in EMPTY_PARTS.items()}
"""Deltas inside a part, and their part. All others belong to the item."""


class LifecycleError(ValueError):
    """An event is out of order; the message names the event and the state."""


class _Item:
    """An open item for the checker."""

    __slots__ = ("counts", "events", "id", "open")

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.counts = [0, 0]  # parts so far of each list: content, summary
        self.open: dict[tuple[bool, int], tuple[type, list[Delta]]] = {}  # parts, by list and place
        self.events: list[PartAdded | PartDone | Delta] = []  # the folded item


class Lifecycle:
    """Checks events one at a time; `feed` raises LifecycleError at the first that is not legal.

    >>> from dragoman.core.event import Finished
    >>> Lifecycle().feed(Finished("completed"))
    Traceback (most recent call last):
        ...
    dragoman.core.lifecycle.LifecycleError: Finished may not come while the answer is new
    """

    def __init__(self) -> None:
        self.state: Answer = "new"
        self._items: list[_Item | None] = []  # None once done
        self._ids: set[str] = set()

    def feed(self, event: Event) -> None:
        """Check one event."""
        following = TRANSITIONS[self.state].get(type(event))
        if following is None:
            name = type(event).__name__
            raise LifecycleError(f"{name} may not come while the answer is {self.state}")
        self.state = following
        match event:
            case Started() | Failed() | Progress(index=None):
                pass
            case Finished(reasons=reasons):
                left = [number for number, item in enumerate(self._items) if item is not None]
                if left:
                    raise LifecycleError(f"the answer finished while items {left} were open")
                if not reasons:
                    raise LifecycleError("the answer finished without a reason")
            case ItemAdded():
                self._add_item(event)
            case _:
                index = event.index
                if index is None or not 0 <= index < len(self._items):
                    raise LifecycleError(f"item {index} is not known")
                if not isinstance(event, Progress):
                    if (item := self._items[index]) is None:
                        raise LifecycleError(f"item {index} is done")
                    self._inside(item, event)

    def close(self) -> None:
        """Check the end. Raises LifecycleError unless the answer is over."""
        if self.state != "over":
            raise LifecycleError(f"the events ended while the answer was {self.state}")

    def _add_item(self, event: ItemAdded) -> None:
        index, item = event.index, event.item
        if index != len(self._items):
            raise LifecycleError(f"item {index} was added where {len(self._items)} was next")
        if item.id is not None:
            if item.id in self._ids:
                raise LifecycleError(f"the id {item.id} was used before")
            self._ids.add(item.id)
        match item:
            case Message(content=data) | FunctionCall(arguments=data) | CustomToolCall(input=data):
                empty = not data
            case Reasoning(content=content, summary=summary):
                empty = not (content or summary)
            case _:
                empty = True
        if not empty:
            raise LifecycleError(f"item {index} was not empty when it was added")
        self._items.append(_Item(item.id))

    def _inside(self, item: _Item, event: PartAdded | Delta | PartDone | ItemDone) -> None:
        """Check an event inside an open item."""
        if isinstance(event, ItemDone):
            if item.open:
                raise LifecycleError(f"item {event.index} was done while parts of it were open")
            if event.item.id != item.id:
                raise LifecycleError(f"item {event.index} changed its id")
            whole = event.item
            if isinstance(whole, Message):
                whole = replace(whole, content=whole.parts)
            if item_so_far(whole, item.events) != whole:
                problem = f"item {event.index} is done and is not what its events add up to"
                raise LifecycleError(problem)
            self._items[event.index] = None
            return
        number = event.part_index
        place = f"part {number} of item {event.index}"
        if isinstance(event, Delta):
            wanted = PART_DELTAS.get(event.kind)
            if wanted is None:
                item.events.append(event)
                return
            kind, deltas = item.open.get((wanted is Summary, number), (None, []))
            if kind is not wanted:
                raise LifecycleError(f"a {event.kind} delta came for {place}, which is not open")
            deltas.append(event)
            return
        summary = isinstance(event.part, Summary)
        if isinstance(event, PartAdded):
            if number != item.counts[summary]:
                next = item.counts[summary]
                raise LifecycleError(f"part {number} was added where {next} was next")
            if event.part != empty_part(event.part):
                raise LifecycleError(f"part {number} was not empty when it was added")
            item.counts[summary] += 1
            item.open[summary, number] = type(event.part), []
            return
        kind, deltas = item.open.pop((summary, number), (None, []))
        if kind is not type(event.part):
            raise LifecycleError(f"{place} is not open")
        if part_so_far(empty_part(event.part), deltas) != event.part:
            raise LifecycleError(f"the deltas of {place} do not add up to what was done")
        item.events.append(event)


def check(events: Iterable[Event]) -> None:
    """Raises LifecycleError unless these are all the events of one answer, in a legal order."""
    lifecycle = Lifecycle()
    for event in events:
        lifecycle.feed(event)
    lifecycle.close()


class ItemSerializer:
    """Orders events so that one item is open at a time.

    Items come out in the order of their index: events of a later one wait until the one before it
    is done, and events of the whole answer pass. At the end waiting events are dropped: after a
    failure the open item stays open, and the fold has the rest.
    """

    __slots__ = ("_head", "_waiting")

    def __init__(self) -> None:
        self._head = 0
        self._waiting: dict[int, list[Event]] = {}

    def feed(self, event: Event) -> list[Event]:
        """The events that may be emitted now."""
        index: int | None = getattr(event, "index", None)
        if index is None:  # it concerns the whole answer
            if isinstance(event, Finished | Failed):
                self._waiting.clear()
            return [event]
        if index > self._head:
            self._waiting.setdefault(index, []).append(event)
            return []
        ready, done = [event], index == self._head and isinstance(event, ItemDone)
        while done:  # the queued events of the next item
            self._head += 1
            waiting = self._waiting.pop(self._head, [])
            ready += waiting
            done = ItemDone in map(type, waiting)
        return ready


class FirstChoice:
    """Drops every choice but the first, and keeps the indices dense.

    >>> from dragoman.core.item import Message
    >>> first = FirstChoice()
    >>> first.feed(ItemAdded(0, Message("assistant"), choice=1))
    >>> first.feed(ItemAdded(1, Message("assistant"), choice=0)).index
    0
    """

    __slots__ = ("_count", "_places")

    def __init__(self, count: int = 0) -> None:
        """`count` items have passed already, all of the first choice."""
        self._count = count
        self._places: dict[int, int | None] = {index: index for index in range(count)}

    def feed(self, event: Event) -> Event | None:
        """The event with its new index; None where it belongs to another choice."""
        match event:
            case ItemAdded(index=index, choice=0):
                self._places[index] = self._count
                self._count += 1
                return replace(event, index=self._count - 1)
            case ItemAdded(index=index):
                self._places[index] = None
                return None
            case Finished(reasons=reasons):
                return replace(event, reasons=reasons[:1])
            case Started() | Failed() | Progress(index=None):
                return event
            case _:
                place = self._places[event.index or 0]
                return None if place is None else replace(event, index=place)
