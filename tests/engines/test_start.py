"""`start` drives any engine for a sink: delivery, backpressure, cancellation, and failures."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished, Progress, Started
from dragoman.core.interfaces import ANYONE, Caller, Handle, Secret, Sink
from dragoman.core.request import Request
from dragoman.core.turn import CUT
from dragoman.engines import base
from dragoman.engines.base import Wrapper, new_id, start, stream_of, wait_closed
from tests.engines.receiving import Receiver, received
from tests.engines.stage import others

REQUEST = Request(model="m")
STARTED = Started("resp_1", 1, "m")
END = Finished("completed")


class Fake(Wrapper):
    """An engine whose stream is a function's."""

    def __init__(self, answer: Callable[[], AsyncGenerator[Event, None]]) -> None:
        self._answer = answer

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        return self._answer()


async def answered(answer: Callable[[], AsyncGenerator[Event, None]]) -> list[Event]:
    return await received(Fake(answer), REQUEST)


def started(answer: Callable[[], AsyncGenerator[Event, None]], then: Any = None) -> Receiver:
    sink = Receiver(then)
    sink.start(Fake(answer), REQUEST)
    assert not sink.batches
    return sink


async def test_events_of_one_turn_of_the_loop_are_one_batch() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        yield Progress(None, "a")
        await asyncio.sleep(0.01)
        yield END

    sink = started(answer)
    await sink.end()
    assert sink.batches == [[STARTED, Progress(None, "a")], [END]]


async def test_an_engine_that_never_waits_does_not_block_the_loop() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        while True:
            yield Progress(None, "a")

    sink = started(answer, lambda _: sink.cancel() if len(sink.batches) == 3 else None)
    await sink.until(lambda: len(sink.batches) == 3)


async def test_a_pause_holds_the_engine_back_until_resume() -> None:
    yielded = 0

    async def answer() -> AsyncGenerator[Event, None]:
        nonlocal yielded
        for _ in range(10):
            yielded += 1
            yield STARTED
            await asyncio.sleep(0)
        yield END

    sink = started(answer)
    sink.pause()
    await asyncio.sleep(0.01)
    assert (yielded, len(sink.batches)) == (1, 1)
    sink.resume()
    assert (await sink.end())[-1] == END


async def test_cancel_inside_receive_stops_the_engine_and_nothing_more_is_received() -> None:
    closed = asyncio.Event()

    async def answer() -> AsyncGenerator[Event, None]:
        try:
            yield STARTED
            yield Progress(None, "a")
            await asyncio.sleep(60)
        finally:
            closed.set()

    before = others()
    sink = started(answer, lambda _: sink.cancel())
    async with asyncio.timeout(5):
        await closed.wait()
    sink.cancel()
    await asyncio.sleep(0)
    assert len(sink.batches) == 1
    assert others() == before


async def test_an_engine_that_raises_while_it_is_cancelled_is_cancelled() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError

    before = others()
    sink = started(answer)
    await asyncio.sleep(0.01)
    sink.cancel()
    await asyncio.sleep(0.01)
    assert sink.events == [STARTED]
    assert others() == before


async def test_n3_an_exception_becomes_failed_and_its_traceback_is_logged_under_an_id(
    caplog,
) -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        try:
            raise KeyError("canary")
        except KeyError as error:
            raise ValueError("key sk-secret-1") from error

    with caplog.at_level(logging.ERROR):
        _, failed = await received(Fake(answer), REQUEST, Caller(key=Secret("sk-secret-1")))
    assert failed.fault.code == "internal"
    assert "canary" not in failed.fault.message
    id = failed.fault.message.rstrip(".").split()[-1]
    assert id in caplog.text
    assert "KeyError" in caplog.text  # the cause too
    assert "in answer" in caplog.text
    assert "sk-secret-1" not in caplog.text


async def test_a_fault_with_an_unknown_code_is_an_error_of_the_engine_that_names_it(caplog) -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        yield Failed(Fault("context_length_exceeded", "Too long.", "client"))

    with caplog.at_level(logging.ERROR):
        _, failed = await received(Fake(answer), REQUEST)
    assert failed.fault.code == "internal"
    assert "a fault has no code 'context_length_exceeded'; there is invalid_request" in caplog.text


