"""What tests of engines share: one question, and an engine heard to its end."""

import asyncio
from contextlib import aclosing

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.interfaces import Engine
from dragoman.core.item import Message
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.core.response import Response

ASKED = Request(model="script", items=(Message("user", "Hello!"),), stream=True)


async def heard(engine: Engine, request: Request = ASKED) -> list[Event]:
    """All events of an answer, seen to be legal."""
    async with aclosing(engine.stream(request)) as stream:
        events = [event async for event in stream]
    check(events)
    return events


async def answered(engine: Engine, request: Request = ASKED) -> Response:
    """The whole answer."""
    return fold(await heard(engine, request))


def others() -> set[asyncio.Task[object]]:
    """Every task that lives, but for the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}
