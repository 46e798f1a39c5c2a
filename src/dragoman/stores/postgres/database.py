"""The way into a PostgreSQL database: a few connections that ask, one that listens.

It connects when it is first needed, and says what goes wrong in the words of `trouble`, which give
no password away. Of what is asked it knows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy as Session

from dragoman.stores.store import StoreError

from .address import place_of
from .schema import migrate
from .trouble import TROUBLE, failed, unopened

CONNECTIONS = 10
"""Connections that ask, at the most; one more listens."""
PATIENCE = 10.0
"""Seconds a connection may take to be made."""
COMMAND = 60.0
"""Seconds a statement may take."""


class Database:
    """A database, or the schema of it that is ours. Used by one event loop."""

    def __init__(self, address: str, schema: str) -> None:
        self._address = address
        self.schema = schema
        self._place = place_of(address)
        self._opening = asyncio.Lock()
        self._pool: asyncpg.Pool | None = None
        self._ear: asyncpg.Connection | None = None

    # ---- asking --------------------------------------------------------------------------

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """The rows a statement gives. Raises StoreError."""
        pool = await self.opened()
        with self._trouble_told():
            found: list[Any] = await pool.fetch(statement, *values)
            return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """A connection, all of whose statements count or none. Raises StoreError."""
        pool = await self.opened()
        with self._trouble_told():
            async with pool.acquire() as connection, connection.transaction():
                yield connection

    async def close(self) -> None:
        """Let go of all connections."""
        for held in (self._ear, self._pool):
            if held is not None:
                held.terminate()
        self._ear = self._pool = None

    async def opened(self) -> asyncpg.Pool:
        """The connections, once the tables are there. Raises StoreError, which says what to do."""
        async with self._opening:
            if self._pool is None:
                with self._trouble_told(unopened):
                    await self._migrate()
                    self._pool = await asyncpg.create_pool(
                        self._address, min_size=1, max_size=CONNECTIONS, **self._options()
                    )
            return self._pool

    async def _migrate(self) -> None:
        connection = await asyncpg.connect(self._address, **self._options())
        try:
            await migrate(connection, self.schema, self._place)
        finally:
            connection.terminate()

    def _options(self) -> dict[str, Any]:
        return {
            "timeout": PATIENCE,
            "command_timeout": COMMAND,
            "server_settings": {"search_path": self.schema, "application_name": "dragoman"},
        }

    @contextmanager
    def _trouble_told(
        self, told: Callable[[str, BaseException], StoreError] = failed
    ) -> Iterator[None]:
        try:
            yield
        except TROUBLE as error:
            raise told(self._place, error) from None

    # ---- hearing -------------------------------------------------------------------------

    async def listen(self, heard: Callable[..., None]) -> None:
        """See that notices on the channel called as the schema are heard. Raises StoreError."""
        async with self._opening:
            if self._ear is None or self._ear.is_closed():
                with self._trouble_told():
                    ear = await asyncpg.connect(self._address, **self._options())
                    await ear.add_listener(self.schema, heard)
                    self._ear = ear
