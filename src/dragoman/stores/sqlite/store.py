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
from typing import Any

from msgspec.structs import replace

from dragoman.core.item import JSON, Item
from dragoman.core.response import Response
from dragoman.stores.keeping import Keeping
from dragoman.stores.keys import clean, cleaned
from dragoman.stores.pack import pack, unpack, unpack_events
from dragoman.stores.record import Letter, Paging, Record, Records, Stretch, stretches_from
from dragoman.stores.store import StoreError

from .conversations import SqliteConversations, extend, held
from .letters import SqliteLetters, post
from .schema import migrate
from .sweep import forget, sweep_logs, sweep_responses, sweep_rest
from .threads import Readers, Writer, connect
from .trouble import unopened

POLL = 0.05
"""Seconds between two looks at what another process may have written."""

_COLUMNS = "record, status, owner, lease, cancelling, response, metadata"


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
        row = (
            record.id,
            record.tenant,
            record.wire,
            record.created_at,
            record.status,
            record.running,
            None if record.previous is None else clean(record.previous),
            None if record.conversation is None else clean(record.conversation),
            record.owner,
            record.lease,
            pack(replace(record, metadata=None)),
            pack(record.metadata),
        )
        ids = cleaned(item.id for item in record.request.items)

        def work(connection: Connection) -> None:
            _begin(connection, row)
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
        data = pack(response)
        events = b"" if stretch is None else pack(stretch.events)
        ids = cleaned(item.id for item in response.output)

        def work(connection: Connection) -> bool:
            run = _run(connection, id)
            if run is None:
                return False
            tenant, conversation = run
            if stretch is not None:
                _append(connection, id, stretch, events)
            connection.execute(
                "UPDATE responses SET status = ?, running = 0, response = ? WHERE id = ?",
                (response.status, data, id),
            )
            _index(connection, tenant, id, ids)
            if said and conversation is not None and held(connection, tenant, conversation):
                extend(connection, conversation, said, rename=True)
            post(connection, letters)
            return True

        ended = await self._writer.run(work)
        self._tell(id)
        return ended

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        found = await self._records("WHERE id = ? AND tenant = ?", (id, tenant))
        return found[0] if found else None

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all that came before it, the earliest first."""
        statement = f"""
            WITH RECURSIVE chain (id, previous, depth) AS (
                SELECT id, previous, 0 FROM responses WHERE id = ? AND tenant = ?
                UNION ALL
                SELECT r.id, r.previous, chain.depth + 1 FROM chain
                JOIN responses r ON r.id = chain.previous AND r.tenant = ?
            )
            SELECT {_COLUMNS} FROM chain JOIN responses USING (id) ORDER BY depth DESC
        """
        found = await self._select(statement, (id, tenant, tenant))
        records = tuple(map(_record, found))
        return records if records and records[0].previous is None else ()

    async def find(self, tenant: str, item: str) -> Item | None:
        """The item of any response with this id."""
        found = await self._records(
            "WHERE id = (SELECT response FROM homes WHERE tenant = ? AND item = ?)", (tenant, item)
        )
        return found[0].item(item) if found else None

    async def log(self, id: str, first: int = 0) -> tuple[Stretch, ...]:
        """The log from this place on, in order."""
        statement = """
            SELECT first, events FROM stretches WHERE id = :id AND first >= coalesce(
                (SELECT max(first) FROM stretches WHERE id = :id AND first <= :first), 0)
            ORDER BY first
        """
        rows = await self._select(statement, {"id": id, "first": first})
        kept = (Stretch(place, unpack_events(data)) for place, data in rows)
        return tuple(stretches_from(kept, first))

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        event = asyncio.Event()
        self._waiting.setdefault(id, set()).add(event)
        statement = "SELECT length FROM responses WHERE id = ? AND running"
        try:
            async with asyncio.timeout(seconds):
                while True:
                    row = await self._select(statement, (id,))
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

    async def page(self, tenant: str, wire: str | None, paging: Paging) -> Records:
        """The responses of a tenant by the time of their creation."""
        sign, order = (">", "ASC") if paging.order == "asc" else ("<", "DESC")
        where = "WHERE tenant = :tenant AND (:wire IS NULL OR wire = :wire)"
        if paging.after is not None:
            where += f""" AND (created_at, id) {sign} (SELECT created_at, id FROM responses
                WHERE id = :after AND tenant = :tenant)"""
        values = {"tenant": tenant, "wire": wire, "after": paging.after, "limit": paging.limit + 1}
        tail = f"{where} ORDER BY created_at {order}, id {order} LIMIT :limit"
        found = await self._records(tail, values)
        return Records(tuple(found[: paging.limit]), len(found) > paging.limit)

    async def label(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a response other metadata."""
        statement = "UPDATE responses SET metadata = ? WHERE id = ? AND tenant = ?"
        return await self._change(statement, (pack(metadata), id, tenant)) > 0

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response and its log."""

        def work(connection: Connection) -> bool:
            statement = "SELECT 1 FROM responses WHERE id = ? AND tenant = ?"
            if connection.execute(statement, (clean(id), tenant)).fetchone() is None:
                return False
            forget(connection, [clean(id)])
            return True

        gone = await self._writer.run(work)
        self._tell(id)
        return gone

    # ---- leases --------------------------------------------------------------------------

    async def renew(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on."""
        statement = """UPDATE responses SET lease = ?
            WHERE id = ? AND cancelling = 0 AND running"""

        def work(connection: Connection) -> tuple[str, ...]:
            rows = ((id, connection.execute(statement, (until, id)).rowcount) for id in ids)
            return tuple(id for id, count in rows if not count)

        return await self._writer.run(work)

    async def cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run."""
        statement = "UPDATE responses SET cancelling = 1 WHERE id = ? AND tenant = ?"
        return await self._change(statement, (id, tenant)) > 0

    async def orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        statement = f"""UPDATE responses SET owner = ?, lease = ?
            WHERE running AND lease < ? RETURNING {_COLUMNS}"""

        def work(connection: Connection) -> tuple[Record, ...]:
            return tuple(map(_record, connection.execute(statement, (owner, until, now))))

        return await self._writer.run(work)

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

    async def _records(self, tail: str, values: Any) -> list[Record]:
        statement = f"SELECT {_COLUMNS} FROM responses {tail}"
        return list(map(_record, await self._select(statement, values)))

    def _tell(self, id: str) -> None:
        for event in self._waiting.get(id, ()):
            event.set()


def _begin(connection: Connection, row: tuple[object, ...]) -> None:
    statement = """INSERT INTO responses
        (id, tenant, wire, created_at, status, running, previous, conversation,
         owner, lease, record, metadata)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
    try:
        connection.execute(statement, row)
    except IntegrityError:
        raise StoreError(f"There is a response {row[0]} already.") from None


