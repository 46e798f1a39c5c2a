"""The schedule: everybody gets a turn, whoever leaves frees a place, whoever fails fails alone."""

import asyncio
import gc
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman.core.event import Delta, Event, Failed, Finished, Started
from dragoman.core.interfaces import Caller
from dragoman.engines.token import TokenEngine, from_next_token
from dragoman.engines.token.scheduler import AHEAD, Scheduler, ThreadQueue
from dragoman.engines.token.source import NewTokens
from tests.engines.stage import answered, heard, others
from tests.engines.token.asking import asked, serving
from tests.engines.token.models import Slot, Table
from tests.engines.token.plain import TOY, Plain

SOON = 10.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.001)


class Gated(Table):
    """Goes on with a step only when the gate is open."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = threading.Event()
        self.inside = threading.Event()

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
        self.inside.set()
        assert self.gate.wait(SOON)
        return super().step(work)


@pytest.mark.uncounted
async def test_32_streams_get_equal_shares() -> None:
    model = Table()
    async with serving(model, concurrency=32) as engine:
        requests = [asked(f"{place}" * 20, temperature=0) for place in range(32)]
        tasks = [asyncio.ensure_future(heard(engine, request)) for request in requests]
        await until(lambda: len(model.live) == 32)
        before = [slot.length for slot in model.live]

        def written() -> list[int]:
            return [slot.length - start for slot, start in zip(model.live, before, strict=True)]

        # Each may be as far ahead as its reader lets it be, at the beginning and at the end: over
        # this stretch that is less than the fifth which is asked for.
        await until(lambda: min(written()) > 2 * AHEAD * 8)
        now = written()
        assert max(now) <= 1.2 * min(now)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: not model.live)


async def test_a_long_prompt_does_not_stop_the_others() -> None:
    model = Table()
    async with serving(model) as engine:
        short = asyncio.ensure_future(answered(engine, asked("s", max_tokens=60)))
        await until(lambda: len(model.opened) == 1)
        long = asyncio.ensure_future(answered(engine, asked("l" * 9_000, max_tokens=1)))
        await asyncio.gather(short, long)
    reads = [step for step in model.steps if sum(step) > 2]
    assert sum(map(sum, reads)) >= 9_000
    assert max(map(sum, reads)) <= 512 + 2


async def test_two_prompts_are_read_side_by_side() -> None:
    model = Gated()
    async with serving(model) as engine:
        prompts = (asked("x" * 3_000, max_tokens=1), asked("y" * 400, max_tokens=1))
        both = [engine.stream(each) for each in prompts]
        for stream in both:
            assert isinstance(await anext(stream), Started)  # it is taken
        model.gate.set()
        for stream in both:
            assert [event async for event in stream]
    assert [256, 256] in model.steps


async def test_r4_w13_the_model_never_runs_on_the_event_loop() -> None:
    model = Gated()
    async with serving(model) as engine:
        reading = asyncio.ensure_future(answered(engine, asked(max_tokens=3)))
        await until(model.inside.is_set)  # the model is busy, and the loop runs
        model.gate.set()
        await reading
    assert model.threads == {"dragoman-model"}


@pytest.mark.parametrize("phase", ["queued", "prefill", "decoding", "inside a step"])
async def test_r4_42_cancellation_in_any_phase_frees_the_slot(phase) -> None:
    model = Gated()
    async with serving(model, concurrency=1) as engine:
        blocker = None
        if phase == "queued":
            blocker = asyncio.ensure_future(answered(engine, asked("blocker", max_tokens=2)))
            await until(model.inside.is_set)
        elif phase == "decoding":
            model.gate.set()
        prompt = "p" * 40_000 if phase == "prefill" else "p"
        seen: list[Event] = []

        async def read() -> None:
            async with aclosing(engine.stream(asked(prompt))) as events:
                async for event in events:
                    seen.append(event)

        reading = asyncio.ensure_future(read())
        if phase == "decoding":
            await until(lambda: any(isinstance(event, Delta) for event in seen))
        elif phase == "prefill":
            await until(model.inside.is_set)
            model.gate.set()
            await until(lambda: len(model.steps) > 2)
        else:
            await until(lambda: bool(seen) and model.inside.is_set())
        began = time.monotonic()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        # Whatever the model is doing, and for however long.
        assert time.monotonic() - began < SOON / 2
        assert not others() - ({blocker} if blocker else set())
        model.gate.set()
        if blocker is not None:
            await blocker
        await until(lambda: not model.live)
        assert len(model.opened) == 1  # one that was queued was never opened
        assert (await answered(engine, asked(max_tokens=2))).status == "incomplete"


class Noting(Table):
    """Notes which slots take part in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.taking: list[list[Slot]] = []

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
        self.taking.append([slot for slot, _ in work])
        return super().step(work)


