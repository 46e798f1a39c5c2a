"""One line about each request: what was asked for, how it ended, how long it took, what it cost.

It stands around the application and around its engine, so that nobody between the two knows of it
and nothing is paid for while it is off. A line may be shown to anybody: it has no content of a
conversation, no key and no query.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from msgspec import Struct

from dragoman.core.event import Event, Failed, Finished
from dragoman.core.interfaces import Caller
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.engines.base import Prepared, Wrapper

from .exchange import Exchange

Answering = Callable[[Exchange], Awaitable[None]]

LONGEST = 200
"""Characters of a path or of a model's name that are shown."""
GONE = 499
"""The status of a request whose client left before there was one."""


class Entry(Struct):
    """What the engine adds to the line. `end` is a fault's code, or empty for a good end."""

    model: str = ""
    end: str = ""
    usage: Usage | None = None


_entry: ContextVar[Entry] = ContextVar("dragoman.log")


def logged(answer: Answering) -> Answering:
    """The same, with a line on stderr when a request has been answered or given up."""

    async def answer_and_tell(exchange: Exchange) -> None:
        entry, begun = Entry(), time.monotonic()
        token = _entry.set(entry)
        try:
            await answer(exchange)
        finally:
            _entry.reset(token)
            sys.stderr.write(line(exchange, entry, time.monotonic() - begun) + "\n")

    return answer_and_tell


class Noted(Wrapper):
    """An engine whose batches leave the model, the end and the tokens for the line."""

    def prepare(self, request: Request, caller: Caller) -> Prepared:
        """Note the model now, and how it ends."""
        entry = _entry.get(Entry())
        entry.model, entry.end = request.model, "cancelled"

        def noted(events: list[Event]) -> list[Event]:
            match events[-1]:
                case Finished(usage=usage):
                    entry.end, entry.usage = "", usage
                case Failed(fault=fault, usage=usage):
                    entry.end, entry.usage = fault.code, usage
            return events

        return Prepared(request, noted)


def line(exchange: Exchange, entry: Entry, seconds: float) -> str:
    """The line: `POST /v1/responses 200 840 ms small 12+34 tokens req_1`."""
    words = [
        exchange.method,
        _shown(exchange.path),
        str(exchange.status or GONE),
        entry.end,
        f"{seconds * 1000:.0f} ms",
        _shown(entry.model),
        _tokens(entry.usage),
        exchange.id,
    ]
    return " ".join(word for word in words if word)


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:LONGEST])


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return ""
    counts = (usage.input_tokens, usage.output_tokens)
    return "+".join("?" if count is None else str(count) for count in counts) + " tokens"
