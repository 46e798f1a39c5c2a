"""Moves events from an engine to a client with one send for each wake of the event loop.

All that is ready is taken before anything is sent, and nothing is ever held back: what was taken
is flushed before every wait. It knows neither the bytes nor the socket; asyncio is its only
assumption.

How it sees that the engine is about to wait: the loop over the events is driven by hand, as a
task would drive it, and hands out a future only when it must wait for one. Then the flush comes
first, and after it the future is handed on to the task, which waits for it as if it had been
awaited in the ordinary way. Hence no second task, no queue, no extra turn of the loop and next to
no cost for an event that was ready.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from dragoman.core.event import Event, Failed, Finished

TERMINAL = (Finished, Failed)


@types.coroutine
def pump(
    events: AsyncGenerator[Event, None],
    take: Callable[[Event], bool],
    flush: Callable[[], Coroutine[Any, Any, None]],
) -> Generator[Any, Any, bool]:
    """Take every event up to the terminal one; False if the events ended without one.

    `take` says whether enough has gathered to be flushed at once. What was taken last is not
    flushed, so that it can go out together with the end. Raises what `events` or `take` raise.

    The flush counts as a part of the engine's wait: what interrupts it (the client left, or a
    time-out of the engine's own has run down) interrupts the engine, which alone knows what it
    means.
    """
    taking = _take_all(events, take)
    interruption: BaseException | None = None
    try:
        while True:
            try:
                waiting = taking.send(None) if interruption is None else taking.throw(interruption)
            except StopIteration as end:
                finished: bool = end.value
                return finished
            interruption = None
            try:
                yield from _outlast(waiting, flush)
            except BaseException as error:
                interruption = error
    finally:
        interruption = None  # it knows this frame through its traceback: a cycle


@types.coroutine
def _outlast(
    waiting: asyncio.Future[Any] | None, flush: Callable[[], Coroutine[Any, Any, None]]
) -> Generator[Any, Any, None]:
    """Flush, then wait for what the engine waits for; None is one turn of the loop."""
    if waiting is None:
        yield from flush()
        yield None
        return
    waiting._asyncio_future_blocking = False  # not ours yet: another may wait for it meanwhile
    try:
        yield from flush()
    except asyncio.CancelledError:
        # A task that is cancelled cancels what it waits for, and then waits for that.
        if not waiting.cancel():
            raise
    waiting._asyncio_future_blocking = True
    yield waiting


async def _take_all(events: AsyncGenerator[Event, None], take: Callable[[Event], bool]) -> bool:
    async for event in events:
        full = take(event)
        if isinstance(event, TERMINAL):
            return True
        if full:
            await asyncio.sleep(0)  # an engine that is always ready must not starve the others
    return False
