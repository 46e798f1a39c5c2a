"""A recorded answer said again: the same encoder over the same events gives the same bytes.

What a reader has already is said too, and left out. Knows server-sent events and their numbers, and
nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.event import Event
from dragoman.core.interfaces import Encoder
from dragoman.wire import sse

_BLANK_LINE = b"\n\n"


class Replay:
    """An encoder that keeps silent about the events up to, and with, the number `after`.

    Every frame of the encoder inside has the next number from 0; `[DONE]` has none.
    """

    def __init__(self, encoder: Encoder, after: int = -1) -> None:
        self._encoder = encoder
        self._skip = after + 1

    def feed(self, event: Event) -> bytes:
        """The bytes for one event, but for what the reader has."""
        return self._new(self._encoder.feed(event))

    def feed_all(self, events: Sequence[Event]) -> bytes:
        """The bytes for several."""
        return self._new(self._encoder.feed_all(events))

    def _new(self, said: bytes) -> bytes:
        place = 0
        while self._skip and place < len(said) and not said.startswith(sse.DONE, place):
            place = said.index(_BLANK_LINE, place) + len(_BLANK_LINE)
            self._skip -= 1
        return said[place:] if place else said

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment: an event would take a number, and the recorded ones would not fit any more."""
        return self._encoder.heartbeat()
