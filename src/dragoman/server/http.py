"""The HTTP/1.1 protocol of one connection: parses requests, enforces limits, writes responses."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.wire import error as wire_error

from .cancellation import GONE, Peer
from .exchange import (
    ID_HEADERS,
    JSON_TYPE,
    MARKS,
    Exchange,
    Headers,
    log_failure,
    request_ids,
    site,
)
from .limits import STEP, Budget, Hold
from .settings import Settings

_BODILESS = (204, 304)
_NOBODY_WAITS = asyncio.Event()
_HANDSHAKE = {b"sec-websocket-key", b"sec-websocket-version"}
_READ = {*_HANDSHAKE, b"sec-websocket-extensions", b"sec-websocket-protocol"}
"""The headers that websockets reads, and quotes where it refuses them."""


class HTTPExchange(Exchange):
    """A request on a connection of our own host. The public members that `Exchange` does not have
    are those that uvicorn's protocol needs."""

    connection: HTTPProtocol
    body: bytearray
    expects = False
    """Whether the client waits for a 100 before it sends the body."""
    more_body = True
    waiter: asyncio.Future[None] | None = None
    disconnected = False
    response_started = False
    response_complete = False
    peer: Peer | None = None
    _head = b""  # not yet written
    chunks = True
    """Whether the client supports chunked encoding; without it, a response ends with the
    connection."""
    _bodiless = _chunked = False

    def set(self) -> None:
        """Called with more of the body, at its end, and at the end of the connection."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def hang_up(self) -> None:
        """The client is gone."""
        self.disconnected = True
        self.set()
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.disconnected()

    @property
    def address(self) -> str:
        return site((self.connection.transport.get_extra_info("peername") or ("",))[0])

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly."""
        return self.connection.flow.write_paused

    @property
    def unread(self) -> int:
        return self.connection.transport.get_write_buffer_size()

    def listen(self, peer: Peer | None) -> None:
        self.peer = peer
        if self.disconnected and peer is not None:
            asyncio.get_running_loop().call_soon(peer.disconnected)

    async def read(self) -> tuple[bytes, bool]:
        if self.expects:
            self.expects = False
            self.connection.transport.write(CONTINUE)
        while not self.body and self.more_body and not self.disconnected:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        if self.disconnected:
            raise FaultError(GONE)
        body, self.body = bytes(self.body), bytearray()
        self.connection.flow.resume_reading()  # else a disconnect would go unnoticed
        return body, self.more_body

    def drop(self) -> None:
        self.peer = None
        self.connection.transport.abort()

    def start(self, status: int, headers: Headers, body: bytes | None = None) -> None:
        """The head; it is sent with the first piece of the body."""
        if body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        lines = b"".join(map(b"%b: %b\r\n".__mod__, headers))
        if lines.count(b"\n") + lines.count(b"\r") != 2 * len(headers):
            raise RuntimeError("a header would have ended its line")
        connection = self.connection
        self._bodiless = self.method == "HEAD" or status in _BODILESS
        self._chunked = body is None and self.chunks and not self._bodiless
        close = b"" if self.keep_alive else b"connection: close\r\n"
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        head = b"".join((STATUS_LINE[status], connection.defaults, lines, close, framing, b"\r\n"))
        if body is None:
            self.response_started, self._head = True, head
            connection.stop_timer()
            return
        if len(body) > HIGH_WATER_LIMIT and not self.disconnected:
            connection.hold(self.tenant, len(body))  # and not for one that gives nothing back
        self.response_started = True
        if not self.disconnected:
            whole = b"" if self._bodiless else body
            if len(whole) > LARGE:
                connection.transport.write(head)
                connection.transport.write(memoryview(whole))
            else:
                connection.transport.write(head + whole)
            connection.complete(self)

    def write(self, body: bytes, *, more: bool) -> bool:
        connection = self.connection
        if self.disconnected:
            return False
        if self._bodiless:
            body = b""
        if large := len(body) > HIGH_WATER_LIMIT:
            if not self.counted:
                connection.hold(self.tenant, len(body))
            if len(body) > LARGE:
                whole, body = body, b""
                before, after = self._head, b""
                if self._chunked:
                    before, after = b"%b%x\r\n" % (before, len(whole)), b"\r\n"
                for part in (before, memoryview(whole)):
                    connection.transport.write(part)
                self._head = after
        if self._chunked:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                body += b"0\r\n\r\n"
        if self._head:  # which goes with something else where there is no room for this
            body, self._head = self._head + body, b""
        connection.transport.write(body)
        if not more:
            connection.complete(self)
        elif large and not (self.counted or connection.flow.write_paused):  # it was read at once
            connection._release()
        return connection.flow.write_paused


