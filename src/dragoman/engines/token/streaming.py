"""Asynchronous streams of ids as models: whatever writes tokens elsewhere and sends them here.

There is no thread and no schedule: a stream runs on the event loop of whoever reads it, and is only
ever asked for what is read. Who writes it decides on its own how to share its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from dragoman.core.request import Sampling

from .run import Job, Tally, Written, failed

Stream = Callable[[list[int], Sampling], AsyncIterator[int | Sequence[int]]]
"""The ids of the prompt and the settings asked for; gives ids, one or several at a time."""


class StreamModel:
    """A model that is an asynchronous stream of ids for each prompt."""

    obeys: frozenset[str] | None = None
    concurrency: int | None = None

    def __init__(self, stream: Stream, context: int | None = None) -> None:
        self.context = context
        self._stream = stream

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Written], None]:
        """What is written in each sequence, by its place among the jobs, until all are over."""
        yield 0, Written([], [])
        if len(jobs) == 1:
            async with aclosing(self._written(jobs[0])) as pieces:
                async for written in pieces:
                    yield 0, written
                    if written.enough:
                        return
            return
        queue: asyncio.Queue[tuple[int, Written]] = asyncio.Queue(maxsize=len(jobs))
        tasks = [asyncio.ensure_future(self._put(queue, *each)) for each in enumerate(jobs)]
        try:
            left = set(range(len(jobs)))
            while left:
                place, written = await queue.get()
                if place in left:
                    yield place, written
                if written.end is not None or written.enough:
                    left.discard(place)
                    tasks[place].cancel()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _put(self, queue: asyncio.Queue[tuple[int, Written]], place: int, job: Job) -> None:
        async with aclosing(self._written(job)) as pieces:
            async for written in pieces:
                await queue.put((place, written))

    async def _written(self, job: Job) -> AsyncGenerator[Written, None]:
        tally = Tally(job)
        closed = False
        try:
            async with AsyncExitStack() as stack:
                stream = self._stream(list(job.prompt), job.sampling)
                if isinstance(stream, AsyncGenerator):
                    await stack.enter_async_context(aclosing(stream))
                try:
                    async for given in stream:
                        yield Written(_taken(given, tally), [], tally.end)
                        if closed := tally.end is not None:
                            return
                        await asyncio.sleep(0)  # a stream that never waits is not alone here
                except GeneratorExit:
                    closed = True
                    raise
        except Exception as error:
            if _cancelled():  # the stream objects to being given up, which changes nothing
                raise asyncio.CancelledError from error
            if not closed:
                yield Written([], [], failed(error))
        else:
            yield Written([], [], "stop")


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _taken(given: Any, tally: Tally) -> list[int]:
    """The ids in one piece of a stream, up to the one that ends it."""
    ids: list[int] = []
    for id in given if isinstance(given, Sequence) else (given,):
        ids.append(tally.take(id))
        if tally.end is not None:
            break
    return ids


def from_stream(stream: Stream, *, context: int | None = None) -> StreamModel:
    """A model out of `stream(ids, sampling)`, which gives ids one or several at a time.

    It runs on the event loop, so it must not block. When the answer is given up it is closed.

    >>> async def count(ids, sampling):
    ...     for id in range(65, 70):
    ...         yield id
    >>> model = from_stream(count)
    """
    return StreamModel(stream, context)


def from_async_next_token(
    function: Callable[[list[int], Sampling], Awaitable[int | None]], context: int | None
) -> StreamModel:
    """The same out of a coroutine function that names one token at a time."""

    async def stream(ids: list[int], sampling: Sampling) -> AsyncGenerator[int, None]:
        while (id := await function(ids, sampling)) is not None:
            yield id
            ids.append(id)

    return StreamModel(stream, context)
