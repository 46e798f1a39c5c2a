"""The threads that touch a SQLite file: one writes, a few read.

Whatever waits to be written when the writer is free goes into one transaction, so that many writers
share the price of one commit; each still has its own success or failure. Nothing is known here of
what is written.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from dragoman.stores.store import StoreError

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
