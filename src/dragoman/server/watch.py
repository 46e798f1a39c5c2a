"""Cancels the work for a client that is no longer served, and remembers why.

While a watch is on, the task that entered it is cancelled when the client hangs up, when its time
is over, or when somebody calls `stop` with another reason. A roster knows all watches that are on.
Nothing here sends a byte or knows a protocol.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from dragoman.core.error import Fault, FaultError

from .asgi import Receive

GONE = Fault("cancelled", "The client closed the connection.", "client")
SHUTTING_DOWN = Fault(
    "shutting_down", "The server is shutting down; try again.", "server", retry_after="1"
)

LISTEN_AFTER = 0.02
"""Seconds before a watch begins to listen: an answer that is quicker than that needs no listener,
which would be a good part of what it costs."""


class Roster:
    """The work that is going on. Once `closing`, no new work should be taken."""

    def __init__(self) -> None:
        self.closing = False
        self._watches: set[Watch] = set()
        self._changed = asyncio.Event()

    def add(self, watch: Watch) -> None:
        """A piece of work begins."""
        self._watches.add(watch)

    def discard(self, watch: Watch) -> None:
        """It has ended."""
        self._watches.discard(watch)
        self._changed.set()

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

    Leaving it after that raises FaultError with the reason in place of CancelledError; a
    cancellation that came from elsewhere passes untouched.
    """

    __slots__ = ("_cancellations", "_limit", "_listener", "_on", "_roster", "_task", "fault")

    def __init__(self, roster: Roster) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be watched over")
        self._task = task
        self._cancellations = task.cancelling()
        self._roster = roster
        self._limit: asyncio.TimerHandle | None = None
        self._listener: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._on = False
        self.fault: Fault | None = None

    def stop(self, fault: Fault) -> None:
        """Cancel the task for this reason. The first reason given is the one that counts."""
        if self._on and self.fault is None:
            self.fault = fault
            self._task.cancel()

    def limit(self, seconds: float | None, fault: Fault) -> None:
        """Stop for this reason when so much time has passed. The last limit set is in force."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if seconds is not None:
            self._limit = asyncio.get_running_loop().call_later(seconds, self.stop, fault)

    def listen(self, receive: Receive) -> None:
        """Stop when the client hangs up. Nobody else may receive from now on."""
        loop = asyncio.get_running_loop()
        self._listener = loop.call_later(LISTEN_AFTER, self._begin_to_listen, receive)

    def __enter__(self) -> Watch:
        self._roster.add(self)
        self._on = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._on = False
        self._roster.discard(self)
        if self._listener is not None:
            self._listener.cancel()
        if self._limit is not None:
            self._limit.cancel()
        if self.fault is not None and self._task.uncancel() <= self._cancellations and error:
            raise FaultError(self.fault) from None  # even if stopping it went wrong

    def _begin_to_listen(self, receive: Receive) -> None:
        self._listener = asyncio.get_running_loop().create_task(self._listen(receive))

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.stop(GONE)
