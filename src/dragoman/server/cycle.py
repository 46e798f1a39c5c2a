"""One request on a connection and the way back to its client, in the words of ASGI.

It frames what the application sends: the head goes out together with the first of the body, in
one write, as a system call is the dearest thing in a short answer. It knows neither the
application nor the parser; the connection tells it what has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from .asgi import Application, Audience, Headers, Message, Scope

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
