"""The PostgreSQL store: one schema of a database, which any number of servers may share.

Invariants across servers (a run ends once, an orphan goes to one of them, a log
has no gaps) are kept by single statements or row locks. Importing this needs asyncpg (the
extra `postgres`).
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import groupby
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import asyncpg
from asyncpg import Connection

from dragoman.net.threads import TenantLock, reading

from .base import (
    PATIENCE,
    Breaker,
    LongError,
    PubSub,
    StoreError,
    WaitedError,
    slowness,
)
from .retention import Retention
from .schema import POSTGRES
from .sql import Store
from .statements import Insert, Row, Steps, bound, read_secret

T = TypeVar("T")

_log = logging.getLogger("dragoman.stores")


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
    """A database by host, name and user, for errors: never with a password, in any part of the URL.

    Raises StoreError for an address that is no URL, for one with a password that makes its
    parts ambiguous, and for one without a user where the process has none either.

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
    asyncpg.InternalClientError,  # raised by a connection that was cut during a query
    OSError,
    TimeoutError,
    ValueError,
    OverflowError,  # for a port that cannot be one
)
"""The errors of asyncpg for an unusable database."""
REFUSALS = ("22", "23", "40", "54")
"""Classes of errors of a database that works, however long they took: values that it cannot hold,
rows that are there already, deadlocks."""


def failed(place: str, error: BaseException) -> StoreError:
    """The error for a database that worked before."""
    return StoreError(f"The store at {place} failed: {_reason(error)}.")


def unopened(place: str, error: BaseException) -> StoreError:
    """The error for a database that cannot be opened, with advice."""
    return StoreError(f"The store at {place} cannot be opened: {_reason(error)}. {_advice(error)}")


def _reason(error: BaseException) -> str:
    """The error's text, on one line."""
    name = type(error).__name__
    if isinstance(error, asyncpg.PostgresError):
        text = str(error.args[0] if error.args else name)
    elif isinstance(error, TimeoutError) and not error.errno:
        text = "no answer came in time"
    elif isinstance(error, ConnectionError) and error.errno:
        text = os.strerror(error.errno)
    elif isinstance(error, OSError):
        text = error.strerror or str(error) or name
    elif isinstance(error, OverflowError) or _is_about_certificate(error):
        text = str(error).partition("\n")[0]
    else:  # its text may quote a password
        text = name
    return " ".join(text.split()).rstrip(".")


def _is_about_certificate(error: BaseException) -> bool:
    named = isinstance(error, asyncpg.ClientConfigurationError) and "certificate file" in str(error)
    return named or hasattr(error, "library")  # of TLS


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
            return "This server is a read-only replica: name its primary."
        case asyncpg.PostgresError():
            return "Its server refuses what every start needs; the log there says more."
        case asyncpg.InterfaceError() if "closed" in str(error):
            return "The connection was lost meanwhile: try again soon."
        case asyncpg.InternalClientError():
            return "What answers there does not speak as PostgreSQL does: see host and port."
        case OverflowError():
            return "See the port in the address."
        case _ if _is_about_certificate(error):
            return "See sslmode, sslrootcert, sslcert and sslkey in the address."
        case FileNotFoundError():
            return "See the files of sslrootcert, sslcert and sslkey, or the folder of the socket."
        case OSError():
            return (
                "See that a PostgreSQL server runs there and may be reached from here, and that "
                "host and port are right."
            )
        case _:
            return "A word in the address, or a variable such as PGSSLMODE, is not understood."


# ---- the database --------------------------------------------------------------------------


PIECE = 1024 * 1024
"""Bytes of a value that are sent at once."""
LOCK = 0x6472_6167_6F6D_616E
"""The advisory lock during a migration."""


async def migrate(connection: Connection, schema: str, place: str) -> bytes:
    """Run the missing migration steps of a schema; returns its secret. Raises StoreError for one of
    a later version."""
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
        return await _taken(connection, read_secret(), MIGRATION)


