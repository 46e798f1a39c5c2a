"""Base classes and helpers of engines: wrappers, ids, times, unsupported fields, an LRU table."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import CUT, Fault, FaultError, unsupported
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import (
    ANYONE,
    Caller,
    Capabilities,
    Engine,
    Handle,
    Model,
    Secret,
    Sink,
)
from dragoman.core.item import INTERNAL
from dragoman.core.loss import Loss
from dragoman.core.request import Request

_log = logging.getLogger("dragoman")

_RANDOM = 10  # random bytes of an id
_pool: list[str] = []  # random parts made ahead: one system call serves many ids


def new_id() -> str:
    """A new id without a prefix: 48 bits of the time in milliseconds, then 80 random bits.

    Ids grow with time, so that a database adds new rows at the end of its indexes; 80 bits are too
    many to guess. Wires add their prefixes.
    """
    try:
        random = _pool.pop()
    except IndexError:  # asked for, and not looked for: another thread may take the last one
        more, size = os.urandom(_RANDOM * 64).hex(), 2 * _RANDOM
        _pool.extend(more[at : at + size] for at in range(size, len(more), size))
        random = more[:size]
    return f"{time.time_ns() // 1_000_000:012x}{random}"


def now() -> int:
    """The time in Unix seconds."""
    return int(time.time())


if hasattr(os, "register_at_fork"):  # two processes must not use the same random parts
    os.register_at_fork(after_in_child=_pool.clear)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class LRU(Generic[K, V]):
    """A weighted LRU table: all entries weigh at most `most`, those of one owner at most `share`.

    >>> table = LRU[str, int](3, share=2)
    >>> table.put("x", 0, 1, owner="another")
    >>> for name in "abc":
    ...     table.put(name, ord(name), 1)
    >>> table.get("a"), table.get("c"), table.get("x"), len(table)
    (None, 99, 0, 3)
    """

    def __init__(self, most: int, share: int | None = None) -> None:
        self._most = most
        self._share = most if share is None else share
        self._weight = 0
        self._held: OrderedDict[K, tuple[V, int, Hashable]] = OrderedDict()
        self._owned: dict[Hashable, OrderedDict[K, None]] = {}
        self._weights: dict[Hashable, int] = {}  # by owner

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: K, value: V, weight: int, owner: Hashable = None) -> None:
        """Store a value. One that is too heavy by itself is not stored, and removes the old one."""
        if key in self._held:
            self._drop(key)
        self._held[key] = value, weight, owner
        self._owned.setdefault(owner, OrderedDict())[key] = None
        self._weight += weight
        self._weights[owner] = self._weights.get(owner, 0) + weight
        while self._weights.get(owner, 0) > self._share:
            self._drop(next(iter(self._owned[owner])))
        while self._weight > self._most:
            self._drop(next(iter(self._held)))

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recently used; None where there is none."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        self._owned[held[2]].move_to_end(key)
        return held[0]

    def _drop(self, key: K) -> None:
        _, weight, owner = self._held.pop(key)
        self._weight -= weight
        self._weights[owner] -= weight
        del self._owned[owner][key]
        if not self._owned[owner]:
            del self._owned[owner], self._weights[owner]


SUMMARISED = "the reasoning itself is given as its summary too"
NO_ROOM = "a prompt cannot express it"
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
"""The fields, with their names on the wires."""

_INCLUDED = frozenset(
    ("message.output_text.logprobs", "reasoning.encrypted_content", "message.input_image.image_url")
)
"""Values of `include` that add fields to an answer, now or when it is retrieved."""
_RENDERED = frozenset(("chat_template_kwargs", "continue_final_message", "documents"))
"""Extra fields for rendering prompts, which no OpenAI protocol has."""


def unsupported_fields(request: Request, carried: Collection[str] = ()) -> Iterator[Loss]:
    """A loss for each field that is set and ignored. `carried` are fields of a single wire
    that are used here.

    Raises FaultError for a reference to what is stored, which the answer depends on.

    >>> request = Request(model="m", modalities=("text", "audio"))
    >>> [loss.field for loss in unsupported_fields(request)]
    ['modalities']
    """
    for name in ("prompt", "previous_response_id", "conversation"):
        if getattr(request, name) is not None:
            raise FaultError(unsupported("nothing is stored here", name))
    if any(modality != "text" for modality in request.modalities or ()):
        yield Loss("modalities", "dropped", "a prompt is continued in text")
    if request.reasoning is not None and request.reasoning.summary is not None:
        yield Loss("reasoning.summary", "emulated", SUMMARISED)
    for name, field in _NO_PLACE.items():
        if getattr(request, name) is not None:
            yield Loss(field, "dropped", NO_ROOM)
    for value in request.include:
        if value not in _INCLUDED:
            yield Loss(f"include[{value}]", "dropped", NO_ROOM)
    for wire, fields in (request.extra or {}).items():
        for name in () if wire in INTERNAL else fields:
            if name not in _RENDERED and name not in carried:
                yield Loss(name, "dropped", NO_ROOM)


ENDS = (Finished, Failed)
"""The terminal events."""


# ---- start: how servers call an engine -----------------------------------------------------


def start(
    engine: Engine, request: Request, caller: Caller, sink: Sink, own: _Start | None = None
) -> Handle:
    """Start the answer to a request: the entry point of an engine for servers.

    An engine's `own` start is used where its class has one (a subclass that overrides `stream` but
    not `start` is never bypassed); else one task drives its `stream`. This never raises for a
    request: a refusal or an error is a `Failed` event. An engine that stops without a
    terminal event was cut. A sink that raises gets a `Failed` event instead, once.
    """
    traits: set[object] | None = None
    try:
        while (own := own or _own_start(type(engine))) is Wrapper.start:
            own = None
            outer: Wrapper = engine  # type: ignore[assignment]  # by its start
            for wrapper in (outer, *outer._behind):
                if wrapper.acts_on is not None:
                    if traits is None:  # what middleware may act on, computed once
                        traits = set(map(type, request.items))
                        if request.tools:
                            traits.add("tools")
                        if request.web_search is not None:
                            traits.add("web_search")
                        if request.include:
                            traits.add("include")
                        if request.truncation is not None:
                            traits.add("truncation")
                        if request.context_management:
                            traits.add("context_management")
                        if caller.stored:
                            traits.add("stored")
                    if wrapper.acts_on.isdisjoint(traits):
                        continue
                prepared = wrapper.prepare(request, caller)
                if prepared is None:
                    continue
                if not isinstance(prepared, Prepared):
                    begin = partial(_start_prepared, wrapper, request, caller, sink)
                    return Deferred(prepared, begin, caller, sink)
                if prepared.start is not None:
                    return prepared.start(caller, sink)
                if prepared.map is not None:
                    sink = _Mapped(prepared.map, sink)
                if prepared.request is not request:
                    request, traits = prepared.request, None
                caller = prepared.caller or caller
                if prepared.engine is not None:
                    engine = prepared.engine
                    break
            else:
                engine = wrapper.engine  # behind the last of them
        if own is None:
            return Driver(engine.stream(request, caller), caller, sink)
        return own(engine, request, caller, sink)
    except BaseException as error:
        return Immediate([Failed(fault_from(error, caller.key))], sink)


_Start = Callable[[Any, Request, Caller, Sink], Handle]


@cache
def _own_start(kind: type) -> _Start | None:
    """The `start` of a class, unless `stream` is overridden further down."""
    for each in kind.__mro__:
        if "start" in vars(each):
            found: _Start = vars(each)["start"]
            return found
        if "stream" in vars(each):
            return None
    return None


class Immediate:
    """The handle of an immediate answer: received in the next turn of the loop."""

    def __init__(self, events: list[Event], sink: Sink) -> None:
        self._call = asyncio.get_running_loop().call_soon(sink.receive, events)

    def cancel(self) -> None:
        """Deliver nothing."""
        self._call.cancel()

    def pause(self) -> None:
        """No-op: everything is produced already."""

    def resume(self) -> None:
        """No-op: nothing was paused."""


_BATCH = 256
"""Events of an engine that never waits, after which the driver yields to the event loop."""


class Driver:
    """The handle of one task that iterates over the events of an engine's `stream`.

    A turn's events are delivered in the next turn, outside of the task: the sink may cancel it.
    """

    __slots__ = ("_events", "_key", "_loop", "_resumed", "_sink", "_task")

    def __init__(self, events: AsyncGenerator[Event, None], caller: Caller, sink: Sink) -> None:
        self._sink: Sink | None = sink  # None after the end or a cancellation
        self._key = caller.key
        self._events: list[Event] = []  # not delivered yet
        self._resumed: asyncio.Event | None = None  # while it is paused
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._drive(events))

    def cancel(self) -> None:
        """Cancel the task."""
        self._sink = None
        self._task.cancel()

    def pause(self) -> None:
        """Pause the task after its next event."""
        if self._resumed is None:
            self._resumed = asyncio.Event()

    def resume(self) -> None:
        """Resume the task."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    async def wait_closed(self) -> None:
        """Wait until the engine has cleaned up."""
        await asyncio.wait((self._task,))

    async def wait_delivered(self) -> None:
        """Wait until the sink has all events and is not paused: for sources of large events."""
        await asyncio.sleep(0)
        if self._resumed is not None:
            await self._resumed.wait()

    async def _drive(self, source: AsyncGenerator[Event, None]) -> None:
        ended = False
        try:
            async with aclosing(source) as events:
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
        except BaseException as error:  # of an engine, whose request would have no end
            if self._loop.is_running() and not is_cancelled():  # else it is closed with its loop
                fault = fault_from(error, self._key)
                if not ended:
                    self._push(Failed(fault))
            # A cancellation is over: the task would hold the error, and this frame the task.
            if isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
                raise

    def _push(self, event: Event) -> None:
        if not self._events:
            self._loop.call_soon(self._deliver)
        self._events.append(event)

    def _deliver(self) -> None:
        events, self._events = self._events, []
        if (sink := self._sink) is None:
            return
        try:
            sink.receive(events)
        except Exception as error:
            cancelled = self._sink is None
            self.cancel()
            fault = fault_from(error, self._key)
            if not (cancelled or isinstance(events[-1], ENDS)):
                receive_last([Failed(fault)], sink)


