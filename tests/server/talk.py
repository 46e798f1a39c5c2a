"""A client that speaks HTTP by hand: it sends what a test gives it, in any pieces, and is strict
about how an answer is framed.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.server.stubs import PATHS, asking

PATIENCE = 60


@dataclass(frozen=True)
class Answer:
    """An answer but for its date, and whether the connection ended with it."""

    status: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    closed: bool

    def header(self, name: str) -> str:
        return dict(self.headers).get(name, "")


class Talk:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def leave(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def head(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The status line and the headers."""
        head = await self._within(self._reader.readuntil(b"\r\n\r\n"))
        status, *lines = head.decode("latin-1").split("\r\n")[:-2]
        fields = (line.partition(": ")[::2] for line in lines)
        return status, tuple((name, value) for name, value in fields if name != "date")

    async def chunk(self) -> bytes:
        """The next chunk of a body; empty at its end."""
        size = int(await self._within(self._reader.readuntil(b"\r\n")), 16)
        data = await self._within(self._reader.readexactly(size + 2))
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def chunks(self) -> bytes:
        """All of the body that is still to come."""
        pieces = []
        while piece := await self.chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def answer(self) -> Answer:
        """A whole answer."""
        status, headers = await self.head()
        fields = dict(headers)
        if fields.get("transfer-encoding") == "chunked":
            body = await self.chunks()
        else:
            body = await self._within(
                self._reader.readexactly(int(fields.get("content-length", "0")))
            )
        closed = fields.get("connection") == "close"
        if closed:
            assert await self.rest() == b""
        return Answer(status, headers, body, closed)

    async def rest(self) -> bytes:
        """What comes until the server closes the connection."""
        return await self._within(self._reader.read())

    async def _within(self, reading):
        return await asyncio.wait_for(reading, PATIENCE)


@asynccontextmanager
async def talking(port: int, *, room: int | None = None) -> AsyncIterator[Talk]:
    """A connection to a port; with `room` for so many bytes that nobody has read yet."""
    link = socket.socket()
    link.setblocking(False)
    if room is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=link, limit=room or 2**16)
    try:
        yield Talk(reader, writer)
    finally:
        writer.close()


def request(
    wire: str,
    *headers: str,
    body: bytes | None = None,
    line: str = "",
    type: str = "application/json",
    sized: bool = True,
    **fields: Any,
) -> bytes:
    """A request with an id, so that its answer shows no other."""
    data = json.dumps(asking(wire, **fields)).encode() if body is None else body
    head = [line or f"POST {PATHS[wire]} HTTP/1.1", "host: localhost", "x-request-id: r1", *headers]
    head += [f"content-type: {type}"] if type else []
    if sized:
        head.append(f"content-length: {len(data)}")
    else:
        head.append("transfer-encoding: chunked")
        data = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
    return "\r\n".join((*head, "", "")).encode("latin-1") + data
