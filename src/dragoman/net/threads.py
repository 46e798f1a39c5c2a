"""Threads of their own for calls that may hang, and turns of tenants for a lock or large work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")

PAUSE = 1.0
"""Seconds between two pieces of large work, at the most: who is next did not ask for the last."""
MUCH = 1024 * 1024
"""Bytes from which on work waits only for other work on as much."""
reading: ContextVar[str] = ContextVar("reading", default="")
"""The tenant of the current read, or large work: tenants take turns."""


class BusyError(Exception):
    """As many threads are at work as there may be."""


class Threads:
    """Threads, each for one call. A cancelled call no longer waits for its own: nothing stops it,
    and one that hangs must hold up neither its caller nor the end of the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._working: dict[threading.Thread, str] = {}

    async def run(self, function: Callable[[], _T], most: int, tenant: str = "") -> _T:
        """Call a function. Raises BusyError where so many are at work, or hang, or where a tenant
        has half of what others leave."""
        own = [*self._working.values()].count(tenant) if tenant else 0
        if len(self._working) + own >= most:
            raise BusyError
        loop, context = asyncio.get_running_loop(), copy_context()
        futures: list[asyncio.Future[_T]] = [loop.create_future()]  # until it is settled

        def settle(result: Any, error: BaseException | None) -> None:
            if not (future := futures.pop()).done():
                future.set_result(result) if error is None else future.set_exception(error)

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function)
            except StopIteration as stop:  # no future takes it
                error = RuntimeError(f"StopIteration: {stop}")
            except BaseException as raised:
                error = raised
            self._working.pop(thread)
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(settle, result, error)
            del error  # it holds this frame

        thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._working[thread] = tenant
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            del self._working[thread]
            raise BusyError from None
        return await futures[0]


class TenantLock:
    """A lock for which the tenants that wait take turns. It has so many `places`, of which one
    tenant has at most its `share`; where there are several tenants, fewer by `left`, which are
    left to the others. Several event loops may use it at once."""

    def __init__(self, places: int = 1, share: int = 1, left: int = 0) -> None:
        self._share = share
        self._left = left
        self._first: str | None = None
        self._free = places
        self._held: Counter[str] = Counter()
        self._lines: dict[str, OrderedDict[asyncio.Future[None], None]] = {}  # the next one first
        self._given: set[asyncio.Future[None]] = set()  # those who may not have noticed
        self._change = threading.Lock()

    async def acquire(self, tenant: str) -> None:
        """Wait for a turn."""
        with self._change:
            if self._first is None:
                self._first = tenant
            elif tenant != self._first:
                self._share, self._left = max(self._share - self._left, 1), 0
            if self._free and self._held[tenant] < self._share:
                self._free -= 1
                self._held[tenant] += 1
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._lines.setdefault(tenant, OrderedDict())[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            with self._change:
                given = turn in self._given
                if not given and (line := self._lines.get(tenant)):
                    line.pop(turn, None)
                    if not line:
                        del self._lines[tenant]
            if given:
                self.release(tenant)
            raise
        finally:
            self._given.discard(turn)

    def release(self, tenant: str) -> None:
        """Let the next one in."""
        with self._change:
            self._free += 1
            self._held -= Counter((tenant,))
            while waiting := [each for each in self._lines if self._held[each] < self._share]:
                line = self._lines.pop(waiting[0])
                turn, _ = line.popitem(last=False)
                if line:
                    self._lines[waiting[0]] = line  # behind the others
                if turn.done():
                    continue
                self._given.add(turn)
                try:
                    turn.get_loop().call_soon_threadsafe(_settle, turn)
                except RuntimeError:  # its loop was closed
                    self._given.discard(turn)
                else:
                    self._free -= 1
                    self._held[waiting[0]] += 1
                    return

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """One turn."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)


class Turns:
    """Serialises work on large values in threads: one at a time, with pauses as long as it took,
    up to `PAUSE`. In parallel they would only contend for the GIL, with the loop, too."""

    def __init__(self) -> None:
        self._turn = TenantLock()
        self._next = 0.0

    async def take(self, work: Callable[..., _T], *given: object) -> _T:
        """Run work in a thread, in turn; the turn ends with the work, also where the caller was
        cancelled."""
        tenant = reading.get()
        await self._turn.acquire(tenant)
        try:
            await asyncio.sleep(self._next - time.monotonic())
        except BaseException:
            self._turn.release(tenant)
            raise
        begun = time.monotonic()

        def over() -> None:
            now = time.monotonic()
            self._next = now + min(now - begun, PAUSE)
            self._turn.release(tenant)

        return await outlasting(partial(work, *given), over)


class Lanes:
    """Turns for work on much data, and for work on less, which does not wait for the former."""

    def __init__(self) -> None:
        self._much, self._less = Turns(), Turns()

    async def take(self, size: int, work: Callable[..., _T], *given: object) -> _T:
        """Run work on so many bytes in a thread, in turn."""
        return await (self._much if size > MUCH else self._less).take(work, *given)


def _settle(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


async def outlasting(work: Callable[[], _T], over: Callable[[], None]) -> _T:
    """Run work in a thread, and `over` when it has ended, also where the caller was cancelled."""
    working = asyncio.ensure_future(asyncio.to_thread(work))

    def ended(done: asyncio.Task[_T]) -> None:
        over()
        seen(done)

    working.add_done_callback(ended)
    try:
        return await asyncio.shield(working)
    finally:
        del working  # an error holds this frame, which would hold it, with all that it is about


def seen(done: asyncio.Task[Any]) -> None:
    """Retrieve an error, which the caller may not wait for any more."""
    if not done.cancelled():
        done.exception()
