"""The SQLite store: the default, in one file, with nothing to set up.

Several processes of one machine may share the file. One thread writes: the writes of one turn of
an event loop, and all that are queued when the thread is free, become one transaction (group
commit), in which the rows of each table are inserted together. Other threads read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection, DatabaseError
from typing import Any, TypeVar

from msgspec import Struct

from dragoman.net.threads import reading

from .base import PATIENCE, Breaker, LongError, StoreError, Subscribers, WaitedError
from .retention import Retention
from .schema import SQLITE
from .sql import Store
from .statements import Insert, Row, Steps, Values, bound, read_secret

T = TypeVar("T")

READERS = 3
SHARE = 2
"""Readers that one tenant may have: its long searches leave one for others."""
STEPS = 10_000
"""Steps of a statement between two looks at how long it takes."""
WAITING = 4_096
"""The most queued reads of one tenant."""
OPENING = 30.0
"""Seconds to wait for another process on opening, which may be migrating the file."""
GROUP = 512
"""The most writes of one commit."""
PROBE = 0.5
"""The timeout of a write that probes whether a locked file is free again."""
LOOK = 1.0
"""Seconds between two checks of a stuck writer, and beyond its timeout."""
COPIED = 64 * 1024 * 1024
"""The most bytes to copy at the start, to convert a file of an earlier version (`shrinkable`)."""
PAGES = 1_000
"""Pages that one transaction releases to the system."""
CLOSED = "The store is closed."
KIND = "SQLite"

_log = logging.getLogger("dragoman.stores")

ELSE = "or choose with --store: sqlite:PATH is another file, and none keeps nothing."
_WRITING = "Let this user write to it and to its folder, "
_DAMAGED = "It is damaged or another kind of file: move it away and a new one is made, "
_ADVICE = {
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_BUSY: "Another program keeps it locked: see which, ",
    sqlite3.SQLITE_FULL: "The disk is full: make room, ",
    sqlite3.SQLITE_IOERR: "The disk fails, or is no place for a database: see to it, ",
}
"""Advice, by the first byte of SQLite's error code."""


def unopened(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    """The error for a file that cannot be used, with advice."""
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return StoreError(f"The store {path} cannot be made: {reason}. {_WRITING}{ELSE}")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_READONLY) & 0xFF
    return StoreError(
        f"The store {path} cannot be used: {error}. {_ADVICE.get(code, _WRITING)}{ELSE}"
    )


# ---- tables --------------------------------------------------------------------------------


def migrate(connection: Connection, path: Path, secret: bytes | None = None) -> bytes:
    """Run the missing migration steps of a file; returns its secret: this one, if it has none.
    Raises StoreError for a file of a later version."""
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
    secret = _taken(connection, read_secret(secret))
    connection.execute("COMMIT")
    return secret


def shrinkable(connection: Connection) -> None:
    """Convert a file of an earlier version to one that shrinks, if it is small enough."""
    pages, free, size, mode = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
    )
    if not mode and (pages - free) * size <= COPIED:
        with suppress(sqlite3.OperationalError):  # it is locked, or the disk full: next time
            connection.execute("VACUUM")


async def compact(store: Store) -> None:
    """Release free pages to the system, a part at a time."""

    def some() -> Steps[int]:
        ((free,),) = yield "PRAGMA freelist_count", ()
        for _ in range(min(free, PAGES)):
            yield "PRAGMA incremental_vacuum(1)", ()  # sqlite3 runs only its first step
        ((left,),) = yield "PRAGMA freelist_count", ()
        return int(free - left)

    gone = left = await store._transact((), some)
    while left >= PAGES:
        left = await store._transact((), some)
    if gone:
        await store._read("PRAGMA wal_checkpoint(TRUNCATE)")


# ---- threads -------------------------------------------------------------------------------


