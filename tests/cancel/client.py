"""A client of the whole server over a socket of its own, which disconnects when it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

from tests.cancel.phases import Phase
from tests.mock import Mock
from tests.server.stubs import PATHS, asking


async def ask(
    port: int, protocol: str, *, stream: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a socket of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(asking(protocol, stream=stream)).encode()
    lines = [
        f"POST {PATHS[protocol]} HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    return reader, writer


async def enter(port: int, protocol: str, phase: Phase, up: Mock) -> asyncio.StreamWriter:
    """A client that has asked, once it is in its phase."""
    up.forget()
    reader, writer = await ask(port, protocol, stream=phase.streamed)
    await up.arrived.wait()
    if phase.heard:
        await reader.readuntil(b"Hello")
    return writer


def leave(writer: asyncio.StreamWriter, how: str) -> float:
    """Close the client's socket; return when, by the clock of the loop."""
    if how == "reset":
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return asyncio.get_running_loop().time()
