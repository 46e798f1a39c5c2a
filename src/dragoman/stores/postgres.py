"""The PostgreSQL store: one schema of a database, which any number of servers may share.

What must hold for several servers at once (a run ends once, an orphan goes to one of them, a log
has no gaps) is one statement or happens under the lock of a row. Importing this needs asyncpg (the
extra `postgres`).
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import asyncpg
from asyncpg import Connection, UniqueViolationError
from asyncpg.pool import PoolConnectionProxy as Session
from msgspec.structs import replace

from dragoman.core.item import Item
from dragoman.core.response import Response

from .base import (
    Conversation,
    LogSegment,
    OutboxMessage,
    PubSub,
    Record,
    Retention,
    StoreError,
    call_digests,
    renamed_id,
)
from .serialize import pack
from .sql import (
    BEGIN,
    CALL,
    COLUMNS,
    EXTEND,
    HELD,
    LAST,
    OPEN,
    POST,
    Row,
    Rows,
    bound,
    calls_of,
    clean,
    cleaned,
    messages_of,
    record_of,
    row_of,
    rows_of,
)

NO_URL = (
    "The address of the PostgreSQL store is no URL such as postgresql://USER@HOST/DATABASE. A "
    "password goes into PGPASSWORD; one inside the address has its @ : / ? # written as %40 %3A "
    "%2F %3F %23."
)
NO_USER = "The address of the PostgreSQL store names no user, and this process has no name either."
_OWN = re.compile(r"(^|&)(user|password)=[^&]*")
_HOST = r"(\[[^\]@]*\]|[^:,@\[\]]*)(:\d+)?"
_HOSTS = re.compile(f"{_HOST}(,{_HOST})*")


def place_of(address: str) -> str:
    """A database as people would look for it. Raises StoreError for an address that is no URL, or
    that holds a password in such a way that its parts cannot be told apart, and for one without a
    user where the process has none either.

    >>> place_of("postgresql://ada:secret@db:5433/notes")
    "db:5433 (database 'notes', user 'ada')"
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        raise StoreError(NO_URL) from None
    who, at, where = parts.netloc.partition("@")
    beyond = parts.path + _OWN.sub("", parts.query) + parts.fragment
    if not _HOSTS.fullmatch(where if at else who) or ("@" in beyond and not at):
        raise StoreError(NO_URL)
    host = unquote(where if at else who) or _said(parts, "host") or os.environ.get("PGHOST")
    user = unquote(parts.username or "") or _said(parts, "user") or _user()
    name = unquote(parts.path[1:]) or _said(parts, "dbname", "database")
    name = name or os.environ.get("PGDATABASE") or user
    return f"{host or 'this machine'} (database {name!r}, user {user!r})"


def _said(parts: SplitResult, *names: str) -> str:
    """What the query of the address says of something."""
    said = parse_qs(parts.query)
    return next((said[name][-1] for name in names if name in said), "")


def _user() -> str:
    try:
        return os.environ.get("PGUSER") or getpass.getuser()
    except (KeyError, OSError):
        raise StoreError(NO_USER) from None


TROUBLE = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what a connection says that was cut at the wrong moment
    OSError,
    TimeoutError,
    ValueError,
)
"""What may be raised by asking a database for something."""


def failed(place: str, error: BaseException) -> StoreError:
    """What is said of a database that worked before."""
    return StoreError(f"The store at {place} failed: {_reason(error)}.")


def unopened(place: str, error: BaseException) -> StoreError:
    """What is said of a database that cannot be used from the start, with what to do."""
    return StoreError(f"The store at {place} cannot be opened: {_reason(error)}. {_advice(error)}")


def _reason(error: BaseException) -> str:
    """What happened, on one line."""
    name = type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        text = str(error.args[0] if error.args else name)
    elif isinstance(error, TimeoutError) and not error.errno:
        text = "no answer came in time"
    elif isinstance(error, ConnectionError) and error.errno:
        text = os.strerror(error.errno)
    elif isinstance(error, OSError):
        text = error.strerror or str(error) or name
    else:
        text = name
    return " ".join(text.split()).rstrip(".")