def connect(path: Path, patience: float = OPENING) -> Connection:
    """A configured connection, which waits so many seconds for other processes;
    transactions are begun and ended explicitly. Raises StoreError for another program's file, which
    is not changed."""
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False
    )
    try:
        # In one statement: another server may be creating the tables.
        taken, tables, ours = connection.execute(
            "SELECT user_version, count(name), total(name = 'responses') "
            "FROM pragma_user_version LEFT JOIN sqlite_master"
        ).fetchone()
        if tables and not (taken and ours):
            raise StoreError(
                f"The store {path} cannot be used: it holds the tables of something else. "
                f"Leave it to that, {ELSE}"
            )
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file; see `shrinkable`
        _write_ahead(connection, patience)
        # In WAL mode a commit survives a killed process; with NORMAL the file stays intact when the
        # machine loses power, except for the last commits, and with OFF it would not.
        for setting in ("synchronous = NORMAL", "temp_store = MEMORY", "cache_size = -512"):
            connection.execute(f"PRAGMA {setting}")  # the system caches the file, too
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: Connection, patience: float) -> None:
    """Switch the file to WAL mode. Of several processes that open a new file together all but one
    are refused at once, whatever their timeout is, and must try again."""
    deadline = time.monotonic() + patience
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
    """A statement in the SQL of SQLite: with its own placeholders, and without locks, as
    a writing transaction has the whole file."""
    return _LOCKS.sub(r"\3", statement).replace("$", "?")


_LOCKS = re.compile(
    r"FOR UPDATE( OF \w+)?( SKIP LOCKED)?|pg_advisory\w+\(hashtextextended\((\S+), .*?\){4}"
)


def found(connection: Connection, statement: str, values: Values) -> list[Row]:
    """The rows of a statement."""
    return connection.execute(_translated(statement), bound(values)).fetchall()


class Write(Struct, eq=False):
    """Rows to insert and steps to run, all or nothing, and the caller's future."""

    inserts: Sequence[Insert]
    steps: Callable[[], Steps[Any]] | None
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Read(Struct, eq=False):
    """A queued read, and when it was begun; 0 while it waits."""

    statement: str
    values: Values
    future: Future[list[Row]]
    began: float = 0.0