@pytest.mark.parametrize("way", ["closed", "cancelled", "unread"])
async def test_r4_w20_r4_42_a_slot_is_free_after_the_step_it_is_in(way) -> None:
    """Every time; a step of a model is what the tenth of a second is made of."""
    gc.collect()
    gc.freeze()  # what other tests left behind is not looked at, here or later
    model = Noting()
    async with serving(model) as engine, aclosing(engine.stream(asked("other"))) as others:
        for _ in range(10):
            events = engine.stream(asked())
            async for event in events:
                if isinstance(event, Delta):
                    break
            slot = model.opened[-1]
            if way == "closed":
                await events.aclose()
            elif way == "cancelled":
                reading = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0)
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading
                await events.aclose()
            else:
                reading = asyncio.ensure_future(anext(events))
                del events, event
                reading.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await reading
                del reading
                gc.collect()
            left = len(model.taking)
            while len(model.taking) < left + 10:  # of the other one, which goes on
                await anext(others)
            assert sum(slot in each for each in model.taking[left:]) <= 1
            assert slot not in model.live


async def test_a_slow_reader_holds_no_more_than_a_little() -> None:
    model = Table()
    async with serving(model) as engine, aclosing(engine.stream(asked())) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
        (slot,) = model.live
        await until(lambda: slot.length >= AHEAD)
        other = await answered(engine, asked("other", max_tokens=300))  # is not held up
        assert other.usage.output_tokens == 300
        assert slot.length <= len(slot.prompt) + 2 * AHEAD
        read = 0
        async for event in events:  # and goes on when it is read again
            read += isinstance(event, Delta) and len(event.data)
            if read > 4 * AHEAD:
                break


async def test_full_queue_is_overloaded_with_retry_after() -> None:
    model = Gated()
    async with serving(model, concurrency=1, queue=1) as engine:
        first = asyncio.ensure_future(answered(engine, asked("1", max_tokens=1)))
        await until(model.inside.is_set)
        second = asyncio.ensure_future(answered(engine, asked("2", max_tokens=1)))
        await asyncio.sleep(0)
        (failed,) = await heard(engine, asked("3"))
        assert (failed.fault.code, failed.fault.retry_after) == ("overloaded", "1")
        model.gate.set()
        await asyncio.gather(first, second)


class Failing(Table):
    """Cannot bear an exclamation mark."""

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
        for slot, ids in work:
            if b"!"[0] in [*slot.ids, *ids]:
                raise ValueError(bytes(slot.prompt).decode())
        return super().step(work)

    def scores(self, ids: Sequence[int]) -> Any:
        scores = super().scores(ids).copy()
        scores[b"!"[0]] = -1e9
        return scores


async def test_r4_w9_failing_request_fails_alone(caplog) -> None:
    async with serving(Failing()) as engine:
        good = [asked(f"good {k}", seed=k, max_tokens=60) for k in range(4)]
        alone = [(await answered(engine, each)).text for each in good]
        answers = [answered(engine, each) for each in good]
        *fine, bad = await asyncio.gather(*answers, heard(engine, asked("bad!")))
        assert [response.text for response in fine] == alone
    last = bad[-1]
    assert "ValueError" in last.fault.message
    assert "bad!" not in last.fault.message + caplog.text
    assert "test_scheduler.py" in caplog.text  # the place, for whoever runs it
    (id,) = re.findall(r"has more under (err_\w+)\.", last.fault.message)
    assert f"{id}: the model failed with ValueError" in caplog.text


async def test_a_model_that_panics_at_a_request_fails_that_alone() -> None:
    class Panics(Table):
        def open(self, ids: Sequence[int]) -> Slot:
            if b"?"[0] in ids:
                raise PanicError
            return super().open(ids)

        def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
            if any(b"!"[0] in ids for _, ids in work):
                raise PanicError
            return super().step(work)

    async with serving(Panics()) as engine:
        good, *bad = await asyncio.gather(
            answered(engine, asked("good", seed=1, max_tokens=9)),
            *(heard(engine, asked(text)) for text in ("bad!", "bad?")),
        )
    assert good.status == "incomplete"
    assert all("PanicError" in events[-1].fault.message for events in bad)


