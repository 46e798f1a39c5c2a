"""The watch: it cancels for its reasons and for no other, and cleans up after itself."""

import asyncio
from typing import Any

import pytest
import uvloop

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import ANYONE, Caller, Model
from dragoman.server.app import App
from dragoman.server.cancellation import GONE, InFlight, Watch
from dragoman.server.settings import Settings
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, post, served

REASON = Fault("stalled", "for a reason")
GOAL = 0.1
"""Seconds from hanging up to the engine's cancellation."""
SLACK = 50
"""What a machine that stops for seconds may take; the first heartbeat comes later still."""


class Outlet:
    """A connection, of which only the peer matters."""

    peer: Any = None

    def listen(self, peer: Any) -> None:
        self.peer = peer


async def test_a_reason_to_stop_comes_out_as_that_fault() -> None:
    with pytest.raises(FaultError, match="for a reason"), Watch(InFlight()) as watch:
        asyncio.get_running_loop().call_soon(watch.stop, REASON)
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert not task.cancelling()
    await asyncio.sleep(0)  # and is not cancelled after all


async def test_the_first_reason_counts() -> None:
    with pytest.raises(FaultError, match="for a reason"), Watch(InFlight()) as watch:
        watch.stop(REASON)
        watch.stop(GONE)
        await asyncio.sleep(0)


async def test_the_last_limit_set_is_in_force() -> None:
    with Watch(InFlight()) as watch:
        watch.limit(0.001, REASON)
        watch.limit(60, REASON)
        await asyncio.sleep(0.01)
        watch.limit(None, REASON)
    with pytest.raises(FaultError, match="for a reason"), Watch(InFlight()) as watch:
        watch.limit(0.001, REASON)
        await asyncio.Event().wait()


async def test_after_the_watch_nothing_stops_the_task() -> None:
    roster = InFlight()
    outlet: Any = Outlet()
    with Watch(roster, outlet) as watch:
        watch.limit(0.001, REASON)
    assert outlet.peer is None
    watch.stop(REASON)
    await roster.drain(0)
    await asyncio.sleep(0.05)
    assert watch.fault is None
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work(both: bool) -> None:
        with Watch(InFlight()) as watch:
            if both:
                watch.stop(REASON)
            await asyncio.Event().wait()

    for both in (False, True):
        task = asyncio.create_task(work(both))
        task.cancel() if both else asyncio.get_running_loop().call_later(0.001, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_work_that_fails_because_it_was_stopped_was_stopped() -> None:
    with pytest.raises(FaultError, match="for a reason"), Watch(InFlight()) as watch:
        watch.stop(REASON)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise RuntimeError("I do not like to be cancelled") from None


async def test_work_that_ends_well_all_the_same_has_ended_well() -> None:
    with Watch(InFlight()) as watch:
        watch.stop(REASON)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
    task = asyncio.current_task()
    assert not task.cancelling()


def test_only_a_task_can_be_watched() -> None:
    async def main() -> None:
        failed = asyncio.get_running_loop().create_future()

        def outside() -> None:
            with pytest.raises(RuntimeError, match="only a task"):
                Watch(InFlight())
            failed.set_result(None)

        asyncio.get_running_loop().call_soon(outside)
        await failed

    asyncio.run(main())


async def test_draining_waits_for_what_ends_and_stops_what_does_not() -> None:
    roster = InFlight()
    ended: list[str] = []

    async def work(name: str, seconds: float) -> None:
        try:
            with Watch(roster):
                await asyncio.sleep(seconds)
            ended.append(name)
        except FaultError as error:
            ended.append(f"{name}: {error.fault.code}")

    tasks = [asyncio.create_task(work("short", 0.01)), asyncio.create_task(work("long", 60))]
    await asyncio.sleep(0)
    await roster.drain(0.1)
    await asyncio.gather(*tasks)
    assert ended == ["short", "long: shutting_down"]
    assert roster.closing


async def test_engine_that_raises_on_cancellation_is_ignored(wire: str, caplog) -> None:
    class Stubborn(Stub):
        async def stream(self, request, caller=None):
            for event in OPENING:
                yield event
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise RuntimeError("no!") from None

    for stream in (False, True):
        engine = Stubborn()
        call = Call(App(engine, Settings()), PATHS[wire], asking(wire, stream=stream))
        task = asyncio.create_task(call())
        await engine.begun.wait()
        call.hang_up()
        await task
        assert len(call.sent) == (2 if stream else 0)
    assert not caplog.text


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_timer_serves_watches_that_are_due_at_once_and_later(loop) -> None:
    async def stopped(roster: InFlight, seconds: float) -> bool:
        try:
            with Watch(roster) as watch:
                watch.limit(seconds, REASON)
                await asyncio.sleep(0)
                watch.limit(seconds, REASON)
                await asyncio.sleep(0.05)
        except FaultError:
            return True
        return False

    async def main() -> None:
        roster = InFlight()
        limits = [60.0, 0.0, -1.0, 0.001, 30.0]
        outcomes = await asyncio.gather(*(stopped(roster, seconds) for seconds in limits))
        assert outcomes == [False, True, True, True, False]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def test_tick_may_discard_another_watch() -> None:
    roster, rung = InFlight(), []

    class Ringing:
        def __init__(self) -> None:
            self.other: Ringing | None = None

        def tick(self, now: float) -> None:
            rung.append(self)
            if self.other is not None:
                roster.discard(self.other)

        def stop(self, fault: Fault) -> None:
            raise AssertionError

    first, second, third = Ringing(), Ringing(), Ringing()
    first.other = second
    for each in (first, second, third):
        roster.call_at(each, 0.0)
    async with asyncio.timeout(30):
        while third not in rung:
            await asyncio.sleep(0.001)
    assert rung == [first, third]


# ---- disconnects; tests/cancel shows what becomes of an upstream ------------------------------


async def test_p26_disconnect_after_a_large_request_cancels_the_engine(wire: str) -> None:
    """The host pauses reading such a connection; the hang-up must get through."""
    stub = Stub(asyncio.Event())
    text = "x" * 2_000_000
    body = (
        asking(wire, messages=[{"role": "user", "content": text}])
        if wire == "chat"
        else asking(wire, input=text)
    )
    async with served(App(stub, Settings())) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, body, PATHS[wire]))
        await asyncio.wait_for(stub.begun.wait(), 10)
        writer.close()
        await asyncio.wait_for(stub.cancelled.wait(), GOAL * SLACK)


async def test_p26_disconnect_cancels_a_listing() -> None:
    waiting, given_up = asyncio.Event(), asyncio.Event()

    class Slow(Stub):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            return ()

    call = Call(App(Slow(), Settings()), "/v1/models", method="GET")
    task = asyncio.create_task(call())
    await waiting.wait()
    call.hang_up()
    await task
    assert given_up.is_set()
    assert not call.sent


async def test_slow_cleanup_of_an_engine_is_not_cut_short(wire: str) -> None:
    stopped = asyncio.Event()

    class Tidy(Stub):
        async def stream(self, request, caller=None):
            try:
                for event in OPENING:
                    yield event
                self.begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                stopped.set()

    engine = Tidy()
    call = Call(App(engine, Settings()), PATHS[wire], asking(wire, stream=True))
    task = asyncio.create_task(call())
    await engine.begun.wait()
    call.hang_up()
    await task
    await asyncio.wait_for(stopped.wait(), 10)
