"""Listens to engines that tell, as whoever wants to break them: each promise is checked as it is
kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from dragoman.core.event import Event, Failed, Finished
from dragoman.core.interfaces import ANYONE, Caller, Engine, Telling
from dragoman.core.request import Request
from dragoman.engines.base import batches, tell
from dragoman.engines.remote import Remote, Told
from dragoman.net.client import Pool
from dragoman.net.connection import Connection
from tests.engines.stage import others
from tests.mock import Mock


class Listening:
    """A listener. `events` is what it heard, `error` what broke, `over` whether either ended it.

    `telling` is given up at the end, as whoever listens must: it knows its listener. `then` is
    called with each batch, and may do what a listener may do meanwhile.
    """

    out_of_turn: ClassVar[list[object]] = []
    """What anybody was told before `tell` had returned, after the end, or after `stop`."""

    def __init__(self, then: Callable[[list[Event]], None] | None = None) -> None:
        self.events: list[Event] = []
        self.error: Exception | None = None
        self.telling: Telling | None = None
        self.over = False
        self.stopped = False
        self.then = then
        self._news = asyncio.Event()

    def ask(self, engine: Engine, request: Request, caller: Caller = ANYONE) -> bool:
        """Begin to listen; false where the engine has to be awaited."""
        self.telling = tell(engine, request, caller, self)
        return self.telling is not None

    def heard(self, events: list[Event]) -> None:
        if not events or self.telling is None or self.stopped:
            self.out_of_turn.append(events)
        self.events += events
        if isinstance(events[-1], Finished | Failed):
            self._end()
        self._news.set()
        if self.then is not None:
            self.then(events)

    def broke(self, error: Exception) -> None:
        if self.error is not None or self.stopped:
            self.out_of_turn.append(error)
        self.error = error
        self._end()
        self._news.set()

    def stop(self) -> None:
        """Listen no more."""
        assert self.telling is not None
        self.stopped = True
        self.telling.stop()

    async def until(self, enough: Callable[[], object]) -> None:
        """Wait until something of what was heard is so."""
        async with asyncio.timeout(10):
            while not enough():
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> list[Event]:
        """All events, once they are."""
        await self.until(lambda: self.over)
        if self.error is not None:
            raise self.error
        return self.events

    def _end(self) -> None:
        self.over = True
        self.telling = None


async def told(engine: Engine, request: Request, caller: Caller = ANYONE) -> list[Event]:
    """All events of an answer, as they are told."""
    listener = Listening()
    assert listener.ask(engine, request, caller)
    assert not listener.events
    events = await listener.ended()
    assert not Listening.out_of_turn
    return events


async def awaited(engine: Engine, request: Request, caller: Caller = ANYONE) -> list[Event]:
    """The same, as they are awaited."""
    return [event async for batch in batches(engine, request, caller) for event in batch]


# ---- what is left ------------------------------------------------------------------------------


def pools(engine: Remote) -> list[Pool]:
    return list(engine.upstream.client._pools.values())


def timers() -> list[object]:
    """What is still to be called for an answer."""
    waiting: Any = asyncio.get_running_loop()
    theirs = (Told, Connection)
    return [
        timer
        for timer in waiting._scheduled
        if not timer.cancelled()
        and (isinstance(owner := getattr(timer._callback, "__self__", None), theirs))
        and not getattr(owner, "usable", False)  # an idle connection may wait for its end
    ]


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail where a task or a timer is left, but for those of whoever serves, and where anybody was
    told something out of turn."""
    before = others()
    yield
    async with asyncio.timeout(5):
        while timers() or {task for task in others() - before if _ours(task)}:
            await asyncio.sleep(0)
    spoken, Listening.out_of_turn = Listening.out_of_turn, []
    assert not spoken


def _ours(task: asyncio.Task[object]) -> bool:
    return not getattr(task.get_coro(), "__qualname__", "").startswith(("Mock.", "Peer."))


def unused(engine: Remote) -> bool:
    """Whether every connection that stands is an idle one."""
    return all(pool._standing == set(pool._idle) for pool in pools(engine)) and all(
        pool._places + len(pool._standing) == pool._limits.connections for pool in pools(engine)
    )


async def let_go(engine: Remote) -> None:
    """Wait until that is so."""
    async with asyncio.timeout(5):
        while not unused(engine):
            await asyncio.sleep(0)


async def left(up: Mock) -> None:
    """Wait until the server has seen that the connection of the last question was closed."""
    async with asyncio.timeout(5):
        await up.asked[-1].gone
