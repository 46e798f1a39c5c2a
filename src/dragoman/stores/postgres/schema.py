"""The tables of the PostgreSQL store, as numbered steps from nothing to now.

The database remembers which of them it has taken, and servers that start together take them one
after the other. A step that was published is never changed; what shall be different is a new step.
"""

from __future__ import annotations

from asyncpg import Connection

from dragoman.stores.store import StoreError

LOCK = 0x6472_6167_6F6D_616E
"""The advisory lock that is held while steps are taken."""

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE responses (
        place BIGSERIAL,
        id TEXT COLLATE "C" PRIMARY KEY,
        tenant TEXT NOT NULL,
        wire TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        status TEXT NOT NULL,
        running BOOLEAN NOT NULL,
        previous TEXT,
        conversation TEXT,
        owner TEXT NOT NULL,
        lease DOUBLE PRECISION NOT NULL,
        cancelling BOOLEAN NOT NULL DEFAULT false,
        length INTEGER NOT NULL DEFAULT 0,
        record BYTEA NOT NULL,
        response BYTEA,
        metadata BYTEA
    );
    CREATE INDEX responses_by_time ON responses (tenant, created_at, id);
    CREATE INDEX responses_by_age ON responses (created_at, place);
    CREATE INDEX responses_running ON responses (lease) WHERE running;
    CREATE TABLE stretches (
        id TEXT COLLATE "C" NOT NULL REFERENCES responses ON DELETE CASCADE,
        first INTEGER NOT NULL,
        created_at BIGINT NOT NULL,
        events BYTEA NOT NULL,
        PRIMARY KEY (id, first)
    );
    CREATE INDEX stretches_by_age ON stretches (created_at);
    CREATE TABLE homes (
        tenant TEXT NOT NULL,
        item TEXT COLLATE "C" NOT NULL,
        response TEXT COLLATE "C" NOT NULL REFERENCES responses ON DELETE CASCADE,
        PRIMARY KEY (tenant, item, response)
    );
    CREATE INDEX homes_by_response ON homes (response);
    CREATE TABLE conversations (
        id TEXT COLLATE "C" PRIMARY KEY,
        tenant TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        conversation BYTEA NOT NULL
    );
    CREATE INDEX conversations_by_age ON conversations (created_at);
    CREATE TABLE items (
        conversation TEXT COLLATE "C" NOT NULL REFERENCES conversations ON DELETE CASCADE,
        place INTEGER NOT NULL,
        id TEXT COLLATE "C" NOT NULL,
        item BYTEA NOT NULL,
        PRIMARY KEY (conversation, place),
        UNIQUE (conversation, id)
    );
    """,
    """
    CREATE TABLE letters (
        id TEXT COLLATE "C" PRIMARY KEY,
        target TEXT NOT NULL,
        body BYTEA NOT NULL,
        due DOUBLE PRECISION NOT NULL,
        attempts INTEGER NOT NULL
    );
    CREATE INDEX letters_by_time ON letters (due);
    """,
    """
    ALTER TABLE responses ADD COLUMN model TEXT;
    CREATE TABLE calls (
        tenant TEXT NOT NULL,
        call TEXT COLLATE "C" NOT NULL,
        response TEXT COLLATE "C" NOT NULL REFERENCES responses ON DELETE CASCADE,
        PRIMARY KEY (tenant, call)
    );
    CREATE INDEX calls_by_response ON calls (response);
    """,
)


async def migrate(connection: Connection, schema: str, place: str) -> None:
    """Take the steps that this schema has not taken. Raises StoreError for one of a later
    version."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        await connection.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY)")
        taken = await connection.fetchval("SELECT count(*) FROM steps")
        if taken > len(STEPS):
            raise StoreError(
                f"The store at {place} was written by a later Dragoman (step {taken}, known are "
                f"{len(STEPS)}). Run that version on all servers, or name another database."
            )
        for number, step in enumerate(STEPS[taken:], taken + 1):
            await connection.execute(step)
            await connection.execute("INSERT INTO steps VALUES ($1)", number)
