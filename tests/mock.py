"""A raw HTTP server for tests: it answers with exactly the bytes it is told to, cut where told.

It parses as little of a request as it must, remembers what it was asked and stamps when the
other side went away.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    """One request as it arrived. `gone` is the time of the loop when its connection was closed.

    `connection` counts the connections the server took, from 1: two requests with the same
    number came over the same one.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    gone: asyncio.Future[float] = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """What to answer: raw bytes, in pieces, with a pause before each; then close or keep open."""

    pieces: list[bytes]
    pause: float = 0.0
    """Seconds before each piece; 0 still lets the other side read each piece by itself."""
    keep: bool = False
    """Wait for the next request on this connection."""
    hang: bool = False
    """Stay silent after the pieces until the other side goes away."""
    reset: bool = False
    """Break the connection with a reset instead of closing it."""


Handler = Callable[[Asked], Reply | Awaitable[Reply]]


class Mock:
    """The server. `asked` holds the requests that matter.

    Questions that cost nothing (a GET, or an empty object) are kept apart in `probes`, and are
    answered by `probed`: 404 unless told otherwise.
    """

    def __init__(self, handler: Handler, probed: Handler) -> None:
        self.handler = handler
        self.probed = probed
        self.asked: list[Asked] = []
        self.probes: list[Asked] = []
        self.arrived = asyncio.Event()
        self.port = 0
        self.connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def forget(self) -> None:
        """Drop what was asked so far."""
        self.asked.clear()
        self.probes.clear()
        self.arrived.clear()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection, until either side ends it."""
        if self._stopped:  # whoever came last may be taken in after the end
            writer.close()
            return
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # it may never have begun

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        gone: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        try:
            while await self._exchange(reader, writer, number, gone):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side went away, which is what `gone` is for, or the test is over
        finally:
            if not gone.done():
                gone.set_result(asyncio.get_running_loop().time())
            writer.close()

    async def stop(self) -> None:
        """End all exchanges."""
        self._stopped = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: int,
        gone: asyncio.Future[float],
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (text.partition(":") for text in lines if text)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, body, connection, gone)
        if method == "GET" or body == b"{}":
            self.probes.append(asked)
            answer = self.probed(asked)
        else:
            self.asked.append(asked)
            self.arrived.set()
            answer = self.handler(asked)
        reply = answer if isinstance(answer, Reply) else await answer
        for piece in reply.pieces:
            await asyncio.sleep(reply.pause)
            writer.write(piece)
            await writer.drain()
        if reply.hang:
            await reader.read(1)
            return False
        if reply.reset:
            await asyncio.sleep(0.01)  # what was sent is to be read first
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return reply.keep


@asynccontextmanager
async def mock(
    handler: Handler | Reply, probed: Handler | Reply | None = None, *, port: int = 0
) -> AsyncIterator[Mock]:
    """A running mock, on a free port unless one is given.

    A `Reply` in place of a handler is given to everybody.
    """
    server = Mock(_always(handler), _always(probed or NO_SUCH_PATH))
    listener = await asyncio.start_server(server.accept, "127.0.0.1", port, limit=1 << 26)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
        await listener.wait_closed()


def _always(handler: Handler | Reply) -> Handler:
    return (lambda asked: handler) if isinstance(handler, Reply) else handler


# ---- replies -------------------------------------------------------------------------------


def head(status: int = 200, *fields: str, type: str = "text/event-stream") -> bytes:
    """A response head without a length."""
    lines = [f"HTTP/1.1 {status} X", f"content-type: {type}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def plain(
    status: int,
    body: bytes | dict[str, Any],
    *fields: str,
    type: str = "application/json",
    keep: bool = True,
) -> Reply:
    """A whole answer with a length."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    return Reply(
        [head(status, f"content-length: {len(data)}", *fields, type=type) + data], keep=keep
    )


NO_SUCH_PATH = plain(404, {"error": {"message": "no such path"}})


def stream(*events: str | bytes | dict[str, Any], done: bool = True, **options: Any) -> Reply:
    """A stream of events, one piece each, ended by closing the connection."""
    pieces = [head(200, "connection: close")]
    for event in events:
        data = json.dumps(event) if isinstance(event, dict) else event
        text = data if isinstance(data, bytes) else data.encode()
        pieces.append(b"data: " + text + b"\n\n")
    if done:
        pieces.append(b"data: [DONE]\n\n")
    return Reply(pieces, **options)


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """A Chat chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "mock",
        "choices": [choice],
        **more,
    }


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A whole Chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "mock",
        "choices": [choice],
        **more,
    }


def response(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """A whole answer of the Responses protocol."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "model": "mock",
        "status": status,
        "output": list(output),
        **more,
    }


def said(text: str, id: str = "msg_1") -> dict[str, Any]:
    """A message item of the Responses protocol."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": id,
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def message(*content: dict[str, Any], stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    """A whole answer of the Messages protocol."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        **more,
    }
