"""The HTTP side of a connection: uvicorn's, bounded where it is not, and refusing in our words.

The head of a request has a limit of size and of time, bad HTTP is answered with an error object,
and the application may drop a connection. Everything else is uvicorn's own.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from dragoman.core.error import Fault, bad_request
from dragoman.wire import error as wire_error

from .exchange import ABORT, JSON_TYPE, MARKS, new_request_id

LINGER = 1.0
"""Seconds a refused client has to take the refusal."""


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
        self._awaited: float | None = None  # since when a head is; None while none is
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._fresh = True  # whether nothing but a head has come since data was last received
        self._received = 0  # bytes that were all head
        self._refused = False
        self._problem: tuple[int, Fault] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._cork = _Corked(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, self._cork))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._cork.flush()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._fresh = True
        super().data_received(data)
        if self._in_head and self._fresh and not self._refused:
            self._received += len(data)
            if self._received > self._limit:
                self._find_too_large()
                self.send_400_response("")
        if self.timeout_keep_alive_task is None and not self._in_head and self._answered():
            # What came belongs to no request: no reason to keep the connection any longer.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}
        self._in_head = True
        self._received = 0
        self._await_head()

    def on_message_complete(self) -> None:
        self._fresh = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._awaited = None
        fields = sum(map(len, chain.from_iterable(self.headers)))
        if len(self.url) + fields + 4 * len(self.headers) > self._limit:
            self._find_too_large()
            raise ValueError("the head is too large")  # makes the parser stop and uvicorn refuse
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        cycle: Any = self.cycle  # None before the first request, whatever its type says
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

    def _await_head(self) -> None:
        """From now on a head may take `read_time` seconds.

        A timer that runs is left alone: it looks for itself, so that requests in quick succession
        cost none each.
        """
        self._awaited = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self._patience, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._awaited is None or self._refused or self.transport.is_closing():
            return
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._awaited = (
                self.loop.time()
            )  # nothing may be written into an answer; it comes first
        due = self._awaited + self._patience
        if self.loop.time() < due:
            self._timer = self.loop.call_at(due, self._look_at_the_clock)
        elif self._in_head:
            problem = f"The head did not come within {self._patience:g} s (read_time)."
            self._problem = 408, Fault("stalled", problem, "client")
            self.send_400_response("")
        else:
            self.transport.close()  # who never began to ask is owed no answer

    def _answered(self) -> bool:
        """Whether there was a request, and the last one has its whole answer."""
        cycle: Any = self.cycle
        return cycle is not None and cycle.response_complete

    def _linger(self) -> None:
        """Say that this was all, and hear the other side out for a moment.

        To close at once while it is still sending would tear our answer out of its hands.
        """
        self._refused = True
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def _find_too_large(self) -> None:
        problem = f"The head of the request is larger than {self._limit} bytes (header_limit)."
        fault = Fault("too_large", problem, "client")
        self._problem = 431, fault


class _Corked:
    """A transport that keeps the head of an answer until the first of the body comes, and writes
    both at once: a system call is the dearest thing in a short answer. All else it hands on.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write, a head together with what follows it."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n") and data[9:10] != b"1":
            self._head = data  # and nothing else; not a 100-continue, which the client waits for
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Write a head that nothing followed."""
        if self._head:
            data, self._head = self._head, b""
            self._transport.write(data)

    def close(self) -> None:
        """Close, when all is written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
