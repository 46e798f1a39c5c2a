"""A streamed answer: engine events out as server-sent events, at the pace of both sides.

Headers wait for the first event, so that a failure before it has a status of its own; silence is
filled with heartbeats; a client that does not read is let go; and whatever happens, one terminal
event ends the stream. What an event looks like is the encoder's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Passed

from .cancellation import GONE, UNFINISHED, Watch, stalled
from .exchange import Exchange
from .heartbeat import Clock
from .pump import Taken, pump
from .settings import Settings
from .speech import Speech

BURST = 64 * 1024
"""Bytes that are sent at once although more is ready."""
LAST_WORDS = 5.0
"""Seconds a client has to take the end of a stream that was stopped."""


class Stream:
    """One streamed answer: `run` it, and where that raises a FaultError, `fail` with its fault."""

    def __init__(self, exchange: Exchange, speech: Speech, settings: Settings) -> None:
        self._exchange = exchange
        self._speech = speech
        self._settings = settings
        self._parts: list[bytes] = []  # encoded and not yet sent
        self._size = 0
        self._done = False  # the terminal event is sent
        self._clock = Clock(settings, self._beat_once, self._stall)
        self._beat: asyncio.Task[None] | None = None
        self._watch: Watch | None = None

    async def run(self, batches: AsyncGenerator[Passed, None], watch: Watch) -> None:
        """Say all events, and pass on all bytes.

        Raises FaultError, to be told by `fail`, when they do not end well.
        """
        with self._watched(watch):
            batch = await anext(batches, None)
            if batch is None:
                raise FaultError(UNFINISHED)
            taken = self._put(self._speech.begin(batch, opened=self._exchange.opened))
            if taken is not Taken.OVER and not await pump(batches, self._take, self._flush):
                raise FaultError(UNFINISHED)
            await self._flush(more=False)

    async def fail(self, fault: Fault) -> None:
        """Tell a failure: as a plain answer while that is possible, else as the stream's end."""
        if self._done or fault is GONE:
            return
        if fault.code == "stalled":  # there is nobody who would read why
            self._exchange.abort()
            return
        if not self._exchange.opened and not self._speech.begun:
            await self._exchange.refuse(fault)
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                self._put(self._speech.end(fault))
                await self._flush(more=False)

    # ---- sending -------------------------------------------------------------------------

    def _take(self, batch: Passed) -> Taken:
        return self._put(self._speech.say(batch))

    def _put(self, data: bytes) -> Taken:
        self._parts.append(data)
        self._size += len(data)
        if self._speech.over:
            return Taken.OVER
        return Taken.FULL if self._size >= BURST else Taken.MORE

    def _flush(self, *, more: bool = True) -> Coroutine[Any, Any, None]:
        """To be awaited: all that is encoded is sent."""
        if self._beat is None and (self._size or not more):
            return self._send(more=more)  # no frame in between, for this is once for each chunk
        return self._flush_behind(more=more)

    async def _flush_behind(self, *, more: bool) -> None:
        if self._beat is not None:  # what was begun earlier ends first
            await asyncio.shield(self._beat)
            self._beat = None
        if self._size or not more:
            await self._send(more=more)

    async def _send(self, *, more: bool = True) -> None:
        count, data = len(self._parts), b"".join(self._parts)
        first = not self._exchange.opened
        self._clock.sent(all=False)
        try:
            if first:
                await self._exchange.open(200, self._speech.head)
            await self._exchange.write(data, more=more)
        except OSError:  # how some hosts tell that the client is gone
            if self._watch is not None:
                self._watch.stop(GONE)
        finally:
            self._clock.sent()
        # Only now: a send that is interrupted is made again.
        del self._parts[:count]
        self._size -= len(data)
        self._done = not more
        if first:
            self._clock.opened()

    # ---- time ----------------------------------------------------------------------------

    @contextmanager
    def _watched(self, watch: Watch) -> Iterator[None]:
        """While this is on, silence is filled and a client that does not read is let go."""
        self._watch = watch
        self._clock.start()
        try:
            yield
        finally:
            self._watch = None
            self._clock.stop()
            if self._beat is not None:
                self._beat.cancel()
                self._beat = None

    def _beat_once(self) -> None:
        self._put(self._speech.alive())
        self._beat = asyncio.get_running_loop().create_task(self._send())

    def _stall(self) -> None:
        if self._watch is not None:
            self._watch.stop(stalled(self._settings.stall))
