"""Laws 4, 6 and 8 for engines and wrappers: one line of `ENGINES` or `WRAPPERS` for each.

Every engine gives legal events, leaves nothing running wherever it is given up, and a wrapper
that has nothing to do is the engine inside.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.client import Client
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import fold
from dragoman.core.interfaces import Engine
from dragoman.core.item import FunctionCall, Message, Reasoning, Text, Thought
from dragoman.core.lifecycle import check
from dragoman.core.request import FunctionTool, ReasoningOptions, Request, Sampling
from dragoman.core.turn import CUT
from dragoman.engines.base import Wrapper
from dragoman.engines.chaos import Chaos, Faults
from dragoman.engines.fan_out import fan_out
from dragoman.engines.function import Function
from dragoman.engines.router import Route, Router
from dragoman.engines.script import Script, demo
from dragoman.engines.token import TokenEngine
from tests.answers import answer
from tests.engines.stage import heard, others
from tests.engines.token.models import Says
from tests.engines.token.plain import TOY, Plain

RICH = Request(
    model="script",
    items=(Message("user", "What is the weather in Rome?"),),
    reasoning=ReasoningOptions("low", "auto"),
    sampling=Sampling(n=2, logprobs=True),
    tools=(FunctionTool("get_weather", None, {"properties": {"city": {"type": "string"}}}),),
    stream=True,
)
ANSWER = answer(
    Reasoning((Thought("hm hm"),), id="a", status="completed"),
    Message("assistant", (Text("Good day to you"),), id="b", status="completed"),
    FunctionCall("c", "f", '{"a": 1}', id="d", status="completed"),
    reasons=("tool_calls",),
)


async def words(messages: Any, **rest: Any) -> AsyncIterator[str]:
    for word in ("Good ", "day ", "to ", "you"):
        await asyncio.sleep(0)
        yield word


class OneChoice(Wrapper):
    """The first alternative only: how several are interleaved is a matter of time."""

    def stream(self, request: Request, caller: Any = None) -> Any:
        sampling = replace(request.sampling, n=None)
        return self.engine.stream(replace(request, sampling=sampling))


TOKEN = TokenEngine(Plain(), Says("Good day to you"), TOY)
"""One for all tests: its thread stays."""


class FanOut(Wrapper):
    """The alternatives asked for one by one."""

    def stream(self, request: Request, caller: Any = None) -> Any:
        return fan_out(lambda one: self.engine.stream(one), request)


ENGINES: dict[str, Callable[[], Engine]] = {
    "script": lambda: Script(ANSWER),
    "demo": lambda: demo(0),
    "function": lambda: Function(words),
    "fan-out": lambda: FanOut(demo(0)),
    "token": lambda: OneChoice(TOKEN),
}
WRAPPERS: dict[str, Callable[[Engine], Engine]] = {
    "wrapper": Wrapper,
    "chaos": lambda engine: Chaos(engine, Faults()),
    "router": lambda engine: Router([Route(engine)]),
    "client": Client,
}
BOTH = {**ENGINES, **{name: lambda w=wrap: w(demo(0)) for name, wrap in WRAPPERS.items()}}


@pytest.mark.parametrize("name", BOTH)
async def test_law_4_every_engine_gives_legal_events(name) -> None:
    events = await heard(BOTH[name](), RICH)
    assert fold(events).output


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("inside", ENGINES)
async def test_law_8_a_wrapper_with_nothing_to_do_is_the_engine(name, inside) -> None:
    engine = ENGINES[inside]
    assert _nameless(await heard(WRAPPERS[name](engine()), RICH)) == _nameless(
        await heard(engine(), RICH)
    )


@pytest.mark.parametrize("name", BOTH)
async def test_law_6_cancel_at_any_event_leaves_nothing_running(name) -> None:
    total = len(await heard(BOTH[name](), RICH))
    for last in range(total):
        reading = asyncio.ensure_future(_read(BOTH[name](), last))
        while not reading.done():
            await asyncio.sleep(0)
            if reading.get_name() == "there":
                reading.cancel()
        assert reading.cancelled()
        assert not others()


async def _read(engine: Engine, last: int) -> None:
    """Read so many events, say so, and read on for ever."""
    task = asyncio.current_task()
    async with aclosing(engine.stream(RICH)) as events:
        count = 0
        async for _ in events:
            count += 1
            if count > last:
                task.set_name("there")
                await asyncio.Event().wait()


@pytest.mark.parametrize("name", BOTH)
async def test_law_6_close_at_any_event_leaves_nothing_running(name) -> None:
    total = len(await heard(BOTH[name](), RICH))
    for last in range(total):
        seen: list[Event] = []
        async with aclosing(BOTH[name]().stream(RICH)) as events:
            async for event in events:
                seen.append(event)
                if len(seen) > last:
                    break
        assert not others()
        check([*seen, *_end(seen)])


def _end(seen: list[Event]) -> list[Event]:
    """What would make a legal answer of one that was given up."""
    return [] if isinstance(seen[-1], Finished | Failed) else [Failed(CUT)]


def _nameless(events: list[Event]) -> str:
    """The events without times and made ids, which are new every time; ids become ordinals."""
    assert isinstance(events[0], Started)
    known: dict[str, str] = {}
    told = repr([replace(events[0], created_at=0), *events[1:]])
    return re.sub(r"[0-9a-f]{32}", lambda id: known.setdefault(id[0], f"#{len(known)}"), told)