def receive_last(events: list[Event], sink: Sink) -> None:
    """Deliver the last events to a sink that may have raised before. If it does so again, that is
    only logged."""
    try:
        sink.receive(events)
    except Exception as error:
        fault_from(error)


class Relay:
    """A handle that delegates to another one, which may be set later or be replaced."""

    _handle: Handle | None = None
    _paused = False

    def cancel(self) -> None:
        """Cancel the answer."""
        if self._handle is not None:
            self._handle.cancel()

    def pause(self) -> None:
        """Pause the answer, as soon as it is started."""
        self._paused = True
        if self._handle is not None:
            self._handle.pause()

    def resume(self) -> None:
        """Resume the answer."""
        self._paused = False
        if self._handle is not None:
            self._handle.resume()

    async def wait_closed(self) -> None:
        """Wait until the cancelled work has cleaned up."""
        await wait_closed(self._handle)

    def control(self, handle: Handle) -> None:
        """Delegate to this handle from now on."""
        self._handle = handle
        if self._paused:
            handle.pause()


class Deferred(Relay, Generic[T]):
    """The handle of an answer that `begin` can start only after something was awaited."""

    def __init__(
        self, awaited: Awaitable[T], begin: Callable[[T], Handle], caller: Caller, sink: Sink
    ) -> None:
        self._key = caller.key
        self._begin: Callable[[T], Handle] | None = begin
        self._sink: Sink | None = sink  # both None after a cancellation: reference cycles
        self._future: asyncio.Future[T] = asyncio.ensure_future(awaited)
        self._future.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel the awaited work, or the answer."""
        self._sink = self._begin = None
        self._future.cancel()
        super().cancel()

    async def wait_closed(self) -> None:
        """Wait until the cancelled work has cleaned up."""
        await asyncio.wait((self._future,))
        await super().wait_closed()

    def _on_done(self, future: asyncio.Future[T]) -> None:
        if (sink := self._sink) is None or (begin := self._begin) is None:
            return
        try:
            self.control(begin(future.result()))
        except BaseException as error:
            receive_last([Failed(fault_from(error, self._key))], sink)
            error.__traceback__ = None  # this frame's future holds it, and all that it is about


async def stream_of(
    begin: Callable[[Request, Caller, Sink], Handle], request: Request, caller: Caller
) -> AsyncGenerator[Event, None]:
    """The events of an engine's own `start`, for engines that derive `stream` from it."""
    inbox = _Inbox()
    try:
        inbox.handle = begin(request, caller, inbox)
    except BaseException as error:
        yield Failed(fault_from(error, caller.key))
        return
    try:
        while not inbox.ended or inbox.events:
            for event in await inbox.take():
                yield event
    finally:
        if not inbox.ended:
            inbox.handle.cancel()
            await wait_closed(inbox.handle)
        del inbox.handle  # a reference cycle