def _target(url: bytes) -> tuple[str, bytes, bytes]:
    """The path, the query and the authority (empty except in absolute-form) of a URL that is no
    plain path. Raises ValueError where there is no path."""
    if url.startswith(b"/"):  # two slashes are a path, too
        path, _, query = url.partition(b"#")[0].partition(b"?")
        return unquote(path.decode("ascii")), query, b""
    parsed = urlsplit(url)
    if not parsed.path.startswith(b"/"):
        raise ValueError("the request has no path")
    return unquote(parsed.path.decode("ascii")), parsed.query, parsed.netloc


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FIRST_LOOK, LAST_LOOK = 0.01, 5.0
"""Seconds between two checks for a reset: the first and the longest."""
TCP_CLOSE, TCP_CLOSE_WAIT = 7, 8
"""The states of a connection after a reset, and after the end of what the client sends (Linux,
`tcp_states.h`)."""
_HAS_STATES = hasattr(socket, "TCP_INFO")  # which tells the state of a connection
HEADERS = 200
"""Headers of a request, of which each takes much more memory than its bytes."""
AHEAD = 8
"""Pipelined requests that are parsed ahead of their turn; the rest waits unparsed."""
LINES = 1024
"""Line ends of a read that are parsed at once: each chunk of a body has two."""
_REQUEST = b" HTTP/1."  # which the head of each has
LARGE = 256 * 1024
"""Size from which a body is not copied into one buffer with its framing."""
LINGER = 1.0
"""Seconds for a refused client to read the error."""


async def _run(rest: Awaitable[None], exchange: Exchange) -> None:
    """Await the rest of a handler; if it fails, the response is ended all the same."""
    try:
        await rest
    except BaseException as error:
        exchange.drop()
        if not isinstance(error, Exception):
            raise
        log_failure(error, exchange.id, exchange.entry.key if exchange.entry else None)


class HTTPConfig(Config):
    """uvicorn's configuration, with additional limits."""

    def __init__(self, app: Any, limits: Settings, **options: Any) -> None:
        super().__init__(app, **options)
        self.limits = limits


