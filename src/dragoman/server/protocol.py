"""The HTTP side of a connection: uvicorn's, bounded where it is not, and refusing in our words.

The head of a request has a size limit, bad HTTP is answered with an error object, and the
application may drop a connection. Everything else is uvicorn's own.
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

HEADER_LIMIT = 64 * 1024
LINGER = 1.0
"""Seconds a refused client has to take the refusal."""


class HTTPProtocol(HttpToolsProtocol):
    """uvicorn's connection. Its limit for the other parser, in bytes, is kept here as well."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limit = config.h11_max_incomplete_event_size or HEADER_LIMIT
        self._in_head = False
        self._fresh = True  # whether nothing but a head has come since data was last received
        self._received = 0  # bytes that were all head
        self._refused = False
        self._problem: tuple[int, Fault] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._cork = _Corked(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, self._cork))

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

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}
        self._in_head = True
        self._received = 0

    def on_message_complete(self) -> None:
        self._fresh = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_head = False
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

    def _linger(self) -> None:
        """Say that this was all, and hear the other side out for a moment.

        To close at once while it is still sending would tear our answer out of its hands.
        """
        self._refused = True
        if self.transport.can_write_eof():
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
