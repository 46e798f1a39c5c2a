"""Cancels work on a disconnect, a timeout or a shutdown, and gives the reason as a fault."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Protocol

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Failed, Finished

TERMINAL = (Finished, Failed)
"""The terminal events."""

UNFINISHED = Fault("upstream_cut", "The answer broke off before its end.", "upstream")
"""The fault of an answer whose engine ended without a terminal event."""
DELETED = Fault("not_found", "This response was deleted while it was read.", "client")
FORGOTTEN = bad_request(
    "the events of this response are no longer stored; read it without stream", "stream"
)
"""The fault of a reading of events that are too old."""
DIED = Fault(
    "internal",
    "The server that was giving this answer stopped before its end. Ask again.",
    "server",
)
"""The fault of an answer whose server died."""
GONE = Fault("cancelled", "The client closed the connection.", "client")
CANCELLED = Fault("cancelled", "The answer was cancelled.", "client")
SHUTTING_DOWN = Fault(
    "shutting_down", "The server is shutting down; try again.", "server", retry_after="1"
)


def end_for(fault: Fault) -> Finished | Failed:
    """The terminal event of an answer that was stopped.

    >>> end_for(UNFINISHED) == Failed(UNFINISHED), end_for(GONE) == Finished("cancelled")
    (True, True)
    """
    return Finished("cancelled") if fault.code in ("cancelled", "stalled") else Failed(fault)


def stalled(seconds: float) -> Fault:
    """The fault of a client that does not read."""
    return Fault("stalled", f"The client read nothing for {seconds:g} s.", "client")


def too_late(seconds: float) -> Fault:
    """The fault of an answer that takes too long."""
    problem = f"There was no complete answer within {seconds:g} s."
    return Fault("upstream_timeout", problem, "upstream")


EARLY = 0.001
"""Seconds by which an event loop with millisecond resolution may call too early."""
SWEEP = 0.02
"""Seconds between two sweeps at the least, so that thousands of timers cost little."""


class Peer(Protocol):
    """Work for a client that can be cancelled, with callbacks for the client's backpressure."""

    def stop(self, fault: Fault) -> None:
        """Cancel the work, with this reason."""
        ...

    def tick(self, now: float) -> None:
        """Handle the deadlines that have passed."""
        ...

    def disconnected(self) -> None:
        """The client has closed the connection."""
        ...

    def drained(self) -> None:
        """The client has read enough that more can be written."""
        ...


class Connection(Protocol):
    """Calls back a peer about its client."""

    def listen(self, peer: Peer | None) -> None:
        """Call this peer from now on, in place of any other."""
        ...


class InFlight:
    """The work in progress, and its timers. Once `closing`, no new work should be accepted, and
    once it is `over` none begun that waited.

    One loop timer serves all of them, so that thousands of quick answers set none of their own. It
    is moved only for an earlier deadline, and skips those that were cancelled.
    """

    def __init__(self) -> None:
        self.closing = self.over = False
        self.works: set[Peer] = set()
        self._changed = asyncio.Event()
        self._due: dict[Peer, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # uvloop's handles do not always have `when`

    def discard(self, work: Peer) -> None:
        """Remove a piece of work that has ended."""
        self.works.discard(work)
        self._due.pop(work, None)
        if self.closing:
            self._changed.set()

    def call_at(self, work: Peer, due: float) -> None:
        """Call `tick` at this time of the loop's clock, and no more at any earlier one."""
        if due == math.inf:
            self._due.pop(work, None)
            return
        self._due[work] = due
        if due < self._timer_at:
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._sweep)
        self._timer_at = due

    def _sweep(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = asyncio.get_running_loop().time() + EARLY
        for work in [work for work, due in self._due.items() if due <= now]:
            if self._due.pop(work, None) is not None:  # one may end another
                work.tick(now)
        if self._due:
            self._set_timer(max(min(self._due.values()), now + SWEEP))

    def stop_all(self) -> None:
        """Stop all work; `drain` returns as soon as that has ended."""
        self.over = True
        for work in tuple(self.works):
            work.stop(SHUTTING_DOWN)

    async def drain(self, patience: float) -> None:
        """Accept no more work, give running work `patience` seconds to end, then stop it."""
        self.closing = True
        timer = asyncio.get_running_loop().call_later(patience, self.stop_all)
        try:
            while self.works:
                self._changed.clear()
                await self._changed.wait()
        finally:
            timer.cancel()


class Watch:
    """A context in which the current task is cancelled when its work is no longer wanted: when the
    client of `connection` disconnects, time is up, or the server shuts down.

    Leaving it after that raises FaultError with the reason in place of CancelledError; a
    cancellation from elsewhere is not changed.
    """

    __slots__ = ("_cancellations", "_connection", "_limit", "_on", "_roster", "_task", "fault")

    def __init__(self, roster: InFlight, connection: Connection | None = None) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be watched over")
        self._task = task
        self._cancellations = task.cancelling()
        self._roster = roster
        self._connection = connection
        self._limit: Fault | None = None
        self._on = False
        self.fault: Fault | None = None

    def stop(self, fault: Fault) -> None:
        """Cancel the task for this reason. The first reason given is the one that counts."""
        if self._on and self.fault is None:
            self.fault = fault
            self._task.cancel()

    def limit(self, seconds: float | None, fault: Fault | None = None) -> None:
        """Stop after so much time, for this reason. It replaces an earlier limit."""
        due = math.inf
        if seconds is not None:
            due = asyncio.get_running_loop().time() + seconds
            self._limit = fault or too_late(seconds)
        self._roster.call_at(self, due)

    def tick(self, now: float) -> None:
        """Time is up."""
        if self._limit is not None:
            self.stop(self._limit)

    def disconnected(self) -> None:
        """The client is gone."""
        self.stop(GONE)

    def drained(self) -> None:
        """Nothing was written yet."""

    def __enter__(self) -> Watch:
        self._roster.works.add(self)
        self._on = True
        if self._connection is not None:
            self._connection.listen(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._on = False
        self._roster.discard(self)
        if self._connection is not None:
            self._connection.listen(None)
        if self.fault is not None and self._task.uncancel() <= self._cancellations and error:
            raise FaultError(self.fault) from None  # even if stopping it failed
