"""The SQLite store: the default, in one file, with nothing to set up.

Several processes of one machine may share the file. One thread writes, and commits together what
came together; others read beside it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection, DatabaseError, IntegrityError
from typing import Any, TypeVar

from msgspec.structs import replace

from dragoman.core.item import Item
from dragoman.core.response import Response

from .base import (
    Conversation,
    LogSegment,
    OutboxMessage,
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

ELSE = "or choose with --store: sqlite:PATH is another file, and none keeps nothing."

_WRITING = "Let this user write to it and to its folder, "
_DAMAGED = "It is damaged or another kind of file: move it away and a new one is made, "
_ADVICE = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_BUSY: "Another program keeps it locked: see which, ",
    sqlite3.SQLITE_FULL: "The disk is full: make room, ",
    sqlite3.SQLITE_IOERR: "The disk fails, or is no place for a database: see to it, ",
    sqlite3.SQLITE_ERROR: "It holds the tables of something else: leave it to that, ",
}
"""What to do, by the first byte of the code that SQLite gives."""


def unopened(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    """What is said of a file that cannot be used, with what to do."""
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return StoreError(f"The store {path} cannot be made: {reason}. {_WRITING}{ELSE}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_READONLY) & 0xFF
    return StoreError(
        f"The store {path} cannot be used: {error}. {_ADVICE.get(code, _WRITING)}{ELSE}"
    )


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


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

GROUP = 512
"""How many writes share a commit at most."""
READERS = 2
PATIENCE = 30.0
"""Seconds to wait for another process that is writing."""

CLOSED = "The store is closed."


def connect(path: Path) -> sqlite3.Connection:
    """A connection set up as all of ours are; transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Have the file written ahead. Of several processes that open a new one together all but one
    are turned away at once, whatever time-out they have, and must try again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class _Write:
    """Work that waits to be written, and whoever waits for it."""

    __slots__ = ("error", "future", "result", "work")

    def __init__(self, work: Work[Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None

    def settle(self) -> None:
        """Tell the one who waits; in the thread of its event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Writer:
    """The one thread that writes."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dragoman-store", daemon=True)
        self._thread.start()

    async def run(self, work: Work[T]) -> T:
        """Have work done inside a transaction, and wait until that is on its way to the disk.
        Raises what the work raised, and StoreError when the file cannot be written."""
        if self._closed:
            raise StoreError(CLOSED)
        write = _Write(work, asyncio.get_running_loop().create_future())
        self._queue.put(write)
        result: T = await write.future
        return result

    async def close(self) -> None:
        """Write what is waiting and end."""
        self._closed = True
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._connection.close()

    def _run(self) -> None:
        going = True
        while going:
            group = [self._queue.get()]
            with suppress(Empty):
                while len(group) < GROUP:
                    group.append(self._queue.get_nowait())
            going = None not in group
            writes = [write for write in group if write is not None]
            if writes:
                self._commit(writes)
                _tell(writes)

    def _commit(self, writes: list[_Write]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for write in writes:
                self._attempt(write)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            for write in writes:
                write.error = write.error or _unwritten(error)

    def _attempt(self, write: _Write) -> None:
        """Do one write of several: if it fails, the others stand."""
        self._connection.execute("SAVEPOINT one")
        try:
            write.result = write.work(self._connection)
        except Exception as error:
            self._connection.execute("ROLLBACK TO one")
            write.error = _unwritten(error) if isinstance(error, sqlite3.Error) else error
        self._connection.execute("RELEASE one")


def _unwritten(error: sqlite3.Error) -> StoreError:
    return StoreError(f"The store could not be written: {error}.")


def _tell(writes: list[_Write]) -> None:
    """Wake those who wait, with one call for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
    for write in writes:
        loops.setdefault(write.future.get_loop(), []).append(write)
    for loop, own in loops.items():
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            loop.call_soon_threadsafe(_settle, own)


def _settle(writes: list[_Write]) -> None:
    for write in writes:
        write.settle()


class Readers:
    """Threads that read, each with a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(READERS, "dragoman-read")
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        """Have something read. Raises StoreError when the file cannot be read."""
        if self._closed:
            raise StoreError(CLOSED)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._read, work)

    async def close(self) -> None:
        """Read what is waiting and end."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        for connection in self._opened:
            connection.close()

    def _read(self, work: Work[T]) -> T:
        connection = getattr(self._own, "connection", None)
        try:
            if connection is None:
                connection = self._own.connection = connect(self._path)
                self._opened.append(connection)
            return work(connection)
        except sqlite3.Error as error:
            raise StoreError(f"The store could not be read: {error}.") from error


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


class SqliteOutbox(SqliteRows):
    """The part of the store that is an outbox."""

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        """Take out messages whose time has come."""
        if not await self._read("SELECT 1 FROM letters WHERE due <= $1 LIMIT 1", now):
            return ()  # and nobody who writes was disturbed
        statement = """UPDATE letters SET due = $1, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM letters WHERE due <= $2 ORDER BY due LIMIT $3)
            RETURNING id, target, body, due, attempts"""
        return messages_of(await self._write(statement, until, now, most))


class SqliteConversations(SqliteRows):
    """The half of the store that keeps conversations."""

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item] = ()
    ) -> None:
        """Keep a new conversation."""
        made, data = conversation, pack(conversation)

        def work(connection: Connection) -> None:
            try:
                rows(connection, OPEN, made.id, made.tenant, made.created_at, data)
            except IntegrityError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            extend(connection, made.id, items)

        await self._writer.run(work)

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"

        def work(connection: Connection) -> bool:
            if not rows(connection, statement, id, tenant):
                return False
            rows(connection, "DELETE FROM items WHERE conversation = $1", id)
            return True

        return await self._writer.run(work)

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""

        def work(connection: Connection) -> bool:
            if not held(connection, tenant, id):
                return False
            extend(connection, id, items)
            return True

        return await self._writer.run(work)


def held(connection: Connection, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation."""
    return bool(rows(connection, HELD, id, tenant))


