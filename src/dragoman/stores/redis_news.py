"""News by a Redis stream: for databases whose servers have much to tell each other.

The stream holds names and nothing of what was said, and is cut to the latest. Without Redis nothing
is lost: who waits looks again after a while. Importing this needs redis (the extra `redis`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from .news import News
from .store import StoreError

STREAM = "dragoman:news"
LATEST = 10_000
"""Names the stream holds, about."""
BLOCK = 5.0
"""Seconds the reader waits at Redis at a time."""
AGAIN = 1.0
"""Seconds until Redis is tried again after a failure."""

_TROUBLE = (RedisError, OSError, TimeoutError)


class RedisNews(News):
    """News on one stream. `address` is `redis://host:port/number`; its password is `password`.

    Raises StoreError for an address that is none.
    """

    def __init__(self, address: str, password: str | None = None) -> None:
        super().__init__()
        try:
            self._redis = Redis.from_url(address, password=password, socket_timeout=2 * BLOCK)
        except ValueError:
            raise StoreError("The address of Redis is no URL such as redis://HOST:6379.") from None
        self._reader: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._closed = False

    async def publish(self, names: Sequence[str]) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.xadd(STREAM, {"name": name}, maxlen=LATEST, approximate=True)
                await pipeline.execute()
        except _TROUBLE as error:
            raise StoreError(f"Redis failed: {type(error).__name__}.") from None

    async def listen(self) -> None:
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read())
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN):
                await self._listening.wait()

    async def close(self) -> None:
        """Tell what is still to be told, and let go."""
        await super().close()
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()
        await self._redis.aclose()  # a reader whose cancellation the client swallowed ends by this
        if self._reader is not None:
            with suppress(asyncio.CancelledError):
                await self._reader

    async def _read(self) -> None:
        place: bytes | None = None  # the last entry that was read; a cut connection loses none
        while not self._closed:
            try:
                place = await self._last() if place is None else await self._next(place)
                self._listening.set()
            except _TROUBLE:
                await asyncio.sleep(AGAIN)

    async def _last(self) -> bytes:
        entries = await self._redis.xrevrange(STREAM, count=1)
        return _id(entries[0]) if entries else b"0"

    async def _next(self, place: bytes) -> bytes:
        found: Any = await self._redis.xread({STREAM: place}, block=int(BLOCK * 1_000))
        for entries in _entries(found):
            for entry in entries:
                self.heard(entry[1][b"name"].decode())
                place = _id(entry)
        return place


def _id(entry: Any) -> bytes:
    id: bytes = entry[0]
    return id


def _entries(found: Any) -> list[Any]:
    """The entries of each stream, in either protocol of Redis."""
    if isinstance(found, Mapping):
        return [batch for batches in found.values() for batch in batches]
    return [entries for _, entries in found or ()]
