"""What is too long is cut only where the client allows it, and the client is told."""

from __future__ import annotations

import pytest

from dragoman.core.event import Event, Started
from dragoman.core.interfaces import Capabilities
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines.compaction import Truncating, count
from dragoman.engines.router import Route, Router
from dragoman.engines.script import Script

LONG = tuple(Message("user", f"{n} " * 200) for n in range(20))


class Small(Script):
    """A script with a small context that remembers what it was asked."""

    context: int | None = 1000

    def __init__(self) -> None:
        super().__init__(self.play)
        self.asked: list[Request] = []

    def play(self, request: Request) -> str:
        self.asked.append(request)
        return "yes"

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(context=self.context)

    async def count(self, request: Request) -> int:
        return 42


async def heard(engine: Truncating, request: Request) -> list[Event]:
    return [event async for event in engine.stream(request)]


async def test_what_fits_is_asked_and_the_rest_is_told() -> None:
    small = Small()
    request = Request(model="m", items=LONG, truncation="auto", max_output_tokens=100)
    events = await heard(Truncating(small), request)
    (asked,) = small.asked
    assert 0 < len(asked.items) < len(LONG)
    assert asked.items == LONG[-len(asked.items) :]
    assert isinstance(events[0], Started)
    (loss,) = events[0].losses
    assert (loss.field, loss.action) == ("input", "dropped")
    assert str(len(LONG) - len(asked.items)) in loss.why


@pytest.mark.parametrize("truncation", [None, "disabled"])
async def test_nothing_is_cut_unasked(truncation: str | None) -> None:
    small = Small()
    await heard(Truncating(small), Request(model="m", items=LONG, truncation=truncation))
    assert small.asked[0].items == LONG


@pytest.mark.parametrize(("context", "items"), [(None, LONG), (10_000, LONG[:2])])
async def test_nothing_is_cut_without_need(context: int | None, items: tuple[Message, ...]) -> None:
    small = Small()
    small.context = context
    events = await heard(Truncating(small), Request(model="m", items=items, truncation="auto"))
    assert small.asked[0].items == items
    assert isinstance(events[0], Started)
    assert not events[0].losses


async def test_counting_is_exact_where_the_engine_can() -> None:
    request = Request(model="m", items=(Message("user", "12345678"),))
    assert await count(Small(), request) == (42, True)
    assert await count(Script("yes"), request) == (6, False)
    router = Router([Route(Small(), models=("m",)), Route(Script("yes"), models=("other",))])
    assert await count(router, request) == (42, True)
    other = Request(model="other", items=request.items)
    assert await count(Truncating(router), other) == (6, False)
