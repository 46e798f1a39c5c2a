"""The pump: everything that is ready in one send, nothing ever held back, nobody left hanging."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import uvloop

from dragoman.core.event import Event, Failed, Finished
from dragoman.server.pump import Taken, pump
from tests.server.stubs import FINISHED, STARTED, saying, word

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


class Sink:
    """Takes events, and notes which of them went out together."""

    def __init__(self, enough: int = 1_000_000) -> None:
        self.taken: list[Event] = []
        self.sends: list[list[Event]] = []
        self.sent = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self._enough = enough

    def take(self, event: Event) -> Taken:
        self.taken.append(event)
        if isinstance(event, Finished | Failed):
            return Taken.OVER
        return Taken.FULL if len(self.taken) >= self._enough else Taken.MORE

    async def flush(self) -> None:
        if self.taken:
            await self.open.wait()
            self.sends.append(self.taken)
            self.taken = []
            self.sent.set()

    async def run(self, events: AsyncGenerator[Event, None]) -> bool:
        return await pump(events, self.take, self.flush)


def in_loop(loop: Callable[[], asyncio.AbstractEventLoop], main: Awaitable[None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main)


@LOOPS
def test_a_hundred_ready_events_are_one_send(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        woken = asyncio.Event()

        async def events() -> AsyncGenerator[Event, None]:
            for number in range(100):
                yield word(str(number))
            await woken.wait()
            yield FINISHED

        sink = Sink()
        task = asyncio.create_task(sink.run(events()))
        await sink.sent.wait()
        assert [len(send) for send in sink.sends] == [100]
        woken.set()
        assert await task
        assert sink.taken == [FINISHED]  # the last goes out with the end

    in_loop(loop, main())


@LOOPS
def test_a_lone_event_is_sent_at_once(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        gates = [asyncio.Event() for _ in range(5)]

        async def events() -> AsyncGenerator[Event, None]:
            for gate in gates:
                yield word("x")
                await gate.wait()
            yield FINISHED

        sink = Sink()
        task = asyncio.create_task(sink.run(events()))
        for number, gate in enumerate(gates, 1):
            await sink.sent.wait()
            sink.sent.clear()
            assert [len(send) for send in sink.sends] == [1] * number
            gate.set()
        assert await task

    in_loop(loop, main())


@LOOPS
def test_every_kind_of_wait_is_waited_for(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        shared = asyncio.create_task(asyncio.sleep(0.01, "slept"))

        async def events() -> AsyncGenerator[Event, None]:
            yield STARTED
            await asyncio.sleep(0)
            assert await shared == "slept"
            async with asyncio.timeout(5):
                await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            await asyncio.gather(asyncio.sleep(0.001), asyncio.to_thread(int))
            yield FINISHED

        sink = Sink()
        other = asyncio.create_task(asyncio.wait([shared]))
        assert await sink.run(events())
        await other

    in_loop(loop, main())


async def test_a_future_that_others_await_too_is_awaited_again() -> None:
    shared = asyncio.get_running_loop().create_future()

    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        yield word(await shared)
        yield FINISHED

    async def other() -> str:
        return await shared

    sink = Sink()
    sink.open.clear()
    pumping = asyncio.create_task(sink.run(events()))
    await asyncio.sleep(0)  # the engine waits for the future, the pump for its reader
    waiting = asyncio.create_task(other())
    await asyncio.sleep(0)
    sink.open.set()
    await sink.sent.wait()
    shared.set_result("late")
    assert await pumping
    assert await waiting == "late"
    assert sink.taken == [word("late"), FINISHED]


async def test_what_came_before_an_exception_is_kept() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        yield word("a")
        raise ValueError("broken")

    sink = Sink()
    with pytest.raises(ValueError, match="broken"):
        await sink.run(events())
    assert sink.taken == [STARTED, word("a")]


async def test_events_that_stop_without_an_end_are_not_finished() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        await asyncio.sleep(0)
        yield word("a")

    assert not await Sink().run(events())


async def test_nothing_is_asked_for_after_the_end() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        for event in saying("a"):
            yield event
        yield Failed

    source = events()
    assert await Sink().run(source)
    await source.aclose()


async def test_a_cancelled_pump_cancels_the_engine_where_it_waits() -> None:
    told = asyncio.Event()

    async def events() -> AsyncGenerator[Event, None]:
        try:
            yield STARTED
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # an engine may take a moment to put things away
            told.set()
            raise

    sink = Sink()
    task = asyncio.create_task(sink.run(events()))
    await sink.sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.is_set()


async def test_cancelled_while_its_reader_is_slow_it_cancels_the_engine() -> None:
    told = asyncio.Event()

    async def events() -> AsyncGenerator[Event, None]:
        try:
            yield STARTED
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            raise

    sink = Sink()
    sink.open.clear()
    task = asyncio.create_task(sink.run(events()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.is_set()
    assert sink.taken == [STARTED]


async def test_cancelled_while_its_reader_is_slow_it_cancels_what_the_engine_waits_for() -> None:
    ended = asyncio.Event()

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        await asyncio.gather(child(), child())

    sink = Sink()
    sink.open.clear()
    task = asyncio.create_task(sink.run(events()))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_timeout_of_the_engine_is_its_own_also_while_the_reader_is_slow() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            yield word("too late")
        yield FINISHED

    sink = Sink()
    sink.open.clear()
    task = asyncio.create_task(sink.run(events()))
    while len(sink.taken) < 2:  # the time-out interrupted the send and reached the engine
        await asyncio.sleep(0.001)
    sink.open.set()
    assert await task
    assert [event for send in [*sink.sends, sink.taken] for event in send] == [
        STARTED,
        word("too late"),
        FINISHED,
    ]


async def test_a_burst_is_bounded_and_others_get_their_turn() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        for _ in range(1000):
            yield word("x")
        yield FINISHED

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    sink = Sink(enough=100)
    neighbour = asyncio.create_task(other())
    assert await sink.run(events())
    neighbour.cancel()
    assert {len(send) for send in sink.sends} == {100}
    assert turns >= 10


async def test_an_interrupted_pump_leaves_no_cycle_behind() -> None:
    class Engine:
        async def events(self) -> AsyncGenerator[Event, None]:
            yield STARTED
            await asyncio.Event().wait()

    engine = Engine()
    gone = weakref.ref(engine)
    sink = Sink()
    gc.disable()
    try:
        task = asyncio.create_task(sink.run(engine.events()))
        await sink.sent.wait()
        task.cancel()
        await asyncio.wait([task])
        del engine, task
        assert gone() is None
    finally:
        gc.enable()


async def test_cancelled_while_what_the_engine_waits_for_is_done_it_still_cancels() -> None:
    done = asyncio.get_running_loop().create_future()
    told = asyncio.Event()

    async def events() -> AsyncGenerator[Event, None]:
        yield STARTED
        try:
            await done
        except asyncio.CancelledError:
            told.set()
            raise

    sink = Sink()
    sink.open.clear()
    task = asyncio.create_task(sink.run(events()))
    await asyncio.sleep(0)
    done.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.is_set()