async def test_broken_step_fails_all_and_the_engine_recovers() -> None:
    class Broken(Table):
        broken = True

        def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
            if self.broken:
                raise MemoryError
            return super().step(work)

    model = Broken()
    async with serving(model) as engine:
        failed = await asyncio.gather(*(heard(engine, asked(str(k))) for k in range(3)))
        assert all(isinstance(events[-1], Failed) for events in failed)
        model.broken = False
        assert (await answered(engine, asked(max_tokens=3))).status == "incomplete"
        assert not model.live


async def test_a_sequence_the_model_read_but_gave_no_scores_for_is_not_read_twice() -> None:
    class Short(Table):
        def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
            return super().step(work)[:1]

    model = Short()
    async with serving(model) as engine:
        both = await asyncio.gather(*(heard(engine, asked(str(k), max_tokens=3)) for k in (1, 2)))
    assert {type(events[-1]).__name__ for events in both} <= {"Failed", "Finished"}
    for slot in model.opened:
        assert bytes(slot.ids[: len(slot.prompt)]) == bytes(slot.prompt)


async def test_a_step_that_does_not_say_what_it_read_fails() -> None:
    """It would be asked to read the same for ever."""

    class Forgetful(Table):
        def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Any:
            self.steps.append([])
            for slot, ids in work:
                slot.ids.extend(ids[:1])
            return [self.scores(slot.ids) for slot, _ in work]

    model = Forgetful()
    async with serving(model) as engine:
        events = await heard(engine, asked("abc"))
    assert isinstance(events[-1], Failed)
    assert "slot's length" in events[-1].fault.message
    assert len(model.steps) == 1
    assert not model.live


async def test_a_model_that_cannot_open_or_close_a_slot(caplog) -> None:
    class Shut(Table):
        def open(self, ids: Sequence[int]) -> Slot:
            if len(ids) > 5:
                raise MemoryError
            return super().open(ids)

        def close(self, slot: Slot) -> None:
            raise RuntimeError("will not close")

    async with serving(Shut()) as engine:
        (first, last) = await heard(engine, asked("too long"))
        assert isinstance(first, Started)
        assert isinstance(last, Failed)
        assert (await answered(engine, asked(max_tokens=2))).status == "incomplete"
        assert "could not close a slot" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_dead_model_thread_fails_requests_and_is_replaced(monkeypatch) -> None:
    step, threads = Scheduler._step, []

    def dies(self: Scheduler, work: Any) -> Any:
        if b"!"[0] in work[0][1]:
            threads.append(threading.current_thread())
            raise SystemExit
        return step(self, work)

    monkeypatch.setattr(Scheduler, "_step", dies)
    async with serving(Table()) as engine:
        last = (await heard(engine, asked("!")))[-1]
        assert last.fault.code == "internal"
        # With a seed: a "!" that was drawn would end that thread too.
        again = await answered(engine, asked(max_tokens=2, seed=1))
        assert again.status == "incomplete"
    # Its death is reported after its last letter: let that not fall into the next test.
    await until(lambda: not threads[0].is_alive())


async def test_close_fails_running_and_queued_requests() -> None:
    model = Gated()
    engine = TokenEngine(Plain(), model, TOY, concurrency=1)
    writing = asyncio.ensure_future(heard(engine, asked("a")))
    waiting = asyncio.ensure_future(heard(engine, asked("b")))
    await until(model.inside.is_set)
    closing = asyncio.ensure_future(engine.close())
    await asyncio.sleep(0)
    model.gate.set()
    await closing
    for events in await asyncio.gather(writing, waiting):
        last = events[-1]
        assert last.fault.code == "shutting_down"
    (failed,) = await heard(engine, asked("c"))
    assert isinstance(failed, Failed)
    assert not model.live
    await engine.close()


