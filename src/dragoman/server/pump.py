"""Moves what an engine gives to a client with one send for each wake of the event loop.

All that is ready is taken before anything is sent, and nothing is ever held back: what was taken
is flushed before every wait. It knows neither what is given, nor the bytes, nor the socket;
asyncio is its only assumption.

How it sees that the engine is about to wait: the loop over the gifts is driven by hand, as a
task would drive it, and hands out a future only when it must wait for one. Then the flush comes
first, and after it the future is handed on to the task, which waits for it as if it had been
awaited in the ordinary way. Hence no second task, no queue, no extra turn of the loop and next to
no cost for what was ready.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from enum import Enum
from typing import Any, TypeVar

_Gift = TypeVar("_Gift")


class Taken(Enum):
    """What `take` says of what it has taken."""

    MORE = "more is wanted"
    FULL = "enough has gathered to be flushed at once"
    OVER = "this was the last"


@types.coroutine
def pump(
    gifts: AsyncGenerator[_Gift, None],
    take: Callable[[_Gift], Taken],
    flush: Callable[[], Coroutine[Any, Any, None]],
) -> Generator[Any, Any, bool]:
    """Take everything up to the last; False if the gifts ended without a last one.

    What was taken last is not flushed, so that it can go out together with the end. Raises what
    `gifts` or `take` raise.

    The flush counts as a part of the engine's wait: what interrupts it (the client left, or a
    time-out of the engine's own has run down) interrupts the engine, which alone knows what it
    means.
    """
    taking = _take_all(gifts, take)
    interruption: BaseException | None = None
    try:
        while True:
            try:
                waiting = taking.send(None) if interruption is None else taking.throw(interruption)
            except StopIteration as end:
                finished: bool = end.value
                return finished
            interruption = None
            # A flush, and then the wait, in one frame: a lone event should cost few.
            if waiting is not None:
                waiting._asyncio_future_blocking = False  # not ours yet: another may wait meanwhile
            try:
                try:
                    yield from flush()
                except asyncio.CancelledError:
                    # A task that is cancelled cancels what it waits for, and then waits for that.
                    if waiting is None or not waiting.cancel():
                        raise
                if waiting is not None:
                    waiting._asyncio_future_blocking = True
                yield waiting  # None is one turn of the loop
            except BaseException as error:
                interruption = error
    finally:
        interruption = None  # it knows this frame through its traceback: a cycle


async def _take_all(gifts: AsyncGenerator[_Gift, None], take: Callable[[_Gift], Taken]) -> bool:
    async for gift in gifts:
        taken = take(gift)
        if taken is Taken.OVER:
            return True
        if taken is Taken.FULL:
            await asyncio.sleep(0)  # an engine that is always ready must not starve the others
    return False
