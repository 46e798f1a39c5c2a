"""What the SQLite store throws away, a little at a time: whoever waits to write meanwhile waits for
a part of it and not for all. What is too old, and how much is too much, the store was told."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from dragoman.stores.keeping import Keeping

SOME = 250
"""Responses whose rows go in one step."""


def forget(connection: Connection, ids: Sequence[str]) -> None:
    """Drop responses, their logs, and where their items and calls are found."""
    each = [(id,) for id in ids]
    connection.executemany("DELETE FROM responses WHERE id = ?", each)
    connection.executemany("DELETE FROM stretches WHERE id = ?", each)
    connection.executemany("DELETE FROM homes WHERE response = ?", each)
    connection.executemany("DELETE FROM calls WHERE response = ?", each)


def sweep_responses(connection: Connection, keeping: Keeping, now: float) -> int:
    """Forget some of the responses that are too old or too many, the oldest first; how many."""
    rows = connection.execute(
        """SELECT id FROM (SELECT id, created_at FROM responses WHERE NOT running
                ORDER BY created_at, rowid LIMIT :some)
            WHERE created_at < :old
        UNION
        SELECT id FROM (SELECT id FROM responses WHERE NOT running ORDER BY created_at, rowid
            LIMIT min(:some, max(0, (SELECT count(*) FROM responses) - :most)))""",
        {"some": SOME, "old": now - keeping.retention, "most": keeping.responses},
    )
    ids = [id for (id,) in rows]
    forget(connection, ids)
    return len(ids)


def sweep_logs(connection: Connection, keeping: Keeping, now: float) -> int:
    """Forget some of the logs that are too old; of how many responses."""
    rows = connection.execute(
        """SELECT DISTINCT id FROM stretches WHERE created_at < ? AND id NOT IN (
            SELECT id FROM responses WHERE running) LIMIT ?""",
        (now - keeping.log_retention, SOME),
    )
    ids = [(id,) for (id,) in rows]
    connection.executemany("DELETE FROM stretches WHERE id = ?", ids)
    return len(ids)


def sweep_rest(connection: Connection, keeping: Keeping, now: float) -> None:
    """Forget the conversations and the letters that are too old."""
    old = (now - keeping.retention,)
    connection.execute("DELETE FROM conversations WHERE created_at < ?", old)
    connection.execute("DELETE FROM letters WHERE due < ?", old)
    connection.execute("DELETE FROM items WHERE conversation NOT IN (SELECT id FROM conversations)")
