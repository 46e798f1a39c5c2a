"""Wrapping loses nothing, and the seal holds whatever is behind it."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, Started
from dragoman.core.item import Message
from dragoman.core.turn import CUT
from dragoman.engines.script import Script
from dragoman.engines.wrap import Wrapper, sealed
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

    return [event async for event in sealed(source(), "m")]


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
    assert (failed.fault.code, failed.fault.message) == (
        "internal",
        "The engine failed with ValueError.",
    )


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

    assert [type(e) async for e in sealed(ended(), "m")] == [Started, Finished]

    events = sealed(stubborn(), "m")
    assert await anext(events) == START
    await events.aclose()

    async with aclosing(sealed(stubborn(), "m")) as waiting:
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
