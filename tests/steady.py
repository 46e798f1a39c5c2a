"""An event loop whose clock stands still while the machine does, so that a test may have time-outs.

A machine that is busy elsewhere may stop a test for seconds at any point. On the usual clock all
the timers of the loop are then due at once, and what was to come long before a time-out comes
after it. Here only what the loop waited for on purpose counts in full, and work and stops count as
a moment. It knows nothing of other threads and processes, whose clocks go on.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import time
from typing import Any

MOMENT = 0.01
"""Seconds that any stretch between two looks at the clock counts at most."""


class Clock:
    """Seconds that have been waited for, and moments."""

    def __init__(self) -> None:
        self._now = self._seen = time.monotonic()

    def look(self, most: float = MOMENT) -> float:
        """The time now; no more than `most` has passed since the last look."""
        seen = time.monotonic()
        self._now += min(seen - self._seen, most)
        self._seen = seen
        return self._now


class Selector(selectors.DefaultSelector):
    """Tells the clock how long it was to wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._clock.look()
        ready = super().select(timeout)
        self._clock.look(math.inf if timeout is None else max(timeout, MOMENT))
        return ready


class SteadyLoop(asyncio.SelectorEventLoop):
    """Asyncio's own loop by such a clock."""

    def __init__(self) -> None:
        self._clock = Clock()
        super().__init__(Selector(self._clock))

    def time(self) -> float:
        return self._clock.look()


LOOPS: dict[str, Any] = {
    # On Windows the usual loop is another, which can do more.
    "steady": asyncio.new_event_loop if sys.platform == "win32" else SteadyLoop
}
"""The loops of tests that name no other."""
