"""Work on threads: tenants by turns, until nobody waits for it."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from dragoman.core.error import FaultError, bad_request
from dragoman.core.event import Event, Finished, Started
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.request import Request, Sampling
from dragoman.engines.base import Wrapper
from dragoman.engines.child import here
from dragoman.engines.remote import Remote
from dragoman.engines.script import Script, spoken
from dragoman.engines.turns import InTurn, ThreadPool
from dragoman.net.threads import Lanes, TenantLock
from tests.engines.receiving import Receiver


async def test_tenants_go_round() -> None:
    turns, gate, order = ThreadPool(1), threading.Event(), []
    begun = threading.Event()
    held = asyncio.ensure_future(turns.run("a", lambda: begun.set() or gate.wait()))
    assert await asyncio.to_thread(begun.wait, 60)
    waiting = [
        asyncio.ensure_future(turns.run(tenant, lambda name=tenant: order.append(name)))
        for tenant in "aaaabbc"
    ]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(held, *waiting)
    turns.close()
    assert "".join(order) == "abcabaa"


class Slow(Wrapper):
    """An engine that notes who began what, and answers once its gate is open."""

    def __init__(self) -> None:
        super().__init__(Script(spoken("a")))
        self.begun: list[tuple[str, int | None]] = []
        self.gate = asyncio.Event()

    @property
    def tenants(self) -> list[str]:
        return [tenant for tenant, _ in self.begun]

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        self.begun.append((caller.tenant, request.sampling.n))
        await self.gate.wait()
        yield Started("resp_1", 1, "m")
        yield Finished("completed")


async def test_answers_of_a_tenant_wait_for_its_own_alone_and_places_come_back() -> None:
    slow, sinks = Slow(), [Receiver() for _ in "aaaaab"]
    engine = InTurn(slow, 2)
    for sink in sinks[:5]:
        sink.start(engine, Request(model="m"), Caller(tenant="a"))
    await asyncio.sleep(0.01)
    assert slow.tenants == ["a", "a"]
    sinks[0].cancel()
    sinks[2].cancel()  # which waits
    await asyncio.sleep(0.01)
    assert slow.tenants == ["a", "a", "a"]
    sinks[5].start(engine, Request(model="m"), Caller(tenant="b"))
    await asyncio.sleep(0.01)
    assert slow.tenants == ["a", "a", "a", "b"]
    sinks[1].cancel()  # now one place is left to others
    await asyncio.sleep(0.01)
    assert slow.tenants == ["a", "a", "a", "b"]
    slow.gate.set()
    await asyncio.gather(*[sinks[number].end() for number in (3, 4, 5)])
    assert slow.tenants == ["a", "a", "a", "b", "a"]


async def test_those_without_a_credential_leave_a_place_to_a_key() -> None:
    lock = TenantLock(2, 2, left=1)
    for _ in range(2):
        await lock.acquire("")
    waiting = [asyncio.ensure_future(lock.acquire(tenant)) for tenant in ("", "a")]
    await asyncio.sleep(0.01)
    lock.release("")
    lock.release("")
    await asyncio.sleep(0.01)
    assert [turn.done() for turn in waiting] == [True, True]
    again = asyncio.ensure_future(lock.acquire(""))
    lock.release("a")
    await asyncio.sleep(0.01)
    assert not again.done()
    again.cancel()


async def test_those_who_leave_a_line_leave_nothing_there() -> None:
    lock = TenantLock(1, 1)
    await lock.acquire("a")
    waiting = [asyncio.ensure_future(lock.acquire(tenant)) for tenant in "aab"]
    await asyncio.sleep(0)
    for leaver in waiting[1:]:
        leaver.cancel()
    await asyncio.wait(waiting[1:])
    assert [*map(len, lock._lines.values())] == [1]
    lock.release("a")
    await waiting[0]
    assert not lock._lines


def test_several_event_loops_take_turns_and_leave_nothing() -> None:
    lock, inside, most = TenantLock(3, 2, left=1), set[object](), [0]

    async def one(number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout((0.001, 0.01, 30)[number % 3]):
                async with lock.turn("abcd"[number % 4]):
                    inside.add(mine := object())
                    most[0] = max(most[0], len(inside))
                    try:
                        await asyncio.sleep(0.0005)
                    finally:
                        inside.discard(mine)

    async def many() -> None:
        await asyncio.gather(*[one(number) for number in range(200)])

    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(asyncio.run, many()) for _ in range(4)]:
            ended.result(60)
    assert most == [3]
    assert (lock._free, lock._held, lock._lines, lock._given) == (3, Counter(), {}, set())


def test_large_work_of_several_event_loops_does_not_wait_for_ever() -> None:
    """A turn that one loop gave to a waiter of another did not wake it."""
    lanes, begun = Lanes(), threading.Barrier(2)

    async def work() -> list[None]:
        return await asyncio.gather(*[lanes.take(1, time.sleep, 0.02) for _ in range(3)])

    def loop() -> list[None]:
        begun.wait()
        return asyncio.run(asyncio.wait_for(work(), 20))

    with ThreadPoolExecutor(2) as pool:
        assert [each.result() for each in [pool.submit(loop) for _ in "ab"]] == [[None] * 3] * 2


async def test_choices_wait_for_a_turn_each() -> None:
    slow, first, leaver, second = Slow(), *(Receiver() for _ in "aab")
    engine = InTurn(slow, 2)
    several = Request(model="m", sampling=Sampling(n=4))
    first.start(engine, several, Caller(tenant="a"))
    leaver.start(engine, several, Caller(tenant="a"))
    await asyncio.sleep(0.01)
    leaver.cancel()
    second.start(engine, Request(model="m"), Caller(tenant="b"))
    await asyncio.sleep(0.01)
    assert slow.begun == [("a", None), ("a", None), ("b", None)]
    slow.gate.set()
    await asyncio.gather(first.end(), second.end())
    assert sorted(slow.begun) == [*[("a", None)] * 4, ("b", None)]


async def test_one_tenant_leaves_a_thread_to_the_others() -> None:
    turns, gate = ThreadPool(3), threading.Event()
    held = [asyncio.ensure_future(turns.run("greedy", gate.wait)) for _ in range(10)]
    await asyncio.sleep(0.01)
    assert await asyncio.wait_for(turns.run("small", lambda: 7), 10) == 7
    gate.set()
    await asyncio.gather(*held)
    turns.close()


async def test_work_of_one_moment_does_not_wait_for_one_thread() -> None:
    turns, gate = ThreadPool(2), threading.Event()
    await turns.run("a", lambda: None)
    await asyncio.sleep(0.01)  # its thread is idle
    held = asyncio.ensure_future(turns.run("a", gate.wait))
    try:
        assert await asyncio.wait_for(turns.run("b", lambda: 7), 10) == 7
    finally:
        gate.set()
    await held
    turns.close()


async def test_a_tenant_has_one_demanding_piece_of_work_and_leaves_a_thread_to_others() -> None:
    turns, gate, begun = ThreadPool(4), threading.Event(), list[str]()

    def ask(name: str, *, demanding: bool) -> asyncio.Future[bool]:
        work = turns.run("greedy", lambda: begun.append(name) or gate.wait(), demanding=demanding)
        return asyncio.ensure_future(work)

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(begun) < count:
                await asyncio.sleep(0.001)

    held = [ask("demanding", demanding=True) for _ in range(4)]
    await until(1)
    held += [ask("plain", demanding=False) for _ in range(4)]
    await until(3)
    for demanding in (True, False):
        work = turns.run("small", lambda: 7, demanding=demanding)
        assert await asyncio.wait_for(work, 10) == 7
    assert sorted(begun) == ["demanding", "plain", "plain"]
    gate.set()
    await asyncio.gather(*held)
    assert begun.count("demanding") == 4
    turns.close()


async def test_cancelled_work_is_not_begun() -> None:
    turns, gate, begun = ThreadPool(1), threading.Event(), []
    held = asyncio.ensure_future(turns.run("a", gate.wait))
    await asyncio.sleep(0.01)
    left = asyncio.ensure_future(turns.run("a", lambda: begun.append("left")))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    gate.set()
    await held
    await turns.run("a", lambda: begun.append("later"))
    turns.close()
    assert begun == ["later"]


async def test_a_process_ends_with_the_interest_in_it() -> None:
    turns, said = ThreadPool(), threading.Event()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def work() -> None:
        here.interest.began(process.pid)
        said.set()
        process.wait()
        with pytest.raises(BaseException, match=""):
            here.interest.began(0)

    with process:
        waiting = asyncio.ensure_future(turns.run("a", work))
        await asyncio.to_thread(said.wait)
        waiting.cancel()
        assert await asyncio.to_thread(process.wait, 10) == -9
    turns.close()


async def test_errors_and_panics_reach_the_one_who_waits() -> None:
    turns = ThreadPool()

    class PanicError(BaseException):
        """As libraries in Rust raise."""

    def panic() -> None:
        raise PanicError("overflow")

    with pytest.raises(RuntimeError, match="overflow"):
        await turns.run("a", panic)
    with pytest.raises(ZeroDivisionError):
        await turns.run("a", lambda: 1 // 0)
    turns.close()


async def test_those_who_leave_take_their_work_with_them_and_end_no_thread() -> None:
    turns, gate = ThreadPool(1), threading.Event()
    held = asyncio.ensure_future(turns.run("a", gate.wait))
    await asyncio.sleep(0.01)
    request = Request(model="m")
    count = sys.getrefcount(request)
    left = [asyncio.ensure_future(turns.run("a", lambda r=request: r)) for _ in range(1_500)]
    await asyncio.sleep(0)
    for each in left:
        each.cancel()
    await asyncio.wait(left)
    left.clear()
    gc.collect()
    assert sys.getrefcount(request) <= count + 1
    gate.set()
    await held
    assert await asyncio.wait_for(turns.run("b", lambda: 7), 10) == 7
    turns.close()


async def test_work_that_was_left_a_moment_ago_is_passed_over() -> None:
    turns, gate = ThreadPool(1), threading.Event()
    held = asyncio.ensure_future(turns.run("a", gate.wait))
    await asyncio.sleep(0.01)
    left = [asyncio.ensure_future(turns.run("a", gate.wait)) for _ in range(1_500)]
    await asyncio.sleep(0)
    for waiting in turns._waiting.values():
        for turn in waiting:
            turn.future.cancel()
    gate.set()
    await held
    assert await asyncio.wait_for(turns.run("b", lambda: 7), 10) == 7
    await asyncio.wait(left)
    turns.close()


async def test_closing_fails_what_waits_and_what_comes() -> None:
    turns, begun, gate = ThreadPool(1), threading.Event(), threading.Event()
    held = asyncio.ensure_future(turns.run("a", lambda: begun.set() or gate.wait()))
    assert await asyncio.to_thread(begun.wait, 60)
    waiting = asyncio.ensure_future(turns.run("a", gate.wait))
    await asyncio.sleep(0)
    turns.close()
    for late in (waiting, turns.run("a", gate.wait)):
        with pytest.raises(FaultError, match="has been closed"):
            await asyncio.wait_for(late, 10)
    gate.set()
    assert await held


def no_thread() -> None:
    raise RuntimeError("can't start new thread")


async def test_threads_that_cannot_be_had_are_not_waited_for(monkeypatch) -> None:
    turns = ThreadPool(2)
    with monkeypatch.context() as system:
        system.setattr(turns, "_start", no_thread)
        with pytest.raises(FaultError) as raised:
            await turns.run("a", lambda: 1)
    assert raised.value.fault.code == "overloaded"
    assert await turns.run("a", lambda: 2) == 2
    monkeypatch.setattr(turns, "_start", no_thread)
    gate = threading.Event()
    held = asyncio.ensure_future(turns.run("a", gate.wait))
    await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(turns.run("b", lambda: 3))
    await asyncio.sleep(0.01)
    gate.set()
    assert await asyncio.wait_for(asyncio.gather(held, waiting), 10) == [True, 3]
    turns.close()


async def test_large_requests_are_prepared_one_at_a_time_the_tenants_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = Remote("http://127.0.0.1:9/v1", wire="chat", profile="generic")
    gate, prepared = threading.Event(), list[str]()
    one = threading.Lock()

    def prepare(request: Request, caller: Caller) -> None:
        assert one.acquire(blocking=False)
        gate.wait(10)
        prepared.append(caller.tenant)
        one.release()
        raise FaultError(bad_request("is enough"))

    async def ask(tenant: str) -> None:
        async for _ in remote.stream(Request(model="m"), Caller(tenant=tenant, size=1_100_000)):
            pass

    monkeypatch.setattr(remote, "_prepare", prepare)
    asking = [asyncio.ensure_future(ask(tenant)) for tenant in "aaaacb"]
    await asyncio.sleep(0.01)
    left = asking.pop(1)
    left.cancel()
    await asyncio.wait((left,))
    gate.set()
    await asyncio.gather(*asking)
    await remote.close()
    assert {*prepared[:4]} == {*"abc"}
    assert len(prepared) == 5
