"""The letters of the PostgreSQL store: kept until they have arrived.

What they say, and how they are sent, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg.pool import PoolConnectionProxy as Session

from dragoman.stores.record import Letter

from .database import Database


class PostgresLetters:
    """The part of the store that is an outbox."""

    _database: Database

    async def due(self, now: float, until: float, most: int = 20) -> tuple[Letter, ...]:
        """Take out letters whose time has come."""
        statement = """UPDATE letters SET due = $1, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM letters WHERE due <= $2 ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED)
            RETURNING id, target, body, due, attempts"""
        rows = await self._database.fetch(statement, until, now, most)
        return tuple(
            Letter(id=id, target=target, body=body, due=due, attempts=attempts)
            for id, target, body, due, attempts in rows
        )

    async def settle(self, id: str, due: float | None = None) -> None:
        """Forget a letter, or have it come again."""
        if due is None:
            await self._database.fetch("DELETE FROM letters WHERE id = $1", id)
        else:
            await self._database.fetch("UPDATE letters SET due = $2 WHERE id = $1", id, due)


async def post(connection: Session, letters: Sequence[Letter]) -> None:
    """Put letters into the outbox."""
    statement = "INSERT INTO letters (id, target, body, due, attempts) VALUES ($1, $2, $3, $4, $5)"
    rows = [(each.id, each.target, each.body, each.due, each.attempts) for each in letters]
    await connection.executemany(statement, rows)
