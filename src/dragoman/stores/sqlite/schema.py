"""The tables of the SQLite store, as numbered steps from nothing to now.

A file remembers how many of them it has taken. A step that was published is never changed; what
shall be different is a new step.
"""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection

from dragoman.stores.store import StoreError

from .trouble import ELSE

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        wire TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        status TEXT NOT NULL,
        running INTEGER NOT NULL,
        previous TEXT,
        conversation TEXT,
        owner TEXT NOT NULL,
        lease REAL NOT NULL,
        cancelling INTEGER NOT NULL DEFAULT 0,
        length INTEGER NOT NULL DEFAULT 0,
        record BLOB NOT NULL,
        response BLOB,
        metadata BLOB
    );
    CREATE INDEX responses_by_time ON responses (tenant, created_at, id);
    CREATE INDEX responses_by_age ON responses (created_at);
    CREATE INDEX responses_running ON responses (lease) WHERE running;
    CREATE TABLE stretches (
        id TEXT NOT NULL,
        first INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        events BLOB NOT NULL,
        PRIMARY KEY (id, first)
    ) WITHOUT ROWID;
    CREATE INDEX stretches_by_age ON stretches (created_at);
    CREATE TABLE homes (
        tenant TEXT NOT NULL,
        item TEXT NOT NULL,
        response TEXT NOT NULL,
        PRIMARY KEY (tenant, item, response)
    ) WITHOUT ROWID;
    CREATE INDEX homes_by_response ON homes (response);
    CREATE TABLE conversations (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        conversation BLOB NOT NULL
    );
    CREATE TABLE items (
        conversation TEXT NOT NULL,
        place INTEGER NOT NULL,
        id TEXT NOT NULL,
        item BLOB NOT NULL,
        PRIMARY KEY (conversation, place),
        UNIQUE (conversation, id)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE letters (
        id TEXT PRIMARY KEY,
        target TEXT NOT NULL,
        body BLOB NOT NULL,
        due REAL NOT NULL,
        attempts INTEGER NOT NULL
    );
    CREATE INDEX letters_by_time ON letters (due)
    """,
    """
    ALTER TABLE responses ADD COLUMN model TEXT;
    CREATE TABLE calls (
        tenant TEXT NOT NULL,
        call TEXT NOT NULL,
        response TEXT NOT NULL,
        PRIMARY KEY (tenant, call)
    ) WITHOUT ROWID;
    CREATE INDEX calls_by_response ON calls (response)
    """,
)


def migrate(connection: Connection, path: Path) -> None:
    """Take the steps a file has not taken. Raises StoreError for a file of a later version."""
    connection.execute("BEGIN IMMEDIATE")
    (taken,) = connection.execute("PRAGMA user_version").fetchone()
    if taken > len(STEPS):
        connection.execute("ROLLBACK")
        raise StoreError(
            f"The store {path} was written by a later Dragoman (step {taken}, known are "
            f"{len(STEPS)}). Run that version, {ELSE}"
        )
    for step in STEPS[taken:]:
        for statement in step.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(STEPS)}")
    connection.execute("COMMIT")
