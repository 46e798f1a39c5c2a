"""The letters of the SQLite store: kept until they have arrived.

What they say, and how they are sent, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from dragoman.stores.record import Letter

from .threads import Readers, Writer


class SqliteLetters:
    """The part of the store that is an outbox."""

    _writer: Writer
    _readers: Readers

    async def due(self, now: float, until: float, most: int = 20) -> tuple[Letter, ...]:
        """Take out letters whose time has come."""
        any_due = "SELECT 1 FROM letters WHERE due <= ? LIMIT 1"
        if not await self._readers.run(lambda db: db.execute(any_due, (now,)).fetchall()):
            return ()
        statement = """UPDATE letters SET due = ?, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM letters WHERE due <= ? ORDER BY due LIMIT ?)
            RETURNING id, target, body, due, attempts"""
        rows = await self._writer.run(
            lambda db: db.execute(statement, (until, now, most)).fetchall()
        )
        return tuple(
            Letter(id=id, target=target, body=body, due=due, attempts=attempts)
            for id, target, body, due, attempts in rows
        )

    async def settle(self, id: str, due: float | None = None) -> None:
        """Forget a letter, or have it come again."""
        if due is None:
            await self._writer.run(lambda db: db.execute("DELETE FROM letters WHERE id = ?", (id,)))
        else:
            statement = "UPDATE letters SET due = ? WHERE id = ?"
            await self._writer.run(lambda db: db.execute(statement, (due, id)))


def post(connection: Connection, letters: Sequence[Letter]) -> None:
    """Put letters into the outbox."""
    statement = "INSERT INTO letters (id, target, body, due, attempts) VALUES (?, ?, ?, ?, ?)"
    rows = ((each.id, each.target, each.body, each.due, each.attempts) for each in letters)
    connection.executemany(statement, rows)
