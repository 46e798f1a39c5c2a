"""Conversations that are too long for their model: counted, and cut where the client allows it.

Counting is exact where the engine knows its model's tokens, and an estimate elsewhere. Only a
request that says `truncation: auto` is ever cut, and it is told what was left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from msgspec.structs import replace

from dragoman.core.context import estimate, fit
from dragoman.core.event import Event, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .wrap import Wrapper, batches

ANSWER = 4
"""The part of a context that is left for the answer, where no limit is given: one in so many."""


async def count(engine: Engine, request: Request) -> tuple[int, bool]:
    """The tokens of a request's prompt, and whether that is exact. Raises FaultError for a request
    that the engine cannot make a prompt of."""
    able: Callable[[Request], Awaitable[int | None]] | None = getattr(engine, "count", None)
    if able is not None:
        counted = await able(request)
        if counted is not None:
            return counted, True
    return estimate(request), False


class Fitting(Wrapper):
    """An engine that leaves out the oldest turns where a request allows it and its model's context
    is known and too small."""

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Answer, out of as much of the conversation as fits."""
        if request.truncation != "auto":
            return self.engine.stream(request, caller)
        return self._one_by_one(request, caller)

    def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same in the batches of the engine inside."""
        if request.truncation != "auto":
            return batches(self.engine, request, caller)
        return self._cut(request, caller)

    def aside(self, request: Request, caller: Caller) -> Engine | None:
        """The engine inside, where nothing may be left out."""
        return None if request.truncation == "auto" else self.engine

    async def _one_by_one(self, request: Request, caller: Caller) -> AsyncGenerator[Event, None]:
        async with aclosing(self._cut(request, caller)) as answer:
            async for batch in answer:
                for event in batch:
                    yield event

    async def _cut(self, request: Request, caller: Caller) -> AsyncGenerator[list[Event], None]:
        fitting = await self._fitting(request)
        missing = len(request.items) - len(fitting.items)
        async with aclosing(batches(self.engine, fitting, caller)) as answer:
            async for batch in answer:
                if missing and isinstance(batch[0], Started):
                    batch = [_told(batch[0], missing), *batch[1:]]
                yield batch

    async def _fitting(self, request: Request) -> Request:
        context = (await self.engine.capabilities(request.model)).context
        if context is None:
            return request
        room = context - (request.max_output_tokens or context // ANSWER)
        rest = estimate(replace(request, items=()))
        return replace(request, items=fit(request.items, room - rest))


def _told(started: Started, missing: int) -> Started:
    items = "the earliest item was" if missing == 1 else f"the {missing} earliest items were"
    loss = Loss("input", "told", f"{items} left out, so that the rest fits the model's context")
    return replace(started, losses=(*started.losses, loss))
