"""HTTP/1.1 of one connection: parses requests, bounds them, and writes responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from dragoman.core.error import Fault, bad_request
from dragoman.wire import error as wire_error

from .asgi import Application, Audience, Headers, Message, Outlet, Scope
from .exchange import ABORT, JSON_TYPE, MARKS, new_request_id

_BODILESS = (204, 304)
_log = logging.getLogger("uvicorn.error")


class Cycle:
    """What uvicorn's protocol asks of a cycle: these attributes, and `run_asgi`. It is an `Outlet`,
    for answers that are not awaited."""

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_defaults",
        "_expects",
        "_flow",
        "_head",
        "_left",
        "_news",
        "_on_response",
        "_transport",
        "_waiter",
        "audience",
        "body",
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
        "scope",
    )

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        defaults: bytes,
        *,
        keep_alive: bool,
        expects: bool,
        on_response: Callable[[], None],
    ) -> None:
        self.scope = scope
        self._transport = transport
        self._flow = flow
        self._defaults = defaults  # header lines of every answer
        self._expects = expects  # the client waits for a 100 before it sends the body
        self._on_response = on_response
        self._head = b""  # not yet written
        self._bodiless = self._chunked = False
        self._left = 0  # bytes of the body, by its content-length
        self.audience: Audience | None = None
        self.body = bytearray()
        self.more_body = True
        self._news = False  # something came that nobody has received
        self._waiter: asyncio.Future[None] | None = None
        self.disconnected = False
        self.keep_alive = keep_alive
        self.response_started = False
        self.response_complete = False

    @property
    def message_event(self) -> Cycle:
        """What uvicorn sets when the client is gone."""
        return self

    def set(self) -> None:
        """Something has come: more of the body, its end, or the end of it all."""
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def run_asgi(self, app: Application) -> None:
        """Have the request answered; whatever the application does, the client is not left
        waiting."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            _log.error("Exception in ASGI application\n", exc_info=error)
        if self.disconnected or self.response_complete:
            return
        if self.response_started:
            self._transport.close()
            return
        self.keep_alive = False
        nothing = [(b"content-length", b"0")]
        await self.send({"type": "http.response.start", "status": 500, "headers": nothing})
        await self.send({"type": "http.response.body"})

    async def receive(self) -> Message:
        """The next of the body, or that the client is gone or has its whole answer."""
        if self._expects and not self.response_started:
            self._expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.disconnected and not self.response_complete:
            self._flow.resume_reading()
            while not self._news:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            self._news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Take the head, or a piece of the body. Waits for a client that does not read."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if self.response_started:
            self.put(message.get("body", b""), more=message.get("more_body", False))
        else:
            self.start(message["status"], message["headers"])

    # ---- without waiting -----------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the client does not keep up."""
        return self._flow.write_paused

    def take_body(self) -> bytes:
        """All of the body, which is here; who asks for more waits until the client leaves."""
        body, self.body = bytes(self.body), bytearray()
        self._news = False
        self._flow.resume_reading()
        return body

    def start(self, status: int, headers: Headers) -> None:
        """The head; it goes out with the first of the body."""
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if lines.count(b"\n") + lines.count(b"\r") != 2 * len(headers):
            raise RuntimeError("a header would have ended its line")
        self._bodiless = self.scope["method"] == "HEAD" or status in _BODILESS
        self._chunked = length is None and not self._bodiless
        self._left = length or 0
        close = b"" if self.keep_alive else b"connection: close\r\n"
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        self._head = b"".join((STATUS_LINE[status], self._defaults, lines, close, framing, b"\r\n"))
        self.response_started = True

    def put(self, body: bytes, *, more: bool) -> None:
        """A piece of the body."""
        if more and body and self._chunked and not self._head:
            self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            return
        if self._bodiless:
            body = b""
        elif self._chunked:
            end = b"" if more else b"0\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        else:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body is not as long as its content-length says")
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            self._transport.write(body)
        if not more:
            self.response_complete = True
            self.set()
            if not self.keep_alive:
                self._transport.close()
            self._on_response()


