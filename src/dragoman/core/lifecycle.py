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
from .item import (
    JSON,
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
from .open_item import empty_part

Answer = Literal["new", "open", "over"]

TRANSITIONS: dict[Answer, dict[type, Answer]] = {
    "new": {Started: "open", Failed: "over"},
    "open": {
        ItemAdded: "open",
        PartAdded: "open",
        Delta: "open",
        PartDone: "open",
        ItemDone: "open",
        Progress: "open",
        Finished: "over",
        Failed: "over",
    },
    "over": {},
}
"""What may follow what, for the answer as a whole."""

PART_DELTAS: dict[str, type] = {
    "text": Text,
    "annotation": Text,
    "refusal": Refusal,
    "reasoning": Thought,
    "summary": Summary,
    "audio": Audio,
    "transcript": Audio,
}
"""Deltas that live inside a part, and the part they live in. All others belong to the item."""


class LifecycleError(ValueError):
    """An event came where it may not come; the message names the event and the place."""


class _Part:
    """A part for the checker: its type, and the data of its deltas by kind."""

    __slots__ = ("data", "type")

    def __init__(self, part: Part) -> None:
        self.type = type(part)
        self.data: dict[str, list[JSON]] = {}

    def take(self, delta: Delta) -> None:
        self.data.setdefault(delta.kind, []).append(delta.data)
        self.data.setdefault("tokens", []).extend(delta.tokens)

    def total(self, kind: str) -> str:
        return "".join(self.data.get(kind, ()))

    def adds_up_to(self, part: Part) -> bool:
        """Whether the deltas add up to the part that is done."""
        tokens, notes = self.data.get("tokens", []), self.data.get("annotation", [])
        match part:
            case Text():
                whole = (part.text, list(part.tokens), list(part.annotations))
                return (self.total("text"), tokens, notes) == whole
            case Refusal():
                return (self.total("refusal"), tokens) == (part.text, list(part.tokens))
            case Thought():
                return (self.total("reasoning"), tokens) == (part.text, list(part.tokens))
            case Summary():
                return self.total("summary") == part.text
            case Audio():
                audio = (part.data or "", part.transcript or "")
                return (self.total("audio"), self.total("transcript")) == audio
            case _:
                return True


class _Item:
    """An open item for the checker."""

    __slots__ = ("data", "done", "id", "open")

    def __init__(self, item: Item) -> None:
        self.id = item.id
        self.open: dict[tuple[bool, int], _Part] = {}
        # The parts of each list (content, summary), None while they are open.
        self.done: tuple[list[Part | None], list[Part | None]] = ([], [])
        self.data: list[str] = []  # deltas that belong to the item itself


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
        self._items: list[_Item | None] = []
        self._ids: set[str] = set()

    def feed(self, event: Event) -> None:
        """Check one event."""
        following = TRANSITIONS[self.state].get(type(event))
        if following is None:
            name = type(event).__name__
            raise LifecycleError(f"{name} may not come while the answer is {self.state}")
        self.state = following
        match event:
            case ItemAdded():
                self._add_item(event)
            case PartAdded():
                self._add_part(event)
            case Delta():
                self._delta(event)
            case PartDone():
                self._part_done(event)
            case ItemDone():
                self._item_done(event)
            case Progress(index=int(index)):
                self._known(index)
            case Finished(reasons=reasons):
                self._finish(reasons)

    def close(self) -> None:
        """No more events will come. Raises LifecycleError unless the answer is over."""
        if self.state != "over":
            raise LifecycleError(f"the events ended while the answer was {self.state}")

    def _add_item(self, event: ItemAdded) -> None:
        if event.index != len(self._items):
            raise LifecycleError(f"item {event.index} was added where {len(self._items)} was next")
        if event.item.id is not None:
            if event.item.id in self._ids:
                raise LifecycleError(f"the id {event.item.id} was used before")
            self._ids.add(event.item.id)
        if _holds_something(event.item):
            raise LifecycleError(f"item {event.index} was not empty when it was added")
        self._items.append(_Item(event.item))

    def _known(self, index: int) -> None:
        if not 0 <= index < len(self._items):
            raise LifecycleError(f"item {index} is not known")

    def _open(self, index: int) -> _Item:
        self._known(index)
        item = self._items[index]
        if item is None:
            raise LifecycleError(f"item {index} is done")
        return item

    def _add_part(self, event: PartAdded) -> None:
        item = self._open(event.index)
        summary = isinstance(event.part, Summary)
        parts = item.done[summary]
        if event.part_index != len(parts):
            raise LifecycleError(f"part {event.part_index} was added where {len(parts)} was next")
        if event.part != empty_part(event.part):
            raise LifecycleError(f"part {event.part_index} was not empty when it was added")
        parts.append(None)
        item.open[summary, event.part_index] = _Part(event.part)

    def _delta(self, event: Delta) -> None:
        item = self._open(event.index)
        wanted = PART_DELTAS.get(event.kind)
        if wanted is None:
            item.data.append(event.data)
            return
        found = item.open.get((wanted is Summary, event.part_index))
        if found is None or found.type is not wanted:
            place = f"part {event.part_index} of item {event.index}"
            raise LifecycleError(f"a {event.kind} delta came for {place}, which is not open")
        found.take(event)

    def _part_done(self, event: PartDone) -> None:
        item = self._open(event.index)
        summary = isinstance(event.part, Summary)
        found = item.open.pop((summary, event.part_index), None)
        place = f"part {event.part_index} of item {event.index}"
        if found is None or found.type is not type(event.part):
            raise LifecycleError(f"{place} is not open")
        if not found.adds_up_to(event.part):
            raise LifecycleError(f"the deltas of {place} do not add up to what was done")
        item.done[summary][event.part_index] = event.part

    def _item_done(self, event: ItemDone) -> None:
        item = self._open(event.index)
        if item.open:
            raise LifecycleError(f"item {event.index} was done while parts of it were open")
        if event.item.id != item.id:
            raise LifecycleError(f"item {event.index} changed its id")
        content, summary = item.done
        match event.item:
            case FunctionCall(arguments=data) | CustomToolCall(input=data):
                same = "".join(item.data) == data
            case Message(parts=parts):
                same = content == list(parts)
            case Reasoning():
                same = [*summary, *content] == [*event.item.summary, *event.item.content]
            case _:
                same = True
        if not same:
            raise LifecycleError(f"item {event.index} is done and is not what its events add up to")
        self._items[event.index] = None

    def _finish(self, reasons: tuple[str, ...]) -> None:
        left = [number for number, item in enumerate(self._items) if item is not None]
        if left:
            raise LifecycleError(f"the answer finished while items {left} were open")
        if not reasons:
            raise LifecycleError("the answer finished without a reason")


def _holds_something(item: Item) -> bool:
    match item:
        case Message(content=data) | FunctionCall(arguments=data) | CustomToolCall(input=data):
            return bool(data)
        case Reasoning(content=content, summary=summary):
            return bool(content or summary)
        case _:
            return False


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
        index = _index(event)
        if index is None:
            if isinstance(event, Finished | Failed):
                self._waiting.clear()
            return [event]
        if index > self._head:
            self._waiting.setdefault(index, []).append(event)
            return []
        if not isinstance(event, ItemDone) or index < self._head:
            return [event]
        return [event, *self._advance()]

    def _advance(self) -> list[Event]:
        """Emit what waited for the head item, and make the next one the head."""
        ready: list[Event] = []
        done = True
        while done:
            self._head += 1
            waiting = self._waiting.pop(self._head, [])
            ready += waiting
            done = any(isinstance(event, ItemDone) for event in waiting)
        return ready


def _index(event: Event) -> int | None:
    """The item an event is about, or None when it is about the whole answer."""
    match event:
        case Started() | Finished() | Failed() | Progress(index=None):
            return None
        case _:
            return event.index


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