async def wait_closed(handle: Handle | None) -> None:
    """Wait until the work of a cancelled answer has ended, where its handle can tell."""
    wait: Callable[[], Awaitable[None]] | None = getattr(handle, "wait_closed", None)
    if wait is not None:
        await wait()


class _Inbox:
    """A sink that stores events for a reader, and pauses the answer while the reader is behind."""

    handle: Handle

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = False
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    def receive(self, events: list[Event]) -> None:
        self.events += events
        self.ended = isinstance(events[-1], ENDS)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif len(self.events) >= _BATCH and not self._paused:
            self._paused = True
            self.handle.pause()

    async def take(self) -> list[Event]:
        """The stored events, at least one."""
        if not self.events:
            if self._paused:
                self._paused = False
                self.handle.resume()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        events, self.events = self.events, []
        return events


# ---- middleware ----------------------------------------------------------------------------

Map = Callable[[list[Event]], list[Event]]
"""Rewrites a batch of events. It may return an empty list, and must not change the given one."""


class Prepared(Struct, frozen=True):
    """What a middleware does to one request, which goes to `engine`, by default the one inside,
    with `caller`, where it has grown, and its events through `map`, if any. Middleware that may
    ask the engine inside more than once gives `start`, for the whole answer."""

    request: Request
    map: Map | None = None
    start: Callable[[Caller, Sink], Handle] | None = None
    engine: Engine | None = None
    caller: Caller | None = None


