"""Shares of tenants: threads for blocking work, round-robin, and places for answers of each."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.request import Request
from dragoman.engines.base import Wrapper
from dragoman.engines.child import Interest, here
from dragoman.engines.fan_out import fan_out
from dragoman.net.threads import TenantLock

THREADS = 4
"""Threads of an engine for what takes long before an answer; one of them is left to each tenant
by the others."""
STACK = 16 * 1024 * 1024
"""Bytes of stack of such a thread: more than a child's (`child.STACK`), which overflows first."""

_BUSY = Fault(
    "overloaded", "The server is busy: it can start no more threads.", "server", retry_after="1"
)
_CLOSED = Fault("shutting_down", "The model has been closed.")
Done = TypeVar("Done")
Line = tuple[str, bool]
"""Work that waits: of a tenant, and whether it is demanding."""


class InTurn(Wrapper):
    """Middleware: so many answers of each tenant at a time, which it may leave unread; where there
    are several tenants, one fewer, which is left to the others. Each choice is an answer."""

    def __init__(self, engine: Engine, places: int) -> None:
        super().__init__(engine)
        self._places = TenantLock(1 << 31, places, left=1)

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """The events of the engine, once it is the tenant's turn."""
        if (request.sampling.n or 1) > 1:
            return fan_out(partial(self._stream, caller=caller), request, caller)
        return self._stream(request, caller)

    async def _stream(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        async with (
            self._places.turn(caller.tenant),
            aclosing(self.engine.stream(request, caller)) as events,
        ):
            async for event in events:
                yield event


class Turn(Interest):
    """One piece of work."""

    def __init__(self, tenant: str, work: Callable[[], Any], demanding: bool) -> None:
        super().__init__()
        self.tenant = tenant
        self.work = work
        self.demanding = demanding
        self.future: Future[Any] = Future()


class ThreadPool:
    """Runs work on threads, which start when they are needed and end with `close`."""

    def __init__(self, threads: int = THREADS) -> None:
        self._most = threads
        self._closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Begin with no work and no threads: a fork has none."""
        self._owner = os.getpid()
        self._change = threading.Condition()
        self._waiting: dict[Line, OrderedDict[Turn, None]] = {}  # the next one first
        self._running: Counter[str] = Counter()
        self._demanding: set[str] = set()
        self._threads = self._idle = 0  # a thread that was woken is not idle

    async def run(self, tenant: str, work: Callable[[], Done], *, demanding: bool = False) -> Done:
        """The result of the work. Cancelling this ends the work, if it waits or has a process.
        Of `demanding` work, which may take seconds, a tenant has one piece at a time, for which its
        other work does not wait. Raises FaultError where no thread can be had, and after `close`.
        """
        turn = Turn(tenant, work, demanding)
        if self._owner != os.getpid():
            self._begin_anew()
        with self._change:
            if self._closed:
                raise FaultError(_CLOSED)
            self._waiting.setdefault((tenant, demanding), OrderedDict())[turn] = None
            if self._idle:
                self._wake()
            elif self._threads < self._most:
                try:
                    self._start()
                    self._threads += 1
                except RuntimeError:  # the system has no more
                    if not self._threads:
                        self._remove(turn)
                        raise FaultError(_BUSY) from None
        try:
            result: Done = await asyncio.wrap_future(turn.future)
            return result
        except asyncio.CancelledError:
            turn.leave()
            with self._change:
                self._remove(turn)  # with the request that it holds
            raise

    def close(self) -> None:
        """End the threads; what waits fails."""
        with self._change:
            self._closed = True
            for turns in self._waiting.values():
                for turn in turns:
                    if turn.future.set_running_or_notify_cancel():
                        turn.future.set_exception(FaultError(_CLOSED))
            self._waiting.clear()
            self._change.notify_all()

    def _start(self) -> None:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=self._work, name="dragoman-plan", daemon=True).start()
        finally:
            threading.stack_size(before)

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            here.interest = turn
            try:
                result = turn.work()
            except BaseException as error:  # a library's panic is no Exception
                failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
                turn.future.set_exception(failure)
            else:
                turn.future.set_result(result)
            here.interest = result = None  # it may hold the engine, which this thread outlives
            with self._change:
                self._running[turn.tenant] -= 1
                if turn.demanding:
                    self._demanding.discard(turn.tenant)
                self._wake()
            del turn

    def _next(self) -> Turn | None:
        """The next piece of work that somebody waits for; None to end."""
        with self._change:
            while not self._closed:
                if (turn := self._take()) is not None:
                    return turn
                self._idle += 1
                self._change.wait()
            return None

    def _wake(self) -> None:
        """Let an idle thread look for work, if there is one."""
        if self._idle:
            self._idle -= 1
            self._change.notify()

    def _take(self) -> Turn | None:
        """The first work of the next tenant that has a thread left."""
        share = max(self._most - 1, 1)
        while able := [
            (tenant, demanding)
            for tenant, demanding in self._waiting
            if self._running[tenant] < share and not (demanding and tenant in self._demanding)
        ]:
            turns = self._waiting[able[0]]
            turn = next(iter(turns))
            self._remove(turn)
            if turns:
                self._waiting[able[0]] = self._waiting.pop(able[0])  # behind the others
            if turn.future.set_running_or_notify_cancel():
                self._running[turn.tenant] += 1
                if turn.demanding:
                    self._demanding.add(turn.tenant)
                return turn
        self._running += Counter()  # without those that have none
        return None

    def _remove(self, turn: Turn) -> None:
        """Take work out of what waits, if it is there."""
        line = (turn.tenant, turn.demanding)
        if (turns := self._waiting.get(line)) is not None:
            turns.pop(turn, None)
            if not turns:
                del self._waiting[line]
