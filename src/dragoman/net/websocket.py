"""Opens WebSockets to other servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from .dial import reason
from .errors import ConnectError, DisconnectedError, InvalidUrlError, RemoteProtocolError
from .url import Proxies, parse_url

STEP = 64 * 1024
"""Bytes that are parsed before others have their turn."""
READS = 32
"""Reads of the parser before that: a frame takes two or three, and may have two bytes."""
PONG = b"\x8a"
"""How an answer to a ping begins."""
LONG = 1024 * 1024
"""Bytes of a text that are sent in one frame, which is copied twice."""
CLOSE_TIMEOUT = 10.0
"""Seconds for the close handshake and what was sent before it; then the connection is aborted."""
_AS_IT_IS = " !\"$%&'()*+,:;<=>@\\^`{|}~"
"""Characters of a proxy's credentials that are not encoded."""


class RefusedError(RemoteProtocolError):
    """The server answered the handshake with a `status` and a `body`."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server refused the WebSocket with {status}")
        self.status = status
        self.body = body


class WebSocket(Protocol):
    """One connection, of whole messages."""

    async def send_text(self, data: bytes) -> None:
        """Send a text, which is UTF-8. Returns when the connection takes more."""
        ...

    async def receive(self) -> bytes:
        """The next message, which should be UTF-8."""
        ...

    async def close(self) -> None:
        """Close with the handshake, or without it where the other side reads nothing."""
        ...


CLOSED = ConnectionClosed
"""What `send_text` and `receive` raise once either side has closed the connection."""


class _Connection(ClientConnection):
    """A connection that parses what has come a little at a time, and that answers the latest ping
    alone of a side that does not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pending, self._full, self._pong = bytearray(), False, b""
        reader = self.protocol.reader
        self._read, self._left = reader.read_exact, READS
        cast(Any, reader).read_exact = self._read_a_few
        self._over = False  # the other side has ended it
        self._ended: tuple[Exception | None] | None = None  # `connection_lost`, not told yet
        super().connection_made(transport)
        self.recv_messages.pause, self.recv_messages.resume = self._stop, self._go_on

    async def send_text(self, data: bytes) -> None:
        if len(data) <= LONG:
            await self.send(data, text=True)
        else:
            await self.send(_frames(memoryview(data)), text=True)

    async def receive(self) -> bytes:
        first, text = b"", bytearray()
        async for piece in self.recv_streaming(decode=False):  # `recv` would keep all fragments
            if not first:
                first = piece
            else:
                text = text or bytearray(first)
                text += piece
        data = bytes(text) or first
        if len(data) > LONG:
            await asyncio.sleep(0)  # it was put together in one piece
        return data

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close with the handshake, or without it where the other side reads nothing."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):  # that of websockets begins later
                    await super().close(code, reason)
        finally:
            self._pending.clear()
            self.protocol.reader.discard()
            self._left = READS
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        begins = not self._is_behind()
        self._pending += data
        if begins:
            self._parse()

    def eof_received(self) -> None:
        if self._is_behind():  # over TLS the end comes with the last read
            self._over = True
        else:
            super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if not hasattr(self, "transport"):
            return  # TLS through a proxy has failed, before `connection_made`
        if self._is_behind():
            self._over, self._ended = True, (exc,)
        else:
            super().connection_lost(exc)

    def send_data(self) -> None:
        if self._over:
            return
        if self.paused:  # it is enough to answer the latest of several pings (RFC 6455, 5.5.3)
            writes = self.protocol.data_to_send()
            self.protocol.writes = [each for each in writes if each[:1] != PONG]
            self._pong = ([each for each in writes if each[:1] == PONG] or [self._pong])[-1]
        super().send_data()

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._pong = self._pong, b""
        self.transport.write(pong)

    def _is_behind(self) -> bool:
        """Whether something was received that is not parsed yet."""
        return self._left <= 0 or bool(self._pending)

    def _read_a_few(self, size: int) -> Generator[None, None, bytearray]:
        while self._left <= 0:
            yield
        self._left -= 1
        return (yield from self._read(size))

    def _parse(self) -> None:
        # what was given before is parsed first
        data = bytes(self._pending[:STEP]) if self._left > 0 else b""
        del self._pending[: len(data)]
        self._left = READS
        super().data_received(data)
        if self.protocol.handshake_exc is not None:
            self.transport.abort()  # what comes would be read and dropped until the time is up
            self._pending.clear()
            self._left = READS
        if self._is_behind():
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        elif self._ended is not None:
            super().connection_lost(*self._ended)
        elif not (self._full or self.transport.is_closing()):
            self.transport.resume_reading()

    def _stop(self) -> None:
        self._full = True
        self.transport.pause_reading()

    def _go_on(self) -> None:
        self._full = False
        if not self._is_behind():
            self.transport.resume_reading()


async def _frames(data: memoryview) -> AsyncIterator[memoryview]:
    """A long text for several frames: others have their turn between two."""
    for at in range(0, len(data), LONG):
        yield data[at : at + LONG]
        await asyncio.sleep(0)


class _Connect(connect):
    """Opens one, and follows no redirects: the address is that of the configuration."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """The error as it is."""
        return exc


def _proxy(url: str) -> str | None:
    """The proxy for a WebSocket, as for requests to the same host: websockets by itself would ask
    one for this machine, too. Raises InvalidUrlError."""
    if not url.startswith(("ws://", "wss://")):
        return None
    proxy = Proxies.from_environ(os.environ).choose(parse_url(f"http{url[2:]}".partition("?")[0]))
    if proxy is None:
        return None
    # websockets decodes nothing: what would end the name of the host is all that is encoded
    login = "" if proxy.credentials is None else quote(proxy.credentials, safe=_AS_IT_IS) + "@"
    return f"{proxy.scheme}://{login}{proxy.endpoint}"


async def open_websocket(
    url: str,
    headers: Mapping[str, str],
    subprotocols: Sequence[str] = (),
    *,
    within: float,
    max_size: int,
) -> WebSocket:
    """Connect, within so many seconds. Raises NetError, without the URL, which may have a key in
    it: RefusedError where the server says why."""
    try:
        connection = await _Connect(
            url,
            additional_headers=dict(headers),
            subprotocols=[Subprotocol(each) for each in subprotocols] or None,
            open_timeout=within,
            max_size=max_size,
            compression=None,
            proxy=_proxy(url),
            create_connection=_Connection,
        )
        return cast(_Connection, connection)
    except InvalidURI as error:
        raise InvalidUrlError("the URL is no WebSocket address") from error
    except InvalidStatus as error:
        raise RefusedError(error.response.status_code, bytes(error.response.body or b"")) from error
    except InvalidHandshake as error:
        raise RemoteProtocolError(f"the handshake failed: {error}") from error
    except ConnectionClosed as error:
        message = "the server closed the connection in the handshake"
        raise DisconnectedError(message, before_first_byte=True, reused=False) from error
    except (OSError, TimeoutError) as error:
        raise ConnectError(f"cannot connect: {reason(error)}") from error