def with_losses(events: list[Event], losses: Sequence[Loss], without: str = "") -> list[Event]:
    """A batch whose `Started`, if it is in it, reports these losses too, and none of the field
    `without`."""
    if isinstance(started := events[0], Started) and (losses or started.losses):
        found = [loss for loss in started.losses if loss.field != without]
        return [replace(started, losses=(*found, *losses)), *events[1:]]
    return events


class Wrapper:
    """Middleware: an engine around another one, transparent unless a subclass overrides something.

    A subclass overrides `prepare`, which returns the changes to a request and its answer; a
    request without changes costs nothing more. It may also override `stream`. Other methods
    (counting tokens, embeddings) are those of the engine inside, by
    the same name.

    Requests without any of `acts_on` skip the call: types of items, names of fields that
    are set ("tools", "web_search", "include", "truncation", "context_management"), and "stored"
    for a stored answer. None stands for every request.
    """

    acts_on: ClassVar[frozenset[object] | None] = None
    _behind: tuple[Wrapper, ...] = ()
    """The next middleware inwards."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        own = _own_start(type(engine))
        if isinstance(engine, Wrapper) and own is Wrapper.start:
            self._behind = (engine, *engine._behind)

    def prepare(
        self, request: Request, caller: Caller
    ) -> Prepared | Awaitable[Prepared | None] | None:
        """The changes for this request; None for none. May be awaitable."""
        return None

    def start(self, request: Request, caller: Caller, sink: Sink) -> Handle:
        """Call `prepare` of all middleware from here inwards, and start the engine inside."""
        return start(self, request, caller, sink, Wrapper.start)

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """The same as an async generator."""
        return stream_of(self.start, request, caller)

    def models(self, caller: Caller = ANYONE) -> Awaitable[tuple[Model, ...]]:
        """The models of the engine inside."""
        return self.engine.models(caller)

    def capabilities(self, model: str) -> Awaitable[Capabilities]:
        """The capabilities of a model, by the engine inside."""
        return self.engine.capabilities(model)

    def close(self) -> Awaitable[None]:
        """Close the engine inside."""
        return self.engine.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "engine":  # not set yet while the object is copied
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.engine, name)


def _start_prepared(
    wrapper: Wrapper, request: Request, caller: Caller, sink: Sink, prepared: Prepared | None
) -> Handle:
    """Continue where `prepare` of a middleware has to be awaited."""
    if prepared is None:
        return start(wrapper.engine, request, caller, sink)
    if prepared.start is not None:
        return prepared.start(caller, sink)
    sink = sink if prepared.map is None else _Mapped(prepared.map, sink)
    caller = prepared.caller or caller
    return start(prepared.engine or wrapper.engine, prepared.request, caller, sink)


class _Mapped(Struct, eq=False):
    """A sink that maps events for another. After an error of the map, it is not called again: the
    rest is the engine's `Failed`."""

    _map: Map | None
    _sink: Sink

    def receive(self, events: list[Event]) -> None:
        if (map := self._map) is not None:
            self._map = None
            events = map(events)
            self._map = map
        if events:
            self._sink.receive(events)


