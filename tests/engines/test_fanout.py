"""Several alternatives from a server that gives one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace

from dragoman.core.error import TOO_MANY, Fault, FaultError
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import Message, Text
from dragoman.core.lifecycle import check
from dragoman.core.loss import Loss
from dragoman.core.request import Request, Sampling
from dragoman.core.response import Usage
from dragoman.engines.fan_out import AT_ONCE, MOST_SENT, Merge, add_usage, fan_out
from dragoman.net.threads import TenantLock, reading


def asking(n: int, seed: int | None = None) -> Request:
    return Request(model="m", sampling=Sampling(n=n, seed=seed, temperature=1))


def answer(text: str, usage: Usage | None = None, reason: str = "stop") -> list[Event]:
    message = Message("assistant", (Text(text),), id=f"msg_{text}", status="completed")
    status = "incomplete" if reason == "length" else "completed"
    return [
        Started(text, 0, "m"),
        ItemAdded(0, replace(message, content=())),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", text),
        PartDone(0, 0, Text(text)),
        ItemDone(0, message),
        Finished(status, (reason,), usage),
    ]


class Upstream:
    """Gives the next answer to whoever asks; counts who was left early."""

    def __init__(self, *answers: list[Event] | BaseException, pause: float = 0.0) -> None:
        self.answers = list(answers)
        self.pause = pause
        self.asked: list[Request] = []
        self.closed = 0

    async def ask(self, request: Request) -> AsyncGenerator[Event, None]:
        events = self.answers[len(self.asked)]
        self.asked.append(request)
        try:
            if isinstance(events, BaseException):
                raise events
            for event in events:
                await asyncio.sleep(self.pause)
                yield event
        finally:
            self.closed += 1


class Held:
    """Answers once the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: Counter[str] = Counter()

    async def ask(self, request: Request) -> AsyncGenerator[Event, None]:
        self.asked[reading.get()] += 1
        await self.gate.wait()
        for event in answer("a"):
            yield event


async def test_answers_with_many_choices_leave_room_to_others(monkeypatch) -> None:
    """A key's 130 answers of 128 choices held each connection to the model's server."""
    monkeypatch.setattr("dragoman.engines.fan_out._more", TenantLock(16, 16, left=4))
    held, tasks = Held(), []

    async def collected(tenant: str) -> list[Event]:
        reading.set(tenant)
        return [event async for event in fan_out(held.ask, asking(10))]

    for tenant, answers, most in (("a", 9, 9 + 16), ("b", 2, 2)):
        tasks += [asyncio.create_task(collected(tenant)) for _ in range(answers)]
        await asyncio.sleep(0.01)
        assert held.asked[tenant] == most
    leaver = tasks.pop(0)
    leaver.cancel()
    await asyncio.wait([leaver])
    await asyncio.sleep(0.01)
    assert held.asked == {"a": 9 + 16 + 2, "b": 2 + 5}  # of the places of the leaver
    held.gate.set()
    assert {len(events) for events in await asyncio.gather(*tasks)} == {1 + 10 * 5 + 1}
    assert held.asked["b"] == 20


async def collect(upstream: Upstream, request: Request) -> list[Event]:
    return [event async for event in fan_out(upstream.ask, request)]


async def test_each_answer_is_a_choice_and_usage_adds_up() -> None:
    upstream = Upstream(
        answer("a", Usage(input_tokens=3, output_tokens=1)),
        answer("b", Usage(input_tokens=3, output_tokens=2), "length"),
        answer("c"),
    )
    events = await collect(upstream, asking(3))
    check(events)
    response = fold(events)
    assert [item.text for n in range(3) for item in response.choice(n)] == ["a", "b", "c"]
    assert response.reasons == ("stop", "length", "stop")
    assert response.status == "incomplete"
    assert response.usage == Usage(input_tokens=6, output_tokens=3)
    assert [(loss.field, loss.action) for loss in response.losses] == [("n", "emulated")]


async def test_each_request_has_no_n_and_its_own_seed_if_one_is_given() -> None:
    upstream = Upstream(answer("a"), answer("b"))
    await collect(upstream, asking(2, seed=7))
    assert [request.sampling.n for request in upstream.asked] == [None, None]
    assert sorted(request.sampling.seed or 0 for request in upstream.asked) == [7, 8]
    assert {request.sampling.temperature for request in upstream.asked} == {1}
    upstream = Upstream(answer("a"), answer("b"))
    await collect(upstream, asking(2))
    assert [request.sampling.seed for request in upstream.asked] == [None, None]


async def test_the_first_failure_fails_the_whole_and_stops_the_others() -> None:
    fault = Fault("upstream_cut", "cut", "upstream")
    upstream = Upstream([*answer("a")[:3], Failed(fault)], answer("b"), pause=0.001)
    upstream.answers[1] = [*answer("b")[:3], *(Delta(0, 0, "text", "x") for _ in range(10_000))]
    async with asyncio.timeout(5):
        events = await collect(upstream, asking(2))
    check(events)
    assert events[-1] == Failed(fault)
    assert upstream.closed == 2


async def test_a_failure_before_the_beginning_is_the_only_event() -> None:
    refused = Failed(Fault("upstream_refused", "no", "upstream", status=429, retry_after="3"))
    assert await collect(Upstream([refused], [refused]), asking(2)) == [refused]