def test_hung_model_delays_neither_readers_nor_close(monkeypatch, caplog) -> None:
    monkeypatch.setattr("dragoman.engines.token.scheduler.GRACE", 0.5)
    model, before = Gated(), set(threading.enumerate())

    async def leave() -> None:
        engine = TokenEngine(Plain(), model, TOY, concurrency=1)
        reading = [asyncio.ensure_future(heard(engine, asked(text))) for text in "ab"]
        await until(model.inside.is_set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):  # closing can be given up
                await engine.close()
        await engine.close()
        for events in await asyncio.gather(*reading):
            assert isinstance(failed := events[-1], Failed)
            assert failed.fault.code == "shutting_down"

    asyncio.run(leave())  # waits for every thread that it knows of
    assert not model.gate.is_set()
    assert "its thread was abandoned" in caplog.text
    fresh = set(threading.enumerate()) - before
    (thread,) = (each for each in fresh if each.name == "dragoman-model")
    model.gate.set()
    thread.join(SOON)
    assert not model.live


def test_an_engine_serves_one_loop_after_the_other() -> None:
    model = Table()
    engine = TokenEngine(Plain(), model, TOY, name="toy")

    async def leave() -> None:
        stream = engine.stream(asked())
        await anext(stream)
        model_has_it = asyncio.get_running_loop().time()
        while not model.live and asyncio.get_running_loop().time() < model_has_it + SOON:
            await asyncio.sleep(0.001)
        await stream.aclose()

    for _ in range(3):
        assert asyncio.run(answered(engine, asked(max_tokens=3))).status == "incomplete"
        asyncio.run(leave())
    asyncio.run(engine.close())
    assert not model.live


class _Sequence:
    def __init__(self) -> None:
        self.got: list[list[int]] = []

    def receive(self, written: NewTokens) -> None:
        self.got.append(written.ids)


async def test_queued_tokens_are_merged_and_wake_the_loop_once() -> None:
    box = ThreadQueue(asyncio.get_running_loop())
    one, other = _Sequence(), _Sequence()
    for id in range(3):
        assert box.put([(one, NewTokens([id], [])), (other, NewTokens([id + 10], []))])
    await until(lambda: bool(other.got))
    assert (one.got, other.got) == ([[0, 1, 2]], [[10, 11, 12]])
    box.put([(one, NewTokens([3], []))])
    await until(lambda: len(one.got) == 2)
    await asyncio.sleep(0.02)  # it has looked again, and found nothing
    box.put([(one, NewTokens([4], []))])
    await until(lambda: len(one.got) == 3)


async def test_sequence_of_a_closed_loop_is_cancelled() -> None:
    """A reader in another thread whose loop ends without a word."""
    model = Table()
    engine = TokenEngine(Plain(), model, TOY, name="toy")
    seen: list[Event] = []

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        stream = engine.stream(asked())
        seen.append(loop.run_until_complete(anext(stream)))
        loop.close()
        kept.append(stream)

    kept: list[Any] = []
    await asyncio.to_thread(elsewhere)
    assert (await answered(engine, asked(max_tokens=200))).status == "incomplete"
    await until(lambda: not model.live)
    await engine.close()


class PanicError(BaseException):
    """As libraries in Rust raise."""


@pytest.mark.parametrize("error", [ValueError, PanicError, SystemExit, asyncio.CancelledError])
async def test_a_function_that_fails_fails_its_own_request(error) -> None:
    def picky(ids: list[int], sampling: object) -> int:
        if b"!"[0] in ids:
            raise error
        return 65

    def stateful(tokens: list[int], temperature: float, new_request: bool) -> int:
        return picky(tokens, None)

    for function in (picky, stateful):
        async with serving(from_next_token(function)) as engine:
            good, bad = await asyncio.gather(
                answered(engine, asked("good", max_tokens=9)), heard(engine, asked("bad!"))
            )
            assert good.text == "A" * 9
            assert isinstance(bad[-1], Failed)


async def test_one_of_two_that_stopped_does_not_stop_the_other() -> None:
    class Parrot(Table):
        """Its first sequence says a for ever, its second b."""

        def scores(self, ids: Sequence[int]) -> Any:
            place = next(k for k, slot in enumerate(self.opened) if slot.ids is ids)
            scores = np.full(TOY.size, -50.0)
            scores[97 + place] = 50
            return scores

    model = Parrot()
    async with serving(model) as engine:
        response = await answered(engine, asked(n=2, stop=("aaa",), max_tokens=40))
    assert response.reasons == ("stop", "length")
    assert response.text == ""
    assert response.usage.output_tokens == 3 + 40


