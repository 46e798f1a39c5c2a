"""Streams one answer: its events, its text, and at any moment the answer so far.

A stream is read once, by one task. Any task may close it, which cancels the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Self

from msgspec.structs import replace

from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded
from dragoman.core.fold import Fold
from dragoman.core.response import Response

from .answer import Answer, AnswerError, spent


class Stream(AsyncGenerator[Event, None]):
    """The events of an answer; iterate it, or iterate its `text`.

    Use it with `async with`, so that an answer that is not read to its end is cancelled.
    """

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._fold = Fold()
        self._choices: list[int] = []
        self._began: float | None = None
        self._first: float | None = None
        self._ended: float | None = None
        self._over = False
        self._closing = False
        self._reader: asyncio.Task[Any] | None = None
        self._left: asyncio.Future[None] | None = None  # resolved when the reader has stopped

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
        """Read on to the end and give the whole answer, a failed one too."""
        async for _ in self:
            pass
        return self.answer

    # ---- what has come so far ------------------------------------------------------------

    @property
    def response(self) -> Response:
        """All that has come so far."""
        response = self._fold.response
        cancelled = self._closing and not self._over
        return replace(response, status="cancelled") if cancelled else response

    @property
    def answer(self) -> Answer:
        """The same, with usage and times."""
        response, began, ended = self.response, self._began, self._ended
        if began is None:
            return Answer(response, spent(None, None, 0.0))
        first = None if self._first is None else self._first - began
        latency = (time.perf_counter() if ended is None else ended) - began
        return Answer(response, spent(response.usage, first, latency))

    def _cancelled(self) -> bool:
        return self._closing

    # ---- closing -------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel the answer; its reader sees it end. Returns when no work on it is left."""
        self._closing = True
        self._ended = self._ended or time.perf_counter()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._left = self._left or asyncio.get_running_loop().create_future()
            self._reader.cancel()
            await self._left
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