class SqliteStore(Store):
    """Stores everything in one file, which is created if it is missing, also while it is in use.

    Operations that take longer than `patience` seconds fail. Raises StoreError, with
    advice, when the file cannot be used.
    """

    POLL = 0.05
    CASCADES = False
    FULL_TEXT = "fts5"

    def __init__(
        self, path: Path, retention: Retention | None = None, patience: float = PATIENCE
    ) -> None:
        super().__init__(retention, Subscribers())
        self._path = path
        self._patience = patience
        self._closed = False
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._opened: list[Connection] = []
        self._idle: list[Connection] = []  # for reading
        self._file: tuple[int, int] | None = None  # the device and inode of the file in use
        self._sides: dict[Path, int] = {}  # the files beside it, and their inodes
        self._writing = self._open()
        self._written: tuple[int, int] | None = self._file
        self._reading = Breaker(KIND, patience)
        self._breaker = Breaker(KIND, patience)  # of the writer: readers work without it
        self._pool = ThreadPoolExecutor(READERS, "dragoman-read")
        self._lines: dict[str, deque[Read]] = {}  # by tenant; the next one first
        self._busy: set[Read] = set()
        self._answered = 0.0  # when a read was answered last
        self._readers: Counter[str] = Counter()  # at work, by tenant
        self._left = 0  # readers that ended, as those who waited have their share
        self._turns: dict[asyncio.AbstractEventLoop, list[Write]] = {}
        self._queue: SimpleQueue[list[Write] | None] = SimpleQueue()
        self._handed: list[list[Write]] = []  # the current transaction
        self._since = 0.0  # when it began; 0 while the writer is idle
        self._watching: asyncio.AbstractEventLoop | None = None
        self._writer = threading.Thread(target=self._work, name="dragoman-store", daemon=True)
        self._writer.start()

    async def close(self) -> None:
        """Execute the queued writes and reads, and end."""
        self._closed = True
        for loop in tuple(self._turns):
            self._hand_over(loop)
        self._queue.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.join, 2 * self._patience + LOOK)
        stuck = self._writer.is_alive() or self._reading.open
        await loop.run_in_executor(None, partial(self._pool.shutdown, wait=not stuck))
        for connection in () if stuck else self._opened:
            connection.close()

    # ---- the file ------------------------------------------------------------------------

    def _open(self) -> Connection:
        """Create the file if it is missing, migrate its tables, and record its identity."""
        path, connection = self._path, None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for side, inode in self._sides.items():  # they belong to the earlier file
                with suppress(FileNotFoundError):
                    if side.stat().st_ino == inode:
                        side.unlink()
            path.touch(mode=0o600)
            connection = self._connected(OPENING)
            self._secret = migrate(connection, path, self._secret)
            connection.execute(f"PRAGMA busy_timeout = {self._patience * 1_000:.0f}")
            shrinkable(connection)
            found = path.stat()
            sides = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
            self._sides = {side: side.stat().st_ino for side in sides if side.exists()}
        except (OSError, DatabaseError, StoreError) as error:
            if connection is not None:
                self._opened.remove(connection)
                connection.close()
            if isinstance(error, StoreError):
                raise
            raise unopened(path, error) from error
        with self._lock:
            self._file, old, self._idle = (found.st_dev, found.st_ino), self._idle, []
        for each in old:
            self._leave(each)
        return connection

    def _connected(self, patience: float) -> Connection:
        connection = connect(self._path, patience)
        self._opened.append(connection)
        return connection

    def _leave(self, connection: Connection) -> None:
        """Close a connection to an earlier file. That may have been moved, and have its latest
        commits only in a log that is deleted: they are written into it first."""
        with suppress(sqlite3.Error):
            connection.execute(f"PRAGMA busy_timeout = {PROBE * 1_000:.0f}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._opened.remove(connection)
        connection.close()

    def _reopen(self) -> None:
        """Reopen a file that was deleted or replaced, as writes to the old one would be
        lost. Raises StoreError."""
        with self._opening:
            if _identity(self._path) != self._file:
                connection = self._open()
                with self._lock:
                    self._idle.append(connection)
                self._queue.put([])  # the writer leaves the earlier file, too
                _log.warning(
                    "The store %s was deleted or replaced while it was in use: what it held is "
                    "gone, and what comes is stored in the file that is there now.",
                    self._path,
                )

    async def _compact(self) -> None:
        await compact(self)

    # ---- reading -------------------------------------------------------------------------

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        if self._closed:
            raise StoreError(CLOSED, KIND)
        if self._reading.open:
            self._reading.check()
        tenant, read = reading.get(), Read(statement, values, Future())
        with self._lock:
            line = self._lines.setdefault(tenant, deque())
            if len(line) >= WAITING:
                raise WaitedError
            line.append(read)
        self._pool.submit(self._read_next)
        try:
            async with asyncio.timeout(self._patience + LOOK):
                return await asyncio.wrap_future(read.future)
        except TimeoutError:
            late = time.monotonic() - self._patience
            first = min([each.began for each in tuple(self._busy) if each.began], default=late)
            if self._answered < first < late:
                raise self._reading.failed(self._stuck(), self._patience) from None
            # Others are answered: it is no failure of the store.
            raise (LongError if 0 < read.began < late else WaitedError) from None

    def _read_next(self) -> None:
        """Execute the next tenant's read, in a thread."""
        with self._lock:
            waiting = (each for each in self._lines if self._readers[each] < SHARE)
            if (tenant := next(waiting, None)) is None:
                self._left += 1
                return
            line = self._lines.pop(tenant)
            read = line.popleft()
            if line:
                self._lines[tenant] = line  # behind the others
            self._readers[tenant] += 1
        self._busy.add(read)
        try:
            if read.future.set_running_or_notify_cancel():
                read.began = time.monotonic()
                read.future.set_result(self._read_here(read.statement, read.values, read.began))
        except BaseException as error:
            read.future.set_exception(error)
        finally:
            self._busy.discard(read)
            with self._lock:
                self._readers -= Counter((tenant,))
                left, self._left = self._left, 0
            with suppress(RuntimeError):  # it is closed
                for _ in range(left):
                    self._pool.submit(self._read_next)

    def _read_here(self, statement: str, values: Values, began: float) -> list[Row]:
        end = began + self._patience
        try:
            with self._reader() as connection:
                # A disk that is stuck takes no steps.
                connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
                rows = found(connection, statement, values)
        except (sqlite3.Error, StoreError) as error:
            if str(error) == "interrupted":
                raise LongError from None
            problem = f"The store could not be read: {error}."
            if isinstance(error, StoreError):
                problem = str(error)
            raise self._reading.failed(problem, time.monotonic() - began) from error
        self._answered = time.monotonic()
        if self._reading.open:
            self._reading.worked()
        return rows

    @contextmanager
    def _reader(self) -> Iterator[Connection]:
        """A connection for reading what is there now."""
        if _identity(self._path) != self._file:
            self._reopen()
        with self._lock:
            file, connection = self._file, self._idle.pop() if self._idle else None
        connection = connection or self._connected(self._patience)
        try:
            yield connection
        finally:
            with self._lock:
                if same := file == self._file:
                    self._idle.append(connection)
            if not same:
                self._leave(connection)

    # ---- writing -------------------------------------------------------------------------

    def _transact(
        self, inserts: Sequence[Insert], steps: Callable[[], Steps[T]] | None = None
    ) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        write = Write(inserts, steps, loop.create_future())
        if self._closed or self._breaker.open:
            try:
                if self._closed:
                    raise StoreError(CLOSED, KIND)
                self._breaker.check()
            except StoreError as error:
                write.future.set_exception(error)
                return write.future
        turn = self._turns.get(loop)
        if turn is None:  # the first of this turn of the loop: schedule the handover at its end
            turn = self._turns[loop] = []
            loop.call_soon(self._hand_over, loop)
        turn.append(write)
        return write.future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._turns.pop(loop, None)
        if turn is not None:
            self._queue.put(turn)
            if self._watching is None or self._watching.is_closed():
                self._watching = loop
                loop.call_later(LOOK, self._watch, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check whether the writer is stuck in a system call, which SQLite's timeouts do not cover;
        then fail the queued writes."""
        self._watching, since = None, self._since
        if since and time.monotonic() - since > self._patience + LOOK:
            error = self._breaker.failed(self._stuck(), self._patience)
            self._fail(str(error), (*self._handed, *self._waiting()))
        elif since or not self._queue.empty():
            self._watching = loop
            loop.call_later(LOOK, self._watch, loop)

    def _stuck(self) -> str:
        return (
            f"The store {self._path} did not answer within {self._patience:g} s: its disk is gone, "
            "or too busy."
        )

    def _waiting(self) -> list[list[Write]]:
        """Take back the writes that were not begun."""
        turns: list[list[Write]] = []
        with suppress(Empty):
            while (turn := self._queue.get_nowait()) is not None:
                turns += [turn] if turn else []
            self._queue.put(None)
        return turns

    def _work(self) -> None:
        """Write what is handed over; in the writer's thread."""
        open = True
        while open:
            self._since = 0.0
            turns = [self._queue.get()]
            count = 0
            try:
                while count < GROUP:
                    turns.append(self._queue.get_nowait())
                    count += len(turns[-1] or ())
            except Empty:
                pass
            open = None not in turns
            handed = self._handed = [turn for turn in turns if turn]
            if turns == [None]:
                continue
            self._since = time.monotonic()
            try:
                there = self._path.stat()
                gone = (there.st_dev, there.st_ino) != self._written
            except OSError:
                gone = True
            problem = self._renew() if gone else ""
            if handed and not problem:
                problem = commit(self._writing, [write for turn in handed for write in turn])
            if problem:
                self._breaker.failed(problem, time.monotonic() - self._since)
                self._wait(PROBE if self._breaker.open else self._patience)
                # Fail what was queued meanwhile: it would wait as well.
                self._fail(problem, self._waiting() if self._breaker.open else [])
            elif handed and self._breaker.open:
                self._breaker.worked()
                self._wait(self._patience)
            for turn in handed:
                try:
                    turn[0].future.get_loop().call_soon_threadsafe(settle, turn)
                except RuntimeError:  # the loop is closed
                    continue

    def _wait(self, patience: float) -> None:
        """Set how long the writer waits for other processes."""
        with suppress(sqlite3.Error):
            self._writing.execute(f"PRAGMA busy_timeout = {patience * 1_000:.0f}")

    def _fail(self, problem: str, turns: Iterable[list[Write]]) -> None:
        for turn in turns:
            for write in turn:
                write.error = StoreError(problem, KIND)
            with suppress(RuntimeError):
                turn[0].future.get_loop().call_soon_threadsafe(settle, turn)

    def _renew(self) -> str:
        """Write to the file that is there now. Where that cannot be, what was handed over fails
        for this reason."""
        try:
            self._reopen()
            old, self._writing = self._writing, self._connected(self._patience)
            self._written = self._file
            self._leave(old)
        except (sqlite3.Error, StoreError) as error:
            for turn in self._handed:
                for write in turn:
                    write.error = StoreError(str(error), KIND)
            return str(error)
        return ""


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to: the device and the inode."""
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


def commit(connection: Connection, writes: list[Write]) -> str:
    """Write in one transaction; where one of several is refused, each in its own. Gives what is
    wrong with the database; nothing where all is well."""
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
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        if len(writes) > 1 and not isinstance(error, sqlite3.OperationalError):
            return max([commit(connection, [write]) for write in writes])
        known = isinstance(error, sqlite3.Error)
        problem = f"The store could not be written: {error}."
        for write in writes:
            write.error = StoreError(problem, KIND) if known else error
        return problem if known else ""
    return ""


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
