"""The SQLite store: the default, in one file, with nothing to set up.

Several processes of one machine may share the file. One thread writes: what an event loop hands
over in one turn, and all that waits when the thread is free, becomes one transaction, in which the
rows of each table are inserted together. Other threads read beside it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
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
    ended,
    renamed_id,
)
from .schema import SQLITE
from .serialize import digests, pack
from .sql import (
    EXTEND,
    HELD,
    INSERT,
    LAST,
    LENGTH,
    OPEN,
    POST,
    Row,
    Rows,
    bound,
    clean,
    index_keys,
    messages_of,
    row_of,
    rows_of,
)

T = TypeVar("T")
Work = Callable[[Connection], T]
Values = Sequence[object]
Table = tuple[str, str]
"""The beginning of an INSERT, up to VALUES, and the places of one row."""
Insert = tuple[Table, Values]

POLL = 0.05
"""Seconds between two looks at what another process may have written."""
READERS = 2
PATIENCE = 30.0
"""Seconds to wait for another process that is writing."""
GROUP = 512
"""How many writes share a commit at most."""
TOGETHER = 32
"""How many rows one statement inserts at most: SQLite prepares one text for each number of rows."""
SWEPT = 250
"""Responses that one transaction deletes: writers wait for a part of a sweep, not for all of it."""
CLOSED = "The store is closed."


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
    """The error for a file that cannot be used, with what to do."""
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return StoreError(f"The store {path} cannot be made: {reason}. {_WRITING}{ELSE}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_READONLY) & 0xFF
    return StoreError(
        f"The store {path} cannot be used: {error}. {_ADVICE.get(code, _WRITING)}{ELSE}"
    )


class NotUniqueError(StoreError):
    """A row with this key is there already."""


def _unwritten(error: sqlite3.Error) -> StoreError:
    kind = NotUniqueError if isinstance(error, IntegrityError) else StoreError
    return kind(f"The store could not be written: {error}.")


# ---- tables --------------------------------------------------------------------------------


def migrate(connection: Connection, path: Path) -> None:
    """Take the steps a file has not taken. Raises StoreError for a file of a later version."""
    connection.execute("BEGIN IMMEDIATE")
    (taken,) = connection.execute("PRAGMA user_version").fetchone()
    if taken > len(SQLITE):
        connection.execute("ROLLBACK")
        raise StoreError(
            f"The store {path} was written by a later Dragoman (step {taken}, known are "
            f"{len(SQLITE)}). Run that version, {ELSE}"
        )
    for step in SQLITE[taken:]:
        for statement in step.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(SQLITE)}")
    connection.execute("COMMIT")


_SEQ = "(SELECT seq FROM responses WHERE id = ?)"
_RESPONSE: Table = (INSERT, "(?, ?, ?, ?, ?, ?, ?, ?, ?)")
_RUN: Table = ("INSERT INTO runs (seq, owner, lease, conversation)", f"({_SEQ}, ?, ?, ?)")
_PART: Table = ("INSERT OR IGNORE INTO parts (digest, data)", "(?, ?)")
_USE: Table = ("INSERT OR IGNORE INTO part_uses (seq, digest)", f"({_SEQ}, ?)")
_INDEX: Table = ("INSERT OR IGNORE INTO item_index (seq, tenant, item)", f"({_SEQ}, ?, ?)")
_LIVE = f"SELECT seq FROM runs WHERE seq = {_SEQ}"
_ENDED = f"""DELETE FROM runs WHERE seq = {_SEQ} RETURNING seq,
    (SELECT tenant FROM responses WHERE responses.seq = runs.seq), conversation"""
_APPENDED = """INSERT INTO segments (seq, first, length, events) SELECT ?1, ?2, ?3, ?4 WHERE ?2 =
    coalesce((SELECT first + length FROM segments WHERE seq = ?1 ORDER BY first DESC LIMIT 1), 0)"""
_CALL: Table = ("INSERT OR REPLACE INTO calls (seq, tenant, digest)", f"({_SEQ}, ?, ?)")


# ---- threads -------------------------------------------------------------------------------


def connect(path: Path) -> Connection:
    """A connection set up as all of ours are; transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )
    _write_ahead(connection)
    # In WAL mode a commit survives a killed process; NORMAL keeps the file whole even when the
    # machine loses power, at the price of the last commits, and OFF would not.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _write_ahead(connection: Connection) -> None:
    """Switch the file to WAL mode. Of several processes that open a new file together all but one
    are refused at once, whatever their timeout is, and must try again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def rows(connection: Connection, statement: str, *values: object) -> list[Row]:
    """The rows that a statement gives; its values are called `$1`, `$2` … in it."""
    named = {str(number): value for number, value in enumerate(bound(values), 1)}
    return connection.execute(statement, named).fetchall()


class _Write:
    """Rows to insert and work to do, all of it or nothing, and the future of who waits for it."""

    __slots__ = ("error", "future", "inserts", "result", "work")

    def __init__(self, inserts: Sequence[Insert], work: Work[Any] | None, future: Any) -> None:
        self.inserts = inserts
        self.work = work
        self.future: asyncio.Future[Any] = future
        self.result: Any = None
        self.error: Exception | None = None

    def settle(self) -> None:
        """Wake who waits; in the thread of its event loop."""
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
        self._turns: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
        self._queue: SimpleQueue[list[_Write] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dragoman-store", daemon=True)
        self._thread.start()

    async def write(self, inserts: Sequence[Insert], work: Work[Any] | None = None) -> Any:
        """Insert rows and then do work in the same transaction; returns once that is committed.

        Raises what the work raises, StoreError when the file cannot be written, and NotUniqueError
        where a row is there already.
        """
        if self._closed:
            raise StoreError(CLOSED)
        loop = asyncio.get_running_loop()
        write = _Write(inserts, work, loop.create_future())
        turn = self._turns.get(loop)
        if turn is None:  # the first of this turn of the loop: hand all of them over at its end
            turn = self._turns[loop] = []
            loop.call_soon(self._hand_over, loop)
        turn.append(write)
        return await write.future

    async def run(self, work: Work[T]) -> T:
        """Do work inside a transaction; see `write`."""
        result: T = await self.write((), work)
        return result

    async def close(self) -> None:
        """Write what is waiting and end."""
        self._closed = True
        for loop in tuple(self._turns):
            self._hand_over(loop)
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._connection.close()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._turns.pop(loop, None)
        if turn is not None:
            self._queue.put(turn)

    def _run(self) -> None:
        open = True
        while open:
            turns = [self._queue.get()]
            count = 0
            with suppress(Empty):
                while count < GROUP:
                    turns.append(self._queue.get_nowait())
                    count += len(turns[-1] or ())
            open = None not in turns
            handed = [turn for turn in turns if turn is not None]
            if handed:
                self._commit([write for turn in handed for write in turn])
                for turn in handed:
                    with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                        turn[0].future.get_loop().call_soon_threadsafe(_settle, turn)

    def _commit(self, writes: list[_Write]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._insert([write for write in writes if write.work is None])
            for write in writes:
                if write.work is not None:
                    self._attempt(write)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            for write in writes:
                write.error = write.error or _unwritten(error)

    def _insert(self, writes: list[_Write]) -> None:
        """Insert the rows of many writes together; if one of them fails, each by itself."""
        if len(writes) == 1:
            self._attempt(writes[0])
        elif writes:
            self._connection.execute("SAVEPOINT all_rows")
            try:
                insert(self._connection, [row for write in writes for row in write.inserts])
            except IntegrityError:
                self._connection.execute("ROLLBACK TO all_rows")
                for write in writes:
                    self._attempt(write)
            self._connection.execute("RELEASE all_rows")

    def _attempt(self, write: _Write) -> None:
        """Do one write of several: if it fails, it is undone and the others stand."""
        self._connection.execute("SAVEPOINT one")
        try:
            insert(self._connection, write.inserts)
            if write.work is not None:
                write.result = write.work(self._connection)
        except Exception as error:
            self._connection.execute("ROLLBACK TO one")
            write.error = _unwritten(error) if isinstance(error, sqlite3.Error) else error
        self._connection.execute("RELEASE one")


def insert(connection: Connection, inserts: Iterable[Insert]) -> None:
    """Insert rows, those of one table with as few statements as can be."""
    tables: dict[Table, list[Values]] = {}
    for table, row in inserts:
        tables.setdefault(table, []).append(row)
    for (statement, places), all_rows in tables.items():
        for start in range(0, len(all_rows), TOGETHER):
            some = all_rows[start : start + TOGETHER]
            text = f"{statement} VALUES {', '.join([places] * len(some))}"
            connection.execute(text, [value for row in some for value in row])


def _settle(writes: list[_Write]) -> None:
    for write in writes:
        write.settle()


class Readers:
    """Threads that read, each with a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(READERS, "dragoman-read")
        self._own = threading.local()
        self._opened: list[Connection] = []
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        """Read something. Raises StoreError when the file cannot be read."""
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


