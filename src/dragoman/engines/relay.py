"""Lets an answer pass as the bytes in which it came, where nobody needs to look inside.

It decides which answers may, by the request and by what is known of the server, knows when a stream
is over, and what is to be said of one that breaks off. What the bytes mean is known to the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing, suppress

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import Passed
from dragoman.core.lower import Limits, lower
from dragoman.core.request import Request
from dragoman.core.turn import CUT
from dragoman.net.error import NetError
from dragoman.net.http import Exchange
from dragoman.net.response import Response
from dragoman.wire.codec import Passing, Through, Wire

from . import failure
from .profiles import Profile
from .tell import LATE_NEWS

Heard = Callable[[Exchange, bytes], AsyncGenerator[list[Event], None]]
"""Hears an exchange, of which these bytes were read, in the ordinary way, and closes it."""


def through(
    wire: Wire, profile: Profile, limits: Limits, body: bytes, request: Request
) -> Through | None:
    """How the answer may pass; None if it must be heard.

    The server must be one that speaks cleanly, the body must say to it what we would, and nothing
    may be rewritten for it.
    """
    if wire.through is None or wire.name not in profile.clean:
        return None
    lowered = lower(request, limits)
    if lowered.request is not request or lowered.events is not None or lowered.losses:
        return None
    return wire.through if wire.through.passes(request, body, profile.dialect) else None


async def relayed(
    exchange: Exchange, way: Through, heard: Heard, *, stream: bool
) -> AsyncGenerator[Passed, None]:
    """An answer with status 200: bytes that may pass, then one terminal event for how it ended.

    What is no answer, and what is no stream where one was asked for, is heard instead.
    """
    body, response = b"", exchange.response
    if stream and _is_stream(response):
        with closing(exchange):
            async with aclosing(_streamed(response, way.passing())) as gifts:
                async for gift in gifts:
                    yield gift
        return
    if not stream:
        try:
            body = await response.read()
        except BaseException as error:
            exchange.close()
            if not isinstance(error, NetError):
                raise
            yield [Failed(failure.broken(error))]
            return
        if (end := way.whole(body)) is not None:
            exchange.close()
            yield body
            yield [end]
            return
    async with aclosing(heard(exchange, body)) as batches:
        async for batch in batches:
            yield batch


async def _streamed(response: Response, passing: Passing) -> AsyncGenerator[Passed, None]:
    fault = CUT
    try:
        while data := await response.more():
            if whole := passing.feed(data):
                yield whole
            if passing.ended:
                await _read_on(response)
                break
    except NetError as error:
        fault = failure.broken(error)
    except ValueError as problem:
        fault = Fault("upstream_error", f"The model's server sent {problem}.", "upstream")
    rest, end = passing.close(fault)
    if rest:
        yield rest
    yield [end]


async def _read_on(response: Response) -> None:
    """A body that is read to its end frees the connection for the next request."""
    with suppress(TimeoutError, NetError):
        async with asyncio.timeout(LATE_NEWS):
            while await response.more():
                pass


def _is_stream(response: Response) -> bool:
    kind = response.headers.get("content-type") or ""
    return kind.partition(";")[0].strip().lower() == "text/event-stream"