async def _taken(connection: Connection, steps: Steps[T], within: float | None = None) -> T:
    """Run the steps of a transaction; returns their result."""
    try:
        statement, values = next(steps)
        while True:
            found = await _found(connection, statement, bound(values), within)
            statement, values = steps.send(found)
    except StopIteration as end:
        result: T = end.value
        return result


async def _found(
    connection: Connection, statement: str, values: list[Any], within: float | None
) -> Sequence[Row]:
    """The rows of a statement. Bytes of which there are many are sent before it, in pieces, as a
    large object: TLS would encrypt them on the event loop in one go."""
    large: list[int] = []
    for place, value in enumerate(values, 1):
        if _is_large(value):
            values[place - 1] = id = await connection.fetchval("SELECT lo_create(0)")
            for start in range(0, len(value), PIECE):
                piece = value[start : start + PIECE]
                await connection.execute("SELECT lo_put($1, $2, $3)", id, start, piece)
            statement = re.sub(rf"\${place}\b", f"lo_get(${place})", statement)
            large.append(id)
    found: list[Any] = await connection.fetch(statement, *values, timeout=within)
    for id in large:
        await connection.execute("SELECT lo_unlink($1)", id)
    return found


def _is_large(value: object) -> bool:
    return isinstance(value, bytes | memoryview) and len(value) > PIECE


def _kind(insert: Insert) -> tuple[str, bool]:
    """What is inserted together: rows of one statement, without a large value."""
    return insert[0], any(map(_is_large, insert[1]))


async def _keep(_: Any) -> None:
    """Leave a session as it is between two uses: none changes it."""


CONNECTIONS = 10
"""Connections for statements, at most; one more listens."""
SHARE = 7
"""Those that one tenant may have, as the rest is for others."""
COMMAND = 60.0
"""The most seconds of a statement that no caller waits for."""
ATTEMPTS = 3
"""Those of a transaction that the database ends because of a deadlock, at the most."""
MIGRATION = 3_600.0
"""The timeout of a migration step, which may copy every row."""
WATCH = "SET client_connection_check_interval TO '1s'"
"""Has the database end a statement soon after its connection was dropped."""
PLAIN = "SET jit TO off"
"""To compile the many expressions of a search would take longer than the search."""