async def test_r4_w24_the_model_reads_every_token_once() -> None:
    model = Table()
    async with serving(model) as engine:
        await answered(engine, asked("Hi", max_tokens=50))
    assert sum(map(sum, model.steps)) == 3 + 49


async def test_a_request_for_many_choices_leaves_places_to_others() -> None:
    model = Gated()
    async with serving(model, concurrency=8) as engine:
        many = asyncio.ensure_future(answered(engine, asked("many", n=64, max_tokens=8)))
        await until(model.inside.is_set)
        small = [asyncio.ensure_future(answered(engine, asked("a", max_tokens=8))) for _ in "ab"]
        await until(lambda: len(engine._source._arrivals) == len(small))
        model.gate.set()
        await asyncio.gather(many, *small)
        shortest = min(len(slot.prompt) for slot in model.opened)
        places = [n for n, slot in enumerate(model.opened) if len(slot.prompt) == shortest]
        assert len(places) == len(small)
        assert max(places) < 10, "it took places that others may want"


async def ends(engine: TokenEngine, text: str, tenant: str, **settings: Any) -> Event:
    """The last event of a tenant's answer."""
    async with aclosing(engine.stream(asked(text, **settings), Caller(tenant=tenant))) as stream:
        return [event async for event in stream][-1]


async def test_places_go_to_the_tenant_and_the_request_that_have_fewest() -> None:
    order: list[int] = []

    class Noting(Gated):
        def open(self, ids: Sequence[int]) -> Slot:
            order.append(len(ids))
            return super().open(ids)

    model = Noting()
    async with serving(model, concurrency=1) as engine:
        tasks = [asyncio.ensure_future(ends(engine, "first", "a", max_tokens=2))]
        await until(model.inside.is_set)
        for name, tenant, n in (("many, many", "a", 20), ("one", "a", 1), ("other one", "b", 1)):
            tasks.append(asyncio.ensure_future(ends(engine, name, tenant, max_tokens=2, n=n)))
            await asyncio.sleep(0.01)
        model.gate.set()
        await asyncio.gather(*tasks)
    first, *then = order
    names = ("many, many", "one", "other one")
    many, one, other = (first + len(name) - len("first") for name in names)
    assert len(then) == 22
    assert then.index(other) < 3, "the other tenant waits behind all that the first wants"
    assert then.index(one) < 4, "a small request waits behind a large one"
    assert then.count(many) == 20


async def test_a_queue_that_others_filled_takes_who_has_nothing_in_it() -> None:
    model = Gated()
    async with serving(model, concurrency=4, queue=8) as engine:
        greedy = [asyncio.ensure_future(ends(engine, "x", "a", max_tokens=2)) for _ in range(16)]
        await until(model.inside.is_set)
        small = asyncio.ensure_future(ends(engine, "y", "b", max_tokens=2))
        await asyncio.sleep(0.01)
        model.gate.set()
        assert Failed in map(type, await asyncio.gather(*greedy))
        assert not isinstance(await small, Failed)


async def test_a_tenant_whose_readers_take_nothing_leaves_places_to_others() -> None:
    """All its places are held until they are disconnected."""
    async with serving(Table(), concurrency=8) as engine, AsyncExitStack() as stack:
        for _ in range(8):
            own = engine.stream(asked(max_tokens=4_000), Caller(tenant="a"))
            stream = await stack.enter_async_context(aclosing(own))
            await anext(stream)
        scheduler = engine._source
        await until(lambda: all(each.behind for each in scheduler._active))
        waiting = asyncio.ensure_future(ends(engine, "more", "a", max_tokens=2))
        assert isinstance(await ends(engine, "other", "b", max_tokens=2), Finished)
        assert not waiting.done()
        waiting.cancel()


async def test_turns_are_remembered_of_those_who_wait_alone() -> None:
    model = Gated()
    async with serving(model, concurrency=1) as engine:
        tasks = [asyncio.ensure_future(ends(engine, "a", "a", max_tokens=1)) for _ in range(20)]
        tasks += [asyncio.ensure_future(ends(engine, "b", str(n), max_tokens=1)) for n in range(20)]
        await until(model.inside.is_set)
        model.gate.set()
        sizes = []
        scheduler = engine._source
        while not all(task.done() for task in tasks):
            sizes.append(len(scheduler._turns) - 2 * len(scheduler._waiting))
            await asyncio.sleep(0)
        assert len(scheduler._turns) <= 2
    assert max(sizes) <= 6


