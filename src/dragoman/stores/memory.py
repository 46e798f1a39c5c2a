"""A store in this process's memory, for tests and for servers without persistence.

It is a SQLite database without a file, and is lost when the process
ends. Operations run one after the other, in a thread of its own, as a search may take long.
"""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from .base import Subscribers
from .retention import Retention
from .sql import Store
from .sqlite import Write, commit, compact, found, migrate, settle
from .statements import Insert, Row, Steps

T = TypeVar("T")
NO_FILE = Path(":memory:")


class MemoryStore(Store):
    """Stores everything in memory; see `Store` for what its methods do.

    It can still be read once it is closed.

    >>> async def example():
    ...     store = MemoryStore()
    ...     return await store.get("", "nothing")
    >>> asyncio.run(example()) is None
    True
    """

    POLL = 0.05
    CASCADES = False
    FULL_TEXT = "fts5"

    def __init__(self, retention: Retention | None = None) -> None:
        super().__init__(retention, Subscribers())
        self._connection = sqlite3.connect(NO_FILE, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._secret = migrate(self._connection, NO_FILE)
        self._thread = ThreadPoolExecutor(1, "dragoman-memory")
        # Before either is collected, in a cycle too; what its thread does refers to the store, as a
        # connection that is closed while it is used ends the process.
        weakref.finalize(self, self._connection.close)

    async def _compact(self) -> None:
        await compact(self)

    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: found(self._connection, statement, values)
        )

    def _transact(
        self, inserts: Sequence[Insert], steps: Callable[[], Steps[T]] | None = None
    ) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        write = Write(inserts, steps, loop.create_future())

        def over(_: Future[str]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, [write])

        self._thread.submit(lambda: commit(self._connection, [write])).add_done_callback(over)
        return write.future