# ---- the contract of an engine ---------------------------------------------------------------


async def enforce_contract(
    events: AsyncGenerator[Event, None], model: str
) -> AsyncGenerator[Event, None]:
    """The same events, with the contract of an engine enforced on any source.

    `Started` comes first (added here, for `model`, if it is missing), one terminal
    event comes last on every path, and nothing after it. A source that raises fails the answer;
    its error is named by type only, since its text may contain a key. A source that just stops is
    a cut.
    """
    state = _Contract(model)
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
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if is_cancelled():
            raise asyncio.CancelledError from error
        if not state.over:  # after the end, nothing is left to report
            yield Failed(fault_from(error))


def is_cancelled() -> bool:
    """Whether the task is, and not what an engine awaited, which is a failure as any other."""
    return (task := asyncio.current_task()) is not None and task.cancelling() > 0


request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request of the current task. Callbacks of shared connections get it from their caller."""


def fault_from(
    error: BaseException, key: Secret | None = None, request: str | None = None
) -> Fault:
    """The fault for an exception, with a text that is safe to send: its own may contain a
    key. Anything but a FaultError is a bug, and is logged with its traceback and the id of the
    `request`, without the caller's `key`."""
    if isinstance(error, FaultError):
        return error.fault
    id = f"err_{new_id()}"
    text = "".join(traceback.format_exception(error))
    if key is not None:
        text = text.replace(key.reveal(), str(key))
    request = request_id.get() if request is None else request
    what = f"an engine raised{f' for {request}' if request else ''}"
    _log.error("%s: %s\n%s", id, what, text, extra={"request": request})
    problem = f"The engine failed with {type(error).__name__}; the server's log has more under"
    return Fault("internal", f"{problem} {id}.")


class _Contract:
    """Tracks whether an answer has begun and whether it is over."""

    __slots__ = ("begun", "model", "over")

    def __init__(self, model: str) -> None:
        self.model = model
        self.begun = False
        self.over = False

    def admit(self, event: Event) -> list[Event]:
        """The events to pass on for this one."""
        self.over = isinstance(event, Finished | Failed)
        begun, self.begun = self.begun, True
        if isinstance(event, Started):
            return [] if begun else [event]
        if begun or isinstance(event, Failed):
            return [event]
        return [Started(new_id(), now(), self.model), event]
