"""What a streamed answer says: its head, its events in the words of a wire, and its end.

It knows whether the answer has begun and whether it is over, and tells late what the head could not
tell. When anything is sent it does not know.
"""

from __future__ import annotations

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed, Finished, Started
from dragoman.core.interfaces import Encoder, Passed
from dragoman.core.loss import Loss
from dragoman.core.response import Guarantee
from dragoman.wire import sse
from dragoman.wire.losses import header

from .asgi import Headers
from .cancellation import TERMINAL, end_for
from .exchange import Exchange, guarantee_header, loss_header
from .settings import Settings

WAITING = sse.comment("waiting")
"""The sign of life of a stream that has not begun."""

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
"""What keeps proxies from holding back, changing or compressing a stream."""


class Speech:
    """One answer in the words of `encoder`. `begun` says that an event was encoded, `over` that the
    terminal one was."""

    __slots__ = ("_data", "_encoder", "_guarantee", "_losses", "begun", "over")

    def __init__(
        self,
        exchange: Exchange,
        encoder: Encoder,
        settings: Settings,
        losses: tuple[Loss, ...] = (),
        guarantee: Guarantee | None = None,
    ) -> None:
        self._encoder = encoder
        self._losses = losses
        self._guarantee = guarantee
        agent = exchange.header(b"user-agent").lower()
        self._data = any(word in agent for word in settings.heartbeat_data)
        self.begun = False
        self.over = False

    @property
    def head(self) -> Headers:
        """The headers, as far as they are known by now."""
        return [
            *SSE_HEADERS,
            *loss_header(self._losses),
            *guarantee_header(self._guarantee),
        ]

    def begin(self, batch: Passed, *, opened: bool) -> bytes:
        """The bytes for the first events. Raises FaultError where they are a failure that can be
        told by a status, as the head is not out."""
        first = None if isinstance(batch, bytes) else batch[0]
        if isinstance(first, Failed) and not opened:
            raise FaultError(first.fault)
        if isinstance(first, Started):
            self._losses += first.losses
            self._guarantee = first.guarantee or self._guarantee
        said = self.say(batch)
        self.begun = True
        return said

    def say(self, batch: Passed) -> bytes:
        """The bytes for events; bytes are their own."""
        if isinstance(batch, bytes):
            return batch
        last, encoder = batch[-1], self._encoder
        if isinstance(last, Finished) and (comment := self._late(last)):
            said = encoder.feed(batch[:-1]) + comment + encoder.feed((last,))
        else:
            said = encoder.feed(batch)
        if isinstance(last, TERMINAL):  # and it could be said
            self.over = True
        return said

    def end(self, fault: Fault) -> bytes:
        """The bytes for an end that was not the engine's; none where it has come to its own."""
        return b"" if self.over else self.say([end_for(fault)])

    def alive(self) -> bytes:
        """A sign of life."""
        return self._encoder.heartbeat(data=self._data) or WAITING

    def _late(self, end: Finished) -> bytes:
        """What the head would have said, had it been known before."""
        late = header(end.losses)
        said = sse.comment(f"x-dragoman-loss: {late}") if late else b""
        if end.guarantee in (None, self._guarantee):
            return said
        return said + sse.comment(f"x-dragoman-guarantee: {end.guarantee}")
