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
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection, DatabaseError
from typing import Any, TypeVar

from msgspec import Struct

from .base import Retention, StoreError, Subscribers
from .schema import SQLITE
from .sql import Insert, Row, Steps, Store, Values, bound, read_secret

T = TypeVar("T")

READERS = 2
PATIENCE = 30.0
"""Seconds to wait for another process that is writing."""
GROUP = 512
"""How many writes share a commit at most."""
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


# ---- tables --------------------------------------------------------------------------------


def migrate(connection: Connection, path: Path) -> bytes:
    """Take the steps a file has not taken; the secret of the file. Raises StoreError for a file of
    a later version."""
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
    secret = _taken(connection, read_secret())
    connection.execute("COMMIT")
    return secret


# ---- threads -------------------------------------------------------------------------------


def connect(path: Path) -> Connection:
    """A connection set up as all of ours are; transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )
    _write_ahead(connection)
    # In WAL mode a commit survives a killed process; NORMAL keeps the file whole even when the
    # machine loses power, at the price of the last commits, and OFF would not.
    for setting in ("synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -512"):
        connection.execute(f"PRAGMA {setting}")  # the system caches the file, too: 512 kB do
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


def found(connection: Connection, statement: str, values: Values) -> list[Row]:
    """The rows that a statement gives."""
    return connection.execute(_translated(statement), bound(values)).fetchall()


class Write(Struct, eq=False):
    """Rows to insert and steps to take, all or nothing, and the future of who waits for it."""

    inserts: Sequence[Insert]
    steps: Callable[[], Steps[Any]] | None
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class SqliteStore(Store):
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
                self._secret = migrate(connection, path)
        except (OSError, DatabaseError) as error:
            raise unopened(path, error) from error
        self._path = path
        self._closed = False
        self._pool = ThreadPoolExecutor(READERS, "dragoman-read")
        self._own = threading.local()
        self._opened: list[Connection] = []
        self._turns: dict[asyncio.AbstractEventLoop, list[Write]] = {}
        self._queue: SimpleQueue[list[Write] | None] = SimpleQueue()
        self._writing = connect(path)
        self._writer = threading.Thread(target=self._work, name="dragoman-store", daemon=True)
        self._writer.start()

    async def close(self) -> None:
        """Write and read what is waiting, and end."""
        self._closed = True
        for loop in tuple(self._turns):
            self._hand_over(loop)
        self._queue.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.join)
        await loop.run_in_executor(None, self._pool.shutdown)
        for connection in (self._writing, *self._opened):
            connection.close()

    # ---- reading -------------------------------------------------------------------------

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        if self._closed:
            raise StoreError(CLOSED)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._read_here, statement, values)

    def _read_here(self, statement: str, values: Values) -> list[Row]:
        try:
            if not hasattr(self._own, "connection"):
                self._own.connection = connect(self._path)
                self._opened.append(self._own.connection)
            return found(self._own.connection, statement, values)
        except sqlite3.Error as error:
            raise StoreError(f"The store could not be read: {error}.") from error

    # ---- writing -------------------------------------------------------------------------

    def _transact(
        self, inserts: Sequence[Insert], steps: Callable[[], Steps[T]] | None = None
    ) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        write = Write(inserts, steps, loop.create_future())
        if self._closed:
            write.future.set_exception(StoreError(CLOSED))
            return write.future
        turn = self._turns.get(loop)
        if turn is None:  # the first of this turn of the loop: hand all of them over at its end
            turn = self._turns[loop] = []
            loop.call_soon(self._hand_over, loop)
        turn.append(write)
        return write.future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._turns.pop(loop, None)
        if turn is not None:
            self._queue.put(turn)

    def _work(self) -> None:
        """Write what is handed over; in the writer's thread."""
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
                commit(self._writing, [write for turn in handed for write in turn])
                for turn in handed:
                    with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                        turn[0].future.get_loop().call_soon_threadsafe(settle, turn)


def commit(connection: Connection, writes: list[Write]) -> None:
    """Write in one transaction; where one of several is refused, each in its own."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        rows: dict[str, list[Values]] = {}  # those of one table together
        for write in writes:
            for statement, values in write.inserts:
                rows.setdefault(statement, []).append(values)
        for statement, several in rows.items():
            connection.executemany(_translated(statement), several)
        for write in writes:
            if write.steps is not None:
                write.result = _taken(connection, write.steps())
        connection.execute("COMMIT")
    except Exception as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if len(writes) > 1 and not isinstance(error, sqlite3.OperationalError):
            for write in writes:
                commit(connection, [write])
            return
        known = isinstance(error, sqlite3.Error)
        problem = f"The store could not be written: {error}."
        for write in writes:
            write.error = StoreError(problem) if known else error


def _taken(connection: Connection, steps: Steps[T]) -> T:
    """Take the steps of a transaction; gives their result."""
    try:
        statement, values = next(steps)
        while True:
            statement, values = steps.send(found(connection, statement, values))
    except StopIteration as end:
        result: T = end.value
        return result


def settle(writes: list[Write]) -> None:
    """Wake those who wait for these writes; in the thread of their event loop."""
    for write in writes:
        if write.future.done():
            continue
        if write.error is None:
            write.future.set_result(write.result)
        else:
            write.future.set_exception(write.error)
