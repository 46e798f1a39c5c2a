"""Plays what it is given: events, whole responses, or plain text, at a pace.

A script stands in for a model in tests, examples and a first run. It knows no protocol and thinks
nothing: what to play for which request is decided by whoever wrote the script.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from itertools import cycle

from dragoman.core.event import Delta, Event
from dragoman.core.fold import unfold
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import Message, Text
from dragoman.core.request import Request
from dragoman.core.response import Response

from .mint import new_id, now
from .words import in_words
from .wrap import sealed

Cue = Event | float | Exception | Callable[[], Awaitable[object]]
"""What a take is made of: an event to give, seconds to wait, an exception to raise, or something
to wait for (the `wait` of an `asyncio.Event`)."""

Take = str | Response | Iterable[Cue]
"""What is played for one request: a text, a response, or cues."""

NAME = "script"


class Script:
    """An engine that plays takes: one for each request, from the first again after the last.

    A single function instead of takes is asked what to play, with the request. `pace` is the
    number of seconds between two pieces of an answer; texts and responses are given in pieces of
    one word.

    >>> async def hear():
    ...     return [event async for event in Script("Good day").stream(Request(model="script"))]
    >>> [event.data for event in asyncio.run(hear()) if isinstance(event, Delta)]
    ['Good', ' day']
    """

    def __init__(
        self,
        *takes: Take | Callable[[Request], Take],
        pace: float = 0.0,
        name: str = NAME,
    ) -> None:
        if not takes:
            raise ValueError("a script needs something to play")
        self.name = name
        self._takes = cycle(takes)
        self._pace = pace

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Play the next take."""
        return sealed(self._play(request), self.name)

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The one model there is: this script."""
        return (Model(self.name),)

    async def capabilities(self, model: str) -> Capabilities:
        """A script takes anything."""
        return Capabilities(
            images=True, audio=True, tools=True, custom_tools=True, namespaces=True, choices=True
        )

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _play(self, request: Request) -> AsyncGenerator[Event, None]:
        take = next(self._takes)
        if callable(take):
            take = take(request)
        for cue in self._cues(take):
            match cue:
                case int() | float():
                    await asyncio.sleep(cue)
                case Exception():
                    raise cue
                case Delta():
                    yield cue
                    await asyncio.sleep(self._pace)
                case _ if callable(cue):
                    await cue()
                case _:
                    yield cue

    def _cues(self, take: Take) -> Iterable[Cue]:
        if isinstance(take, str):
            return in_words(unfold(spoken(take, self.name)))
        return in_words(unfold(take)) if isinstance(take, Response) else take


def spoken(text: str, model: str = NAME) -> Response:
    """The response that says this text and no more."""
    id = new_id()
    said = Message("assistant", (Text(text),), id=f"msg_{id}_0", status="completed")
    return Response(
        id=id,
        created_at=now(),
        model=model,
        status="completed",
        output=(said,),
        reasons=("stop",),
    )
