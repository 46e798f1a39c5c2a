"""ASGI 3: its types, and the exchange of a request that any ASGI host gives the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dragoman.core.error import FaultError

from .cancellation import GONE, Peer
from .exchange import MARKS, Exchange, Headers, site
from .limits import Hold

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BUFFER = 64 * 1024
"""Unsent bytes from which an exchange is full (backpressure)."""
ROOM = "dragoman.room"
"""The extension of our own host's WebSockets: a `Room`."""
LISTEN_AFTER = 0.02
"""Seconds before we wait for a disconnect: quick answers need no task for it."""


class Room(Protocol):
    """Flow control of a WebSocket's messages, in both directions, of our own host."""

    hold: Hold | None
    """For what of messages has come and was not taken; none until the connection is accepted."""
    behind: bool
    """Whether something was received that is not parsed yet."""
    read_paused: bool
    """Whether there are messages that were received and not taken."""
    writable: asyncio.Event
    """Whether the client reads fast enough."""
    transport: asyncio.Transport

    def parse(self) -> None:
        """Resume reading: a message was taken."""
        ...

    def write_long(self, frame: bytes) -> None:
        """Send a long text without a copy. Raises OSError."""
        ...


def _path(scope: Scope) -> str:
    """The path below the one at which the application is mounted, which `root_path` says."""
    path: str = scope["path"]
    below = path.removeprefix(scope.get("root_path", ""))
    return below if below.startswith("/") else path


class ASGIExchange(Exchange):
    """A request of an ASGI host. Writes are buffered and sent by the host's own task."""

    def __init__(self, method: str, scope: Scope, receive: Receive, send: Send, stall: float):
        query = scope.get("query_string", b"")
        super().__init__(method, _path(scope), query, scope["headers"])
        self.marks += MARKS
        self._client = scope.get("client") or ("",)
        self._receive = receive
        self._send = send
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self._peer: Peer | None = None
        self._listening: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None
        self._start: Message | None = None  # not sent yet
        self._parts: list[bytes] = []  # not sent yet
        self._size = 0
        self._complete = False  # all of the answer was written
        self._sending = False
        self._closed = False  # nothing is sent any more
        self._wakeup: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None

    async def run(self, handler: Awaitable[None] | None) -> None:
        """Await the rest of the handler, then send until the response is complete."""
        self._task = asyncio.current_task()
        try:
            if handler is not None:
                await handler
                if self._peer is None and self._start is None:
                    return  # the client has disconnected before there was an answer
            while not self._closed:
                if self._start is None and not self._size and not self._complete:
                    self._wakeup = self._loop.create_future()
                    await self._wakeup
                elif await self._flush():
                    return
        finally:
            self._close()
            if self._peer is not None:  # the host has cancelled us
                self._peer.disconnected()

    async def _flush(self) -> bool:
        """Send the buffer; true when that completes the response."""
        messages = []
        if self._start is not None:
            messages.append(self._start)
            self._start = None
        complete = self._complete
        if self._size or complete:
            body = b"" if self.method == "HEAD" else b"".join(self._parts)
            self._parts, self._size = [], 0
            messages.append({"type": "http.response.body", "body": body, "more_body": not complete})
        self._sending = True
        try:
            async with asyncio.timeout(self._stall if complete else None):
                for message in messages:
                    await self._send(message)
        except asyncio.CancelledError:
            if not self._closed or self._task is None or self._task.uncancel():
                raise
        except OSError:  # some hosts raise it for a disconnect; or a timeout
            self._sending = False
            self._disconnected()
        self._sending = False
        if self._peer is not None:
            self._peer.drained()
        return complete

    @property
    def address(self) -> str:
        return site(self._client[0])

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly."""
        return self._sending or self._size > BUFFER

    def listen(self, peer: Peer | None) -> None:
        self._peer = peer
        if peer is None:
            return
        if self._closed:
            self._loop.call_soon(peer.disconnected)
        elif self._listening is None:
            self._listening = self._loop.call_later(LISTEN_AFTER, self._begin_to_listen)

    async def read(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise FaultError(GONE)
        return message.get("body", b""), message.get("more_body", False)

    def start(self, status: int, headers: Headers, body: bytes | None = None) -> None:
        if body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        if body is not None:
            self.write(body, more=False)

    def write(self, body: bytes, *, more: bool) -> bool:
        self._parts.append(body)
        self._size += len(body)
        if not more:
            self._complete = True
            self._peer = None
        self._wake()
        return self.full

    def drop(self) -> None:
        """End without completing the response, so that the host drops the connection."""
        self._peer = None
        self._close()
        if self._sending and self._task is not None:
            self._task.cancel()

    def _begin_to_listen(self) -> None:
        self._listener = self._loop.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected()

    def _disconnected(self) -> None:
        peer = self._peer
        self.drop()
        if peer is not None:
            peer.disconnected()

    def _close(self) -> None:
        self._closed = True
        if self._listening is not None:
            self._listening.cancel()
        if self._listener is not None and self._listener is not asyncio.current_task():
            self._listener.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
