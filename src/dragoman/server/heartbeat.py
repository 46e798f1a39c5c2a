"""Timers of a stream: heartbeats while it is silent, and a limit for clients that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .settings import Settings


class Clock:
    """Calls `silent` after `header_hold` seconds before the head is out and `heartbeat` seconds
    after it, and `stalled` when a send has taken `stall` seconds."""

    __slots__ = (
        "_loop",
        "_on",
        "_opened",
        "_sending",
        "_settings",
        "_silent",
        "_since",
        "_stalled",
        "_timer",
        "_timer_at",
    )

    def __init__(
        self, settings: Settings, silent: Callable[[], None], stalled: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._silent = silent
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()  # when the last send began or ended
        self._sending = False
        self._opened = False
        self._on = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def start(self) -> None:
        """From now on."""
        self._on = True
        self._arm()

    def stop(self) -> None:
        """No more, for good."""
        self._on = False
        self._silent = self._stalled = _nothing  # which know the clock: a cycle
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def sent(self, *, all: bool = True) -> None:
        """A send has begun, or, with all of it out, ended."""
        self._since = self._loop.time()
        self._sending = not all

    def opened(self) -> None:
        """The head is out: another silence counts."""
        self._opened = True
        if self._on:
            self._arm()

    def _arm(self) -> None:
        """See to it that the timer goes off no later than something is due."""
        due = self._due()
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)
        self._timer_at = due  # uvloop's handles do not always know

    def _due(self) -> float:
        if self._sending:
            return self._since + self._settings.stall
        if not self._opened:
            return self._since + self._settings.header_hold
        return self._since + self._settings.heartbeat

    def _tick(self) -> None:
        self._timer = None
        if self._due() <= self._loop.time():
            self._since = self._loop.time()
            if self._sending:
                self._stalled()
            else:
                self._silent()
        if self._on:
            self._arm()


def _nothing() -> None:
    pass