def extend(connection: Connection, id: str, items: Sequence[Item], *, rename: bool = False) -> None:
    """Add items at the end; one whose id is taken is renamed or refused."""
    ((last,),) = rows(connection, LAST, id)
    for place, item in enumerate(items, last + 1):
        if item.id and rows(connection, EXTEND, id, place, item.id, pack(item)):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        own = replace(item, id=renamed_id(item, place))
        rows(connection, EXTEND, id, place, own.id, pack(own))


SOME = 250
"""Responses whose rows go in one step."""


def forget(connection: Connection, ids: Sequence[str]) -> None:
    """Drop responses, their logs, and where their items and calls are found."""
    each = [(id,) for id in ids]
    connection.executemany("DELETE FROM responses WHERE id = ?", each)
    connection.executemany("DELETE FROM stretches WHERE id = ?", each)
    connection.executemany("DELETE FROM homes WHERE response = ?", each)
    connection.executemany("DELETE FROM calls WHERE response = ?", each)


def sweep_responses(connection: Connection, retention: Retention, now: float) -> int:
    """Forget some of the responses that are too old or too many, the oldest first; how many."""
    rows = connection.execute(
        """SELECT id FROM (SELECT id, created_at FROM responses WHERE NOT running
                ORDER BY created_at, rowid LIMIT :some)
            WHERE created_at < :old
        UNION
        SELECT id FROM (SELECT id FROM responses WHERE NOT running ORDER BY created_at, rowid
            LIMIT min(:some, max(0, (SELECT count(*) FROM responses) - :most)))""",
        {"some": SOME, "old": now - retention.max_age, "most": retention.max_responses},
    )
    ids = [id for (id,) in rows]
    forget(connection, ids)
    return len(ids)


def sweep_logs(connection: Connection, retention: Retention, now: float) -> int:
    """Forget some of the logs that are too old; of how many responses."""
    rows = connection.execute(
        """SELECT DISTINCT id FROM stretches WHERE created_at < ? AND id NOT IN (
            SELECT id FROM responses WHERE running) LIMIT ?""",
        (now - retention.max_log_age, SOME),
    )
    ids = [(id,) for (id,) in rows]
    connection.executemany("DELETE FROM stretches WHERE id = ?", ids)
    return len(ids)


def sweep_rest(connection: Connection, retention: Retention, now: float) -> None:
    """Forget the conversations and the messages that are too old."""
    old = (now - retention.max_age,)
    connection.execute("DELETE FROM conversations WHERE created_at < ?", old)
    connection.execute("DELETE FROM letters WHERE due < ?", old)
    connection.execute("DELETE FROM items WHERE conversation NOT IN (SELECT id FROM conversations)")


POLL = 0.05
"""Seconds between two looks at what another process may have written."""