LINGER = 1.0
"""Seconds a refused client has to take the refusal."""


AtOnce = Callable[[Scope, Outlet], Application | None]
"""What an application has that can answer without a task: it does, or gives what a task is to
run."""


class HTTPConfig(Config):
    """uvicorn's configuration, and two limits it has no word for: bytes and seconds of a head."""

    def __init__(self, app: Any, *, header_limit: int, read_time: float, **options: Any) -> None:
        super().__init__(app, **options)
        self.header_limit = header_limit
        self.read_time = read_time


class HTTPProtocol(HttpToolsProtocol):
    """uvicorn's connection, which keeps nobody who does not say what they want."""

    def __init__(
        self,
        config: HTTPConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limit = config.header_limit
        self._patience = config.read_time
        # Since when the next request is awaited; None while one is answered.
        self._awaited: float | None = None
        self._allowed = 0.0  # seconds it may be awaited
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._in_head = False
        # Whether nothing was ended, and nothing of a body came, since data was last received: it is
        # all head then, or what frames a body and stands behind it.
        self._fresh = True
        self._received = 0  # bytes of such
        self._arrived = 0  # bytes that came last
        self._upgrades = False  # what comes is no HTTP any more
        self._refused = False
        self._problem: tuple[int, Fault] | None = None
        # A request that may be answered without a task, once it is here whole.
        self._answered: Cycle | None = None  # what is being answered; others wait behind it
        self._at_once: AtOnce | None = getattr(self.app, "at_once", None)
        self._pending: Cycle | None = None
        self._defaults: tuple[Headers, bytes] = ([], b"")  # of the answers, as given and in lines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        abort = self.transport.abort
        self._base: Scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "extensions": {ABORT: {"call": abort}},
        }
        self._await(self._patience)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)
        self._give_up()

    def resume_writing(self) -> None:
        super().resume_writing()
        cycle = self._answered
        if cycle is not None and cycle.audience is not None:
            cycle.audience.drained()

    def _give_up(self) -> None:
        """Nobody will hear the answer that is being given. uvicorn thinks of the last request
        alone, which may be waiting behind it."""
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.set()
            if cycle.audience is not None:
                cycle.audience.gone()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._fresh = True
        self._arrived = len(data)
        super().data_received(data)
        if self._fresh and not self._refused:
            self._received += len(data)
            if self._received > self._limit:
                self._find_too_large()
                self.send_400_response("")
        if self._pending is not None:
            self._answer(self._pending)

    def _answer(self, cycle: Cycle) -> None:
        """Have a request answered: at once, or by a task."""
        self._pending = None
        if self._refused:
            return
        # Who does not read gets no more at once: there would be no end of it.
        application: Application | None = cast(Any, self.app)
        if not (cycle.more_body or cycle.full) and self._at_once is not None:
            application = self._at_once(cycle.scope, cycle)
        if application is not None:
            self._start_asgi_task(cast(Any, cycle), cast(Any, application))

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._in_head = True
        self._received = 0
        self._await(self._patience)

    def on_body(self, body: bytes) -> None:
        self._fresh, self._received = False, 0
        cycle = self.cycle
        if self._upgrades or cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._fresh = False
        cycle = self.cycle
        if not (self._upgrades or cycle.response_complete):
            cycle.more_body = False
            cycle.message_event.set()

    def on_headers_complete(self) -> None:
        """Begin the answer, or queue it behind the one that is being given."""
        self._fresh = False
        before: Any = self.cycle  # None before the first request, whatever its type says
        free = before is None or before.response_complete
        self._upgrades = self.parser.should_upgrade() and self._should_upgrade()
        if self._upgrades:
            if not free:
                raise ValueError("an answer is on its way")  # which a socket would tear
            self._awaited, self._in_head = None, False  # what comes now is no HTTP
            self.scope = cast(Any, self._scope(self.parser.get_http_version()))
            return
        self._in_head = False
        self._awaited = None
        if self._received + self._arrived > self._limit and self._head_size() > self._limit:
            self._find_too_large()
            raise ValueError("the head is too large")  # makes the parser stop and uvicorn refuse
        version = self.parser.get_http_version()
        cycle = Cycle(
            self._scope(version),
            self.transport,
            self.flow,
            self._default_lines(),
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            expects=self.expect_100_continue,
            on_response=self.on_response_complete,
        )
        self.cycle = cast(Any, cycle)
        self.headers, self._received = [], 0  # what follows the body changes nothing that was said
        if free:
            self._answered = cycle
            if self._at_once is None or self.expect_100_continue:
                self._start_asgi_task(self.cycle, self.app)
            else:
                self._pending = cycle  # its body may be here in a moment
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._answered = cast(Any, cycle)
            self._start_asgi_task(cycle, app)
        elif not self._in_head:
            self._await(self.timeout_keep_alive)

    def _scope(self, version: str) -> Scope:
        raw = self.url
        if raw.startswith(b"/") and b"%" not in raw and b"#" not in raw:
            raw, _, query = raw.partition(b"?")
            path = raw.decode("ascii")
        else:
            # A proxy's form of it, or one with a fragment. urlsplit raises for what is neither.
            parsed = urlsplit(raw)
            raw, query = parsed.path, parsed.query
            if not raw.startswith(b"/"):
                raise ValueError("the request has no path")
            path = unquote(raw.decode("ascii"))
        scope = self._base.copy()
        scope["http_version"] = version
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = path
        scope["raw_path"] = raw
        scope["query_string"] = query
        scope["headers"] = self.headers
        scope["state"] = self.app_state.copy()
        return scope

    def _default_lines(self) -> bytes:
        """The headers that uvicorn gives every answer (the date, made anew each second)."""
        defaults = self.server_state.default_headers
        if defaults is not self._defaults[0]:
            self._defaults = defaults, b"".join([b"%b: %b\r\n" % header for header in defaults])
        return self._defaults[1]

    def send_400_response(self, msg: str) -> None:
        cycle = self._answered
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.close()  # an answer is on its way; nothing may be written into it
            return
        status, fault = self._problem or (400, bad_request(msg))
        body = wire_error.encode(fault)
        headers = [
            *MARKS,
            (b"x-request-id", new_request_id().encode()),
            JSON_TYPE,
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        self._linger()

    def _await(self, seconds: float) -> None:
        """From now on the next request, or the rest of its head, may take so many seconds.

        A timer that runs and is not too late is left alone: it looks for itself, so that requests
        in quick succession cost none each.
        """
        now = self.loop.time()
        self._awaited, self._allowed = now, seconds
        if self._timer is None or self._timer_at > now + seconds:
            self._set_timer(now + seconds)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(due, self._look_at_the_clock)
        self._timer_at = due  # uvloop's handles do not always know

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._awaited is None or self._refused or self.transport.is_closing():
            return
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Nothing may be written into an answer; it comes first.
            self._awaited = self.loop.time()
        due = self._awaited + self._allowed
        if self.loop.time() < due:
            self._set_timer(due)
        elif self._in_head:
            problem = f"The head did not come within {self._patience:g} s (read_time)."
            self._problem = 408, Fault("stalled", problem, "client")
            self.send_400_response("")
        else:
            self.transport.close()  # who does not begin to ask is owed no answer

    def _linger(self) -> None:
        """Say that this was all, and hear the other side out for a moment.

        To close at once while it is still sending would tear our answer out of its hands.
        """
        self._refused = True
        self._give_up()
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def _head_size(self) -> int:
        fields = sum(map(len, chain.from_iterable(self.headers)))
        return len(self.url) + fields + 4 * len(self.headers)

    def _find_too_large(self) -> None:
        problem = f"The head of the request is larger than {self._limit} bytes (header_limit)."
        fault = Fault("too_large", problem, "client")
        self._problem = 431, fault
