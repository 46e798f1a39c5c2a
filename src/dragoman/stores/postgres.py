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
    ended,
    renamed_id,
)
from .schema import POSTGRES
from .serialize import digests, pack
from .sql import (
    APPEND,
    BEGIN,
    CALL,
    END,
    EXTEND,
    HELD,
    INSERT,
    LAST,
    LENGTH,
    LIVE,
    OPEN,
    POST,
    Row,
    Rows,
    bound,
    clean,
    cleaned,
    index_keys,
    messages_of,
    row_of,
    rows_of,
)

LOCK_USES = "LOCK TABLE part_uses IN SHARE ROW EXCLUSIVE MODE"
"""The first statement of what deletes responses: meanwhile no other server stores or deletes uses
of parts, so that what looks unused is. Taken later, two deletions would deadlock."""
POLL = 1.0
"""Seconds after which one who waits looks again, though no notification came."""


# ---- the address ---------------------------------------------------------------------------


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
    """A database by host, name and user, for errors: never with a password, wherever it stands.

    Raises StoreError for an address that is no URL, or that holds a password in such a way that its
    parts cannot be told apart, and for one without a user where the process has none either.

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
    host = unquote(where if at else who) or _option(parts, "host") or os.environ.get("PGHOST")
    user = unquote(parts.username or "") or _option(parts, "user") or _user()
    name = unquote(parts.path[1:]) or _option(parts, "dbname", "database")
    name = name or os.environ.get("PGDATABASE") or user
    return f"{host or 'this machine'} (database {name!r}, user {user!r})"


def _option(parts: SplitResult, *names: str) -> str:
    """The value that the query of the address gives to an option, by any of its names."""
    options = parse_qs(parts.query)
    return next((options[name][-1] for name in names if name in options), "")


def _user() -> str:
    try:
        return os.environ.get("PGUSER") or getpass.getuser()
    except (KeyError, OSError):
        raise StoreError(NO_USER) from None


# ---- errors --------------------------------------------------------------------------------


ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised by a connection that was cut at the wrong moment
    OSError,
    TimeoutError,
    ValueError,
)
"""What asyncpg raises when a database cannot be used."""


def failed(place: str, error: BaseException) -> StoreError:
    """The error for a database that worked before."""
    return StoreError(f"The store at {place} failed: {_reason(error)}.")


def unopened(place: str, error: BaseException) -> StoreError:
    """The error for a database that cannot be used from the start, with what to do."""
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


# ---- the database --------------------------------------------------------------------------


LOCK = 0x6472_6167_6F6D_616E
"""The advisory lock that is held while steps are taken."""


async def migrate(connection: Connection, schema: str, place: str) -> None:
    """Take the steps that this schema has not taken. Raises StoreError for one of a later
    version."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        await connection.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY)")
        taken = await connection.fetchval("SELECT count(*) FROM steps")
        if taken > len(POSTGRES):
            raise StoreError(
                f"The store at {place} was written by a later Dragoman (step {taken}, known are "
                f"{len(POSTGRES)}). Run that version on all servers, or name another database."
            )
        for number, step in enumerate(POSTGRES[taken:], taken + 1):
            await connection.execute(step, timeout=MIGRATION)
            await connection.execute("INSERT INTO steps VALUES ($1)", number)


CONNECTIONS = 10
"""Connections for statements, at most; one more listens."""
PATIENCE = 10.0
"""Seconds a connection may take to be made."""
COMMAND = 60.0
"""Seconds a statement may take."""
MIGRATION = 3_600.0
"""Seconds a step of the migration may take, which may copy every row."""


