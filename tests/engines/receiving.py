"""A sink that checks what `start` promises, and what is left of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from dragoman.core.event import Event, Failed, Finished
from dragoman.core.interfaces import ANYONE, Caller, Engine, Handle
from dragoman.core.request import Request
from dragoman.engines.base import start
from dragoman.engines.remote import Remote, UpstreamAnswer
from dragoman.net.client import Pool
from dragoman.net.connection import Connection
from tests.engines.stage import others
from tests.mock import Mock


class Receiver:
    """Starts an answer and receives it. `then` is called with each batch, and may do what a sink
    may do meanwhile."""

    out_of_turn: ClassVar[list[object]] = []
    """What anybody received before `start` had returned, after the end, or after `cancel`."""

    def __init__(self, then: Callable[[list[Event]], None] | None = None) -> None:
        self.batches: list[list[Event]] = []
        self.handle: Handle | None = None  # until the end
        self.ended = False
        self.cancelled = False
        self.then = then
        self._received = asyncio.Event()

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    def start(self, engine: Engine, request: Request, caller: Caller = ANYONE) -> None:
        self.handle = start(engine, request, caller, self)

    def receive(self, events: list[Event]) -> None:
        if not events or self.handle is None or self.cancelled:
            self.out_of_turn.append(events)
        self.batches.append(events)
        if isinstance(events[-1], Finished | Failed):
            self.ended = True
            self.handle = None  # it knows its sink: a cycle
        self._received.set()
        if self.then is not None:
            self.then(events)

    def cancel(self) -> None:
        self.cancelled = True
        self.handle.cancel()

    def pause(self) -> None:
        self.handle.pause()
        self.handle.pause()

    def resume(self) -> None:
        """Resume, and do nothing more with what is received."""
        self.then = None
        self.handle.resume()
        self.handle.resume()

    async def until(self, enough: Callable[[], object]) -> None:
        """Wait until something is so of what was received."""
        async with asyncio.timeout(10):
            while not enough():
                self._received.clear()
                await self._received.wait()

    async def end(self) -> list[Event]:
        """All events, once they are received."""
        await self.until(lambda: self.ended)
        return self.events


async def received(engine: Engine, request: Request, caller: Caller = ANYONE) -> list[Event]:
    """All events of an answer."""
    sink = Receiver()
    sink.start(engine, request, caller)
    assert not sink.events
    events = await sink.end()
    assert not Receiver.out_of_turn
    return events


# ---- what is left ------------------------------------------------------------------------------


def pools(engine: Remote) -> list[Pool]:
    return list(engine.upstream.client._last[1].values())


def timers() -> list[object]:
    """What is still to be called for an answer."""
    waiting: Any = asyncio.get_running_loop()
    theirs = (UpstreamAnswer, Connection)
    return [
        timer
        for timer in waiting._scheduled
        if not timer.cancelled()
        and (isinstance(owner := getattr(timer._callback, "__self__", None), theirs))
        and not getattr(owner, "usable", False)  # an idle connection may wait for its end
    ]


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail where a task or a timer is left, but for those of whoever serves, and where
    anything was received out of turn."""
    before = others()
    yield
    async with asyncio.timeout(5):
        while timers() or {task for task in others() - before if _ours(task)}:
            await asyncio.sleep(0)
    spoken, Receiver.out_of_turn = Receiver.out_of_turn, []
    assert not spoken


def _ours(task: asyncio.Task[object]) -> bool:
    return not getattr(task.get_coro(), "__qualname__", "").startswith(("Mock.", "Peer."))


def unused(engine: Remote) -> bool:
    """Whether every connection that stands is an idle one."""
    return all(pool._standing == set(pool.idle) for pool in pools(engine)) and all(
        pool._places + len(pool._standing) == pool.limits.connections for pool in pools(engine)
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
