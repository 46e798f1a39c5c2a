"""Cancels the work for a client that is gone, late or shut down, and says why an answer ended."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Protocol

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed, Finished

from .asgi import Receive

TERMINAL = (Finished, Failed)
"""The events after which nothing comes."""

UNFINISHED = Fault("upstream_cut", "The answer broke off before its end.", "upstream")
"""Why an answer failed that came to no end of its own."""


def end_for(fault: Fault | None) -> Finished | Failed:
    """The end of an answer that was stopped: its client's wish, or a failure.

    >>> end_for(UNFINISHED) == Failed(UNFINISHED)
    True
    """
    if fault is None or fault.code in ("cancelled", "stalled"):
        return Finished("cancelled")
    return Failed(fault)


GONE = Fault("cancelled", "The client closed the connection.", "client")
SHUTTING_DOWN = Fault(
    "shutting_down", "The server is shutting down; try again.", "server", retry_after="1"
)


def stalled(seconds: float) -> Fault:
    """Why a client is let go that does not read."""
    return Fault("stalled", f"The client read nothing for {seconds:g} s.", "client")


def too_late(seconds: float) -> Fault:
    """Why an answer is stopped that takes too long."""
    problem = f"There was no complete answer within {seconds:g} s."
    return Fault("upstream_timeout", problem, "upstream")


EARLY = 0.001
LISTEN_AFTER = 0.02
"""Seconds before a watch begins to listen: an answer that is quicker than that needs no listener,
which would be a good part of what it costs."""


class Watched(Protocol):
    """Work for a client that can be stopped."""

    def stop(self, fault: Fault) -> None:
        """End it for this reason."""
        ...

    def ring(self, now: float) -> None:
        """Do what is due."""
        ...


class InFlight:
    """The work that is going on. Once `closing`, no new work should be taken."""

    def __init__(self) -> None:
        self.closing = False
        self._watches: set[Watched] = set()
        self._changed = asyncio.Event()
        # One timer for all: of many thousand quick answers none sets a timer of its own. It is
        # moved only when something is due earlier, and finds out by itself what was called off.
        self._due: dict[Watched, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # uvloop's handles do not always know

    def add(self, watch: Watched) -> None:
        """A piece of work begins."""
        self._watches.add(watch)

    def discard(self, watch: Watched) -> None:
        """It has ended."""
        self._watches.discard(watch)
        self._due.pop(watch, None)
        self._changed.set()

    def remind(self, watch: Watched, due: float) -> None:
        """Ring the watch at this time of the loop's clock, and no more at any earlier one."""
        if due == math.inf:
            self._due.pop(watch, None)
            return
        self._due[watch] = due
        if due < self._timer_at:
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._ring)
        self._timer_at = due

    def _ring(self) -> None:
        self._timer, self._timer_at = None, math.inf
        # A loop that counts in milliseconds may ring that much too early.
        now = asyncio.get_running_loop().time() + EARLY
        for watch in [watch for watch, due in self._due.items() if due <= now]:
            if self._due.pop(watch, None) is not None:  # one that rings may end another
                watch.ring(now)
        if self._due:
            self._set_timer(min(self._due.values()))

    @property
    def count(self) -> int:
        """How much of it there is."""
        return len(self._watches)

    def hurry(self) -> None:
        """End the waiting of `drain`."""
        for watch in tuple(self._watches):
            watch.stop(SHUTTING_DOWN)

    async def drain(self, patience: float) -> None:
        """Take no more work, let what goes on end within `patience` seconds, then stop it."""
        self.closing = True
        timer = asyncio.get_running_loop().call_later(patience, self.hurry)
        try:
            while self._watches:
                self._changed.clear()
                await self._changed.wait()
        finally:
            timer.cancel()


class Watch:
    """A context in which the current task is cancelled when there is nobody left to work for.

    It may be entered again; what it is to listen to and its limit are forgotten when it is left.

    Leaving it after that raises FaultError with the reason in place of CancelledError; a
    cancellation that came from elsewhere passes untouched.
    """

    __slots__ = (
        "_cancellations",
        "_limit",
        "_limit_at",
        "_listen_at",
        "_listener",
        "_loop",
        "_on",
        "_receive",
        "_roster",
        "_task",
        "fault",
    )

    def __init__(self, roster: InFlight) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be watched over")
        self._task = task
        self._cancellations = task.cancelling()
        self._roster = roster
        self._loop = task.get_loop()
        self._limit: Fault | None = None
        self._limit_at = self._listen_at = math.inf
        self._receive: Receive | None = None
        self._listener: asyncio.Task[None] | None = None
        self._on = False
        self.fault: Fault | None = None

    def stop(self, fault: Fault) -> None:
        """Cancel the task for this reason. The first reason given is the one that counts."""
        if self._on and self.fault is None:
            self.fault = fault
            self._task.cancel()

    def limit(self, seconds: float | None, fault: Fault) -> None:
        """Stop for this reason when so much time has passed. The last limit set is in force."""
        self._limit = fault
        self._limit_at = math.inf if seconds is None else self._loop.time() + seconds
        self._roster.remind(self, min(self._limit_at, self._listen_at))

    def listen(self, receive: Receive) -> None:
        """Stop when the client hangs up. Nobody else may receive from now on."""
        self._receive = receive
        self._listen_at = self._loop.time() + LISTEN_AFTER
        self._roster.remind(self, min(self._limit_at, self._listen_at))

    def ring(self, now: float) -> None:
        """Do what is due; called by the roster."""
        if self._limit_at <= now and self._limit is not None:
            self._limit_at = math.inf
            self.stop(self._limit)
        if self._listen_at <= now and self._receive is not None:
            self._listen_at = math.inf
            self._listener = self._loop.create_task(self._listen(self._receive))
        self._roster.remind(self, min(self._limit_at, self._listen_at))

    def __enter__(self) -> Watch:
        self._roster.add(self)
        self._on = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._on = False
        self._limit_at = self._listen_at = math.inf
        self._roster.discard(self)
        if self._listener is not None:
            self._listener.cancel()
        if self.fault is not None and self._task.uncancel() <= self._cancellations and error:
            raise FaultError(self.fault) from None  # even if stopping it went wrong

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.stop(GONE)