class Database:
    """The connections to our schema of a database. Used by one event loop."""

    def __init__(self, address: str, schema: str) -> None:
        self._address = address
        self.schema = schema
        self._place = place_of(address)
        self._opening = asyncio.Lock()
        self._pool: asyncpg.Pool | None = None
        self._listener: asyncpg.Connection | None = None

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a statement. Raises StoreError."""
        pool = await self.opened()
        with self._errors_as():
            found: list[Any] = await pool.fetch(statement, *values)
            return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """A connection inside a transaction. Raises StoreError."""
        pool = await self.opened()
        with self._errors_as():
            async with pool.acquire() as connection, connection.transaction():
                yield connection

    async def close(self) -> None:
        """Close all connections."""
        for held in (self._listener, self._pool):
            if held is not None:
                held.terminate()
        self._listener = self._pool = None

    async def opened(self) -> asyncpg.Pool:
        """The connections, once the tables are there. Raises StoreError, which says what to do."""
        async with self._opening:
            if self._pool is None:
                with self._errors_as(unopened):
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
    def _errors_as(
        self, make: Callable[[str, BaseException], StoreError] = failed
    ) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            raise make(self._place, error) from None

    async def listen(self, notified: Callable[..., None]) -> None:
        """Call back for every NOTIFY on the channel named like the schema. Raises StoreError."""
        async with self._opening:
            if self._listener is None or self._listener.is_closed():
                with self._errors_as():
                    listener = await asyncpg.connect(self._address, **self._options())
                    await listener.add_listener(self.schema, notified)
                    self._listener = listener


class PostgresPubSub(PubSub):
    """Pub/sub by LISTEN and NOTIFY, on the channel named like the schema."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def publish(self, names: Sequence[str]) -> None:
        # A statement of its own, after the commit: a NOTIFY inside would let no two transactions
        # commit at the same time.
        statement = "SELECT pg_notify($1, name) FROM unnest($2::text[]) AS name"
        await self._database.fetch(statement, self._database.schema, list(names))

    async def listen(self) -> None:
        await self._database.listen(self._received)

    def _received(self, connection: Any, process: int, channel: str, name: object) -> None:
        self.notify(str(name))


# ---- the store -----------------------------------------------------------------------------


