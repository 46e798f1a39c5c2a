"""Brings statements to a PostgreSQL database, any of whose connections will do.

What they say is known elsewhere, and so are the connections.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.stores.rows import Row, Rows, bound

from .database import Database


class PostgresRows(Rows):
    """The part of the store that is one statement at a time."""

    _database: Database

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._database.fetch(statement, *bound(values))

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._read(statement, *values)
