"""Base classes and helpers of engines: wrappers, ids and timestamps, unsupported fields, an LRU
table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Iterator
from contextlib import aclosing
from functools import cache
from typing import Any, Generic, TypeVar

from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import (
    ANYONE,
    Caller,
    Capabilities,
    Engine,
    Handle,
    Listener,
    Model,
    Passed,
    Secret,
    Sink,
    Telling,
)
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.turn import CUT

_log = logging.getLogger("dragoman")

_RANDOM = 10  # random bytes of an id
_pool: list[str] = []  # random parts made ahead: one system call serves many ids


def new_id() -> str:
    """A new id without a prefix: 48 bits of the time in milliseconds, then 80 random bits.

    Ids grow with time, so that a database adds new rows at the end of its indexes; 80 bits are too
    many to guess. Wires add their prefixes.
    """
    if not _pool:
        random = os.urandom(_RANDOM * 64).hex()
        _pool.extend(random[at : at + 2 * _RANDOM] for at in range(0, len(random), 2 * _RANDOM))
    return f"{time.time_ns() // 1_000_000:012x}{_pool.pop()}"


def now() -> int:
    """The time in Unix seconds."""
    return int(time.time())


if hasattr(os, "register_at_fork"):  # two processes must not use the same random parts
    os.register_at_fork(after_in_child=_pool.clear)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """Keys and values of which the latest are kept, as many as weigh no more than `most`.

    >>> table = Bounded[str, int](2)
    >>> for name in "abc":
    ...     table.put(name, ord(name), 1)
    >>> table.get("a"), table.get("c"), len(table)
    (None, 99, 2)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value. One that is too heavy by itself is not kept, and what had its key goes."""
        old = self._held.pop(key, None)
        self._weight += weight - (0 if old is None else old[1])
        self._held[key] = value, weight
        while self._weight > self._most:
            _, (_, gone) = self._held.popitem(last=False)
            self._weight -= gone

    def get(self, key: K) -> V | None:
        """The value, which is now the latest used; None where there is none, or no longer."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        return held[0]


SUMMARISED = "the reasoning itself is given as its summary too"
NO_ROOM = "a prompt has no place for it"
_NO_PLACE = {
    "audio": "audio",
    "max_tool_calls": "max_tool_calls",
    "moderation": "moderation",
    "prediction": "prediction",
    "prompt_cache_key": "prompt_cache_key",
    "prompt_cache_options": "prompt_cache_options",
    "prompt_cache_retention": "prompt_cache_retention",
    "safety_identifier": "safety_identifier",
    "service_tier": "service_tier",
    "verbosity": "verbosity",
    "web_search": "web_search_options",
}
"""The fields, and what clients call them."""

_RENDERED = frozenset(("chat_template_kwargs", "continue_final_message", "documents"))
"""What prompts are rendered with, though no OpenAI protocol has a field for it."""


def unsupported_fields(request: Request, heard: Collection[str] = ()) -> Iterator[Loss]:
    """A loss for each field that is set and goes nowhere. `heard` are fields of one wire alone that
    go somewhere here.

    Raises FaultError for a stored prompt: without it the answer would be to another question.

    >>> request = Request(model="m", modalities=("text", "audio"))
    >>> [loss.field for loss in unsupported_fields(request)]
    ['modalities']
    """
    if request.prompt is not None:
        raise FaultError(unsupported("no prompts are kept here", "prompt"))
    if any(modality != "text" for modality in request.modalities or ()):
        yield Loss("modalities", "dropped", "a prompt is gone on from in text")
    if request.reasoning is not None and request.reasoning.summary is not None:
        yield Loss("reasoning.summary", "emulated", SUMMARISED)
    for name, said in _NO_PLACE.items():
        if getattr(request, name) is not None:
            yield Loss(said, "dropped", NO_ROOM)
    for fields in (request.extra or {}).values():
        for name in fields:
            if name not in _RENDERED and name not in heard:
                yield Loss(name, "dropped", NO_ROOM)


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


ENDS = (Finished, Failed)
"""The events after which nothing comes."""

_BATCH = 256
"""Events of an engine that never waits, after which the others on the event loop get a turn."""


