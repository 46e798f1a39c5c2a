"""An answer: the stream of its events, and as a value with its end and usage.

A stream is read once, by one task. Any task may close it, which cancels the answer. The error of a
failed answer has what was received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal, Self, cast

from msgspec.structs import asdict, replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded
from dragoman.core.fold import Fold
from dragoman.core.item import JSON, FunctionCall
from dragoman.core.response import Response, Usage

End = Literal[
    "stop",  # the model finished
    "length",  # the limit of tokens was reached
    "tool_calls",  # tools are to be called
    "content_filter",  # a filter cut it off
    "budget",  # an agent's budget was used up before the answer
    "refused",  # the model refused
    "truncated",  # the connection broke: the answer is incomplete
    "cancelled",
    "error",
    "unfinished",  # it is in progress
]


class Spent(Usage, frozen=True, omit_defaults=True, kw_only=True):
    """Usage, round trips, and seconds of an answer.

    Tokens are None where they were not reported, `time_to_first_token` without any event.
    """

    round_trips: int = 1
    time_to_first_token: float | None = None
    latency: float = 0.0


class Answer(Response, frozen=True, omit_defaults=True, kw_only=True):
    """An answer, complete or not: the response, its end and its usage.

    Its `output` is what to append to the conversation.

    >>> answer = Answer(id="1", created_at=0, model="m", status="completed")
    >>> answer.text, answer.end
    ('', 'stop')
    """

    usage: Spent = Spent()

    @property
    def response(self) -> Response:
        """All of it."""
        return self

    @property
    def end(self) -> End:
        """How the answer ended."""
        match self.status:
            case "failed":
                cut = self.error is not None and self.error.code == "upstream_cut"
                return "truncated" if cut else "error"
            case "cancelled":
                return "cancelled"
            case "in_progress":
                return "unfinished"
        reason = self.reasons[0] if self.reasons else "stop"
        if reason == "stop" and self.refusal:
            return "refused"
        return cast(End, reason) if reason in _REASONS else "stop"

    def json(self) -> JSON:
        """The text as JSON. Raises FaultError for invalid JSON."""
        return _parsed(self.text, "The answer")


class AnswerError(FaultError):
    """The error of a failed answer. `fault` is the reason, `answer` has what was received."""

    def __init__(self, fault: Fault, answer: Answer) -> None:
        super().__init__(fault)
        self.answer = answer


_REASONS = frozenset(("length", "tool_calls", "content_filter", "budget"))
"""Finish reasons of the core that have the same name as ends."""


def arguments(call: FunctionCall) -> dict[str, JSON]:
    """The arguments of a call as a dict; blank ones give an empty dict.

    Raises FaultError, quoting the model's text, where it is no JSON object.

    >>> arguments(FunctionCall("call_1", "get_weather", '{"city": "Paris"}'))
    {'city': 'Paris'}
    """
    if not call.arguments.strip():
        return {}
    parsed: dict[str, JSON] = _parsed(call.arguments, f"The arguments of {call.name}", object=True)
    return parsed


def spent(usage: Usage | None, first: float | None, latency: float) -> Spent:
    """The measurements of one answer; `first` and `latency` are in seconds."""
    reported = {} if usage is None else asdict(usage)
    return Spent(**reported, time_to_first_token=first, latency=latency)


def _parsed(text: str, what: str, *, object: bool = False) -> JSON:
    from dragoman.wire import json  # `import dragoman` alone needs no wire

    try:
        value = json.load(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else text[:200] + "…"
        message = f"{what}: {shown!r} {error}."
        raise FaultError(Fault("upstream_error", message, "upstream")) from None
    if object and not isinstance(value, dict):
        problem = f"{what} are {json.kind(value)}, and must be an object."
        raise FaultError(Fault("upstream_error", problem, "upstream"))
    return value


class Stream(AsyncGenerator[Event, None]):
    """The events of an answer; iterate it, or iterate its `text`.

    Use it with `async with`, so that an answer that is not read to its end is cancelled.
    """

    def __init__(self, events: AsyncGenerator[Event, None], fold: Fold | None = None) -> None:
        self._events = events
        self._fold = fold or Fold()
        self._choices: list[int] = []
        self._began: float | None = None
        self._first: float | None = None
        self._ended: float | None = None
        self._over = False
        self._closing = False
        self._reader: asyncio.Task[Any] | None = None
        self._left: asyncio.Future[None] | None = None  # resolved when the reader has stopped
        self._lock = asyncio.Lock()  # a generator cannot be closed by two tasks at a time

    # ---- reading -------------------------------------------------------------------------

    async def __anext__(self) -> Event:
        if self._cancelled():
            raise StopAsyncIteration
        if self._began is None:
            self._began = time.perf_counter()
        reader = self._reader = asyncio.current_task()
        try:
            event = await anext(self._events)
        except asyncio.CancelledError:
            if not self._cancelled() or reader is None or reader.uncancel():
                raise
            raise StopAsyncIteration from None  # cancelled by `close`, not by the reader's own task
        finally:
            self._reader = None
            if self._left is not None:
                self._left.set_result(None)
        self._fold.feed(event)
        match event:
            case Delta() if self._first is None:
                self._first = time.perf_counter()
            case ItemAdded(choice=choice):
                self._choices.append(choice)
            case Finished() | Failed():
                self._over = True
                self._ended = time.perf_counter()
        return event

    @property
    def text(self) -> AsyncIterator[str]:
        """The pieces of text of the first choice. Raises AnswerError when the answer fails."""
        return self._text()

    async def _text(self) -> AsyncGenerator[str, None]:
        async for event in self:
            match event:
                case Delta(kind="text", data=str(data)) if data and not self._choices[event.index]:
                    yield data
                case Failed(fault=fault):
                    raise AnswerError(fault, self.answer)

    async def finish(self) -> Answer:
        """Read to the end and return the whole answer, also a failed one."""
        async for _ in self:
            pass
        return self.answer

    # ---- the answer so far ---------------------------------------------------------------

    @property
    def response(self) -> Response:
        """The response so far."""
        response = self._fold.response
        cancelled = self._closing and not self._over
        return replace(response, status="cancelled") if cancelled else response

    @property
    def answer(self) -> Answer:
        """The same, with usage and times."""
        response, began, ended, took = self.response, self._began, self._ended, Spent()
        if began is not None:
            first = None if self._first is None else self._first - began
            latency = (time.perf_counter() if ended is None else ended) - began
            took = spent(response.usage, first, latency)
        return Answer(**asdict(response) | {"usage": took})

    def _cancelled(self) -> bool:
        return self._closing

    # ---- closing -------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel the answer, which ends its reader. Returns when all its work has ended."""
        self._closing = True
        self._ended = self._ended or time.perf_counter()
        if self._reader is not None and self._reader is not asyncio.current_task():
            if self._left is None:
                self._left = asyncio.get_running_loop().create_future()
                self._reader.cancel()
            await asyncio.shield(self._left)  # others wait for it, too
        async with self._lock:
            await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # An engine's stream is an asynchronous generator; these make this class one.

    async def asend(self, value: None) -> Event:
        """The next event."""
        return await self.__anext__()

    async def athrow(self, *error: Any) -> Event:
        """Close, and raise the error."""
        await self.close()
        raise error[0]

    aclose = close
