"""Token engines from Python functions: one that names the next token, a batch, or a stream."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from dragoman.core.request import Sampling

from .source import Job, Named, NamingModel, Slot, Tally, Written, failed

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


NextToken = Callable[[list[int], Sampling], int | None]
"""All ids so far and the settings asked for; gives the next id, or None for the end."""

Step = Callable[[list[list[int]], list[Sampling]], Sequence[int | None]]
"""The same for several sequences: as many ids as sequences."""

OPENAI_DEFAULT = 1.0
"""The temperature where none was asked for."""


class _Written:
    """A sequence of a function: all its ids."""

    def __init__(self, ids: Sequence[int], sampling: Sampling) -> None:
        self.ids = list(ids[:-1])  # the last one is left to be read
        self.sampling = sampling

    @property
    def length(self) -> int:
        return len(self.ids)


class _Functional(NamingModel):
    """A model that reads nothing: its function is given every id every time."""

    def __init__(self, context: int | None) -> None:
        self.context = context

    def open(self, ids: Sequence[int], sampling: Sampling) -> Slot:
        return _Written(ids, sampling)

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Named]:
        for slot, ids in work:
            slot.ids.extend(ids)
        return self.name([slot for slot, _ in work])

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        """What comes next in each."""
        raise NotImplementedError


class _One(_Functional):
    """A function called for one sequence after the other."""

    def __init__(self, function: NextToken, context: int | None) -> None:
        super().__init__(context)
        self._function = function

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        return [self._ask(slot) for slot in slots]

    def _ask(self, slot: _Written) -> Named:
        try:
            return self._function(slot.ids, slot.sampling)
        except Exception as error:  # of this sequence alone; the others go on
            return error


class _Stateful(_Functional):
    """A function `(tokens, temperature, new_request) -> id` with one state of its own.

    It is told of a new request whenever it is asked about another sequence than the last time.
    Since it must then read everything again, one sequence is written at a time.
    """

    concurrency = 1
    obeys = frozenset(("temperature",))

    def __init__(
        self, function: Callable[[list[int], float, bool], int | None], context: int | None
    ) -> None:
        super().__init__(context)
        self._function = function
        self._last: _Written | None = None

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        return [self._ask(slot) for slot in slots]

    def _ask(self, slot: _Written) -> Named:
        new, self._last = slot is not self._last, slot
        asked = slot.sampling.temperature
        try:
            return self._function(slot.ids, OPENAI_DEFAULT if asked is None else asked, new)
        except Exception as error:  # its state is unknown now
            self._last = None
            return error

    def close(self, slot: Slot) -> None:
        if slot is self._last:
            self._last = None


class _Batch(_Functional):
    """A function called once for all sequences."""

    def __init__(self, function: Step, context: int | None) -> None:
        super().__init__(context)
        self._function = function

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        named = self._function([slot.ids for slot in slots], [slot.sampling for slot in slots])
        if len(named) != len(slots):
            raise ValueError(f"the step function named {len(named)} tokens for {len(slots)}")
        return named


def from_next_token(
    function: Callable[..., Any], *, context: int | None = None
) -> NamingModel | StreamModel:
    """A model out of `function(ids, sampling) -> id`, which may give None for the end.

    `ids` holds the prompt and all that was written since; it must not be changed, nor kept. Also
    taken is `function(tokens, temperature, new_request) -> id`. It runs in a thread of its own,
    never on the event loop, unless it is asynchronous itself. `context`
    is the greatest number of tokens in a sequence.

    >>> model = from_next_token(lambda ids, sampling: ids[-1] + 1)
    >>> model.step([(model.open([1, 2], Sampling()), [2])])
    [3]
    """
    if inspect.iscoroutinefunction(function):
        return from_async_next_token(function, context)
    if "new_request" in inspect.signature(function).parameters or _takes(function, 3):
        return _Stateful(function, context)
    return _One(function, context)


def from_step(function: Step, *, context: int | None = None) -> NamingModel:
    """A model out of `function(sequences, samplings) -> ids`, called once for all sequences that
    are being written."""
    return _Batch(function, context)


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function must be given so many arguments."""
    empty = inspect.Parameter.empty
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(each.kind in kinds and each.default is empty for each in parameters) == count
