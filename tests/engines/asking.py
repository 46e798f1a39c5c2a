"""Asks a remote engine, for the tests of it: an engine that is closed again, and whole answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed
from dragoman.core.fold import fold
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import Message
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.remote import Remote
from tests.mock import Handler, Mock, Reply, chunk, completion, mock, plain, stream

HELLO = plain(200, completion({"content": "Hello"}))
"""A whole Chat answer."""
HELLO_STREAM = stream(chunk({"content": "Hello"}), chunk(finish="stop"))
"""A streamed one."""
BODY = HELLO.pieces[0].partition(b"\r\n\r\n")[2]
COUNTED = {**chunk(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
"""A chunk that brings the usage."""


def asking(text: str = "Go.", **fields: Any) -> Request:
    """A request for an answer in one piece."""
    return Request(**{"model": "m", "items": (Message("user", text),), **fields})


@asynccontextmanager
async def remote(
    handler: Handler | Reply, *, probed: Handler | Reply | None = None, **options: Any
) -> AsyncIterator[tuple[Remote, Mock]]:
    """An engine before a mock; over Chat, unless told otherwise."""
    async with mock(handler, probed) as up:
        engine = Remote(options.pop("base_url", up.base_url), **{"wire": "chat", **options})
        try:
            yield engine, up
        finally:
            await engine.close()


async def events(engine: Remote, request: Request, caller: Caller = ANYONE) -> list[Event]:
    """All events of an answer, which must be legal ones."""
    async with aclosing(engine.stream(request, caller)) as answer:
        heard = [event async for event in answer]
    check(heard)
    return heard


async def ask(engine: Remote, request: Request | None = None, caller: Caller = ANYONE) -> Response:
    """An answer that ends well."""
    answer = fold(await events(engine, request or asking(), caller))
    assert answer.error is None, answer.error
    return answer


async def fault(engine: Remote, request: Request | None = None, caller: Caller = ANYONE) -> Fault:
    """The fault of an answer that fails."""
    *_, last = await events(engine, request or asking(), caller)
    assert isinstance(last, Failed), last
    return last.fault