def _advice(error: BaseException) -> str:
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError():
            return (
                "The database turns this user away: put the right password into PGPASSWORD, or "
                "name another user; its pg_hba.conf says who may come."
            )
        case asyncpg.InvalidCatalogNameError():
            return "Its server has no such database: make it with createdb, or name another."
        case asyncpg.InsufficientPrivilegeError():
            return "The user lacks a right: have the owner GRANT CREATE, CONNECT ON DATABASE to it."
        case asyncpg.TooManyConnectionsError():
            return "Its server is full: raise max_connections there, or run fewer workers."
        case asyncpg.CannotConnectNowError():
            return "Its server is starting or stopping: try again soon."
        case asyncpg.ReadOnlySQLTransactionError():
            return "This server is a copy that nobody may write to: name the one it copies."
        case asyncpg.PostgresError():
            return "Its server refuses what every start needs; the log there says more."
        case asyncpg.InternalClientError():
            return "What answers there does not speak as PostgreSQL does: see host and port."
        case OSError():
            return (
                "See that a PostgreSQL server runs there and may be reached from here, and that "
                "host and port are right."
            )
        case _:
            return "A word in the address, or a variable such as PGSSLMODE, is not understood."


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


class PostgresPubSub(PubSub):
    """PubSub on the channel that is called as the schema is."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def publish(self, names: Sequence[str]) -> None:
        # A statement of its own, after the commit: a NOTIFY inside would let no two of them
        # commit at the same time.
        statement = "SELECT pg_notify($1, name) FROM unnest($2::text[]) AS name"
        await self._database.fetch(statement, self._database.schema, list(names))

    async def listen(self) -> None:
        await self._database.listen(self._heard)

    def _heard(self, ear: Any, process: int, channel: str, name: object) -> None:
        self.notify(str(name))


class PostgresRows(Rows):
    """The part of the store that is one statement at a time."""

    _database: Database

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._database.fetch(statement, *bound(values))

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._read(statement, *values)


class PostgresOutbox(PostgresRows):
    """The part of the store that is an outbox."""

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        """Take out messages whose time has come."""
        statement = """UPDATE letters SET due = $1, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM letters WHERE due <= $2 ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED)
            RETURNING id, target, body, due, attempts"""
        return messages_of(await self._write(statement, until, now, most))


class PostgresConversations(PostgresRows):
    """The half of the store that keeps conversations."""

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item] = ()
    ) -> None:
        """Keep a new conversation."""
        made = conversation
        row = bound((made.id, made.tenant, made.created_at, pack(made)))
        async with self._database.transaction() as connection:
            try:
                await connection.execute(OPEN, *row)
            except UniqueViolationError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            await extend(connection, made.id, items)

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._write(statement, id, tenant))

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""
        async with self._database.transaction() as connection:
            if not await held(connection, tenant, id):
                return False
            await extend(connection, id, items)
        return True


async def held(connection: Session, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation. Nobody else adds to it until the transaction ends."""
    return await connection.fetchval(f"{HELD} FOR UPDATE", *bound((id, tenant))) is not None


async def extend(
    connection: Session, id: str, items: Sequence[Item], *, rename: bool = False
) -> None:
    """Add items at the end of a conversation that is held; one whose id is taken is renamed or
    refused."""
    last = await connection.fetchval(LAST, *bound((id,)))
    for place, item in enumerate(items, last + 1):
        if item.id and await _insert(connection, id, place, item):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        await _insert(connection, id, place, replace(item, id=renamed_id(item, place)))


async def _insert(connection: Session, id: str, place: int, item: Item) -> bool:
    row = bound((id, place, item.id, pack(item)))
    return await connection.fetchval(EXTEND, *row) is not None


POLL = 1.0
"""Seconds after which one who waits looks again, though nobody told him to."""


