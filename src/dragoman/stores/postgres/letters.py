"""The letters of the PostgreSQL store: kept until they have arrived.

What they say, and how they are sent, is not known here.
"""

from __future__ import annotations

from dragoman.stores.record import Letter
from dragoman.stores.rows import letters_of

from .rows import PostgresRows


class PostgresLetters(PostgresRows):
    """The part of the store that is an outbox."""

    async def due(self, now: float, until: float, most: int = 20) -> tuple[Letter, ...]:
        """Take out letters whose time has come."""
        statement = """UPDATE letters SET due = $1, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM letters WHERE due <= $2 ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED)
            RETURNING id, target, body, due, attempts"""
        return letters_of(await self._write(statement, until, now, most))