async def test_exception_is_a_fault_without_its_message() -> None:
    events = await collect(Upstream(RuntimeError("sk-canary"), answer("b")), asking(2))
    assert events[-1].fault.code == "internal"
    assert "canary" not in repr(events)


class PanicError(BaseException):
    """As libraries in Rust raise."""


@pytest.mark.parametrize("raised", [PanicError(), asyncio.CancelledError()])
async def test_what_is_no_exception_is_a_fault_too(raised) -> None:
    upstream = Upstream(answer("one"), raised)
    async with asyncio.timeout(10):
        events = [event async for event in fan_out(upstream.ask, asking(2))]
    assert isinstance(events[-1], Failed)
    assert type(raised).__name__ in events[-1].fault.message


async def test_a_fault_that_is_raised_is_the_answers() -> None:
    fault = Fault("invalid_request", "no", "client", "prompt")
    upstream = Upstream(answer("one"), FaultError(fault))
    assert [event async for event in fan_out(upstream.ask, asking(2))][-1] == Failed(fault)


async def test_a_reader_that_is_slow_holds_the_upstreams_back() -> None:
    sent = 0

    async def ask(request: Request) -> AsyncGenerator[Event, None]:
        nonlocal sent
        yield answer("a")[0]
        yield answer("a")[1]
        yield answer("a")[2]
        while True:
            sent += 1
            yield Delta(0, 0, "text", "x")

    stream = fan_out(ask, asking(2))
    await anext(stream)
    for _ in range(500):
        await asyncio.sleep(0)
    assert sent < 200
    await stream.aclose()


async def test_progress_finds_its_item_again() -> None:
    whole = Progress(None, "raw", {"chat": {"x": 1}})
    one = [answer("a")[0], whole, *answer("a")[1:5], Progress(0, "searching"), *answer("a")[5:]]
    events = await collect(Upstream(one, answer("b")), asking(2))
    check(events)
    item = next(e.index for e in events if isinstance(e, ItemAdded) and e.item.id == "msg_a")
    assert [e.index for e in events if isinstance(e, Progress)] == [None, item]


def test_absent_usage_stays_absent() -> None:
    assert add_usage([]) is None
    assert add_usage([Usage()]) == Usage()
    assert add_usage([Usage(cached_tokens=0), Usage()]) == Usage(cached_tokens=0)
    extra = {"chat": {"cost": 1}}
    assert add_usage([Usage(input_tokens=1, extra=extra)]) == Usage(input_tokens=1, extra=extra)


async def test_late_losses_of_all_choices_are_reported_once() -> None:
    same, other = Loss("input", "dropped", "cut"), Loss("tool_choice", "dropped", "held back")
    answers = [answer("a"), answer("b"), answer("c")]
    for events, losses in zip(answers, ((same,), (), (same, other)), strict=True):
        assert isinstance(events[-1], Finished)
        events[-1] = replace(events[-1], losses=losses)
    last = (await collect(Upstream(*answers), asking(3)))[-1]
    assert last.losses == (same, other)


async def test_concurrent_requests_are_limited() -> None:
    running = most = 0

    async def ask(request: Request) -> AsyncGenerator[Event, None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            for event in answer("x"):
                await asyncio.sleep(0)
                yield event
        finally:
            running -= 1

    events = [event async for event in fan_out(ask, asking(3 * AT_ONCE))]
    check(events)
    assert len(fold(events).reasons) == 3 * AT_ONCE
    assert (most, running) == (AT_ONCE, 0)


def test_choices_that_would_send_too_much_are_refused() -> None:
    with pytest.raises(FaultError) as refused:
        fan_out(lambda _: pytest.fail("asked"), asking(128), Caller(size=MOST_SENT // 100))
    assert (refused.value.fault.code, refused.value.fault.param) == ("too_large", "n")
    counted: list[int] = []
    for n in (2, 99):
        caller = Caller(size=MOST_SENT // 100, count=counted.append)
        fan_out(lambda _: pytest.fail("asked"), asking(n), caller)
    assert counted == [2 * (MOST_SENT // 100), AT_ONCE * (MOST_SENT // 100)]


def test_choices_that_are_too_much_together_end_the_answer(monkeypatch) -> None:
    monkeypatch.setattr("dragoman.engines.fan_out.MOST_MERGED", 8)
    merge, heard = Merge(2), []
    for choice in (0, 1):
        for event in answer("word "):
            heard += [] if merge.over else merge.feed(choice, event)
    assert isinstance(heard[-1], Failed)
    assert "All choices together" in heard[-1].fault.message


@pytest.mark.parametrize(("count", "each", "fails"), [(5000, 1, False), (3, 3000, True)])
def test_items_of_all_choices_are_counted_together(count, each, fails) -> None:
    """But for the one that each has: there may be thousands, of many prompts."""
    begun, item, part, _, _, message, end = answer("a")
    merge, heard = Merge(count), []
    for choice in range(count):
        heard += [] if merge.over else merge.feed(choice, begun)
        for index in range(each):
            for event in (item, part, message):
                heard += [] if merge.over else merge.feed(choice, replace(event, index=index))
        heard += [] if merge.over else merge.feed(choice, end)
    assert (getattr(heard[-1], "fault", None) == TOO_MANY) is fails
    assert merge.over