class PostgresStore(Rows):
    """Stores everything in one schema of a database, which is made where it is missing.

    `address` is `postgresql://user@host:port/database`; what it leaves out, a password above all,
    comes from the usual variables (`PGPASSWORD`, `PGPASSFILE`, `PGSSLMODE` …). Nothing is connected
    before it is needed; then StoreError says why it cannot be. Servers notify each other of their
    writes by `pubsub`, by default through the database itself.
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

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._database.fetch(statement, *bound(values))

    async def _read_parts(self, digests: Sequence[bytes]) -> Sequence[Row]:
        statement = "SELECT digest, data FROM parts WHERE digest = ANY($1)"
        return await self._database.fetch(statement, digests)

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._read(statement, *values)

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Store a run that is about to start."""
        async with self._database.transaction() as connection:
            await _insert(connection, record)
            lease = (record.id, record.owner, record.lease, record.conversation)
            await connection.execute(BEGIN, *bound(lease))

    async def put(
        self,
        record: Record,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> None:
        """Store a response that has ended, whole."""
        response = ended(record)
        async with self._database.transaction() as connection:
            seq = await _insert(connection, record)
            await _index_calls(connection, record.tenant, seq, response)
            await _add_to(connection, record.tenant, record.conversation, items, messages)

    async def append(self, id: str, segment: LogSegment) -> None:
        """Add to the log of a run."""
        async with self._database.transaction() as connection:
            if not await _append(connection, id, segment):
                raise StoreError(f"No response {id} is being made.")
        self._pubsub.publish_soon(id)

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """End a run with its response."""
        async with self._database.transaction() as connection:
            live = await connection.fetchrow(f"{LIVE} FOR UPDATE OF u", clean(id))
            if live is None:
                return False
            if segment is not None:
                await _append(connection, id, segment)
            seq, tenant, conversation = live
            await connection.execute(END, seq, pack(response))
            await connection.execute("DELETE FROM runs WHERE seq = $1", seq)
            await _index_items(connection, tenant, seq, index_keys(id, response.output))
            await _index_calls(connection, tenant, seq, response)
            await _add_to(connection, tenant, conversation, items, messages)
        self._pubsub.publish_soon(id)
        return True

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        end = time.monotonic() + seconds
        async with self._pubsub.subscribe(id) as notified:
            while True:
                notified.clear()
                rows = await self._read(LENGTH, id)
                left = end - time.monotonic()
                if not rows or rows[0][0] > length or left <= 0:
                    return
                try:
                    async with asyncio.timeout(min(POLL, left)):
                        await notified.wait()
                except TimeoutError:
                    pass

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response and its log."""
        statement = "DELETE FROM responses WHERE id = $1 AND tenant = $2 RETURNING parts"
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_USES)
            gone = await connection.fetch(statement, *bound((id, tenant)))
            await _forget_parts(connection, gone)
        self._pubsub.publish_soon(id)
        return bool(gone)

    # ---- leases --------------------------------------------------------------------------

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Extend the leases of these runs; the ids of those that must stop."""
        statement = """UPDATE runs u SET lease = $2 FROM responses r
            WHERE r.seq = u.seq AND r.id = ANY($1) AND NOT cancelling RETURNING r.id"""
        renewed = {row[0] for row in await self._database.fetch(statement, cleaned(ids), until)}
        return tuple(id for id in ids if clean(id) not in renewed)

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs whose lease has expired."""
        # SKIP LOCKED: a run whose row another server holds is just being taken, renewed or ended.
        statement = """UPDATE runs SET owner = $1, lease = $3 WHERE seq IN (
                SELECT seq FROM runs WHERE lease < $2 FOR UPDATE SKIP LOCKED)
            RETURNING seq"""
        taken = [row[0] for row in await self._read(statement, owner, now, until)]
        return tuple(await self._records("WHERE r.seq = ANY($1)", taken) if taken else ())

    # ---- conversations -------------------------------------------------------------------

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item] = ()
    ) -> None:
        """Store a new conversation."""
        made = conversation
        row = bound((made.id, made.tenant, made.created_at, pack(made)))
        async with self._database.transaction() as connection:
            try:
                await connection.execute(OPEN, *row)
            except UniqueViolationError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            await _extend(connection, made.id, items)

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Delete a conversation and its items."""
        statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._write(statement, id, tenant))

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""
        async with self._database.transaction() as connection:
            if not await _held(connection, tenant, id):
                return False
            await _extend(connection, id, items)
        return True

    # ---- outbox --------------------------------------------------------------------------

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        """Take out messages that are due."""
        statement = """UPDATE outbox SET due = $1, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM outbox WHERE due <= $2 ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED)
            RETURNING id, target, body, due, attempts"""
        return messages_of(await self._write(statement, until, now, most))

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Delete what is older or more than the retention allows."""
        retention = self._retention
        old = now - retention.max_age
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_USES)
            gone = await connection.fetch(
                """DELETE FROM responses WHERE seq NOT IN (SELECT seq FROM runs) AND (
                    created_at < $1::float8 OR seq IN (
                        SELECT seq FROM responses WHERE seq NOT IN (SELECT seq FROM runs)
                        ORDER BY seq
                        LIMIT greatest(0, (SELECT count(*) FROM responses) - $2)))
                    RETURNING parts""",
                old,
                retention.max_responses,
            )
            await _forget_parts(connection, gone)
        async with self._database.transaction() as connection:
            await connection.execute("DELETE FROM outbox WHERE due < $1::float8", old)
            await connection.execute(
                """DELETE FROM segments s USING responses r WHERE r.created_at < $1::float8
                    AND r.seq = s.seq AND r.seq NOT IN (SELECT seq FROM runs)""",
                now - retention.max_log_age,
            )
            await connection.execute("DELETE FROM conversations WHERE created_at < $1::float8", old)
        return len(gone)

    async def ready(self) -> None:
        """Connect, and make the tables where they are missing."""
        await self._database.opened()

    async def close(self) -> None:
        """Disconnect."""
        await self._pubsub.close()
        await self._database.close()


async def _insert(connection: Session, record: Record) -> int:
    """The rows of a record; gives the `seq` of the response's."""
    row, parts = row_of(record)
    places = ", ".join(f"${place}" for place in range(1, len(row) + 1))
    try:
        seq: int = await connection.fetchval(f"{INSERT} VALUES ({places}) RETURNING seq", *row)
    except UniqueViolationError:
        raise StoreError(f"There is a response {record.id} already.") from None
    if parts:
        # Uses come before parts: from here on LOCK_USES makes a deletion wait, so that it does not
        # remove a part that is found to be there.
        found = sorted(dict(parts).items())
        uses = "INSERT INTO part_uses SELECT $1, digest FROM unnest($2::bytea[]) AS digest"
        await connection.execute(uses, seq, [digest for digest, _ in found])
        statement = "INSERT INTO parts VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await connection.executemany(statement, found)
    await _index_items(connection, record.tenant, seq, index_keys(record.id, record.items))
    return seq