def start(engine: Engine, request: Request, caller: Caller, sink: Sink) -> Handle:
    """Begin to answer a request: the one way servers ask an engine.

    An engine's own `start` is used where its class has one (a subclass that overrides `stream` but
    not `start` is never bypassed); else one task drives its `stream`. This never raises for a
    request: what was refused, or failed, is a `Failed` event. An engine that stops without a
    terminal event was cut.
    """
    own = _own_start(type(engine))
    if own is None:
        return _Driver(engine, request, caller, sink)
    try:
        return own(engine, request, caller, sink)
    except Exception as error:
        return Immediate(sink, [Failed(fault_from(error, caller.key))])


@cache
def _own_start(kind: type) -> Callable[[Engine, Request, Caller, Sink], Handle] | None:
    """The `start` of a class, unless `stream` is overridden further down."""
    for each in kind.__mro__:
        if "start" in vars(each):
            found: Callable[[Engine, Request, Caller, Sink], Handle] = vars(each)["start"]
            return found
        if "stream" in vars(each):
            return None
    return None


class Immediate:
    """A handle of an answer that is known at once: delivered in the next turn of the loop."""

    def __init__(self, sink: Sink, events: list[Event]) -> None:
        self._timer = asyncio.get_running_loop().call_soon(sink.receive, events)

    def cancel(self) -> None:
        """Deliver nothing."""
        self._timer.cancel()

    def pause(self) -> None:
        """There is nothing to hold back."""

    def resume(self) -> None:
        """There is nothing to go on with."""


class _Driver:
    """A handle of one task that iterates over an engine's `stream`.

    The events of one turn of the loop are delivered together at its end, outside of the task: so
    the sink may cancel it.
    """

    __slots__ = ("_events", "_loop", "_resumed", "_sink", "_task")

    def __init__(self, engine: Engine, request: Request, caller: Caller, sink: Sink) -> None:
        self._sink: Sink | None = sink  # None once nothing more is wanted
        self._events: list[Event] = []  # not delivered yet
        self._resumed: asyncio.Event | None = None  # while it is paused
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._drive(engine, request, caller))

    def cancel(self) -> None:
        """Cancel the task."""
        self._sink = None
        self._task.cancel()

    def pause(self) -> None:
        """Hold the task back after its next event."""
        if self._resumed is None:
            self._resumed = asyncio.Event()

    def resume(self) -> None:
        """Let the task iterate again."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    async def _drive(self, engine: Engine, request: Request, caller: Caller) -> None:
        ended = False
        try:
            async with aclosing(engine.stream(request, caller)) as events:
                async for event in events:
                    ended = isinstance(event, ENDS)
                    self._push(event)
                    if ended:
                        return
                    if self._resumed is not None:
                        await self._resumed.wait()
                    elif len(self._events) >= _BATCH:
                        await asyncio.sleep(0)
            self._push(Failed(CUT))
        except Exception as error:
            if _cancelled():  # the engine objects to being cancelled, which changes nothing
                raise asyncio.CancelledError from error
            fault = fault_from(error, caller.key)
            if not ended:
                self._push(Failed(fault))

    def _push(self, event: Event) -> None:
        if not self._events:
            self._loop.call_soon(self._deliver)
        self._events.append(event)

    def _deliver(self) -> None:
        events, self._events = self._events, []
        if self._sink is not None:
            self._sink.receive(events)


async def singly(events: AsyncGenerator[Event, None]) -> AsyncGenerator[list[Event], None]:
    """Events that come one by one, as batches."""
    async with aclosing(events):
        async for event in events:
            yield [event]


async def enforce_contract(
    events: AsyncGenerator[Event, None], model: str
) -> AsyncGenerator[Event, None]:
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
            yield Failed(fault_from(error))


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def fault_from(error: Exception, key: Secret | None = None) -> Fault:
    """The fault an exception stands for, in words that are safe to show: its own text may hold a
    key. What is no FaultError is a bug, and is logged with its traceback, without the caller's
    `key`."""
    if isinstance(error, FaultError):
        return error.fault
    id = f"err_{new_id()}"
    text = "".join(traceback.format_exception(error))
    if key is not None:
        text = text.replace(key.reveal(), str(key))
    _log.error("%s: an engine raised\n%s", id, text)
    message = (
        f"The engine failed with {type(error).__name__}; the server's log has more under {id}."
    )
    return Fault("internal", message)


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
