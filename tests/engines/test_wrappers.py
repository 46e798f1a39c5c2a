"""Wrappers pass everything on, and enforce_contract makes any stream of events legal."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, Progress, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine, Handle, Sink
from dragoman.core.item import Compaction, Message, Reasoning, Thought, Unknown
from dragoman.core.request import FunctionTool, Request
from dragoman.core.turn import CUT
from dragoman.engines.base import LRU, Driver, Immediate, Prepared, Wrapper, enforce_contract
from dragoman.engines.chaos import Chaos, Faults
from dragoman.engines.compaction import Compacting, Truncating
from dragoman.engines.compaction import encode_summary as summed
from dragoman.engines.reasoning import (
    ENCRYPTED,
    EncryptingReasoning,
    ReasoningCipher,
    RetryingReasoning,
)
from dragoman.engines.reasoning_cache import CachingReasoning
from dragoman.engines.router import Route, Router
from dragoman.engines.script import Script
from tests.engines.receiving import Receiver, received
from tests.engines.stage import ASKED, heard

START, END = Started("r", 0, "m"), Finished("completed")
Source = Callable[[], AsyncGenerator[Event, None]]


class Counting(Script):
    """An engine with an ability of its own."""

    closed = False

    async def count(self, text: str) -> int:
        return len(text)

    async def close(self) -> None:
        self.closed = True


async def test_a_wrapper_has_every_ability_of_the_engine_inside() -> None:
    engine = Counting("Hi")
    outer = Wrapper(Wrapper(engine))
    assert await outer.count("four") == 4
    assert await outer.models() == await engine.models()
    assert await outer.capabilities("script") == await engine.capabilities("script")
    assert [type(e) for e in await heard(outer)] == [type(e) for e in await heard(engine)]
    await outer.close()
    assert engine.closed


def test_missing_attribute_is_named() -> None:
    with pytest.raises(AttributeError, match="fly"):
        Wrapper(Script("Hi")).fly
    with pytest.raises(AttributeError, match="_secret"):
        Wrapper(Script("Hi"))._secret
    assert copy.copy(Wrapper(Script("Hi"))).engine.name == "script"


async def enforced(*given: Event | Exception) -> list[Event]:
    async def source() -> AsyncGenerator[Event, None]:
        for each in given:
            if isinstance(each, Exception):
                raise each
            yield each

    return [event async for event in enforce_contract(source(), "m")]


FAULT = bad_request("is wrong", "n")
ADDED = ItemAdded(0, Message("assistant", id="x"))


@pytest.mark.parametrize(
    ("given", "events"),
    [
        ((START, END), [START, END]),
        ((START, END, END, START), [START, END]),
        ((START,), [START, Failed(CUT)]),
        ((), [Failed(CUT)]),
        ((Failed(CUT), START), [Failed(CUT)]),
        ((START, START, END), [START, END]),
        ((ADDED, Failed(CUT)), [START, ADDED, Failed(CUT)]),
        ((START, FaultError(FAULT)), [START, Failed(FAULT)]),
    ],
)
async def test_p15_one_beginning_and_one_end_on_every_path(given, events) -> None:
    made = [replace(e, id="r", created_at=0) if isinstance(e, Started) else e
            for e in await enforced(*given)]  # fmt: skip
    assert made == events


async def test_p45_exception_is_reported_by_type_only() -> None:
    (failed,) = await enforced(ValueError("key canary-1"))
    assert failed.fault.code == "internal"
    assert failed.fault.message.startswith("The engine failed with ValueError;")
    assert "canary" not in failed.fault.message


async def stubborn() -> AsyncGenerator[Event, None]:
    """A source that objects to being given up, and to being put away."""
    try:
        yield START
        await asyncio.Event().wait()
    finally:
        raise ValueError("no")


async def test_source_that_raises_when_closed_changes_nothing() -> None:
    async def ended() -> AsyncGenerator[Event, None]:
        try:
            yield END
        finally:
            raise ValueError("no")

    assert [type(e) async for e in enforce_contract(ended(), "m")] == [Started, Finished]

    events = enforce_contract(stubborn(), "m")
    assert await anext(events) == START
    await events.aclose()

    async with aclosing(enforce_contract(stubborn(), "m")) as waiting:
        assert await anext(waiting) == START
        task = asyncio.ensure_future(anext(waiting))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_a_wrapper_closes_the_engine_inside() -> None:
    closed = []

    class Watched(Script):
        async def stream(self, request, caller=None):
            try:
                yield START
                yield Delta(0, 0, "text", "never")
            finally:
                closed.append(True)

    events = Wrapper(Watched("Hi")).stream(ASKED)
    await anext(events)
    await events.aclose()
    assert closed == [True]


# ---- middleware ------------------------------------------------------------------------------


class Direct(Script):
    """An engine with a `start` of its own, which answers at once and remembers who asked."""

    def __init__(self) -> None:
        super().__init__("Hi")
        self.sinks: list[Sink] = []
        self.requests: list[Request] = []

    def start(self, request: Request, caller: Caller, sink: Sink) -> Handle:
        self.sinks.append(sink)
        self.requests.append(request)
        return Immediate([Started("r", 0, request.model), END], sink)


class Changing(Wrapper):
    """A wrapper that changes the answer by its own `stream`."""

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        async for event in super().stream(request, caller):
            if not isinstance(event, Started):
                yield event


class Tagged(Wrapper):
    """Middleware that adds a tag to the model's name, and one to the answer."""

    def __init__(self, engine: Engine, tag: str) -> None:
        super().__init__(engine)
        self._tag = tag

    def prepare(self, request: Request, caller: Caller) -> Prepared:
        def tagged(events: list[Event]) -> list[Event]:
            first, *rest = events
            return [replace(first, model=first.model + self._tag.upper()), *rest]

        return Prepared(replace(request, model=request.model + self._tag), tagged)


