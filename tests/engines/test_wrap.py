"""Wrapping loses nothing, and the seal holds whatever is behind it."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import chain

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, Started
from dragoman.core.interfaces import ANYONE, Caller, Engine, Passed
from dragoman.core.item import Compaction, Message, Reasoning, Thought
from dragoman.core.request import FunctionTool, Request
from dragoman.core.turn import CUT
from dragoman.engines.base import Wrapper, batches, enforce_contract, relay, straight, tell
from dragoman.engines.chaos import Chaos, Mischief
from dragoman.engines.compaction import Compacting, Fitting
from dragoman.engines.compaction import seal as summed
from dragoman.engines.reasoning_cache import Recalling
from dragoman.engines.reasoning_encryption import ENCRYPTED, Seal, Sealing
from dragoman.engines.reasoning_retry import Resending
from dragoman.engines.router import Route, Router
from dragoman.engines.script import Script
from dragoman.server.log import Noted
from tests.engines.stage import ASKED, heard

START, END = Started("r", 0, "m"), Finished("completed")
Batches = AsyncGenerator[list[Event], None]
Passing = AsyncGenerator[Passed, None]
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


def test_what_no_engine_has_is_missed_by_name() -> None:
    with pytest.raises(AttributeError, match="fly"):
        Wrapper(Script("Hi")).fly
    with pytest.raises(AttributeError, match="_secret"):
        Wrapper(Script("Hi"))._secret
    assert copy.copy(Wrapper(Script("Hi"))).engine.name == "script"


async def sealed_events(*given: Event | Exception) -> list[Event]:
    async def source() -> AsyncGenerator[Event, None]:
        for each in given:
            if isinstance(each, Exception):
                raise each
            yield each

    return [event async for event in enforce_contract(source(), "m")]


async def test_p15_there_is_one_end_on_every_path() -> None:
    assert await sealed_events(START, END) == [START, END]
    assert await sealed_events(START, END, END, START) == [START, END]
    assert await sealed_events(START) == [START, Failed(CUT)]
    assert await sealed_events() == [Failed(CUT)]
    assert await sealed_events(Failed(CUT), START) == [Failed(CUT)]
    assert await sealed_events(START, START, END) == [START, END]


async def test_a_beginning_that_was_left_out_is_made() -> None:
    added = ItemAdded(0, Message("assistant", id="x"))
    start, *rest = await sealed_events(added, Failed(CUT))
    assert isinstance(start, Started)
    assert (start.model, rest) == ("m", [added, Failed(CUT)])


async def test_p45_an_exception_is_told_by_type_only() -> None:
    (failed,) = await sealed_events(ValueError("key canary-1"))
    assert isinstance(failed, Failed)
    assert failed.fault.code == "internal"
    assert failed.fault.message.startswith("The engine failed with ValueError;")
    assert "canary" not in failed.fault.message


async def test_a_fault_that_is_raised_is_told_as_it_is() -> None:
    fault = bad_request("is wrong", "n")
    assert await sealed_events(START, FaultError(fault)) == [START, Failed(fault)]


async def stubborn() -> AsyncGenerator[Event, None]:
    """A source that objects to being given up, and to being put away."""
    try:
        yield START
        await asyncio.Event().wait()
    finally:
        raise ValueError("no")


async def test_a_source_that_objects_to_its_end_changes_nothing() -> None:
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


# ---- in batches, and unread ------------------------------------------------------------------


class Batching(Script):
    """An engine that gives its events three at a time, and lets anything pass."""

    async def batches(self, request: Request, caller: Caller = ANYONE) -> Batches:
        events = [event async for event in self.stream(request, caller)]
        for at in range(0, len(events), 3):
            yield events[at : at + 3]

    async def relay(self, body: bytes, request: Request, caller: Caller) -> Passing:
        yield body
        yield [END]


class Changing(Wrapper):
    """A wrapper that does something to what is said."""

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        async for event in self.engine.stream(request, caller):
            if not isinstance(event, Delta):
                yield event


def kinds(batch: list[Event]) -> list[type]:
    return [type(event) for event in batch]


async def test_any_engine_is_read_in_batches_and_a_wrapper_keeps_them() -> None:
    single = [kinds(batch) async for batch in batches(Script("Hi"), ASKED)]
    assert all(len(batch) == 1 for batch in single)
    for engine in (Batching("Hi"), Wrapper(Batching("Hi")), Router([Route(Batching("Hi"))])):
        many = [kinds(batch) async for batch in batches(engine, ASKED)]
        assert len(many[0]) == 3
        assert list(chain(*many)) == list(chain(*single))


async def test_a_wrapper_that_changes_what_is_said_is_not_passed_by() -> None:
    changed = Changing(Batching("Hi"))
    heard = [kinds(batch) async for batch in batches(changed, ASKED)]
    assert [Delta] not in heard
    assert relay(changed, b"{}", ASKED, ANYONE) is None
    assert relay(Script("Hi"), b"{}", ASKED, ANYONE) is None


async def test_bytes_pass_through_a_wrapper_with_nothing_to_do() -> None:
    for engine in (Batching("Hi"), Wrapper(Batching("Hi")), Router([Route(Batching("Hi"))])):
        passed = relay(engine, b"{}", ASKED, ANYONE)
        assert passed is not None
        assert [gift async for gift in passed] == [b"{}", [END]]


async def test_a_router_lets_nothing_pass_under_another_name() -> None:
    aliased = Router([Route(Batching("Hi"), models=("x",), aliases={ASKED.model: "x"})])
    assert relay(aliased, b"{}", ASKED, ANYONE) is None
    two = Router([Route(Batching("Hi")), Route(Batching("Ho"))])
    assert relay(two, b"{}", ASKED, ANYONE) is None
    assert [batch async for batch in batches(two, ASKED)]


# ---- told ------------------------------------------------------------------------------------


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def heard(self, events: list[Event]) -> None:
        self.events += events

    def broke(self, error: Exception) -> None:
        raise error

    def stop(self) -> None:
        """Nothing is under way."""

    hold = go_on = stop


class Speaking(Batching):
    """An engine that tells; whoever is told is the telling too."""

    def tell(self, request: Request, caller: Caller, listener: Heard) -> Heard:
        listener.heard([Started("r", 0, request.model), END])
        return listener


class Batched(Wrapper):
    """A wrapper that only wants to see the batches."""

    def batches(self, request: Request, caller: Caller = ANYONE) -> Batches:
        return batches(self.engine, request, caller)


def is_told(engine: Engine, request: Request = ASKED, caller: Caller = ANYONE) -> bool:
    """Whether an answer is told; then it is that of the engine inside."""
    listener = Heard()
    telling = tell(engine, request, caller, listener)
    assert listener.events == ([] if telling is None else [Started("r", 0, request.model), END])
    assert telling in (None, listener)
    return telling is not None


def all_around(engine: Engine) -> Engine:
    """Every wrapper of the house that may have nothing to do, around one engine."""
    engine = Resending(Recalling(Sealing(engine, Seal(lambda: b"k" * 32))))
    return Compacting(Fitting(Router([Route(Wrapper(engine))])))


def test_what_changes_nothing_lets_the_engine_inside_tell() -> None:
    speaking = Speaking("Hi")
    for engine in (speaking, Wrapper(speaking), Router([Route(speaking)]), all_around(speaking)):
        assert is_told(engine)
        assert straight(engine, ASKED, ANYONE) is speaking
    assert Wrapper(Wrapper(speaking)).tell(ASKED, ANYONE, Heard()) is not None


async def test_a_wrapper_that_is_asked_itself_gives_the_batches_of_the_engine_inside() -> None:
    given = [kinds(batch) async for batch in Wrapper(Wrapper(Batching("Hi"))).batches(ASKED)]
    assert len(given[0]) == 3


def test_what_cannot_tell_is_awaited() -> None:
    for engine in (Script("Hi"), Batching("Hi"), Wrapper(Script("Hi")), all_around(Script("Hi"))):
        assert not is_told(engine)
    assert Wrapper(Script("Hi")).tell(ASKED, ANYONE, Heard()) is None


SEALED = (*ASKED.items, Reasoning(encrypted="gAAA"), Message("user", "And?"))
OURS = Seal(lambda: b"k" * 32)
OUR_BLOB = OURS.close(Reasoning((Thought("hm"),)), "", ASKED.model)
WITH_SOMETHING_TO_DO: dict[str, tuple[Callable[[Engine], Engine], dict[str, object]]] = {
    "a user's stream": (Changing, {}),
    "a user's batches": (Batched, {}),
    "a log": (Noted, {}),
    "mischief": (lambda engine: Chaos(engine, Mischief()), {}),
    "calls to remember": (Recalling, {"tools": (FunctionTool("f"),)}),
    "reasoning to put back": (Recalling, {"items": SEALED}),
    "turns to leave out": (Fitting, {"truncation": "auto"}),
    "a summary to write": (
        Compacting,
        {"context_management": [{"type": "compaction", "compact_threshold": 9}]},
    ),
    "a summary to read": (Compacting, {"items": (*ASKED.items, Compaction(summed("So far.")))}),
    "reasoning to ask for": (Resending, {"tools": (FunctionTool("f"),)}),
    "reasoning that may be refused": (Resending, {"items": SEALED}),
    "reasoning to seal": (lambda engine: Sealing(engine, OURS), {"include": (ENCRYPTED,)}),
    "reasoning to open": (
        lambda engine: Sealing(engine, OURS),
        {"items": (Reasoning(encrypted=OUR_BLOB), *ASKED.items)},
    ),
    "another name": (lambda engine: Router([Route(engine, aliases={"script": "x"})]), {}),
    "a name to look for": (lambda engine: Router([Route(engine), Route(Script("Ho"))]), {}),
    "no name": (lambda engine: Router([Route(engine)], default="script"), {"model": ""}),
}


@pytest.mark.parametrize("deep", [False, True], ids=["alone", "in others"])
@pytest.mark.parametrize(
    ("wrap", "fields"), WITH_SOMETHING_TO_DO.values(), ids=WITH_SOMETHING_TO_DO
)
def test_who_has_something_to_do_is_not_passed_by(
    wrap: Callable[[Engine], Engine], fields: dict[str, object], deep: bool
) -> None:
    wrapper = wrap(Speaking("Hi"))
    engine = Wrapper(Fitting(Wrapper(wrapper))) if deep else wrapper
    request = replace(ASKED, **fields)
    assert not is_told(engine, request)
    if fields.get("truncation") is None:
        assert straight(engine, request, ANYONE) is wrapper


def test_a_wire_that_carries_sealed_reasoning_has_none_asked_for() -> None:
    request = replace(ASKED, tools=(FunctionTool("f"),))
    assert is_told(Resending(Speaking("Hi")), request, Caller(wire="responses"))


@pytest.mark.parametrize("way", ["stream", "batches", "relay", "tell"])
@pytest.mark.parametrize("base", [Wrapper, Fitting, Compacting])
def test_who_answers_in_a_way_of_their_own_is_not_passed_by(base: type[Wrapper], way: str) -> None:
    inner = Script("Hi")
    plain = type("Plain", (base,), {})
    own = type("Own", (base,), {way: lambda *_: None})
    further = type("Further", (own,), {"aside": lambda self, *_: self.engine})
    assert straight(plain(inner), ASKED, ANYONE) is inner
    assert straight(engine := own(inner), ASKED, ANYONE) is engine
    assert straight(further(inner), ASKED, ANYONE) is inner