class PostgresStore(Store):
    """Stores everything in one schema of a database, which is created if it is missing.

    `address` is `postgresql://user@host:port/database`; the rest, such as the password,
    comes from the usual variables (`PGPASSWORD`, `PGPASSFILE`, `PGSSLMODE` …). It connects
    on demand, and raises StoreError if it cannot. Servers notify each other of their
    writes by `pubsub`, by default through the database itself. Used by one event loop.
    """

    POLL = 1.0
    CASCADES = True
    FULL_TEXT = "tsvector"

    def __init__(
        self,
        address: str,
        retention: Retention | None = None,
        *,
        schema: str = "dragoman",
        pubsub: PubSub | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(retention, pubsub or PostgresPubSub(self))
        self._address = address
        self.schema = schema
        self._place = place_of(address)
        self._options: dict[str, Any] = {
            "timeout": patience,
            "command_timeout": COMMAND,
            "server_settings": {"application_name": "dragoman"},
        }
        self._patience = patience
        self._breaker = Breaker("PostgreSQL", patience)
        self._answered = 0.0  # when a statement was answered last
        self._opening = asyncio.Lock()
        self._turns = TenantLock(CONNECTIONS, SHARE)
        self._pool: asyncpg.Pool | None = None
        self._listener: asyncpg.Connection | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def clock(self) -> float:
        ((moment,),) = await self._read("SELECT extract(epoch FROM clock_timestamp())")
        ahead = float(moment) - time.monotonic()
        self.now = lambda: time.monotonic() + ahead
        return self.now()

    async def ready(self) -> None:
        await self._opened()
        await self.clock()

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._whole(self._fetch(statement, values))

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._written(self._fetch(statement, values))

    async def _transact(
        self, inserts: Sequence[Insert], steps: Callable[[], Steps[T]] | None = None
    ) -> T:
        return await self._written(self._commit(inserts, steps))

    async def _written(self, work: Coroutine[Any, Any, T]) -> T:
        """Of what takes long here, no client could ask for less."""
        try:
            return await self._whole(work)
        except LongError:
            raise failed(self._place, TimeoutError()) from None

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Shield work from cancellation: asyncpg would cancel it over a connection of its own,
        which may outlive this store."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _fetch(self, statement: str, values: Sequence[object]) -> Sequence[Row]:
        async with self._connected() as connection:
            found: list[Any] = await connection.fetch(statement, *bound(values))
            return found

    async def _commit(
        self, inserts: Sequence[Insert], steps: Callable[[], Steps[T]] | None = None
    ) -> T:
        result: Any = None
        async with self._connected() as connection:
            for left in reversed(range(ATTEMPTS)):
                try:
                    async with connection.transaction():
                        await self._insert(connection, inserts)
                        if steps is not None:
                            result = await _taken(connection, steps())
                    break
                except asyncpg.DeadlockDetectedError:  # the other transaction goes on
                    if not left:
                        raise
        return result  # type: ignore[no-any-return]

    async def _insert(self, connection: Any, inserts: Sequence[Insert]) -> None:
        for (statement, large), some in groupby(inserts, _kind):
            rows = [row for _, row in some]
            if large:
                for row in rows:
                    await _found(connection, statement, list(row), None)
            else:
                # By itself it would not notice that the connection is dropped while it waits for
                # room to send.
                await connection.executemany(statement, rows, timeout=self._patience)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """A connection that is dropped on a timeout: cancelling a statement would need an answer
        of the server. Errors of asyncpg are raised as StoreError."""
        if self._breaker.open:
            self._breaker.check()
        began, patience = time.monotonic(), self._patience * slowness.get()
        if self._breaker.open:  # a caller waits for the error
            patience = self._patience / 2
        try:
            pool = self._pool or await self._opened()
        except StoreError as error:
            raise self._breaker.failed(str(error), time.monotonic() - began) from None
        timer: asyncio.TimerHandle | None = None
        late = False  # by the timer, which uvloop calls up to a millisecond early

        def give_up() -> None:
            nonlocal late
            late = True
            connection.terminate()

        try:
            async with self._turn(patience), pool.acquire(timeout=patience) as connection:
                began = time.monotonic()
                timer = asyncio.get_running_loop().call_later(patience, give_up)
                try:
                    yield connection
                except ERRORS:  # of its session: read-only, or without its prepared statements
                    connection.terminate()
                    raise
                finally:
                    timer.cancel()
        except (*ERRORS, AttributeError) as error:
            if isinstance(error, AttributeError) and not late:
                raise  # otherwise it was dropped between two steps of asyncpg
            seconds = time.monotonic() - began
            late = late or (timer is not None and isinstance(error, TimeoutError))
            # Others were, meanwhile, or this had less than its time.
            answered = self._answered > began or slowness.get() < 1
            if late and answered:
                raise LongError from None
            if late:
                await self._drop_idle(pool)
            problem = failed(self._place, TimeoutError() if late else error)
            answered = answered or (getattr(error, "sqlstate", None) or "")[:2] in REFUSALS
            raise self._breaker.failed(str(problem), 0 if answered else seconds) from None
        self._answered = time.monotonic()
        if self._breaker.open:
            self._breaker.worked()

    async def _drop_idle(self, pool: asyncpg.Pool) -> None:
        """Drop the connections that nobody uses, once none answers: they may have been lost in
        silence together, and the pool would give them to the next callers, one after the other. Its
        own `expire_connections` waits for each to be closed by the database, and logs that it was
        not."""
        with suppress(*ERRORS):
            async with asyncio.timeout(0):  # a connection that is there is had at once
                for _ in range(pool.get_idle_size()):
                    (await pool.acquire()).terminate()

    @asynccontextmanager
    async def _turn(self, patience: float) -> AsyncIterator[None]:
        """A tenant's turn for a connection. Raises WaitedError where none comes in time, of which
        the breaker learns nothing: it depends on the results of those that have one."""
        tenant = reading.get()
        try:
            async with asyncio.timeout(patience):
                await self._turns.acquire(tenant)
        except TimeoutError as error:
            if self._breaker.open:  # those that have one waited in vain
                raise self._breaker.failed(str(failed(self._place, error)), patience) from None
            raise WaitedError from None
        try:
            yield
        finally:
            self._turns.release(tenant)

    async def close(self) -> None:
        await super().close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._patience)
        for held in (self._listener, self._pool):
            if held is not None:
                held.terminate()
        self._listener = self._pool = None

    async def _opened(self) -> asyncpg.Pool:
        """The connections, once the tables exist. Raises StoreError, with advice."""
        async with self._opening:
            if self._pool is None:
                if self._breaker.open:  # it was opened while this waited
                    self._breaker.check()
                with self._errors_as(unopened):
                    connection = await self._connection()
                    try:
                        self._secret = await migrate(connection, self.schema, self._place)
                    finally:
                        connection.terminate()
                    self._pool = await asyncpg.create_pool(
                        self._address,
                        min_size=0,
                        max_size=CONNECTIONS,
                        init=self._set,
                        reset=_keep,
                        **self._options,
                    )
            return self._pool

    async def _connection(self) -> Connection:
        """A connection of its own, outside the pool."""
        connection: Connection = await asyncpg.connect(self._address, **self._options)
        try:
            await self._set(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _set(self, connection: Any) -> None:
        """Configure a new session, by statements: a pooler such as PgBouncer takes no
        such parameters with a connection."""
        # The isolation is this, whatever a database's is. A server that is frozen or gone amid a
        # transaction holds its locks no longer than this, where the system notices it in hours.
        settings = f"""SET search_path TO "{self.schema}";
            SET default_transaction_isolation TO 'read committed';
            SET idle_in_transaction_session_timeout TO {self._patience * 1_000:.0f}"""
        await connection.execute(settings, timeout=self._patience)
        # Without WATCH, a statement that was given up waits for its locks, beyond `CONNECTIONS`.
        for setting in (PLAIN, WATCH):
            with suppress(asyncpg.PostgresError):  # PostgreSQL before 14, or on Windows
                await connection.execute(setting, timeout=self._patience)

    @contextmanager
    def _errors_as(
        self, make: Callable[[str, BaseException], StoreError] = failed
    ) -> Iterator[None]:
        """Raise errors of asyncpg as StoreError."""
        try:
            yield
        except ERRORS as error:
            raise make(self._place, error) from None

    async def listen(self, notified: Callable[..., None]) -> None:
        """Call back for every NOTIFY on the channel named like the schema. Raises StoreError."""
        if self._listener is None or self._listener.is_closed():
            await self._whole(self._listen(notified))

    async def _listen(self, notified: Callable[..., None]) -> None:
        async with self._opening:
            if self._listener is None or self._listener.is_closed():
                with self._errors_as():
                    listener = await self._connection()
                    await listener.add_listener(self.schema, notified)
                    self._listener = listener


DEAF = 10.0
"""Seconds until it is tried again to listen."""


class PostgresPubSub(PubSub):
    """Pub/sub by LISTEN and NOTIFY, on the channel named like the schema. Where there is no
    connection to listen on, as where the database has no more, subscribers poll."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__()
        self._store = store
        self._deaf_until = 0.0

    async def publish(self, names: Sequence[str]) -> None:
        # A statement of its own, after the commit: a NOTIFY inside would serialise all
        # commits.
        statement = "SELECT pg_notify($1, name) FROM unnest($2::text[]) AS name"
        await self._store._read(statement, self._store.schema, list(names))

    async def listen(self) -> None:
        before, now = self._deaf_until, time.monotonic()
        if now < before:
            return
        self._deaf_until = now + DEAF  # others poll meanwhile
        try:
            await self._store.listen(self._received)
            self._deaf_until = 0.0
        except StoreError as error:
            if not before:
                instead = "Until it listens, what other servers write is polled for each second"
                _log.warning("%s %s.", error, instead)

    def _received(self, connection: Any, process: int, channel: str, name: object) -> None:
        self.notify(str(name))
