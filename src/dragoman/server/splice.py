"""Says an answer of which bytes have passed: nothing more, unless it ended badly.

It stands before the encoder that would have said the answer. An answer that did not pass after all
is left to that encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.event import Event, Failed, Started
from dragoman.core.interfaces import Encoder
from dragoman.wire import sse


class Splice:
    """The end of a relayed answer, in the words of `encoder`."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._heard = False  # events come, and no bytes

    def feed(self, events: Sequence[Event]) -> bytes:
        """What is still to be said."""
        self._heard = self._heard or any(isinstance(event, Started) for event in events)
        if not self._heard:
            events = [event for event in events if isinstance(event, Failed)]
        return self._encoder.feed(events)

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, which may stand between any two events."""
        return self._encoder.heartbeat(data=data) if self._heard else sse.comment("alive")