async def test_a_model_that_keeps_what_it_read_gets_the_tenant() -> None:
    tenants: list[str] = []

    class Keeping(Table):
        def open(self, ids: Sequence[int], tenant: str = "") -> Slot:
            tenants.append(tenant)
            return super().open(ids)

    async with serving(Keeping()) as engine:
        for tenant in ("a", "b"):
            await ends(engine, "hi", tenant, max_tokens=1)
    assert tenants == ["a", "b"]


def rounds_of(monkeypatch, count: int, *took: tuple[str, float], last: int = 0) -> list[Any]:
    """What runs in rounds of tenants' sequences, with masks of such times; one comes in `last`."""
    scheduler, clock = Scheduler(Table(), str, concurrency=8, queue=8), [0.0]
    rounds: list[list[float]] = []

    def sequence(tenant: str, took: float) -> Any:
        return SimpleNamespace(
            job=SimpleNamespace(tenant=tenant),
            took=took,
            ready=True,
            reading=False,
            unmasked=False,
            round=0,
            unread=lambda share: [1],
            take=lambda ids, outcome: rounds[-1].append(took),
        )

    def step(work: Sequence[Any]) -> list[None]:
        clock[0] += sum(each.took for each, _ in work) + 0.01
        return [None] * len(work)

    scheduler._active = [sequence(*each) for each in took]
    monkeypatch.setattr(scheduler, "_step", step)
    monkeypatch.setattr("dragoman.engines.token.scheduler.monotonic", lambda: clock[0])
    late = scheduler._active.pop()
    for number in range(count):
        scheduler._active += [late] * (number == last)
        rounds.append([])
        scheduler._round()
    return rounds


def test_sequences_whose_grammars_are_slow_take_turns(monkeypatch) -> None:
    took = (("a", 0.1), ("a", 0.007), ("a", 0.0), ("a", 0.006), ("a", 0.03))
    rounds = rounds_of(monkeypatch, 6, *took)
    assert rounds[:3] == [[0.1, 0.0], [0.007, 0.0, 0.006], [0.0, 0.03]]
    assert rounds[3:] == rounds[:3]


def test_slow_grammars_of_one_tenant_leave_others_most_of_the_time(monkeypatch) -> None:
    many = [("a", 0.1 + number / 1000) for number in range(5)]
    rounds = rounds_of(monkeypatch, 200, ("b", 0.001), *many)
    assert all(0.001 in each for each in rounds)
    slow = [number for number, each in enumerate(rounds) if len(each) > 1]
    assert all(len(rounds[number]) == 2 for number in slow)
    assert 4 <= len(slow) <= 6  # others have 0.4 s between two of 0.1 s, in rounds of 0.01 s
    assert len({rounds[number][1] for number in slow}) == len(slow[:5])


def test_many_quick_masks_of_one_tenant_are_slow_together(monkeypatch) -> None:
    many = [("a", 0.0015)] * 33
    rounds = rounds_of(monkeypatch, 100, ("b", 0.001), *many)
    assert all(0.001 in each for each in rounds)
    assert max(map(len, rounds)) <= 1 + 14
    assert len([each for each in rounds if len(each) == 1]) > 80
    assert {len(each) for each in rounds_of(monkeypatch, 100, *many)} == {33}


def test_slow_grammars_of_several_tenants_are_not_kept_waiting_for_nobody(monkeypatch) -> None:
    rounds = rounds_of(monkeypatch, 12, ("a", 0.1), ("a", 0.2), ("b", 0.05))
    assert all(len(each) == 1 for each in rounds)
    assert len({*map(tuple, rounds)}) == 3
    assert rounds.count([0.05]) >= 5


def test_slow_grammars_do_not_rest_for_what_they_took_while_nobody_waited(monkeypatch) -> None:
    many = (("a", 0.1), ("a", 0.11), ("b", 0.05), ("c", 0.0))
    rounds = rounds_of(monkeypatch, 700, *many, last=500)
    assert [0.05, 0.0] in rounds[500:550]
    for part in rounds[:500], rounds[500:]:  # both have as much of the time
        took = [each for round in part for each in round]
        assert (
            0.7 < took.count(0.05) * 0.05 / (took.count(0.1) * 0.1 + took.count(0.11) * 0.11) < 1.4
        )
