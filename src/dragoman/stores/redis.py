"""Pub/sub through a Redis stream, for databases with many notifications between servers.

The stream holds the names of runs and no content, and is trimmed to the latest. Without Redis
nothing is lost: subscribers also poll. Importing this needs redis (the extra `redis`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from .base import PubSub, StoreError

_log = logging.getLogger("dragoman.stores")

STREAM = "dragoman:news"
"""The key of the stream; servers of earlier versions use the same one."""
MAX_LENGTH = 10_000
"""Names the stream holds, about."""
BLOCK = 5.0
"""Seconds one read waits at Redis."""
RETRY = 1.0
"""Seconds until Redis is tried again after a failure."""

_ERRORS = (RedisError, OSError, TimeoutError)


class RedisPubSub(PubSub):
    """Pub/sub on one stream. `address` is `redis://host:port/number`; its password is `password`.

    Raises StoreError for an address that is not a URL.
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
                    pipeline.xadd(STREAM, {"name": name}, maxlen=MAX_LENGTH, approximate=True)
                await pipeline.execute()
        except _ERRORS as error:
            raise StoreError(f"Redis failed: {type(error).__name__}.") from None

    async def listen(self) -> None:
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read())
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY):
                await self._listening.wait()

    async def close(self) -> None:
        """Publish the queued names, and disconnect."""
        await super().close()
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()
        await self._redis.aclose()  # redis-py may swallow the cancellation; this ends its read
        if self._reader is not None:
            with suppress(asyncio.CancelledError):
                await self._reader

    async def _read(self) -> None:
        failing = ""  # the kind of failure that was logged
        last: bytes | None = None  # reading continues after it, so a cut connection loses no entry
        while not self._closed:
            try:
                last = await self._newest() if last is None else await self._next(last)
                self._listening.set()
                if failing:
                    failing = ""
                    _log.warning("Redis answers again.")
            except Exception as error:  # also for an answer that is no stream's
                # Not its message, which may have a part of the address.
                if failing != (failing := type(error).__name__):
                    problem = "Redis cannot be used (%s): servers poll the database meanwhile."
                    _log.warning(problem, failing)
                await asyncio.sleep(RETRY)

    async def _newest(self) -> bytes:
        entries: Any = await self._redis.xrevrange(STREAM, count=1)
        newest: bytes = entries[0][0] if entries else b"0"
        return newest

    async def _next(self, last: bytes) -> bytes:
        found: Any = await self._redis.xread({STREAM: last}, block=int(BLOCK * 1_000))
        for entries in _entries(found):
            for id, fields in entries:
                self.notify(fields.get(b"name", b"").decode(errors="replace"))  # maybe another's
                last = id
        return last


def _entries(found: Any) -> list[Any]:
    """The entries of each stream, in either protocol of Redis."""
    if isinstance(found, Mapping):
        return [batch for batches in found.values() for batch in batches]
    return [entries for _, entries in found or ()]
