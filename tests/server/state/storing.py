"""A server with a memory around a stub engine, asked without a socket, and by the official SDK."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
from msgspec.structs import replace

from dragoman.core.interfaces import Engine
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.server.state.webhooks import Webhooks
from dragoman.server.testing import Transport
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from dragoman.tools.run import Hosted
from tests.server.stubs import Call

PATH = "/v1/responses"
BOUND = 10.0
SETTINGS = Settings(allowed_hosts=("*",))


@dataclass
class Server:
    """An application, what it remembers, and an SDK client of it."""

    app: App
    memory: Memory
    sdk: openai.AsyncOpenAI

    async def ask(self, **fields: Any) -> Call:
        """Ask for a response."""
        return await self.begin(**fields)()

    def begin(self, **fields: Any) -> Call:
        """The same, which is to be awaited."""
        return Call(self.app, PATH, {"model": "stub", "input": "Hi", **fields})

    async def get(self, path: str, method: str = "GET", body: Any = None) -> Call:
        """Ask something about what is stored."""
        return await self.reading(path, method, body)()

    def reading(self, path: str, method: str = "GET", body: Any = None) -> Call:
        """The same, which is to be awaited."""
        path, _, query = path.partition("?")
        call = Call(self.app, PATH + path, body, method=method)
        call._scope["query_string"] = query.encode()
        return call


def opened(kind: str, folder: Path) -> Store:
    """A new store, or for SQLite the one that this folder has."""
    return MemoryStore() if kind == "memory" else SqliteStore(folder / "store.db")


@asynccontextmanager
async def storing(
    engine: Engine,
    store: Store | None = None,
    *,
    upkeep: bool = True,
    webhooks: Webhooks | None = None,
    tools: Sequence[Hosted] = (),
    **options: Any,
) -> AsyncIterator[Server]:
    """A server that remembers, to the end of the block."""
    settings = replace(SETTINGS, **options)
    memory = Memory(store or MemoryStore(), settings, upkeep=upkeep, webhooks=webhooks)
    app = App(engine, settings, memory, tools)
    transport = httpx2.AsyncClient(transport=Transport(app))
    sdk = openai.AsyncOpenAI(
        base_url="http://dragoman.test/v1", api_key="none", http_client=transport, max_retries=0
    )
    try:
        yield Server(app, memory, sdk)
    finally:
        await sdk.close()
        await app.close()


async def all_ended(server: Server) -> None:
    """Return when nothing runs."""
    async with asyncio.timeout(BOUND):
        while server.memory.runs.live:
            await asyncio.sleep(0)


def frames(data: bytes) -> list[bytes]:
    """The events of a stream, as they were written; comments are none."""
    return [frame + b"\n\n" for frame in data.split(b"\n\n") if frame and frame[:1] != b":"]


def identity(call: Call) -> str:
    """The id of the response that a stream's first event announces."""
    first = json.loads(frames(call.body)[0].split(b"data: ")[1])
    return str(first["response"]["id"])