class SqliteStore(SqliteConversations, SqliteOutbox):
    """Keeps everything in one file, which is made where it is missing.

    Raises StoreError, which says what to do, when the file cannot be used.
    """

    def __init__(self, path: Path, retention: Retention | None = None) -> None:
        self._retention = retention or Retention()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            with closing(connect(path)) as connection:
                migrate(connection, path)
        except (OSError, DatabaseError) as error:
            raise unopened(path, error) from error
        self._writer = Writer(path)
        self._readers = Readers(path)
        self._waiting: dict[str, set[asyncio.Event]] = {}

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Keep a run that is about to start."""
        row = row_of(record)
        ids = cleaned(item.id for item in record.request.items)

        def work(connection: Connection) -> None:
            try:
                rows(connection, BEGIN, *row)
            except IntegrityError:
                raise StoreError(f"There is a response {record.id} already.") from None
            _index(connection, record.tenant, record.id, ids)

        await self._writer.run(work)

    async def append(self, id: str, segment: LogSegment) -> None:
        """Add to the log of a run."""
        data = pack(segment.events)
        await self._writer.run(lambda connection: _append(connection, id, segment, data))
        self._tell(id)

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """End a run with what came of it."""
        statement = "UPDATE responses SET status = $2, running = false, response = $3 WHERE id = $1"
        data = pack(response)
        events = b"" if segment is None else pack(segment.events)
        ids = cleaned(item.id for item in response.output)
        made, posted = call_digests(response), rows_of(messages)

        def work(connection: Connection) -> bool:
            run = _run(connection, id)
            if run is None:
                return False
            tenant, conversation = run
            if segment is not None:
                _append(connection, id, segment, events)
            rows(connection, statement, id, response.status, data)
            _index(connection, tenant, id, ids)
            for row in calls_of(tenant, id, made):
                rows(connection, CALL, *row)
            if items and conversation is not None and held(connection, tenant, conversation):
                extend(connection, conversation, items, rename=True)
            for row in posted:
                rows(connection, POST, *row)
            return True

        ended = await self._writer.run(work)
        self._tell(id)
        return ended

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        event = asyncio.Event()
        self._waiting.setdefault(id, set()).add(event)
        statement = "SELECT length FROM responses WHERE id = $1 AND running"
        try:
            async with asyncio.timeout(seconds):
                while True:
                    row = await self._read(statement, id)
                    if not row or row[0][0] > length:
                        return
                    event.clear()
                    try:
                        async with asyncio.timeout(POLL):
                            await event.wait()
                    except TimeoutError:
                        pass
        except TimeoutError:
            pass
        finally:
            waiting = self._waiting[id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[id]

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response and its log."""
        statement = "SELECT 1 FROM responses WHERE id = $1 AND tenant = $2"

        def work(connection: Connection) -> bool:
            if not rows(connection, statement, id, tenant):
                return False
            forget(connection, [clean(id)])
            return True

        gone = await self._writer.run(work)
        self._tell(id)
        return gone

    # ---- leases --------------------------------------------------------------------------

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on."""
        statement = """UPDATE responses SET lease = $2
            WHERE id = $1 AND running AND NOT cancelling RETURNING id"""

        def work(connection: Connection) -> tuple[str, ...]:
            return tuple(id for id in ids if not rows(connection, statement, id, until))

        return await self._writer.run(work)

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        statement = f"""UPDATE responses SET owner = $1, lease = $3
            WHERE running AND lease < $2 RETURNING {COLUMNS}"""
        return tuple(map(record_of, await self._write(statement, owner, now, until)))

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Forget what is too old, and what is too much."""
        retention, gone = self._retention, 0
        while some := await self._writer.run(lambda db: sweep_responses(db, retention, now)):
            gone += some
        while await self._writer.run(lambda db: sweep_logs(db, retention, now)):
            pass
        await self._writer.run(lambda db: sweep_rest(db, retention, now))
        return gone

    async def ready(self) -> None:
        """Nothing is in the way of a file that was opened."""

    async def close(self) -> None:
        """Write what is waiting and let go."""
        await self._writer.close()
        await self._readers.close()

    # ---- inside --------------------------------------------------------------------------

    def _tell(self, id: str) -> None:
        for event in self._waiting.get(id, ()):
            event.set()


def _run(connection: Connection, id: str) -> Row | None:
    """The tenant and the conversation of a run that goes on."""
    statement = "SELECT tenant, conversation FROM responses WHERE id = $1 AND running"
    return next(iter(rows(connection, statement, id)), None)


def _index(connection: Connection, tenant: str, id: str, items: Sequence[str]) -> None:
    homes = ((tenant, item, id) for item in items)
    connection.executemany("INSERT OR IGNORE INTO homes VALUES (?, ?, ?)", homes)


def _append(connection: Connection, id: str, segment: LogSegment, data: bytes) -> None:
    statement = """UPDATE responses SET length = length + $3
        WHERE id = $1 AND length = $2 AND running RETURNING created_at"""
    longer = rows(connection, statement, id, segment.first, len(segment.events))
    if not longer:
        if _run(connection, id) is not None:
            raise StoreError(f"The log of {id} has a gap before {segment.first}.")
        raise StoreError(f"No response {id} is being made.")
    statement = "INSERT INTO stretches (id, first, created_at, events) VALUES ($1, $2, $3, $4)"
    rows(connection, statement, id, segment.first, longer[0][0], data)
