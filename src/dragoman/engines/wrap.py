"""An engine around an engine, and the seal that makes any source of events keep the contract.

`Wrapper` forwards everything, so that a wrapper only has to write what it changes. `sealed` knows
nothing of what the events say, only that there must be one beginning and one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import cache
from typing import Any

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import (
    ANYONE,
    Caller,
    Capabilities,
    Engine,
    Listener,
    Model,
    Passed,
    Telling,
)
from dragoman.core.request import Request
from dragoman.core.turn import CUT

from .mint import new_id, now

_ANSWERING = frozenset(("stream", "batches", "relay", "tell"))
"""The ways to answer."""


class Wrapper:
    """An engine that does what the one inside does.

    Subclasses override what they change. Abilities this class does not name (counting tokens,
    giving vectors) are those of the engine inside, by the same name.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer as the engine inside answers, and stop it when this is closed or cancelled."""
        async with aclosing(self.engine.stream(request, caller)) as events:
            async for event in events:
                yield event

    def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same in batches; those of the engine inside, unless `stream` changes something."""
        if type(self).stream is Wrapper.stream:
            return batches(self.engine, request, caller)
        return singly(self.stream(request, caller))

    def aside(self, request: Request, caller: Caller) -> Engine | None:
        """The engine that may be asked in place of this one, which would change nothing; None
        where it has something to do. It speaks for the methods of its own class: whoever overrides
        how it answers, and not this, is never passed by."""
        return self.engine

    def relay(
        self, body: bytes, request: Request, caller: Caller
    ) -> AsyncGenerator[Passed, None] | None:
        """That of the engine inside, where this one would change nothing."""
        inner = aside(self, request, caller)
        return None if inner is None else relay(inner, body, request, caller)

    def tell(self, request: Request, caller: Caller, listener: Listener) -> Telling | None:
        """By the engine inside, where this one would change nothing."""
        inner = aside(self, request, caller)
        return None if inner is None else tell(inner, request, caller, listener)

    def models(self, caller: Caller = ANYONE) -> Awaitable[tuple[Model, ...]]:
        """The models of the engine inside."""
        return self.engine.models(caller)

    def capabilities(self, model: str) -> Awaitable[Capabilities]:
        """What the engine inside knows of a model."""
        return self.engine.capabilities(model)

    def close(self) -> Awaitable[None]:
        """Close the engine inside."""
        return self.engine.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "engine":  # not there yet while a copy is being made
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.engine, name)


def batches(
    engine: Engine, request: Request, caller: Caller = ANYONE
) -> AsyncGenerator[list[Event], None]:
    """The events of an answer, as many at a time as the engine gives."""
    engine = straight(engine, request, caller)
    able: Callable[[Request, Caller], AsyncGenerator[list[Event], None]] | None
    able = getattr(engine, "batches", None)
    return singly(engine.stream(request, caller)) if able is None else able(request, caller)


def relay(
    engine: Engine, body: bytes, request: Request, caller: Caller
) -> AsyncGenerator[Passed, None] | None:
    """The answer as bytes, where the engine can let them pass; see `Relay`."""
    able: Callable[[bytes, Request, Caller], AsyncGenerator[Passed, None] | None] | None
    able = getattr(engine, "relay", None)
    return None if able is None else able(body, request, caller)


def tell(engine: Engine, request: Request, caller: Caller, listener: Listener) -> Telling | None:
    """Have an answer told, where the engine can; see `Teller`."""
    able: Callable[[Request, Caller, Listener], Telling | None] | None
    able = getattr(straight(engine, request, caller), "tell", None)
    return None if able is None else able(request, caller, listener)


def straight(engine: Engine, request: Request, caller: Caller) -> Engine:
    """The engine that answers this in the end: those around it that change nothing step aside."""
    while (inner := aside(engine, request, caller)) is not None:
        engine = inner
    return engine


def aside(engine: Engine, request: Request, caller: Caller) -> Engine | None:
    """The engine that may be asked in place of this one; see `Wrapper.aside`."""
    if not _may_step_aside(type(engine)):
        return None
    able: Callable[[Request, Caller], Engine | None] = engine.aside  # type: ignore[attr-defined]
    return able(request, caller)


@cache
def _may_step_aside(kind: type) -> bool:
    """Whether what a class says of stepping aside is said with its ways to answer in mind: none of
    them is overridden further down than that."""
    for each in kind.__mro__:
        if "aside" in vars(each):
            return True
        if not _ANSWERING.isdisjoint(vars(each)):
            return False
    return False


async def singly(events: AsyncGenerator[Event, None]) -> AsyncGenerator[list[Event], None]:
    """Events that come one by one, as batches."""
    async with aclosing(events):
        async for event in events:
            yield [event]


async def sealed(events: AsyncGenerator[Event, None], model: str) -> AsyncGenerator[Event, None]:
    """The same events, with the contract of an engine kept whatever their source does.

    `Started` comes first (made here, for `model`, where the source left it out), one terminal
    event comes last on every path, and nothing after it. A source that raises fails the answer;
    its error is named by type only, since its words may hold a key. A source that just stops is
    a cut.
    """
    state = _Seal(model)
    try:
        async with aclosing(events):
            try:
                async for event in events:
                    for legal in state.admit(event):
                        yield legal
                    if state.over:
                        return
            except GeneratorExit:
                state.over = True
                raise
        yield Failed(CUT)
    except Exception as error:
        if _cancelled():  # the source objects to being given up, which changes nothing
            raise asyncio.CancelledError from error
        if not state.over:  # after the end, nothing is left to be told
            yield Failed(told(error))


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def told(error: Exception) -> Fault:
    """The fault an exception stands for, in words that are safe to show."""
    if isinstance(error, FaultError):
        return error.fault
    return Fault("internal", f"The engine failed with {type(error).__name__}.")


class _Seal:
    """Knows whether an answer has begun and whether it is over."""

    __slots__ = ("begun", "model", "over")

    def __init__(self, model: str) -> None:
        self.model = model
        self.begun = False
        self.over = False

    def admit(self, event: Event) -> list[Event]:
        """The events to give on for this one."""
        self.over = isinstance(event, Finished | Failed)
        begun, self.begun = self.begun, True
        if isinstance(event, Started):
            return [] if begun else [event]
        if begun or isinstance(event, Failed):
            return [event]
        return [Started(new_id(), now(), self.model), event]
