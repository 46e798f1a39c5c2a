"""Brings statements to a SQLite file: some to those who read, some to the one who writes.

What the statements say is known elsewhere, and so are the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from dragoman.stores.rows import Row, Rows, bound

from .threads import Readers, Writer


class SqliteRows(Rows):
    """The part of the store that is one statement at a time."""

    _writer: Writer
    _readers: Readers

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._readers.run(lambda connection: rows(connection, statement, *values))

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._writer.run(lambda connection: rows(connection, statement, *values))


def rows(connection: Connection, statement: str, *values: object) -> list[Row]:
    """The rows that a statement gives; its values are called `$1`, `$2` … in it."""
    named = {str(number): value for number, value in enumerate(bound(values), 1)}
    return connection.execute(statement, named).fetchall()