class HTTPProtocol(HttpToolsProtocol):
    """uvicorn's connection, with limits on heads, and responses without a task."""

    # Python shares a table of at most 30 names between the objects of a class, and uvicorn has 27.
    # fmt: off
    __slots__ = (
        "_ahead", "_allowed", "_answered", "_awaited", "_data", "_fields", "_fresh", "_handle",
        "_hold", "_in_head", "_limit", "_patience", "_pending", "_problem", "_rate", "_received",
        "_refused", "_stall", "_timed", "_timer", "_timer_at", "_unparsed", "_unread", "_upgrades",
        "defaults",
    )
    # fmt: on

    def __init__(
        self,
        config: HTTPConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.pipeline = cast(Any, [])  # requests behind the one that is answered; a deque is large
        limits = config.limits
        self._limit, self._patience = limits.header_limit, limits.read_time
        self._stall, self._rate = limits.stall, limits.min_rate
        # Since when the next request is awaited; None while one is answered.
        self._awaited: float | None = None
        self._allowed = 0.0  # its timeout, in seconds
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._unread = 0  # unread bytes at the last check
        self._hold: Hold | None = None  # of a whole response that the client has not read
        self._in_head = False
        self._timed = False  # the rest of that head is awaited
        # Whether no message ended, and no body data came, since data was last received: it is
        # all head then, or what frames a body and stands behind it.
        self._fresh = True
        self._received = 0  # bytes of such
        self._data = b""  # what is being parsed
        self.headers, self.url = [], b""
        self._ahead = AHEAD  # requests that may be parsed at once; -1 while any waits
        self._unparsed = b""
        self._upgrades = False  # the rest is no HTTP any more
        self._refused = False
        self._problem: tuple[int, Fault] | None = None
        self._handle: Callable[[Exchange], Awaitable[None] | None] = cast(Any, self.app).handle
        self._answered: HTTPExchange | None = None  # others are queued behind it
        self._pending: HTTPExchange | None = None  # to be answered next, if the client reads
        self._fields: Headers = []
        self.defaults = b""  # the encoded `_fields`, header lines of every response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.flow._is_writable_event = _NOBODY_WAITS  # each has a deque for tasks that would wait
        self.server = self.client = None  # the addresses are not used
        self._await(self._patience)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.connections.discard(self)
        self._give_up()
        self._release()
        self._unparsed = b""
        self._answered = None  # break reference cycles: they refer to this connection
        self.cycle = self.parser = cast(Any, None)

    def eof_received(self) -> Any:
        """Whether to stay open. A client may half-close after its request and wait for the
        response; one that has closed fully answers with a reset to data, which is a 100 here
        (RFC 9110, 15.2: every client accepts one), while there is no response to send."""
        cycle = self._answered
        if (
            cycle is None
            or cycle.response_started
            or not cycle.chunks  # HTTP/1.0 has no 100
            or self._in_head
            or self._refused
            or not _HAS_STATES  # the reset could not be detected
        ):
            return False
        last: HTTPExchange = cast(Any, self.pipeline[-1]) if self.pipeline else cycle
        last.keep_alive = False
        self.transport.write(CONTINUE)
        self._look_for_reset(FIRST_LOOK, continued=True)
        return not last.more_body

    def _look_for_reset(self, after: float, *, continued: bool = False) -> None:
        """Check for a reset after so many seconds, then with growing intervals. While requests wait
        behind the one that is answered, nothing is read: then the end of what the client sends is
        noticed here, and answered with a 100, unless one was sent (`continued`)."""
        cycle = self._answered

        def look() -> None:
            if cycle is None or cycle is not self._answered or cycle.response_started:
                return  # the next write detects it
            if self.transport.is_closing():
                return
            sock = self.transport.get_extra_info("socket")
            state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            if state == TCP_CLOSE:
                self.transport.abort()
                return
            if ended := state == TCP_CLOSE_WAIT and cycle.chunks and not continued:
                self.transport.write(CONTINUE)
            self._look_for_reset(min(2 * after, LAST_LOOK), continued=continued or ended)

        if _HAS_STATES:
            self.loop.call_later(after, look)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._release()
        if self._answered is not None and self._answered.peer is not None:
            self._answered.peer.drained()
        self._answer()

    def hold(self, tenant: str, size: int) -> None:
        """Account for bytes to be written, until they are read. Raises FaultError for no room."""
        budget: Budget = cast(Any, self.app).budget
        hold = self._hold = self._hold or budget.hold(tenant)
        hold.resize(min(size + (hold.size if self.flow.write_paused else 0), budget.share))

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _give_up(self) -> None:
        """Abort the response in progress."""
        self._pending = None
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.hang_up()

    def data_received(self, data: bytes) -> None:
        if len(data) > HIGH_WATER_LIMIT:
            self.transport.pause_reading()  # uvloop would read on, up to 8 MB
            self.loop.call_soon(self._read_on)
        if self._refused:
            return
        # One letter is counted sooner than several, and found sooner still: most JSON has no lines.
        lines = data.count(b"\n", 0, STEP if data.find(b"\n", STEP) < 0 else None)
        if (lines >= self._ahead and data.count(_REQUEST) > self._ahead) or (
            lines > LINES and len(data) > STEP and data.count(b"\r\n") > LINES
        ):
            self._unparsed += data
            self._parse()
            return
        self._fresh = True
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._fresh and not self._refused:
            self._received += len(data)
            if self._received > self._limit or len(self.headers) > HEADERS:
                self._find_too_large()
                self.send_400_response("")
        if self._in_head and not self._timed:
            self._timed = True
            self._await(self._patience)
        if self._pending is not None:
            self._answer()

    def _read_on(self) -> None:
        """Resume reading after a turn of the loop."""
        if not (self._unparsed or self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _parse(self) -> None:
        """Parse a few of the pipelined requests, or chunks, and continue when the queued ones are
        answered, after a turn of the loop. Reading is paused until then."""
        data, self._unparsed = self._unparsed, b""
        if data and not self.pipeline:
            piece = _REQUEST.join(data[:STEP].split(_REQUEST, AHEAD)[:AHEAD])
            data = data[len(piece) :]
            self._ahead = AHEAD
            self.data_received(piece)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        left = data != b"" and not self._refused
        self._ahead = -1 if left or self.pipeline else AHEAD
        if left:
            self._unparsed = data
            self.transport.pause_reading()
            self.flow.read_paused = False  # so that `flow` does not resume before we do
            if not self.pipeline:
                self.loop.call_soon(self._parse)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _answer(self) -> None:
        """Handle the pending request, unless earlier responses are still unread: a client that
        pipelines and does not read would fill the memory."""
        exchange = self._pending
        if exchange is None or self._refused:
            return
        if self.flow.write_paused:
            self._await_reading()
            return
        self._awaited = self._pending = None
        self._answered = exchange
        if not exchange.more_body:
            exchange.whole, exchange.body = bytes(exchange.body), bytearray()
            self.flow.resume_reading()  # else a disconnect would go unnoticed
        if self.pipeline:
            self._look_for_reset(FIRST_LOOK)
        rest = self._handle(exchange)
        if rest is not None:
            task = self.loop.create_task(_run(rest, exchange))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._in_head = True
        self._timed = False
        self._received = 0

    def on_body(self, body: bytes) -> None:
        self._fresh, self._received = False, 0
        cycle: HTTPExchange = self.cycle  # type: ignore[assignment]
        if self._upgrades or cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if cycle.waiter is not None:
            cycle.set()

    def on_message_complete(self) -> None:
        self._fresh = False
        cycle: HTTPExchange = self.cycle  # type: ignore[assignment]
        if not (self._upgrades or cycle.response_complete):
            cycle.more_body = False
            if cycle.waiter is not None:
                cycle.set()

    def on_headers_complete(self) -> None:
        """Begin the response, or queue it behind the one in progress."""
        self._fresh = False
        before: Any = self.cycle  # None before the first request, whatever its type says
        free = before is None or before.response_complete
        self._upgrades = self.parser.should_upgrade() and b"upgrade" in dict(self.headers)
        if self._upgrades:
            if not self._should_upgrade():
                return  # it is parsed again, without its Upgrade
            if not free or self.flow.write_paused:
                raise ValueError("an answer is on its way")  # which a socket would tear, or forget
            self._in_head = False  # what comes now is no HTTP, but for a body
            self._await(self._patience)
            self.scope = cast(
                Any, {"method": self.parser.get_method().decode("ascii"), "headers": self.headers}
            )
            return
        self._in_head = False
        self._awaited = None
        large = self._received + len(self._data) > self._limit and self._head_size() > self._limit
        if large or len(self.headers) > HEADERS:
            self._find_too_large()
            raise ValueError("the head is too large")  # makes the parser stop and uvicorn refuse
        raw, _, query = self.url.partition(b"?")
        if raw.startswith(b"/") and b"%" not in raw and b"#" not in self.url:
            path = raw.decode("ascii")
        else:
            path, query, authority = _target(self.url)
            if authority:  # which stands above Host (RFC 9112, 3.2.2)
                self.headers = [
                    (name, authority if name == b"host" else value) for name, value in self.headers
                ]
        defaults = self.server_state.default_headers  # the Date header, updated each second
        if defaults is not self._fields:
            self._fields = defaults
            self.defaults = b"".join([b"%b: %b\r\n" % header for header in (*defaults, *MARKS)])
        parser = self.parser
        exchange = HTTPExchange(parser.get_method().decode("ascii"), path, query, self.headers)
        exchange.connection = self
        exchange.body = bytearray()
        exchange.keep_alive = parser.should_keep_alive()
        version, usual = parser.get_http_version(), self.url + b" HTTP/" in self._data
        if not usual or version != "1.1" or b"host" not in exchange.headers:
            self._check_version(version, exchange)
        exchange.expects = self.expect_100_continue and exchange.chunks
        self.cycle = exchange  # type: ignore[assignment]  # it has all that uvicorn uses
        self.headers, self._received = [], 0  # what follows the body changes nothing before it
        if free:
            self._pending = exchange  # answered at the end of this read, which may have its body
        else:
            if not self.pipeline and self._pending is None:
                self._look_for_reset(FIRST_LOOK)
            self.flow.pause_reading()
            self.pipeline.append(cast(Any, exchange))
            self._ahead = -1

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to another protocol."""
        self._awaited = None
        self.stop_timer()  # it would keep this alive as long
        scope = cast(Any, self.scope)
        if scope["method"] != "GET" or not {name for name, _ in scope["headers"]} >= _HANDSHAKE:
            self.send_400_response("A WebSocket handshake is a GET with a version and a key.")
            return
        if not b"".join([value for name, value in scope["headers"] if name in _READ]).isascii():
            self.send_400_response("A header of the WebSocket handshake is not ASCII.")
            return
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if not protocol.handshake_initiated:  # it sends no error for a head that it cannot parse
            self.connections.discard(protocol)
            self.connections.add(self)
            self.transport.set_protocol(self)
            self.send_400_response("the WebSocket handshake has a body, or too many headers")

    def _unsupported_upgrade_warning(self) -> None:
        """An Upgrade to an unknown protocol is ignored (RFC 9110, 7.8). As the parser takes
        the body for that protocol, the request is parsed again, without its Upgrade."""
        if not self._upgrades:
            return  # a CONNECT, which is refused
        rest = self._data[cast(BaseException, sys.exc_info()[1]).args[0] :]
        lines = [b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade"]
        head = (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self._data = b"".join((b"%b %b HTTP/%b\r\n" % head, *lines, b"\r\n", rest))
        self.parser = type(self.parser)(self)  # the old parser accepts nothing after a `close`
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as before
        HttpToolsProtocol.data_received(self, self._data)

    def _check_version(self, version: str, exchange: HTTPExchange) -> None:
        """Refuse what the parser accepts although it is no HTTP/1.1 or HTTP/1.0 (RFC 9112)."""
        if any(self.url + other in self._data for other in (b" RTSP/", b" ICE/")):
            problem = "The request is of another protocol than HTTP."
        elif version not in ("1.0", "1.1"):
            problem = f"HTTP/{version} is not spoken here, but HTTP/1.1."
        elif version == "1.0" and b"transfer-encoding" in exchange.headers:
            problem = "HTTP/1.0 has no transfer-encoding."
        elif version == "1.1" and b"host" not in exchange.headers:
            problem = "The request has no Host header."
        else:
            if version == "1.0":
                exchange.keep_alive = exchange.chunks = False
            return
        self._problem = 400, bad_request(problem)
        raise ValueError(problem)  # makes the parser stop and uvicorn refuse

    def complete(self, exchange: HTTPExchange) -> None:
        """A response was written: handle the next request, or wait for it."""
        self.server_state.total_requests += 1
        exchange.response_complete, exchange.peer = True, None
        if self._hold is not None and not self.flow.write_paused:
            self._release()
        if not exchange.keep_alive:
            if exchange.more_body:  # it is still being sent
                self.flow.resume_reading()
                self._linger()
                return
            self.transport.close()
        if self.transport.get_write_buffer_size():
            self._await_reading()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._pending = self._answered = cast(Any, self.pipeline).pop(0)
            self.loop.call_soon(self._answer)  # not now: the stack would grow with each
            if not self.pipeline:
                self.loop.call_soon(self._parse)
        elif self._awaited is None and not self._in_head:
            self._awaited, self._allowed = self.loop.time(), self.timeout_keep_alive
            if self._timer is None or self._timer_at > self._awaited + self._allowed:
                self._set_timer(self._awaited + self._allowed)

    def send_400_response(self, msg: str) -> None:
        cycle = self._answered
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.close()  # a response is in progress; nothing may be written into it
            self._await_reading()
            return
        status, fault = self._problem or (400, bad_request(msg))
        body = wire_error.encode(fault)
        id = next(request_ids[0])
        if entry := cast(Any, self.app).entry():
            entry.end = fault.code
            entry.write("-", "-", status, id)
        ids = [(name, id.encode()) for name in ID_HEADERS]
        framing = ((b"content-length", b"%d" % len(body)), (b"connection", b"close"))
        lines = [b"%s: %s\r\n" % header for header in (*MARKS, *ids, JSON_TYPE, *framing)]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        self._linger()

    def _await(self, seconds: float) -> None:
        """Set the timeout for the next request, or for the rest of its head.

        A running timer that fires early enough is kept and checks the deadline itself, so that
        requests in quick succession set none each.
        """
        now = self.loop.time()
        self._awaited, self._allowed = now, seconds
        if self._timer is None or self._timer_at > now + seconds:
            self._set_timer(now + seconds)

    def _await_reading(self) -> None:
        """Set the timeout for the client to read what was written."""
        self._unread = self.transport.get_write_buffer_size()
        self._await(self._stall)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(due, self._look_at_the_clock)
        self._timer_at = due  # uvloop's handles do not always know

    def stop_timer(self) -> None:
        """Cancel the timer for a stream, which may be long, unless a request behind it is
        awaited; it is set again after the response."""
        if self._timer is not None and self._awaited is None:
            self._timer.cancel()
            self._timer = None

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._awaited is None:
            return
        cycle, now = self._answered, self.loop.time()
        ending = self._refused or self.transport.is_closing()
        if not (ending or cycle is None or cycle.response_complete or self._pending):
            self._awaited = now  # nothing may be written into a response in progress
        if now < self._awaited + self._allowed:
            self._set_timer(self._awaited + self._allowed)
        elif unread := self.transport.get_write_buffer_size():
            # Earlier responses may still be being read.
            if unread > self._unread - self._rate * self._allowed:
                self.transport.abort()
                return
            self._await_reading()
        elif ending:
            pass  # the rest of the buffer is being sent
        elif self._in_head:
            problem = f"The head did not come within {self._patience:g} s (read_time)."
            self._problem = 408, Fault("stalled", problem, "client")
            self.send_400_response("")
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Half-close, and let the client send on for a moment (lingering close).

        Closing while it is still sending would reset the connection and lose our response.
        """
        self._refused = True
        self._give_up()
        self.transport.write_eof()
        self._await_reading()
        self.loop.call_later(LINGER, self.transport.close)

    def _head_size(self) -> int:
        parts = (self.url, *chain.from_iterable(self.headers))
        return sum(map(len, parts)) + 4 * len(self.headers)

    def _find_too_large(self) -> None:
        problem = f"The request has more than {self._limit} bytes of headers (header_limit)"
        problem = f"{problem}, or more than {HEADERS} of them."
        self._problem = 431, Fault("too_large", problem, "client")