# ---- the store -----------------------------------------------------------------------------


class SqliteStore(Rows):
    """Stores everything in one file, which is made where it is missing.

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

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._readers.run(lambda connection: rows(connection, statement, *values))

    async def _read_parts(self, digests: Sequence[bytes]) -> Sequence[Row]:
        def work(connection: Connection) -> list[Row]:
            found: list[Row] = []
            for start in range(0, len(digests), SWEPT):
                some = digests[start : start + SWEPT]
                places = ", ".join("?" * len(some))
                statement = f"SELECT digest, data FROM parts WHERE digest IN ({places})"
                found += connection.execute(statement, some).fetchall()
            return found

        return await self._readers.run(work)

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._writer.run(lambda connection: rows(connection, statement, *values))

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Store a run that is about to start."""
        run = bound((record.id, record.owner, record.lease, record.conversation))
        await self._insert(record.id, [*_inserts(record), (_RUN, run)])

    async def put(
        self,
        record: Record,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> None:
        """Store a response that has ended, whole."""
        response = ended(record)
        inserts = _inserts(record)
        id, tenant = inserts[0][1][:2]
        inserts += [(_CALL, (id, tenant, digest)) for digest in call_digests(response)]

        def work(connection: Connection) -> None:
            _add_to(connection, record.tenant, record.conversation, items, messages)

        await self._insert(record.id, inserts, work if items or messages else None)

    async def _insert(
        self, id: str, inserts: Sequence[Insert], work: Work[None] | None = None
    ) -> None:
        try:
            await self._writer.write(inserts, work)
        except NotUniqueError:
            raise StoreError(f"There is a response {id} already.") from None

    async def append(self, id: str, segment: LogSegment) -> None:
        """Add to the log of a run."""
        data, own = pack(segment.events), clean(id)

        def work(connection: Connection) -> None:
            live = connection.execute(_LIVE, (own,)).fetchone()
            if live is None:
                raise StoreError(f"No response {id} is being made.")
            if not _append(connection, live[0], segment, data):
                raise StoreError(f"The log of {id} has a gap before {segment.first}.")

        await self._writer.run(work)
        self._notify(id)

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """End a run with its response."""
        data = pack(response)
        events = b"" if segment is None else pack(segment.events)
        keys, called, own = index_keys(id, response.output), call_digests(response), clean(id)

        def work(connection: Connection) -> bool:
            live = connection.execute(_ENDED, (own,)).fetchone()
            if live is None:
                return False
            seq, tenant, conversation = live
            if segment is not None and not _append(connection, seq, segment, events):
                raise StoreError(f"The log of {id} has a gap before {segment.first}.")
            connection.execute("INSERT INTO ends (seq, response) VALUES (?, ?)", (seq, data))
            insert(connection, [(_INDEX, (own, tenant, key)) for key in keys])
            insert(connection, [(_CALL, (own, tenant, digest)) for digest in called])
            _add_to(connection, tenant, conversation, items, messages)
            return True

        is_over = await self._writer.run(work)
        self._notify(id)
        return is_over

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        event = asyncio.Event()
        self._waiting.setdefault(id, set()).add(event)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    row = await self._read(LENGTH, id)
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
        """Delete a response and its log."""
        own = "SELECT seq, parts FROM responses WHERE id = $1 AND tenant = $2"

        def work(connection: Connection) -> bool:
            found = rows(connection, own, id, tenant)
            _forget(connection, found)
            return bool(found)

        gone = await self._writer.run(work)
        self._notify(id)
        return gone

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Extend the leases of these runs; the ids of those that must stop."""
        statement = """UPDATE runs SET lease = $2 WHERE NOT cancelling
            AND seq = (SELECT seq FROM responses WHERE id = $1) RETURNING seq"""

        def work(connection: Connection) -> tuple[str, ...]:
            return tuple(id for id in ids if not rows(connection, statement, id, until))

        return await self._writer.run(work)

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs whose lease has expired."""
        if not await self._read("SELECT 1 FROM runs WHERE lease < $1 LIMIT 1", now):
            return ()  # and no writer was disturbed
        statement = "UPDATE runs SET owner = $1, lease = $3 WHERE lease < $2 RETURNING seq"
        taken = await self._write(statement, owner, now, until)
        found: list[Record] = []
        for (seq,) in taken:
            found += await self._records("WHERE r.seq = $1", seq)
        return tuple(found)

    # ---- conversations -------------------------------------------------------------------

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item] = ()
    ) -> None:
        """Store a new conversation."""
        made, data = conversation, pack(conversation)

        def work(connection: Connection) -> None:
            try:
                rows(connection, OPEN, made.id, made.tenant, made.created_at, data)
            except IntegrityError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            _extend(connection, made.id, items)

        await self._writer.run(work)

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Delete a conversation and its items."""
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
            if not rows(connection, HELD, id, tenant):
                return False
            _extend(connection, id, items)
            return True

        return await self._writer.run(work)

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        """Take out messages that are due."""
        if not await self._read("SELECT 1 FROM outbox WHERE due <= $1 LIMIT 1", now):
            return ()  # and no writer was disturbed
        statement = """UPDATE outbox SET due = $1, attempts = attempts + 1 WHERE id IN
            (SELECT id FROM outbox WHERE due <= $2 ORDER BY due LIMIT $3)
            RETURNING id, target, body, due, attempts"""
        return messages_of(await self._write(statement, until, now, most))

    async def sweep(self, now: float) -> int:
        """Delete what is older or more than the retention allows."""
        retention, gone = self._retention, 0
        while some := await self._writer.run(lambda db: _sweep_responses(db, retention, now)):
            gone += some
        while await self._writer.run(lambda db: _sweep_logs(db, retention, now)):
            pass
        await self._writer.run(lambda db: _sweep_rest(db, retention, now))
        return gone

    async def ready(self) -> None:
        """A file that was opened is ready."""

    async def close(self) -> None:
        """Write what is waiting and close the file."""
        await self._writer.close()
        await self._readers.close()

    def _notify(self, id: str) -> None:
        for event in self._waiting.get(id, ()):
            event.set()


def _inserts(record: Record) -> list[Insert]:
    """The rows of a record, that of the response first."""
    row, parts = row_of(record)
    id, tenant = row[:2]
    inserts: list[Insert] = [(_RESPONSE, row)]
    inserts += [(_PART, part) for part in parts]
    inserts += [(_USE, (id, digest)) for digest, _ in parts]
    inserts += [(_INDEX, (id, tenant, key)) for key in index_keys(record.id, record.items)]
    return inserts


def _append(connection: Connection, seq: int, segment: LogSegment, data: bytes) -> bool:
    """Add to a log; False where the segment does not follow its end."""
    row = (seq, segment.first, len(segment.events), data)
    return connection.execute(_APPENDED, row).rowcount == 1


def _add_to(
    connection: Connection,
    tenant: str,
    conversation: str | None,
    items: Sequence[Item],
    messages: Sequence[OutboxMessage],
) -> None:
    """What the end of a run adds to its conversation and to the outbox."""
    if items and conversation is not None and rows(connection, HELD, conversation, tenant):
        _extend(connection, conversation, items, rename=True)
    for row in rows_of(messages):
        rows(connection, POST, *row)


def _extend(
    connection: Connection, id: str, items: Sequence[Item], *, rename: bool = False
) -> None:
    """Add items at the end of a conversation; one whose id is taken is renamed or refused."""
    ((last,),) = rows(connection, LAST, id)
    for place, item in enumerate(items, last + 1):
        if item.id and rows(connection, EXTEND, id, place, item.id, pack(item)):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        own = replace(item, id=renamed_id(item, place))
        rows(connection, EXTEND, id, place, own.id, pack(own))


def _forget(connection: Connection, responses: Sequence[Row]) -> None:
    """Delete responses, given their `seq` and their parts, with all that belongs to them alone."""
    each = [(seq,) for seq, _ in responses]
    for table in ("responses", "runs", "segments", "ends", "item_index", "calls"):
        connection.executemany(f"DELETE FROM {table} WHERE seq = ?", each)
    uses = [(digest, seq) for seq, parts in responses for digest in digests(parts)]
    connection.executemany("DELETE FROM part_uses WHERE digest = ? AND seq = ?", uses)
    connection.executemany(
        """DELETE FROM parts WHERE digest = ?1
            AND NOT EXISTS (SELECT 1 FROM part_uses WHERE digest = ?1)""",
        [(digest,) for digest in {digest for digest, _ in uses}],
    )


def _sweep_responses(connection: Connection, retention: Retention, now: float) -> int:
    """Delete some of the responses that are too old or too many, the oldest first; how many."""
    (count,) = connection.execute("SELECT count(*) FROM responses").fetchone()
    statement = """SELECT seq, parts, created_at FROM responses
        WHERE seq NOT IN (SELECT seq FROM runs) ORDER BY seq LIMIT ?"""
    oldest = connection.execute(statement, (SWEPT,)).fetchall()
    old, excess = now - retention.max_age, count - retention.max_responses
    gone = [
        (seq, parts)
        for place, (seq, parts, created_at) in enumerate(oldest)
        if created_at < old or place < excess
    ]
    _forget(connection, gone)
    return len(gone)


def _sweep_logs(connection: Connection, retention: Retention, now: float) -> int:
    """Delete some of the logs that are too old, the oldest first; of how many responses."""
    statement = """SELECT seq FROM responses WHERE created_at < ? AND seq IN (
        SELECT DISTINCT seq FROM segments WHERE seq NOT IN (SELECT seq FROM runs)
        ORDER BY seq LIMIT ?)"""
    each = connection.execute(statement, (now - retention.max_log_age, SWEPT)).fetchall()
    connection.executemany("DELETE FROM segments WHERE seq = ?", each)
    return len(each)


def _sweep_rest(connection: Connection, retention: Retention, now: float) -> None:
    """Delete the conversations and the messages that are too old."""
    old = (now - retention.max_age,)
    connection.execute("DELETE FROM conversations WHERE created_at < ?", old)
    connection.execute("DELETE FROM outbox WHERE due < ?", old)
    connection.execute("DELETE FROM items WHERE conversation NOT IN (SELECT id FROM conversations)")
