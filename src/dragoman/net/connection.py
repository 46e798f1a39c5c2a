"""One HTTP/1.1 connection to a server: writes a request, parses the response as it arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

import httptools
import msgspec

from .errors import DisconnectedError, NetError, NetTimeoutError, RemoteProtocolError, TooLargeError


class Timeouts(msgspec.Struct, frozen=True):
    """The timeouts for each phase of a request, in seconds; None is no limit.

    `connect` covers the wait for a free connection and, again from zero, everything up to
    the end of the TLS handshake; `first_byte` runs from the request's last byte to the end
    of the response headers; `idle` limits the silence inside a body, and `total` the
    time from the headers to its end. Streams have none.
    """

    connect: float | None = 10.0
    first_byte: float | None = 600.0
    idle: float | None = 600.0
    total: float | None = 1200.0


UNTIMED = Timeouts(None, None, None, None)

CONNECTIONS = 2048
"""Connections to one origin: more than the answers that a server works on at a time."""
SLOWEST_UPLOAD = 1000
"""Bytes per second of a request that a peer must read at least."""


class Limits(msgspec.Struct, frozen=True):
    """Limits on what a peer can make us buffer.

    `connections` and `idle_connections` are per origin; an idle connection is closed after
    `keep_alive` seconds. `header_bytes` limits everything but the body: head, chunk extensions,
    trailers. `body_bytes` limits the decoded body of a response, whole or streamed; and
    its framing.
    """

    connections: int = CONNECTIONS
    idle_connections: int = 100
    keep_alive: float = 15.0
    header_bytes: int = 64 * 1024
    header_count: int = 200
    body_bytes: int = 64 * 1024 * 1024


# Plain numbers, as they are compared on every read.
_HEAD: Final = 0  # request written, response headers incomplete
_BODY: Final = 1  # headers complete, body incomplete
_IDLE: Final = 2  # no request in flight: any data is an error
_DONE: Final = 3  # answer complete or failed, not yet released

_HIGH_WATER = 256 * 1024
_LARGE = 64 * 1024  # bytes of a request that are written in two parts, or of a read
PIECE = 256 * 1024
"""Bytes of a request that are written in one turn of the event loop: TLS encrypts them at once."""
_LARGE_READ = 4096
LINES = 1024
"""Line ends of a read that are parsed in one turn of the event loop: a chunk of a body has two."""
_NOTHING: Final = memoryview(b"")


class Connection(asyncio.Protocol):
    """The protocol of one transport; it carries one exchange at a time.

    `send`, then `read_head`, then `read` until it gives `b""`, then `release`; `abort` at any
    time. The two that wait raise the NetError that ended the exchange. Instead of waiting, set
    `on_readable`: it is called whenever a wait would have ended; then look at `status`, `parts`
    (clear them once they are taken), `over` and `error`.
    """

    __slots__ = (
        "_bodiless",
        "_buffered",
        "_by",
        "_deadline",
        "_ended",
        "_fields",
        "_first_byte",
        "_framing",
        "_full",
        "_held",
        "_idle",
        "_keep_alive",
        "_limits",
        "_loop",
        "_overhead",
        "_parse_queued",
        "_parser",
        "_paused",
        "_queued",
        "_rest",
        "_state",
        "_timeouts",
        "_timer",
        "_timer_at",
        "_total",
        "_unparsed",
        "_unsent",
        "_until_eof",
        "_waiter",
        "closed",
        "error",
        "headers",
        "on_body",
        "on_close",
        "on_readable",
        "over",
        "parts",
        "peer",
        "reused",
        "status",
        "trailers",
        "transport",
    )

    def __init__(self, peer: str, limits: Limits) -> None:
        self.peer = peer  # the peer's name in error messages
        self.reused = False
        self.closed = False
        self.on_close: Callable[[Connection], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._state: int = _IDLE
        self.error: NetError | None = None  # the error that ended the exchange, if any
        self.over = False  # no more data: the response is complete, or `error` ended it
        self.on_readable: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.parts: list[bytes] = []  # the body bytes that were received
        # The parser appends them by itself: no Python frame per HTTP chunk.
        self.on_body = self.parts.append
        self._buffered = 0  # bytes that were not read yet
        self._paused = False
        self._held = False
        self._rest = _NOTHING  # what is not written yet of a large request
        self._queued = False  # its next piece is scheduled
        self._full = False  # the transport's buffer is
        self._unparsed = b""  # the rest of a read of many small chunks
        self._parse_queued = False  # its next piece is scheduled
        # What `connection_lost` was told, which waits for that rest.
        self._ended: tuple[Exception | None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        # One timer per connection, moved only when a deadline comes nearer; a deadline that
        # recedes costs an assignment, and the timer finds out when it fires.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._deadline = math.inf
        self._by = math.inf  # the deadline for the whole body
        self._timeouts: Timeouts | None = None  # those of the last request

    def send(
        self,
        head: bytes,
        body: bytes | bytearray = b"",
        timeouts: Timeouts = UNTIMED,
        *,
        bodiless: bool = False,
    ) -> None:
        """Write a request. `bodiless`: its answer has no body whatever the headers say (HEAD,
        CONNECT)."""
        if timeouts is not self._timeouts:  # most requests to a server have the same
            self._timeouts = timeouts
            phases = (timeouts.first_byte, timeouts.idle, timeouts.total)
            limits = [math.inf if seconds is None else seconds for seconds in phases]
            self._first_byte, self._idle, self._total = limits
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.trailers: list[tuple[bytes, bytes]] = []
        self._fields = self.headers
        self._bodiless = bodiless
        self._keep_alive = False
        self._until_eof = False
        self._overhead = 0  # bytes since the last body data
        self._framing = 0  # bytes around those of the body, of large reads
        self._unsent = 0
        self._state = _HEAD
        self.over = False
        if len(body) <= _LARGE:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self._rest = memoryview(body)
            self._write_on()
        self._deadline = self._loop.time() + self._first_byte
        if self._deadline < self._timer_at:
            self._set_timer()

    async def read_head(self) -> None:
        """Wait until `status` and `headers` are those of the final answer."""
        while self._state == _HEAD:
            await self._wakeup()
        # With the headers received, `read` first returns the data and then raises.
        if self.error is not None and not self.status:
            raise self.error

    async def read(self) -> bytes:
        """The received body bytes, at least one, or `b""` at the end of the body."""
        parts = self.parts
        while not parts:
            if self._state == _DONE:
                if self.error is not None:
                    raise self.error
                return b""
            waiter = self._waiter = self._loop.create_future()
            await waiter
        data = b"".join(parts)
        self._discard()
        return data

    def pause(self) -> None:
        """Pause reading until `resume`; timeouts are suspended."""
        self._held = True
        if not (self._paused or self.closed):
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Resume reading. Timeouts start anew."""
        self._held = False
        self._resume()

    @property
    def usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._state == _IDLE and not self.closed

    def release(self, keep_alive: float) -> bool:
        """End the exchange; true if the connection is ready for the next one.

        It then closes itself after `keep_alive` seconds, or when the peer does. If its answer
        was not complete or it must not be used again, it is closed at once.
        """
        self.on_readable = None
        reusable = self._state == _DONE and self._keep_alive and self.error is None
        self.error = None  # a reference cycle: its traceback has the frames that hold this
        if not reusable or self.closed or self._left() or self._unparsed or self._ended:
            self.abort()
            return False
        self._held = False
        if self.parts or self._paused:
            self._discard()
        self._state = _IDLE
        self.reused = True
        self._deadline = self._loop.time() + keep_alive
        if self._deadline < self._timer_at:
            self._set_timer()
        return True

    def upgraded(self, transport: asyncio.Transport) -> None:
        """Restart on `transport`: after TLS was started, or a tunnel was opened."""
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._state = _IDLE

    def abort(self) -> None:
        """Close the socket at once, in any state; unsent data is dropped."""
        if not self.closed:
            self.transport.abort()
            self._close()

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state >= _IDLE:
            if state == _IDLE:
                self.abort()
            self._keep_alive = False
            return
        size = len(data)
        if size > _LARGE_READ and data.count(b"\n") > LINES and data.count(b"\r\n") > LINES:
            self._unparsed = data
            self.transport.pause_reading()
            self._parse_soon()
            return
        if size > _LARGE:
            self.transport.pause_reading()  # uvloop would read on, up to 8 MB
            self._loop.call_soon(self._read_on)
        self._overhead += size
        before = len(self.parts) if size >= _LARGE_READ else 0
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(error)
        if self._state == _BODY:
            if state == _BODY:
                self._deadline = self._loop.time() + self._idle
            else:
                self._by = self._loop.time() + self._total
                self._allow(min(self._idle, self._total))
        if self.parts or self._state != state:
            self._overhead = 0
            if size >= _LARGE_READ:
                self._framing += size - sum(map(len, self.parts[before:]))
                if self._framing > self._limits.body_bytes:
                    self._fail(self._too_large())
                    return
            if self.on_readable is not None:  # a call less per read than by `_wake`
                self.on_readable()
            else:
                self._wake()
            if self.parts:  # they were not read
                self._buffered += size
                held = self._paused or self.closed or self._state != _BODY
                if self._buffered >= _HIGH_WATER and not held:
                    self._paused = True
                    self.transport.pause_reading()
        elif self._overhead > self._limits.header_bytes:
            self._fail(self._too_large())

    def _parse_soon(self) -> None:
        if not self._parse_queued:
            self._parse_queued = True
            self._loop.call_soon(self._parse_on)

    def _parse_on(self) -> None:
        """Parse a piece of many small chunks; behind the last one, resume reading."""
        self._parse_queued = False
        if self._paused or self.closed:
            return  # `_resume` goes on
        piece, self._unparsed = self._unparsed[:_LARGE_READ], self._unparsed[_LARGE_READ:]
        self.data_received(piece)
        if self._unparsed:
            self._parse_soon()
        elif self._ended is not None:
            self.connection_lost(*self._ended)
        else:
            self._read_on()

    def _read_on(self) -> None:
        """Resume reading after a turn of the loop."""
        if not (self._paused or self.closed):
            self.transport.resume_reading()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unparsed:  # over TLS the end comes with the last read
            self._ended = self._ended or (exc,)
            return
        self._end(exc)
        self.abort()

    # The parser calls these, and `on_body`.

    def on_message_begin(self) -> None:
        if self._state == _DONE:  # behind the end of the response
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._state == _DONE:
            raise _NotOurAnswerError
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        headers = self.headers
        limits = self._limits
        if len(headers) > limits.header_count or (
            self._overhead > limits.header_bytes
            and sum(len(name) + len(value) for name, value in headers) > limits.header_bytes
        ):
            raise self._too_large()
        self.status = status
        self._fields = self.trailers
        self._keep_alive = self._parser.should_keep_alive()
        self._until_eof = not self._keep_alive and _ends_with_connection(headers)
        self._state = _BODY
        if self._bodiless:
            self._keep_alive = False
            self.on_message_complete()
            raise _NotOurAnswerError

    def on_message_complete(self) -> None:
        if self._state == _BODY:  # and not after a 1xx
            self._state = _DONE
            self.over = True
            self._fields = []  # the rest is not of this response
            self._deadline = self._by = math.inf

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._write_soon()

    def _write_soon(self) -> None:
        if self._rest and not (self._full or self._queued):
            self._queued = True
            self._loop.call_soon(self._write_on)

    def _write_on(self) -> None:
        """Write the next piece of a large request, at the pace of its reader."""
        self._queued = False
        if self._rest and not self._full:
            piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
            self.transport.write(piece)
            if not self._rest:
                self._rest = _NOTHING  # an empty slice would hold the whole body
            self._write_soon()

    def _left(self) -> int:
        """How many bytes of the request are not sent yet."""
        return len(self._rest) + self.transport.get_write_buffer_size()

    # How an exchange ends.

    def _refuse(self, error: Exception) -> None:
        if self._state == _DONE:
            self._keep_alive = False  # the response is complete; the rest is not ours
        elif isinstance(error.__context__, NetError):
            self._fail(error.__context__)
        elif isinstance(error, httptools.HttpParserUpgrade):
            self._fail(RemoteProtocolError(f"{self.peer} switched protocols unasked"))
        else:
            self._fail(RemoteProtocolError(f"{self.peer} did not answer in HTTP/1.1: {error}"))

    def _end(self, error: Exception | None) -> None:
        if self._state == _BODY and self._until_eof and error is None:
            self.on_message_complete()
            self._wake()
        elif self._state == _HEAD or self._state == _BODY:
            self._fail(self._disconnected(error))

    def _disconnected(self, error: Exception | None) -> DisconnectedError:
        # All bytes that did not complete the headers yet are overhead.
        if nothing := self._state == _HEAD and not self._overhead:
            moment = "before answering"
        else:
            moment = "inside the headers" if self._state == _HEAD else "in the middle of its answer"
        detail = getattr(error, "strerror", None)
        return DisconnectedError(
            f"{self.peer} closed the connection {moment}" + (f" ({detail})" if detail else ""),
            before_first_byte=nothing,
            reused=self.reused,
        )

    def _too_large(self) -> TooLargeError:
        limits = self._limits
        return TooLargeError(
            f"{self.peer} sent more than {limits.header_bytes} bytes"
            f" or {limits.header_count} fields of headers, or {limits.body_bytes} around its chunks"
        )

    def _fail(self, error: NetError) -> None:
        self.error = error
        self._state = _DONE
        self.over = True
        self._wake()
        self.abort()

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._rest, self._unparsed = _NOTHING, b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        del self._parser  # it holds our bound methods: a cycle
        if self.on_close is not None:
            self.on_close(self)

    # Waiting, backpressure and deadlines.

    def _wakeup(self) -> asyncio.Future[None]:
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        if self.on_readable is not None:
            self.on_readable()
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _discard(self) -> None:
        self.parts.clear()
        self._buffered = 0
        if not self._held:
            self._resume()

    def _resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self.closed:
            return
        if self._unparsed:
            self._parse_soon()
        else:
            self.transport.resume_reading()
        if self._state == _BODY:
            self._allow(self._idle)
        elif self._state == _HEAD:
            self._allow(self._first_byte)

    def _allow(self, seconds: float) -> None:
        self._deadline = self._loop.time() + seconds
        if self._deadline < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = min(self._deadline, self._by)
        self._timer = self._loop.call_at(self._timer_at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        left = min(self._deadline, self._by) - self._loop.time()
        if left > 0:
            self._set_timer()
        elif self._state == _IDLE:
            self.abort()
        elif self._held:
            pass  # `resume` extends the deadline
        elif self._state == _HEAD:
            unsent = self._left()
            taken = self._unsent - unsent
            if unsent and (not self._unsent or taken > SLOWEST_UPLOAD * self._first_byte):
                self._unsent = unsent  # still uploading, and making progress
                self._allow(self._first_byte)
            else:
                message = f"{self.peer} sent no response headers in {self._first_byte:g} s"
                self._fail(NetTimeoutError(message, "first_byte"))
        elif self.parts:
            self._allow(self._idle)  # we are slow, not the peer
        elif self._loop.time() >= self._by:
            message = f"{self.peer} did not complete its answer in {self._total:g} s"
            self._fail(NetTimeoutError(message, "total"))
        else:
            message = f"{self.peer} fell silent for {self._idle:g} s in the middle of its answer"
            self._fail(NetTimeoutError(message, "idle"))


class _NotOurAnswerError(Exception):
    """Stops the parser: the rest is not part of the response."""


def _ends_with_connection(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether nothing but the close of the connection delimits the body."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        return not codings[-1].lower().rstrip().endswith(b"chunked")
    return all(name != b"content-length" for name, _ in headers)