class Awaited(Tagged):
    """The same, prepared by a coroutine."""

    async def prepare(self, request: Request, caller: Caller) -> Prepared:
        await asyncio.sleep(0.01)
        return super().prepare(request, caller)


def all_around(engine: Engine) -> Engine:
    """Every middleware that may have nothing to do, around one engine."""
    engine = RetryingReasoning(
        CachingReasoning(EncryptingReasoning(engine, ReasoningCipher(lambda: b"k" * 32)))
    )
    return Compacting(Truncating(Router([Route(Wrapper(engine))])))


async def test_idle_middleware_leaves_the_sink_to_the_engine_inside() -> None:
    engine = Direct()
    for outer in (engine, Wrapper(engine), Router([Route(engine)]), all_around(engine)):
        sink = Receiver()
        sink.start(outer, ASKED)
        assert engine.sinks[-1] is sink
        assert engine.requests[-1] is ASKED
        assert (await sink.end())[-1] == END


SEVERAL = (
    {"tools": (FunctionTool("now"),)},
    {"include": (ENCRYPTED,)},
    {"truncation": "auto"},
    {"context_management": ({"type": "compaction", "compact_threshold": 1},)},
    {"items": (*ASKED.items, Reasoning(encrypted="blob", id="r"))},
    {"items": (Compaction(summed("It was fine.")), *ASKED.items)},
    {"items": (*ASKED.items, Unknown("responses", "compaction_trigger", {}))},
    {},
)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("fields", SEVERAL, ids=lambda fields: "-".join(fields) or "plain")
async def test_middleware_that_would_do_something_is_asked(fields, stored) -> None:
    request, caller = replace(ASKED, **fields), replace(ANYONE, stored=stored)
    cipher = ReasoningCipher(lambda: b"k" * 32)
    short = Compacting(Truncating(RetryingReasoning(Direct())))
    outer: Any = EncryptingReasoning(CachingReasoning(short), cipher)
    wanted: set[type] = set()
    asked: set[type] = set()
    wrapper = outer
    while isinstance(wrapper, Wrapper):
        prepared = wrapper.prepare(request, caller)
        if isinstance(prepared, Coroutine):
            prepared.close()
        if prepared is not None:
            wanted.add(type(wrapper))
        # In its place one that only notes that it was asked, so that those behind it see the same.
        wrapper.prepare = partial(lambda kind, *_: asked.add(kind), type(wrapper))
        wrapper = wrapper.engine
    sink = Receiver()
    sink.start(outer, request, caller)
    await sink.end()
    assert wanted <= asked
    assert asked or not (fields or stored)


@pytest.mark.parametrize("middle", [Tagged, Awaited])
async def test_middleware_prepares_inwards_and_maps_outwards(middle) -> None:
    engine = Direct()
    started, _ = await received(Tagged(middle(Tagged(engine, "c"), "b"), "a"), ASKED)
    assert engine.requests[-1].model == "scriptabc"
    assert started.model == "scriptabcCBA"


async def test_an_awaited_preparation_may_answer() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield END

    class Answering(Wrapper):
        async def prepare(self, request: Request, caller: Caller) -> Prepared:
            return Prepared(request, start=partial(Driver, answer()))

    assert await received(Answering(Direct()), ASKED) == [END]


async def test_a_preparation_that_raises_is_a_refusal() -> None:
    fault = bad_request("is wrong", "n")

    class Refusing(Wrapper):
        def prepare(self, request: Request, caller: Caller) -> None:
            raise FaultError(fault)

    class RefusingLater(Wrapper):
        async def prepare(self, request: Request, caller: Caller) -> None:
            raise FaultError(fault)

    for kind in (Refusing, RefusingLater):
        assert await received(Wrapper(kind(Direct())), ASKED) == [Failed(fault)]
        assert [event async for event in kind(Direct()).stream(ASKED)] == [Failed(fault)]


async def test_cancel_while_a_preparation_is_awaited_starts_nothing() -> None:
    engine, sink = Direct(), Receiver()
    sink.start(Awaited(engine, "a"), ASKED)
    sink.pause()
    sink.cancel()
    await asyncio.sleep(0.05)
    assert not engine.requests


