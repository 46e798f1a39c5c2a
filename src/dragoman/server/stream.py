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
from dragoman.core.event import Failed, Finished, Started
from dragoman.core.guarantee import Guarantee
from dragoman.core.interfaces import Encoder, Passed
from dragoman.core.loss import Loss
from dragoman.wire import loss, sse

from .asgi import Headers
from .ending import TERMINAL, UNFINISHED, end_for
from .exchange import Exchange, guarantee_header, loss_header
from .pump import Taken, pump
from .settings import Settings
from .watch import GONE, Watch

BURST = 64 * 1024
"""Bytes that are sent at once although more is ready."""
LAST_WORDS = 5.0
"""Seconds a client has to take the end of a stream that was stopped."""
WAITING = sse.comment("waiting")
"""The sign of life of a stream that has not begun."""

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
"""What keeps proxies from holding back, changing or compressing a stream."""


class Stream:
    """One streamed answer: `run` it, and where that raises a FaultError, `fail` with its fault."""

    def __init__(
        self,
        exchange: Exchange,
        encoder: Encoder,
        settings: Settings,
        losses: tuple[Loss, ...] = (),
        guarantee: Guarantee | None = None,
    ) -> None:
        self._exchange = exchange
        self._encoder = encoder
        self._settings = settings
        self._losses = losses
        self._guarantee = guarantee
        agent = exchange.header(b"user-agent").lower()
        self._data = any(word in agent for word in settings.heartbeat_data)
        self._parts: list[bytes] = []  # encoded and not yet sent
        self._size = 0
        self._begun = False  # an event was encoded
        self._over = False  # the terminal event is encoded
        self._done = False  # and sent
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()  # when the last send began or ended
        self._sending = False
        self._beat: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._watch: Watch | None = None

    async def run(self, batches: AsyncGenerator[Passed, None], watch: Watch) -> None:
        """Say all events, and pass on all bytes.

        Raises FaultError, to be told by `fail`, when they do not end well.
        """
        with self._clock(watch):
            batch = await anext(batches, None)
            if batch is None:
                raise FaultError(UNFINISHED)
            first = None if isinstance(batch, bytes) else batch[0]
            if isinstance(first, Failed) and not self._exchange.opened:
                raise FaultError(first.fault)
            if isinstance(first, Started):
                self._losses += first.losses
                self._guarantee = first.guarantee or self._guarantee
            taken = self._take(batch)
            self._begun = True
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
        if not self._exchange.opened and not self._begun:
            await self._exchange.refuse(fault)
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                if not self._over:
                    self._take([end_for(fault)])
                await self._flush(more=False)

    # ---- sending -------------------------------------------------------------------------

    def _take(self, batch: Passed) -> Taken:
        if isinstance(batch, bytes):
            data = batch
        else:
            last = batch[-1]
            self._over = isinstance(last, TERMINAL)
            if isinstance(last, Finished) and (comment := self._late(last)):
                data = self._encoder.feed_all(batch[:-1]) + comment + self._encoder.feed(last)
            else:
                data = self._encoder.feed_all(batch)
        self._parts.append(data)
        self._size += len(data)
        if self._over:
            return Taken.OVER
        return Taken.FULL if self._size >= BURST else Taken.MORE

    def _late(self, end: Finished) -> bytes:
        """What the head would have said, had it been known before."""
        late = loss.header(end.losses)
        said = sse.comment(f"x-dragoman-loss: {late}") if late else b""
        if end.guarantee in (None, self._guarantee):
            return said
        return said + sse.comment(f"x-dragoman-guarantee: {end.guarantee}")

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
        self._sending = True
        self._since = self._loop.time()
        try:
            if first:
                told = (*loss_header(self._losses), *guarantee_header(self._guarantee))
                await self._exchange.open(200, [*SSE_HEADERS, *told])
            await self._exchange.write(data, more=more)
        except OSError:  # how some hosts tell that the client is gone
            if self._watch is not None:
                self._watch.stop(GONE)
        finally:
            self._sending = False
            self._since = self._loop.time()
        # Only now: a send that is interrupted is made again.
        del self._parts[:count]
        self._size -= len(data)
        self._done = not more
        if first and self._watch is not None:  # from now on another silence counts
            self._arm()

    # ---- time ----------------------------------------------------------------------------

    @contextmanager
    def _clock(self, watch: Watch) -> Iterator[None]:
        """While this is on, silence is filled and a client that does not read is let go."""
        self._watch = watch
        self._arm()
        try:
            yield
        finally:
            self._watch = None
            self._disarm()
            if self._beat is not None:
                self._beat.cancel()
                self._beat = None

    def _arm(self) -> None:
        """See to it that the timer goes off no later than something is due."""
        due = self._due()
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)
        self._timer_at = due  # uvloop's handles do not always know

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> float:
        if self._sending:
            return self._since + self._settings.stall
        if not self._exchange.opened:
            return self._since + self._settings.header_hold
        return self._since + self._settings.heartbeat

    def _tick(self) -> None:
        self._timer = None
        if self._due() <= self._loop.time():
            if self._sending:
                self._stall()
            else:
                self._since = self._loop.time()
                beat = self._encoder.heartbeat(data=self._data) or WAITING
                self._parts.append(beat)
                self._size += len(beat)
                self._beat = self._loop.create_task(self._send())
        self._arm()

    def _stall(self) -> None:
        if self._watch is not None:
            problem = f"The client read nothing for {self._settings.stall:g} s."
            self._watch.stop(Fault("stalled", problem, "client"))
