"""The SQLite store: the default, in one file, with nothing to set up.

Several processes of one machine may share the file. One thread writes: what an event loop hands
over in one turn, and all that waits when the thread is free, becomes one transaction, in which the
rows of each table are inserted together. Other threads read beside it.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection, DatabaseError, IntegrityError
from typing import Any, TypeVar

from msgspec import Struct

from .base import Retention, StoreError, Subscribers
from .schema import SQLITE
from .sql import Insert, NotUniqueError, Row, SqlStore, Steps, Values, bound, by_table, chunks

T = TypeVar("T")

READERS = 2
PATIENCE = 30.0
"""Seconds to wait for another process that is writing."""
GROUP = 512
"""How many writes share a commit at most."""
TOGETHER = 32
"""How many rows one statement inserts at most: SQLite prepares one text for each number of rows."""
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


@lru_cache(1_024)
def _translated(statement: str) -> str:
    """A statement as SQLite writes it: with its own places, and without the locks that it does not
    need, because a transaction that writes has the whole file."""
    return _LOCKS.sub("", statement).replace("$", "?")


_LOCKS = re.compile(r"FOR UPDATE( OF \w+)?( SKIP LOCKED)?|^LOCK TABLE .*")


def _rows(connection: Connection, statement: str, values: Values) -> list[Row]:
    """The rows that a statement gives."""
    return connection.execute(_translated(statement), bound(values)).fetchall()


def _take(connection: Connection, steps: Steps[T]) -> T:
    """Take the steps of a transaction; gives their result."""
    try:
        statement, values = next(steps)
        while True:
            statement, values = steps.send(_rows(connection, statement, values))
    except StopIteration as end:
        result: T = end.value
        return result


class _Write(Struct, eq=False):
    """Rows to insert and steps to take, all or nothing, and the future of who waits for it."""

    inserts: Sequence[Insert]
    steps: Steps[Any] | None
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Writer:
    """The one thread that writes."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._turns: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
        self._queue: SimpleQueue[list[_Write] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dragoman-store", daemon=True)
        self._thread.start()

    async def write(self, inserts: Sequence[Insert], steps: Steps[T] | None = None) -> T | None:
        """Insert rows and then take steps in the same transaction; returns once that is committed.

        Raises what the steps raise, StoreError when the file cannot be written, and NotUniqueError
        where a row is there already.
        """
        if self._closed:
            raise StoreError(CLOSED)
        loop = asyncio.get_running_loop()
        write = _Write(inserts, steps, loop.create_future())
        turn = self._turns.get(loop)
        if turn is None:  # the first of this turn of the loop: hand all of them over at its end
            turn = self._turns[loop] = []
            loop.call_soon(self._hand_over, loop)
        turn.append(write)
        result: T | None = await write.future
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
            self._insert([write for write in writes if write.steps is None])
            for write in writes:
                if write.steps is not None:
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
                _insert(self._connection, [row for write in writes for row in write.inserts])
            except IntegrityError:
                self._connection.execute("ROLLBACK TO all_rows")
                for write in writes:
                    self._attempt(write)
            self._connection.execute("RELEASE all_rows")

    def _attempt(self, write: _Write) -> None:
        """Do one write of several: if it fails, it is undone and the others stand."""
        self._connection.execute("SAVEPOINT one")
        try:
            _insert(self._connection, write.inserts)
            if write.steps is not None:
                write.result = _take(self._connection, write.steps)
        except Exception as error:
            self._connection.execute("ROLLBACK TO one")
            write.error = _unwritten(error) if isinstance(error, sqlite3.Error) else error
        self._connection.execute("RELEASE one")


def _insert(connection: Connection, inserts: Iterable[Insert]) -> None:
    """Insert rows, those of one table with as few statements as can be."""
    for (insert, row, ending), values in by_table(inserts):
        for some in chunks(values, TOGETHER):
            text = f"{insert} VALUES {', '.join([row] * len(some))} {ending}"
            connection.execute(text, [value for each in some for value in each])


def _settle(writes: list[_Write]) -> None:
    """Wake those who wait for these writes; in the thread of their event loop."""
    for write in writes:
        if write.future.done():
            continue
        if write.error is None:
            write.future.set_result(write.result)
        else:
            write.future.set_exception(write.error)


class Readers:
    """Threads that read, each with a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(READERS, "dragoman-read")
        self._own = threading.local()
        self._opened: list[Connection] = []
        self._closed = False

    async def read(self, statement: str, values: Values) -> list[Row]:
        """The rows that a statement finds. Raises StoreError when the file cannot be read."""
        if self._closed:
            raise StoreError(CLOSED)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._read, statement, values)

    async def close(self) -> None:
        """Read what is waiting and end."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        for connection in self._opened:
            connection.close()

    def _read(self, statement: str, values: Values) -> list[Row]:
        try:
            if not hasattr(self._own, "connection"):
                self._own.connection = connect(self._path)
                self._opened.append(self._own.connection)
            return _rows(self._own.connection, statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"The store could not be read: {error}.") from error


# ---- the store -----------------------------------------------------------------------------


class SqliteStore(SqlStore):
    """Stores everything in one file, which is made where it is missing.

    Raises StoreError, which says what to do, when the file cannot be used.
    """

    POLL = 0.05
    CASCADES = False

    def __init__(self, path: Path, retention: Retention | None = None) -> None:
        super().__init__(retention, Subscribers())
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            with closing(connect(path)) as connection:
                migrate(connection, path)
        except (OSError, DatabaseError) as error:
            raise unopened(path, error) from error
        self._writer = Writer(path)
        self._readers = Readers(path)

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        return await self._readers.read(statement, values)

    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        def steps() -> Steps[Sequence[Row]]:
            return (yield statement, values)

        return await self._run(steps())

    async def _transact(self, inserts: Sequence[Insert], steps: Steps[T] | None = None) -> T | None:
        return await self._writer.write(inserts, steps)

    async def ready(self) -> None:
        """A file that was opened is ready."""

    async def close(self) -> None:
        await self._writer.close()
        await self._readers.close()