async def test_pause_while_a_preparation_is_awaited_pauses_the_answer() -> None:
    class Waiting(Script):
        async def stream(
            self, request: Request, caller: Caller = ANYONE
        ) -> AsyncGenerator[Event, None]:
            for event in (START, Progress(None, "a"), END):
                yield event
                await asyncio.sleep(0)

    sink = Receiver()
    sink.start(Awaited(Waiting("Hi"), "a"), ASKED)
    sink.pause()
    await asyncio.sleep(0.05)
    assert sink.events == [replace(START, model="mA")]
    sink.handle.resume()
    sink.handle.cancel()


async def test_a_map_that_raises_fails_the_answer_once() -> None:
    class Broken(Wrapper):
        def prepare(self, request: Request, caller: Caller) -> Prepared:
            def broken(events: list[Event]) -> list[Event]:
                raise ValueError

            return Prepared(request, broken)

    (failed,) = await received(Broken(Script("Hi")), ASKED)
    assert failed.fault.code == "internal"


async def test_map_may_drop_a_whole_batch() -> None:
    class Silent(Wrapper):
        def prepare(self, request: Request, caller: Caller) -> Prepared:
            return Prepared(request, lambda events: [e for e in events if isinstance(e, Finished)])

    (only,) = await received(Silent(Script("Hi", pace=0.01)), ASKED)
    assert isinstance(only, Finished)


@pytest.mark.parametrize(
    "base", [Wrapper, Truncating, Compacting, CachingReasoning, RetryingReasoning]
)
async def test_a_subclass_of_middleware_that_overrides_stream_is_not_bypassed(base) -> None:
    engine = type("Own", (Changing, base), {})(Direct())
    assert await received(engine, ASKED) == [END]


SEALED = (*ASKED.items, Reasoning(encrypted="gAAA"), Message("user", "And?"))
OURS = ReasoningCipher(lambda: b"k" * 32)
OUR_BLOB = OURS.encrypt(Reasoning((Thought("hm"),)), "", ASKED.model)
WITH_SOMETHING_TO_DO: dict[str, tuple[Callable[[Engine], Engine], dict[str, object]]] = {
    "a user's stream": (Changing, {}),
    "faults": (lambda engine: Chaos(engine, Faults()), {}),
    "calls to remember": (CachingReasoning, {"tools": (FunctionTool("f"),)}),
    "reasoning to put back": (CachingReasoning, {"items": SEALED}),
    "a summary to write": (
        Compacting,
        {"context_management": [{"type": "compaction", "compact_threshold": 9}]},
    ),
    "a summary to read": (Compacting, {"items": (*ASKED.items, Compaction(summed("So far.")))}),
    "reasoning to ask for": (RetryingReasoning, {"tools": (FunctionTool("f"),)}),
    "reasoning that may be refused": (RetryingReasoning, {"items": SEALED}),
    "reasoning to encrypt": (
        lambda engine: EncryptingReasoning(engine, OURS),
        {"include": (ENCRYPTED,)},
    ),
    "reasoning to decrypt": (
        lambda engine: EncryptingReasoning(engine, OURS),
        {"items": (Reasoning(encrypted=OUR_BLOB), *ASKED.items)},
    ),
    "another name": (lambda engine: Router([Route(engine, aliases={"script": "x"})]), {}),
    "no name": (lambda engine: Router([Route(engine)], default="script"), {"model": ""}),
}


@pytest.mark.parametrize("deep", [False, True], ids=["alone", "in others"])
@pytest.mark.parametrize(
    ("wrap", "fields"), WITH_SOMETHING_TO_DO.values(), ids=WITH_SOMETHING_TO_DO
)
async def test_middleware_with_something_to_do_is_not_bypassed(wrap, fields, deep) -> None:
    inner = Direct()
    engine = wrap(inner)
    engine = Wrapper(Truncating(Wrapper(engine))) if deep else engine
    request = replace(ASKED, **fields)
    sink = Receiver()
    sink.start(engine, request)
    await sink.end()
    assert not inner.requests or inner.sinks[0] is not sink or inner.requests[0] != request


# ---- the LRU table -----------------------------------------------------------------------------


def test_a14_least_recently_used_entry_is_dropped_first() -> None:
    table = LRU[str, int](2)
    table.put("a", 1, 1)
    table.put("b", 2, 1)
    assert table.get("a") == 1
    table.put("c", 3, 1)
    assert (table.get("a"), table.get("b"), table.get("c")) == (1, None, 3)
    table.put("a", 4, 1)
    table.put("d", 5, 1)
    assert (table.get("a"), table.get("c"), table.get("d")) == (4, None, 5)


def test_a_value_that_is_too_heavy_takes_its_key_with_it() -> None:
    table = LRU[str, int](2)
    table.put("a", 1, 1)
    table.put("a", 2, 3)
    assert (table.get("a"), len(table)) == (None, 0)