async def _forget_parts(connection: Session, gone: Sequence[asyncpg.Record]) -> None:
    """Delete the parts that only deleted responses used; LOCK_USES comes before."""
    if found := sorted({digest for row in gone for digest in digests(row[0])}):
        await connection.execute(
            """DELETE FROM parts WHERE digest = ANY($1)
                AND NOT EXISTS (SELECT 1 FROM part_uses WHERE part_uses.digest = parts.digest)""",
            found,
        )


async def _append(connection: Session, id: str, segment: LogSegment) -> bool:
    """Add to a log; False where no such run is live. Raises StoreError for a gap."""
    count, data = len(segment.events), pack(segment.events)
    statement = f"{APPEND} FOR UPDATE OF u RETURNING first"
    if await connection.fetchval(statement, clean(id), segment.first, count, data) is not None:
        return True
    if await connection.fetchval(LIVE, clean(id)) is not None:
        raise StoreError(f"The log of {id} has a gap before {segment.first}.")
    return False


async def _index_items(connection: Session, tenant: str, seq: int, keys: Sequence[str]) -> None:
    if keys:
        statement = """INSERT INTO item_index SELECT $1, item, $2 FROM unnest($3::text[]) AS item
            ON CONFLICT DO NOTHING"""
        await connection.execute(statement, clean(tenant), seq, keys)


async def _index_calls(connection: Session, tenant: str, seq: int, response: Response) -> None:
    for digest in call_digests(response):
        await connection.execute(CALL, clean(tenant), digest, seq)


async def _add_to(
    connection: Session,
    tenant: str,
    conversation: str | None,
    items: Sequence[Item],
    messages: Sequence[OutboxMessage],
) -> None:
    """What the end of a run adds to its conversation and to the outbox."""
    if items and conversation is not None and await _held(connection, tenant, conversation):
        await _extend(connection, conversation, items, rename=True)
    if messages:
        await connection.executemany(POST, rows_of(messages))


async def _held(connection: Session, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation. Its row is locked, so that two servers do not give
    items the same place."""
    return await connection.fetchval(f"{HELD} FOR UPDATE", *bound((id, tenant))) is not None


async def _extend(
    connection: Session, id: str, items: Sequence[Item], *, rename: bool = False
) -> None:
    """Add items at the end of a conversation that is locked; one whose id is taken is renamed or
    refused."""
    last = await connection.fetchval(LAST, *bound((id,)))
    for place, item in enumerate(items, last + 1):
        if item.id and await _add_item(connection, id, place, item):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        await _add_item(connection, id, place, replace(item, id=renamed_id(item, place)))


async def _add_item(connection: Session, id: str, place: int, item: Item) -> bool:
    row = bound((id, place, item.id, pack(item)))
    return await connection.fetchval(EXTEND, *row) is not None
