"""The other side in the tests of net: a raw server that writes exactly the bytes it is told.

It reads as much of a request as it needs to find its end and knows no more of HTTP.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable

Serve = Callable[["Line"], Awaitable[None]]


class Line:
    """One accepted connection."""

    def __init__(self, peer: "Peer", reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.peer = peer
        self.reader = reader
        self.writer = writer
        self.number = peer.accepted

    async def request(self) -> bytes:
        """The next request, head and body; ends the connection if there is none."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        self.peer.requests.append(head + body)
        self.peer.asked.set()
        return head + body

    async def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def wait_closed_by_client(self) -> None:
        await self.reader.read()

    def reset(self) -> None:
        self.writer.transport.abort()


class Peer:
    """`async with Peer(serve) as peer`: `serve` plays one connection, which is then closed.

    `gone` is set when a client has closed a connection that `serve` had not ended.
    """

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"):
        self.accepted = 0
        self.open = 0
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        self.connected = asyncio.Event()
        self.gone = asyncio.Event()
        self._serve = serve
        self._tls = tls
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Peer":
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{self.port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.accepted += 1
        self.open += 1
        self.connected.set()
        try:
            await self._serve(Line(self, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self.open -= 1
            writer.close()


def answering(*answers: bytes, close: bool = True) -> Serve:
    """Answer each request of a connection with the next of `answers`, then close it or wait."""

    async def serve(line: Line) -> None:
        for answer in answers:
            await line.request()
            await line.write(answer)
        if not close:
            await line.request()

    return serve


def plain(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*chunks: bytes, trailer: str = "") -> bytes:
    """A whole answer in chunks."""
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + coded + b"0\r\n" + trailer.encode() + b"\r\n"


def tunnelling(port: int, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> Serve:
    """A proxy that answers CONNECT with `answer` and leads every tunnel to `port` here."""

    async def serve(line: Line) -> None:
        await line.request()
        await line.write(answer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        there = asyncio.create_task(_pour(line.reader, writer))
        try:
            await _pour(reader, line.writer)
        finally:
            writer.transport.abort()
            there.cancel()
            await asyncio.gather(there, return_exceptions=True)

    return serve


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
