"""An engine that does what a test tells it, and a server around one, as its tests need them.

The stub remembers what it was asked and when it was cancelled. It plays cues: an event is yielded,
a number is slept, an `asyncio.Event` is awaited, an exception is raised.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import (
    Delta,
    Event,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Started,
)
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import Message, Text
from dragoman.core.request import Request
from dragoman.server.app import App
from dragoman.server.host import Server, bind
from dragoman.server.settings import Settings
from dragoman.wire.registry import BASE, WIRES

STARTED = Started("abc", 1_700_000_000, "stub")
OPENING = (
    STARTED,
    ItemAdded(0, Message("assistant", (), id="msg_0", status="in_progress")),
    PartAdded(0, 0, Text("")),
)
FINISHED = Finished("completed", completed_at=1_700_000_001)


def word(text: str) -> Delta:
    """A piece of the one message."""
    return Delta(0, 0, "text", text)


def closing(text: str) -> tuple[Event, ...]:
    """The end of the one message, whole."""
    message = Message("assistant", (Text(text),), id="msg_0", status="completed")
    return PartDone(0, 0, Text(text)), ItemDone(0, message), FINISHED


def saying(*words: str) -> tuple[Event, ...]:
    """A whole answer of one message."""
    return (*OPENING, *map(word, words), *closing("".join(words)))


class Stub:
    """Plays the same cues for every request."""

    def __init__(self, *cues: Any, models: Iterable[str] = ("stub",)) -> None:
        self.cues = cues or saying("Hello", ", world")
        self.names = tuple(models)
        self.asked: list[tuple[Request, Caller]] = []
        self.running = 0
        self.said = 0  # events that were taken
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ended = asyncio.Event()
        self.closed = False

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        self.asked.append((request, caller))
        self.running += 1
        self.begun.set()
        try:
            for cue in self.cues:
                match cue:
                    case int() | float():
                        await asyncio.sleep(cue)
                    case asyncio.Event():
                        await cue.wait()
                    case Fault():
                        raise FaultError(cue)
                    case Exception():
                        raise cue
                    case _:
                        yield cue
                        self.said += 1
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
            self.ended.set()

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        return tuple(Model(name) for name in self.names)

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities()

    async def close(self) -> None:
        self.closed = True


# ---- requests ------------------------------------------------------------------------------

PATHS = {wire.name: BASE + wire.path for wire in WIRES.values() if wire.conversation}
"""The path of each wire of conversations."""


def asking(wire: str = "chat", **fields: Any) -> dict[str, Any]:
    """The body of a request over one of the wires."""
    if wire == "responses":
        return {"model": "stub", "input": "Hi", **fields}
    limit = {"max_tokens": 100} if wire == "messages" else {}
    said = {"role": "user", "content": "Hi"}
    return {"model": "stub", "messages": [said], **limit, **fields}


def post(
    port: int,
    body: Any,
    path: str = PATHS["chat"],
    headers: Iterable[str] = ("content-type: application/json",),
) -> bytes:
    """The bytes of a POST request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"content-length: {len(data)}"]
    return "\r\n".join((*lines, *headers, "", "")).encode() + data


# ---- without a socket ----------------------------------------------------------------------


class Call:
    """One request to the application, spoken to in ASGI itself. Every send is kept as it came."""

    def __init__(
        self,
        app: App,
        path: str = PATHS["chat"],
        body: Any = None,
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": "localhost", "content-type": "application/json", **(headers or {})}
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in given.items() if v],
        }
        self._app = app
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": data, "more_body": False})
        self.extensions: dict[str, Any] = {}
        self.sent: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()

    async def __call__(self) -> Call:
        scope = {**self._scope, "extensions": self.extensions}
        await self._app(scope, self._inbox.get, self.send)
        return self

    def unread(self) -> None:
        """Let nothing of the body arrive, ever."""
        self._inbox.get_nowait()

    def arrive(self, data: bytes, *, more: bool = True) -> None:
        """Let a piece of the body arrive."""
        self._inbox.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def hang_up(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        self.sent.append(message)
        self.arrived.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be sent that makes this true."""
        while not condition():
            self.arrived.clear()
            await self.arrived.wait()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode("latin-1") for k, v in self.sent[0]["headers"]}

    @property
    def writes(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """What an error is: its code, or its type on a wire whose errors have no codes."""
        error = self.json["error"]
        return error["type"] if self.json.get("type") == "error" else error["code"]

    @property
    def whole(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


# ---- with one ------------------------------------------------------------------------------


@asynccontextmanager
async def served(app: App, settings: Settings | None = None) -> AsyncIterator[int]:
    """The application behind a real port, which is given."""
    async with hosted(app, settings or Settings()) as (_, port):
        yield port


@asynccontextmanager
async def hosted(app: App, settings: Settings) -> AsyncIterator[tuple[Server, int]]:
    """The same, with the server."""
    listener = bind(Settings(port=0), exact=True)
    ready = asyncio.Event()
    server = Server(app, settings, ready.set)
    task = asyncio.create_task(server.serve([listener]))
    await ready.wait()
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


class Received(asyncio.Protocol):
    """What comes until a connection ends, a reset too, before which there may be an answer."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Send and read until the server closes."""
    loop = asyncio.get_running_loop()
    transport, received = await loop.create_connection(Received, "127.0.0.1", port)
    try:
        for piece in pieces:
            transport.write(piece)
            await asyncio.sleep(0.01)
        await asyncio.wait_for(received.ended.wait(), 30)
        return received.data
    finally:
        transport.close()
