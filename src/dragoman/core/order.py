"""Puts interleaved items one after the other, for readers that need one open item at a time.

Items come out in the order of their index. What belongs to a later item waits until the one
before it is done; what concerns the whole answer passes. The events themselves are not changed.
"""

from __future__ import annotations

from .event import Event, Failed, Finished, ItemDone, Progress, Started


class Serial:
    """Feed it events in any legal order; it gives them on with one item open at a time.

    On failure what still waits is let go: the open item stays open and the fold has the rest.
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
