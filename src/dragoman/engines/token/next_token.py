"""Models from Python functions: one that names the next token, a batch of them, or a stream."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.request import Sampling
from dragoman.engines.function import MAX_EMPTY, is_typed

from .source import Job, NewTokens, TokenCounter, model_fault

Stream = Callable[[list[int], Sampling], AsyncIterator[int | Sequence[int]]]
"""Takes the ids of the prompt and the sampling; yields ids, one or several at a time."""
Function = Callable[[list[int], Sampling], int | None]
"""Takes all ids so far and the sampling; returns the next id, or None for the end."""
NextToken = int | None | BaseException
"""An id, None for the end, or the error of this sequence."""
Step = Callable[[list[list[int]], list[Sampling]], Sequence[NextToken]]
"""The same for several sequences: one id for each."""

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's default."""


def from_next_token(
    function: Callable[..., Any], *, context: int | None = None
) -> NextTokenModel | StreamModel:
    """A model from `function(ids, sampling) -> id`, which may return None for the end.

    `ids` has the prompt and all tokens since; it must not be changed, nor kept. Also accepted is
    `function(tokens, temperature, new_request) -> id`, the signature of gpt-oss's reference server.
    It runs in a thread of its own, unless it is asynchronous. `context` is the most tokens in a
    sequence.

    >>> model = from_next_token(lambda ids, sampling: ids[-1] + 1)
    >>> model.step([(model.open([1, 2], Sampling()), [2])])
    [3]
    """
    if inspect.iscoroutinefunction(function):

        async def stream(ids: list[int], sampling: Sampling) -> AsyncGenerator[int, None]:
            while (id := await function(ids, sampling)) is not None:
                yield id
                ids.append(id)

        return StreamModel(stream, context)
    parameters = inspect.signature(function).parameters
    empty = inspect.Parameter.empty
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.kind in kinds and p.default is empty for p in parameters.values())
    if "new_request" not in parameters and required != 3:
        return NextTokenModel(partial(_one_by_one, function), context)
    step = partial(_one_by_one, _with_state(function))
    # It must read everything again where the sequence is another than in the last call.
    return NextTokenModel(step, context, concurrency=1, honoured=frozenset(("temperature",)))


def from_step(function: Step, *, context: int | None = None) -> NextTokenModel:
    """A model from `function(sequences, samplings) -> ids`, called once for all running
    sequences."""
    return NextTokenModel(function, context)


def from_stream(stream: Stream, *, context: int | None = None) -> StreamModel:
    """A model from `stream(ids, sampling)`, which yields ids one or several at a time.

    It runs on the event loop, so it must not block. It is closed when the answer is cancelled.

    >>> async def count(ids, sampling):
    ...     for id in range(65, 70):
    ...         yield id
    >>> model = from_stream(count)
    """
    return StreamModel(stream, context)


# ---- functions -----------------------------------------------------------------------------


class FunctionSlot(Struct, eq=False):
    """One sequence, with the ids that the function may see."""

    ids: list[int]
    sampling: Sampling

    @property
    def length(self) -> int:
        return len(self.ids)


class NextTokenModel:
    """A model that chooses the next tokens itself, by a function of all running sequences.

    It gives no log-probabilities, and no grammar can constrain it. `honoured` are the sampling
    fields it honours (None: it sees them all), and `concurrency` is how many sequences may run at a
    time.
    """

    def __init__(
        self,
        function: Step,
        context: int | None,
        *,
        concurrency: int | None = None,
        honoured: frozenset[str] | None = None,
    ) -> None:
        self.context = context
        self.concurrency = concurrency
        self.honoured = honoured
        self._function = function

    def open(self, ids: Sequence[int], sampling: Sampling) -> FunctionSlot:
        return FunctionSlot(list(ids[:-1]), sampling)  # the last one is left to be read

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[NextToken]:
        """Read new ids in each slot and choose what follows the last of them."""
        for slot, ids in work:
            slot.ids.extend(ids)
        return self._function([slot.ids for slot, _ in work], [slot.sampling for slot, _ in work])

    def close(self, slot: Any) -> None:
        """Nothing to close."""


def _one_by_one(
    function: Function, sequences: list[list[int]], samplings: list[Sampling]
) -> list[NextToken]:
    found: list[NextToken] = []
    for ids, sampling in zip(sequences, samplings, strict=True):
        try:
            found.append(function(ids, sampling))
        except BaseException as error:  # of this sequence alone; the others continue
            found.append(error)
    return found


def _with_state(function: Callable[..., int | None]) -> Function:
    """A function `(tokens, temperature, new_request) -> id` with state of its own. `new_request` is
    true whenever the sequence is another than in the last call."""
    last: list[int] | None = None

    def choose(ids: list[int], sampling: Sampling) -> int | None:
        nonlocal last
        new, last = ids is not last, None  # its state is unknown if it fails
        given = sampling.temperature
        found = function(ids, DEFAULT_TEMPERATURE if given is None else given, new)
        last = ids
        return found

    return choose


# ---- streams -------------------------------------------------------------------------------


class StreamModel:
    """A model that is an asynchronous stream of ids for each prompt."""

    def __init__(self, stream: Stream, context: int | None = None) -> None:
        self.context = context
        self._stream = stream

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, NewTokens], None]:
        """The new tokens of each sequence, by its index, until all have ended."""
        yield 0, NewTokens([], [])
        queue: asyncio.Queue[tuple[int, NewTokens]] = asyncio.Queue(maxsize=len(jobs))
        tasks = [asyncio.ensure_future(self._put(queue, *each)) for each in enumerate(jobs)]
        try:
            running = set(range(len(jobs)))
            while running:
                index, new = await queue.get()
                if index in running:
                    yield index, new
                if new.end is not None or new.stopped:
                    running.discard(index)
                    tasks[index].cancel()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Nothing to close."""

    async def _put(self, queue: asyncio.Queue[tuple[int, NewTokens]], index: int, job: Job) -> None:
        """Put the new tokens of a sequence, until its end or the stream's."""
        counter, empty = TokenCounter(job), 0
        try:
            async with AsyncExitStack() as stack:
                stream = self._stream(list(job.prompt), job.sampling)
                if isinstance(stream, AsyncGenerator):
                    await stack.enter_async_context(aclosing(stream))
                async for piece in stream:
                    ids: list[int] = []
                    for id in piece if isinstance(piece, Sequence) else (piece,):
                        if counter.end is None:
                            ids.append(counter.add(id))
                    empty = 0 if ids else empty + 1
                    if empty > MAX_EMPTY:
                        problem = f"The model yielded nothing {MAX_EMPTY} times in a row."
                        raise FaultError(Fault("internal", problem))
                    await queue.put((index, NewTokens(ids, [], counter.end)))
                    if counter.end is not None:
                        return
                    await asyncio.sleep(0)  # let others run beside a stream that never waits
        except BaseException as error:  # a library's panic is no Exception
            task = asyncio.current_task()
            cancelled = task is not None and task.cancelling()
            if is_typed(error) or (cancelled and not isinstance(error, Exception)):
                raise
            if counter.end is None and not cancelled:  # else an error of the stream's own clean-up
                await queue.put((index, NewTokens([], [], model_fault(error))))
        else:
            await queue.put((index, NewTokens([], [], "stop")))