async def test_a_fault_that_is_raised_is_the_end() -> None:
    fault = bad_request("is wrong", "n")

    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        raise FaultError(fault)

    assert await answered(answer) == [STARTED, Failed(fault)]


async def test_an_engine_that_stops_without_a_terminal_event_was_cut() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED

    assert await answered(answer) == [STARTED, Failed(CUT)]


async def test_exception_after_the_end_is_only_logged(caplog) -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        try:
            yield END
        finally:
            raise ValueError("late")

    assert await answered(answer) == [END]
    await asyncio.sleep(0)
    assert "late" in caplog.text


class Own(Fake):
    """An engine with a `start` of its own."""

    def start(self, request: Request, caller: Caller, sink: Sink) -> Handle:
        raise FaultError(bad_request("is refused", "n"))


class Overridden(Own):
    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        return self._answer()


async def ends() -> AsyncGenerator[Event, None]:
    yield END


async def test_a_start_that_raises_is_a_failed_event_after_it_has_returned() -> None:
    sink = Receiver()
    sink.start(Own(ends), REQUEST)
    assert not sink.batches
    sink.pause()
    sink.resume()
    assert await sink.end() == [Failed(bad_request("is refused", "n"))]


async def test_cancel_before_the_first_event_leaves_nothing() -> None:
    for engine in (Own(ends), Fake(ends)):
        sink, before = Receiver(), others()
        sink.start(engine, REQUEST)
        sink.cancel()
        await asyncio.sleep(0.01)
        assert not sink.batches
        assert others() == before


async def test_a_subclass_that_overrides_stream_is_not_bypassed() -> None:
    assert await received(Overridden(ends), REQUEST) == [END]


# ---- ids -----------------------------------------------------------------------------------


def test_ids_are_32_hexadecimal_digits_and_differ() -> None:
    ids = [new_id() for _ in range(1_000)]
    assert len(set(ids)) == len({id[12:] for id in ids}) == 1_000
    assert all(len(id) == 32 and int(id, 16) for id in ids)


def test_ids_begin_with_the_time_and_grow_with_it(monkeypatch) -> None:
    before = time.time_ns() // 1_000_000
    assert before <= int(new_id()[:12], 16) <= time.time_ns() // 1_000_000
    earlier = new_id()
    moment = time.time_ns() + 1_000_000
    monkeypatch.setattr(base.time, "time_ns", lambda: moment)
    assert new_id() > earlier


async def test_answer_that_was_given_or_cancelled_is_no_reference_cycle() -> None:
    async def whole() -> AsyncGenerator[Event, None]:
        yield STARTED
        yield END

    async def endless() -> AsyncGenerator[Event, None]:
        yield STARTED
        await asyncio.Event().wait()

    async def asked() -> None:
        async with aclosing(stream_of(partial(start, Fake(whole)), REQUEST, ANYONE)) as events:
            assert [event async for event in events] == [STARTED, END]
        sink = started(endless)
        await sink.until(lambda: bool(sink.batches))
        handle = sink.handle
        sink.cancel()
        await wait_closed(handle)

    gc.collect()
    gc.disable()
    try:
        await asked()
        left = [each for each in gc.get_objects() if isinstance(each, base.Driver | base._Inbox)]
    finally:
        gc.enable()
    assert left == []


@pytest.mark.parametrize("begun", [False, True])
async def test_deferred_answer_that_was_cancelled_is_no_reference_cycle(begun) -> None:
    async def awaited() -> str:
        return "" if begun else await asyncio.Event().wait() or ""

    async def endless() -> AsyncGenerator[Event, None]:
        yield STARTED
        await asyncio.Event().wait()

    async def cancelled() -> weakref.ref[Receiver]:
        sink = Receiver()
        sink.handle = base.Deferred(
            awaited(), lambda _: start(Fake(endless), REQUEST, ANYONE, sink), ANYONE, sink
        )
        if begun:
            await sink.until(lambda: bool(sink.batches))
        sink.handle.cancel()
        await wait_closed(sink.handle)
        return weakref.ref(sink)

    gc.disable()
    try:
        there = await cancelled()
        await asyncio.sleep(0)
        assert there() is None
    finally:
        gc.enable()
