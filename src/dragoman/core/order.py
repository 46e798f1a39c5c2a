"""Makes an answer simpler for readers that need it: one open item at a time, one alternative.

Events are held back, left out or renumbered, and otherwise not changed. Which reader needs what
is known to the encoders.
"""

from __future__ import annotations

from msgspec.structs import replace

from .event import Event, Failed, Finished, ItemAdded, ItemDone, Progress, Started


class Serial:
    """Feed it events in any legal order; it gives them on with one item open at a time.

    Items come out in the order of their index: what belongs to a later one waits until the one
    before it is done, and what concerns the whole answer passes. On failure what still waits is
    let go: the open item stays open and the fold has the rest.
    """

    __slots__ = ("_head", "_waiting")

    def __init__(self) -> None:
        self._head = 0
        self._waiting: dict[int, list[Event]] = {}

    def feed(self, event: Event) -> list[Event]:
        """The events that may go out now."""
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
        """Let out what waited for the head item to be done, and make the next one the head."""
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
    """Leaves out every alternative but the first, and closes the gaps that leaves in the indices.

    >>> from dragoman.core.item import Message
    >>> first = FirstChoice()
    >>> first.feed(ItemAdded(0, Message("assistant"), choice=1))
    >>> first.feed(ItemAdded(1, Message("assistant"), choice=0)).index
    0
    """

    __slots__ = ("_count", "_places")

    def __init__(self, count: int = 0) -> None:
        """`count` items have gone by already, all of the first alternative."""
        self._count = count
        self._places: dict[int, int | None] = {index: index for index in range(count)}

    def feed(self, event: Event) -> Event | None:
        """The event as that reader sees it; None where it has no part in the first alternative."""
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
