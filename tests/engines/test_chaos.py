"""Each kind of faults does what its name says, and a seed makes it repeatable."""

import asyncio
from contextlib import aclosing

import pytest

from dragoman.core.event import Event, Failed, Finished, ItemAdded, Started
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Text
from dragoman.core.lifecycle import check
from dragoman.core.response import Usage
from dragoman.core.turn import CUT
from dragoman.engines.base import enforce_contract
from dragoman.engines.chaos import BROKEN, LIMITED, Chaos, Faults
from dragoman.engines.script import Script
from tests.answers import answer
from tests.engines.stage import ASKED, answered, heard

CALLS = answer(
    Message("assistant", (Text("wait a bit"),), id="a", status="completed"),
    FunctionCall("c", "f", '{"a": 1}', id="b", status="completed"),
    FunctionCall("d", "g", '{"b": 2}', id="c", status="completed"),
    reasons=("tool_calls",),
    usage=Usage(1, 2, 3),
)


async def spoilt(faults: Faults, seed: int = 0) -> list[Event]:
    async with aclosing(Chaos(Script(CALLS), faults, seed=seed).stream(ASKED)) as events:
        return [event async for event in events]


async def test_without_mischief_nothing_changes() -> None:
    assert await spoilt(Faults()) == await heard(Script(CALLS))


async def test_refusal_has_status_and_retry_after() -> None:
    assert await spoilt(Faults(limited=1)) == [Failed(LIMITED)]
    assert (LIMITED.status, LIMITED.retry_after) == (429, "1")
    assert await spoilt(Faults(broken=1)) == [Failed(BROKEN)]


async def test_cut_stops_without_an_end_and_the_contract_adds_one() -> None:
    whole = await heard(Script(CALLS))
    for seed in range(8):
        cut = await spoilt(Faults(cut=1), seed)
        assert cut == whole[: len(cut)]
        assert len(cut) < len(whole)
        engine = Chaos(Script(CALLS), Faults(cut=1), seed=seed)
        events = [event async for event in enforce_contract(engine.stream(ASKED), "m")]
        check(events)
        assert events == [*cut, Failed(CUT)]


async def test_crash_raises() -> None:
    with pytest.raises(ConnectionResetError):
        await spoilt(Faults(crash=1))


async def test_interleaved_calls_fold_to_the_same_answer() -> None:
    events = await spoilt(Faults(interleave=1))
    check(events)
    assert fold(events) == CALLS
    added = [n for n, e in enumerate(events) if isinstance(e, ItemAdded) and e.index > 0]
    assert added[1] == added[0] + 1


async def test_silent_answer_has_no_usage() -> None:
    end = (await spoilt(Faults(silent=1)))[-1]
    assert isinstance(end, Finished)
    assert end.usage is None


async def test_slow_answer_waits_first() -> None:
    events = Chaos(Script(CALLS), Faults(slow=1, seconds=3600)).stream(ASKED)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await anext(events)
    quick = Chaos(Script(CALLS), Faults(slow=1, seconds=0))
    assert isinstance((await heard(quick))[0], Started)


async def test_models_are_those_of_the_engine_inside() -> None:
    engine = Chaos(Script("Hi"), Faults())
    assert (await engine.models())[0].id == "script"
    assert (await answered(engine)).text == "Hi"


async def test_same_seed_gives_the_same_answers() -> None:
    faults = Faults(limited=0.3, broken=0.2, cut=0.3, silent=0.5, interleave=0.5)

    async def answers(seed: int) -> list[int]:
        engine = Chaos(Script(CALLS), faults, seed=seed)
        return [len([event async for event in engine.stream(ASKED)]) for _ in range(12)]

    assert await answers(1) == await answers(1) != await answers(2)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Chaos("script", Faults()), "engine: is 'script', and must be an engine"),
        (lambda: Chaos(Script, Faults()), "engine: is <class .*, and must be an engine"),
        (lambda: Chaos(Script("Hi"), 0.5), "faults: is of type float, and must be Faults"),
        (lambda: Faults(cut="often"), "cut: is of type str, and must be a number"),
        (lambda: Faults(slow=None), "slow: is of type NoneType, and must be a number"),
        (lambda: Faults(cut=20), "cut: is 20, and must be between 0 and 1"),
        (lambda: Faults(seconds=-1), "seconds: is -1, and must be between 0 and 86400"),
        (lambda: Faults(broken=float("nan")), "broken: is nan, and must be between 0 and 1"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make, problem) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        make()