def _run(connection: Connection, id: str) -> tuple[str, str | None] | None:
    """The tenant and the conversation of a run that goes on."""
    statement = "SELECT tenant, conversation FROM responses WHERE id = ? AND running"
    run: tuple[str, str | None] | None = connection.execute(statement, (id,)).fetchone()
    return run


def _index(connection: Connection, tenant: str, id: str, items: Sequence[str]) -> None:
    rows = ((tenant, item, id) for item in items)
    connection.executemany("INSERT OR IGNORE INTO homes VALUES (?, ?, ?)", rows)


def _append(connection: Connection, id: str, stretch: Stretch, data: bytes) -> None:
    longer = connection.execute(
        """UPDATE responses SET length = length + ? WHERE id = ? AND length = ? AND running
            RETURNING created_at""",
        (len(stretch.events), id, stretch.first),
    ).fetchone()
    if longer is None:
        if _run(connection, id) is not None:
            raise StoreError(f"The log of {id} has a gap before {stretch.first}.")
        raise StoreError(f"No response {id} is being made.")
    statement = "INSERT INTO stretches (id, first, created_at, events) VALUES (?, ?, ?, ?)"
    connection.execute(statement, (id, stretch.first, longer[0], data))


def _record(row: tuple[Any, ...]) -> Record:
    packed, status, owner, lease, cancelling, response, metadata = row
    record: Record = unpack(packed, Record)
    return replace(
        record,
        status=status,
        owner=owner,
        lease=lease,
        cancelling=bool(cancelling),
        response=None if response is None else unpack(response, Response),
        metadata=unpack(metadata, Any),
    )
