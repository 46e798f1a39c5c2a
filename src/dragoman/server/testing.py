"""Runs the server in process: an engine behind the official SDK without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from msgspec.structs import replace

from dragoman.client.client import LOOP, iterated
from dragoman.core.interfaces import Engine
from dragoman.stores.memory import MemoryStore
from dragoman.voice.studio import Studio

from .app import App
from .asgi import Message, Scope
from .settings import Settings
from .state.service import Memory

try:
    import httpx2
except ImportError as missing:
    raise ImportError(
        "An in-process transport needs httpx2, which comes with the SDK: pip install openai"
    ) from missing


AHEAD = 16
"""Pieces of an answer the server may be ahead of its reader."""


def transport(engine: Engine, settings: Settings | None = None) -> Transport:
    """A transport that answers from `engine`, for `httpx2.AsyncClient` and `httpx2.Client`.

    Responses are stored until the process ends, unless the settings have `store="none"`. Closing
    the client cancels running answers; it does not close the engine.

        client = AsyncOpenAI(
            base_url="http://dragoman/v1",
            api_key="none",
            http_client=httpx2.AsyncClient(transport=transport(engine)),
        )
    """
    # No browser can connect, and no client has a key of the environment.
    anything_goes = replace(settings or Settings(), allowed_hosts=("*",), api_key_env=())
    memory = None
    if anything_goes.store != "none":
        memory = Memory(MemoryStore(), anything_goes, upkeep=False)
    return Transport(App(engine, anything_goes, memory, studio=Studio(None, None)))


class Transport(httpx2.AsyncBaseTransport, httpx2.BaseTransport):
    """Requests to an application in this process: in the running event loop where there is one, or
    else in that of the synchronous client."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        _check(request)
        return await _Call(self._app, request, await request.aread()).answered()

    async def aclose(self) -> None:
        await self._app.drain(0)
        await self._app.rest()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        _check(request)
        return LOOP.run(_Call(self._app, request, request.read()).answered)

    def close(self) -> None:
        LOOP.run(self.aclose)


def _check(request: object) -> None:
    """Raises TypeError for a request of httpx, whose clients take this transport, too."""
    if not isinstance(request, httpx2.Request):
        kind = f"{type(request).__module__}.{type(request).__qualname__}"
        raise TypeError(f"this transport is for a client of httpx2, and was given a {kind}")


class _Call(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """One request, and the streamed body of its response."""

    def __init__(self, app: App, request: httpx2.Request, body: bytes) -> None:
        self._app = app
        self._request = request
        self._body: bytes | None = body
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(AHEAD)
        self._patience = request.extensions.get("timeout", {}).get("read")
        self._left = asyncio.Event()
        self._task: asyncio.Task[None]

    async def answered(self) -> httpx2.Response:
        """Send the request and wait for the status. If cancelled, it cancels the request."""
        self._task = asyncio.create_task(self._app(self._scope(), self._receive, self._send))
        self._task.add_done_callback(lambda _: self._messages.put_nowait(None))
        try:
            start = await self._next()
        except BaseException:
            await self.aclose()
            raise
        return httpx2.Response(start["status"], headers=start["headers"], stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._next()
            more = message["more_body"]
            if message["body"]:
                yield message["body"]

    async def aclose(self) -> None:
        """Disconnect, and wait until the server has cancelled the work."""
        self._left.set()
        await self._task

    def __iter__(self) -> Iterator[bytes]:
        return iterated(aiter(self))

    def close(self) -> None:
        LOOP.run(self.aclose)

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(self._patience):
                message = await self._messages.get()
        except TimeoutError:
            raise httpx2.ReadTimeout("No answer in time.", request=self._request) from None
        if message is None:
            raise httpx2.RemoteProtocolError("The answer broke off.", request=self._request)
        self._room.release()
        return message

    def _scope(self) -> Scope:
        url = self._request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path,
            "query_string": url.query,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._room.acquire()
        self._messages.put_nowait(message)
