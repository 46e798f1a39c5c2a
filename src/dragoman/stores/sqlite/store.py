"""The SQLite store: responses, logs, leases and conversations as rows.

What is asked becomes one statement or a few; how threads share the file is known to `threads`, how
the tables came to be to `schema`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection, DatabaseError, IntegrityError

from dragoman.core.item import Item
from dragoman.core.response import Response
from dragoman.stores.calls import marks
from dragoman.stores.keeping import Keeping
from dragoman.stores.keys import clean, cleaned
from dragoman.stores.pack import pack
from dragoman.stores.record import Letter, Record, Stretch
from dragoman.stores.rows import (
    BEGIN,
    CALL,
    COLUMNS,
    POST,
    Row,
    calls_of,
    record_of,
    row_of,
    rows_of,
)
from dragoman.stores.store import StoreError

from .conversations import SqliteConversations, extend, held
from .letters import SqliteLetters
from .rows import rows
from .schema import migrate
from .sweep import forget, sweep_logs, sweep_responses, sweep_rest
from .threads import Readers, Writer, connect
from .trouble import unopened

POLL = 0.05
"""Seconds between two looks at what another process may have written."""


class SqliteStore(SqliteConversations, SqliteLetters):
    """Keeps everything in one file, which is made where it is missing.

    Raises StoreError, which says what to do, when the file cannot be used.
    """

    def __init__(self, path: Path, keeping: Keeping | None = None) -> None:
        self._keeping = keeping or Keeping()
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

    async def append(self, id: str, stretch: Stretch) -> None:
        """Add to the log of a run."""
        data = pack(stretch.events)
        await self._writer.run(lambda connection: _append(connection, id, stretch, data))
        self._tell(id)

    async def finish(
        self,
        id: str,
        response: Response,
        stretch: Stretch | None = None,
        said: Sequence[Item] = (),
        letters: Sequence[Letter] = (),
    ) -> bool:
        """End a run with what came of it."""
        statement = "UPDATE responses SET status = $2, running = false, response = $3 WHERE id = $1"
        data = pack(response)
        events = b"" if stretch is None else pack(stretch.events)
        ids = cleaned(item.id for item in response.output)
        made, posted = marks(response), rows_of(letters)

        def work(connection: Connection) -> bool:
            run = _run(connection, id)
            if run is None:
                return False
            tenant, conversation = run
            if stretch is not None:
                _append(connection, id, stretch, events)
            rows(connection, statement, id, response.status, data)
            _index(connection, tenant, id, ids)
            for row in calls_of(tenant, id, made):
                rows(connection, CALL, *row)
            if said and conversation is not None and held(connection, tenant, conversation):
                extend(connection, conversation, said, rename=True)
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

    async def renew(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on."""
        statement = """UPDATE responses SET lease = $2
            WHERE id = $1 AND running AND NOT cancelling RETURNING id"""

        def work(connection: Connection) -> tuple[str, ...]:
            return tuple(id for id in ids if not rows(connection, statement, id, until))

        return await self._writer.run(work)

    async def orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        statement = f"""UPDATE responses SET owner = $1, lease = $3
            WHERE running AND lease < $2 RETURNING {COLUMNS}"""
        return tuple(map(record_of, await self._write(statement, owner, now, until)))

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Forget what is too old, and what is too much."""
        keeping, gone = self._keeping, 0
        while some := await self._writer.run(lambda db: sweep_responses(db, keeping, now)):
            gone += some
        while await self._writer.run(lambda db: sweep_logs(db, keeping, now)):
            pass
        await self._writer.run(lambda db: sweep_rest(db, keeping, now))
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


def _append(connection: Connection, id: str, stretch: Stretch, data: bytes) -> None:
    statement = """UPDATE responses SET length = length + $3
        WHERE id = $1 AND length = $2 AND running RETURNING created_at"""
    longer = rows(connection, statement, id, stretch.first, len(stretch.events))
    if not longer:
        if _run(connection, id) is not None:
            raise StoreError(f"The log of {id} has a gap before {stretch.first}.")
        raise StoreError(f"No response {id} is being made.")
    statement = "INSERT INTO stretches (id, first, created_at, events) VALUES ($1, $2, $3, $4)"
    rows(connection, statement, id, stretch.first, longer[0][0], data)