class PostgresStore(PostgresConversations, PostgresOutbox):
    """Keeps everything in one schema of a database, which is made where it is missing.

    `address` is `postgresql://user@host:port/database`; what it leaves out, a password above all,
    comes from the usual variables (`PGPASSWORD`, `PGPASSFILE`, `PGSSLMODE` …). Nothing is connected
    before something is asked; then StoreError says why it cannot be. Servers hear of each other's
    writes by `news`, by default through the database itself.
    """

    def __init__(
        self,
        address: str,
        retention: Retention | None = None,
        *,
        schema: str = "dragoman",
        pubsub: PubSub | None = None,
    ) -> None:
        self._retention = retention or Retention()
        self._database = Database(address, schema)
        self._pubsub = pubsub or PostgresPubSub(self._database)

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Keep a run that is about to start."""
        async with self._database.transaction() as connection:
            try:
                await connection.execute(BEGIN, *bound(row_of(record)))
            except UniqueViolationError:
                raise StoreError(f"There is a response {record.id} already.") from None
            await _index(connection, record.tenant, record.id, record.request.items)

    async def append(self, id: str, segment: LogSegment) -> None:
        """Add to the log of a run."""
        async with self._database.transaction() as connection:
            await _append(connection, id, segment)
        self._pubsub.publish_soon(id)

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """End a run with what came of it."""
        statement = """UPDATE responses SET status = $2, running = false, response = $3
            WHERE id = $1 AND running RETURNING tenant, conversation"""
        async with self._database.transaction() as connection:
            if segment is not None and not await _append(connection, id, segment, strict=False):
                return False
            run = await connection.fetchrow(statement, clean(id), response.status, pack(response))
            if run is None:
                return False
            tenant, conversation = run
            await _index(connection, tenant, id, response.output)
            await connection.executemany(CALL, calls_of(tenant, clean(id), call_digests(response)))
            if items and conversation is not None and await held(connection, tenant, conversation):
                await extend(connection, conversation, items, rename=True)
            await connection.executemany(POST, rows_of(messages))
        self._pubsub.publish_soon(id)
        return True

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        statement = "SELECT length FROM responses WHERE id = $1 AND running"
        end = time.monotonic() + seconds
        async with self._pubsub.subscribe(id) as told:
            while True:
                told.clear()
                rows = await self._database.fetch(statement, clean(id))
                left = end - time.monotonic()
                if not rows or rows[0][0] > length or left <= 0:
                    return
                try:
                    async with asyncio.timeout(min(POLL, left)):
                        await told.wait()
                except TimeoutError:
                    pass

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response and its log."""
        statement = "DELETE FROM responses WHERE id = $1 AND tenant = $2 RETURNING id"
        gone = await self._database.fetch(statement, clean(id), tenant)
        self._pubsub.publish_soon(id)
        return bool(gone)

    # ---- leases --------------------------------------------------------------------------

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on."""
        statement = """UPDATE responses SET lease = $2
            WHERE id = ANY($1) AND running AND NOT cancelling RETURNING id"""
        rows = await self._database.fetch(statement, cleaned(ids), until)
        renewed = {row[0] for row in rows}
        return tuple(id for id in ids if clean(id) not in renewed)

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        statement = f"""UPDATE responses SET owner = $1, lease = $3 WHERE id IN (
                SELECT id FROM responses WHERE running AND lease < $2
                FOR UPDATE SKIP LOCKED)
            RETURNING {COLUMNS}"""
        return tuple(map(record_of, await self._database.fetch(statement, owner, now, until)))

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Forget what is too old, and what is too much."""
        retention = self._retention
        old = now - retention.max_age
        async with self._database.transaction() as connection:
            gone = await connection.fetch(
                """DELETE FROM responses WHERE NOT running AND (created_at < $1::float8 OR id IN (
                    SELECT id FROM responses WHERE NOT running ORDER BY created_at, place LIMIT
                    greatest(0, (SELECT count(*) FROM responses) - $2))) RETURNING id""",
                old,
                retention.max_responses,
            )
            await connection.execute("DELETE FROM letters WHERE due < $1::float8", old)
            await connection.execute(
                """DELETE FROM stretches USING responses WHERE stretches.created_at < $1::float8
                    AND responses.id = stretches.id AND NOT running""",
                now - retention.max_log_age,
            )
            await connection.execute("DELETE FROM conversations WHERE created_at < $1::float8", old)
        return len(gone)

    async def ready(self) -> None:
        """Connect, and make the tables where they are missing."""
        await self._database.opened()

    async def close(self) -> None:
        """Let go of the database."""
        await self._pubsub.close()
        await self._database.close()


async def _index(connection: Session, tenant: str, id: str, items: Sequence[Item]) -> None:
    if ids := cleaned(item.id for item in items):
        statement = """INSERT INTO homes SELECT $1, item, $2 FROM unnest($3::text[]) AS item
            ON CONFLICT DO NOTHING"""
        await connection.execute(statement, tenant, id, ids)


async def _append(
    connection: Session, id: str, segment: LogSegment, *, strict: bool = True
) -> bool:
    """Add to a log; unless `strict`, a run that has ended or is not known is False."""
    statement = """WITH longer AS (UPDATE responses SET length = length + $3
            WHERE id = $1 AND length = $2 AND running RETURNING id, created_at)
        INSERT INTO stretches SELECT id, $2, created_at, $4 FROM longer RETURNING first"""
    size, data = len(segment.events), pack(segment.events)
    if await connection.fetchval(statement, clean(id), segment.first, size, data) is not None:
        return True
    known = "SELECT 1 FROM responses WHERE id = $1 AND running"
    if await connection.fetchval(known, clean(id)) is not None:
        raise StoreError(f"The log of {id} has a gap before {segment.first}.")
    if strict:
        raise StoreError(f"No response {id} is being made.")
    return False
