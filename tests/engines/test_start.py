"""`start` drives any engine for a sink: delivery, backpressure, cancellation, and failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

import pytest

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished, Progress, Started
from dragoman.core.interfaces import ANYONE, Caller, Handle, Secret, Sink
from dragoman.core.request import Request
from dragoman.core.turn import CUT
from dragoman.engines.base import Wrapper, start
from tests.engines.stage import others

REQUEST = Request(model="m")
STARTED = Started("resp_1", 1, "m")
END = Finished("completed")


class Collect:
    """A sink that collects, and calls `then` with each batch."""

    def __init__(self, then: Callable[[list[Event]], None] | None = None) -> None:
        self.batches: list[list[Event]] = []
        self.ended = asyncio.Event()
        self._then = then

    def receive(self, events: list[Event]) -> None:
        assert events
        assert not self.ended.is_set()
        self.batches.append(events)
        if isinstance(events[-1], Finished | Failed):
            self.ended.set()
        if self._then is not None:
            self._then(events)

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    async def wait(self) -> list[Event]:
        async with asyncio.timeout(5):
            await self.ended.wait()
        return self.events


class Fake(Wrapper):
    """An engine whose stream is a function's."""

    def __init__(self, answer: Callable[[], AsyncGenerator[Event, None]]) -> None:
        self._answer = answer

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        return self._answer()


async def answered(answer: Callable[[], AsyncGenerator[Event, None]]) -> list[Event]:
    sink = Collect()
    start(Fake(answer), REQUEST, ANYONE, sink)
    assert not sink.batches
    return await sink.wait()


async def test_events_of_one_turn_of_the_loop_are_one_batch() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        yield Progress(None, "a")
        await asyncio.sleep(0.01)
        yield END

    sink = Collect()
    start(Fake(answer), REQUEST, ANYONE, sink)
    await sink.wait()
    assert sink.batches == [[STARTED, Progress(None, "a")], [END]]


async def test_an_engine_that_never_waits_does_not_block_the_loop() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        while True:
            yield Progress(None, "a")

    sink = Collect(lambda _: handle.cancel() if len(sink.batches) == 3 else None)
    handle = start(Fake(answer), REQUEST, ANYONE, sink)
    async with asyncio.timeout(5):
        while len(sink.batches) < 3:
            await asyncio.sleep(0)


async def test_a_pause_holds_the_engine_back_until_resume() -> None:
    yielded = 0

    async def answer() -> AsyncGenerator[Event, None]:
        nonlocal yielded
        for _ in range(10):
            yielded += 1
            yield STARTED
            await asyncio.sleep(0)
        yield END

    sink = Collect()
    handle = start(Fake(answer), REQUEST, ANYONE, sink)
    handle.pause()
    handle.pause()
    await asyncio.sleep(0.01)
    assert (yielded, len(sink.batches)) == (1, 1)
    handle.resume()
    handle.resume()
    assert (await sink.wait())[-1] == END


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
    sink = Collect(lambda _: handle.cancel())
    handle = start(Fake(answer), REQUEST, ANYONE, sink)
    async with asyncio.timeout(5):
        await closed.wait()
    handle.cancel()
    await asyncio.sleep(0)
    assert len(sink.batches) == 1
    assert others() == before


async def test_cancel_before_the_first_event_leaves_nothing() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield END

    sink, before = Collect(), others()
    start(Fake(answer), REQUEST, ANYONE, sink).cancel()
    await asyncio.sleep(0.01)
    assert not sink.batches
    assert others() == before


async def test_an_engine_that_raises_while_it_is_cancelled_is_cancelled() -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError

    sink, before = Collect(), others()
    handle = start(Fake(answer), REQUEST, ANYONE, sink)
    await asyncio.sleep(0.01)
    handle.cancel()
    await asyncio.sleep(0.01)
    assert sink.events == [STARTED]
    assert others() == before


async def test_n3_an_exception_becomes_failed_and_its_traceback_is_logged_under_an_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer() -> AsyncGenerator[Event, None]:
        yield STARTED
        try:
            raise KeyError("canary")
        except KeyError as error:
            raise ValueError("key sk-secret-1") from error

    sink = Collect()
    with caplog.at_level(logging.ERROR):
        start(Fake(answer), REQUEST, Caller(key=Secret("sk-secret-1")), sink)
        _, failed = await sink.wait()
    assert isinstance(failed, Failed)
    assert failed.fault.code == "internal"
    assert "canary" not in failed.fault.message
    id = failed.fault.message.rstrip(".").split()[-1]
    assert id in caplog.text
    assert "KeyError" in caplog.text  # the cause too
    assert "in answer" in caplog.text
    assert "sk-secret-1" not in caplog.text


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


async def test_what_is_raised_after_the_end_is_logged_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    sink = Collect()
    handle = start(Own(ends), REQUEST, ANYONE, sink)
    assert not sink.batches
    handle.pause()
    handle.resume()
    assert await sink.wait() == [Failed(bad_request("is refused", "n"))]


async def test_a_refusal_that_is_cancelled_is_not_received() -> None:
    sink = Collect()
    start(Own(ends), REQUEST, ANYONE, sink).cancel()
    await asyncio.sleep(0.01)
    assert not sink.batches


async def test_a_subclass_that_overrides_stream_is_not_bypassed() -> None:
    sink = Collect()
    start(Overridden(ends), REQUEST, ANYONE, sink)
    assert await sink.wait() == [END]
