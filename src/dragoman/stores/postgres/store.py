"""The PostgreSQL store: responses, logs, leases and conversations as rows.

Whatever must be true for several servers at once (that a run ends once, that an orphan goes to one
of them, that a log has no gaps) is said in one statement or under the lock of a row. How the
database is reached is known to `database`, how the tables came to be to `schema`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from asyncpg import UniqueViolationError
from asyncpg.pool import PoolConnectionProxy as Session
from msgspec.structs import replace

from dragoman.core.item import JSON, Item
from dragoman.core.response import Response
from dragoman.stores.keeping import Keeping
from dragoman.stores.keys import clean, cleaned
from dragoman.stores.news import News
from dragoman.stores.pack import pack, unpack, unpack_events
from dragoman.stores.record import Letter, Paging, Record, Records, Stretch, stretches_from
from dragoman.stores.store import StoreError

from .conversations import PostgresConversations, extend, held
from .database import Database
from .letters import PostgresLetters, post
from .notices import Notices

POLL = 1.0
"""Seconds after which one who waits looks again, though nobody told him to."""

_COLUMNS = "record, status, owner, lease, cancelling, response, metadata"


class PostgresStore(PostgresConversations, PostgresLetters):
    """Keeps everything in one schema of a database, which is made where it is missing.

    `address` is `postgresql://user@host:port/database`; what it leaves out, a password above all,
    comes from the usual variables (`PGPASSWORD`, `PGPASSFILE`, `PGSSLMODE` …). Nothing is connected
    before something is asked; then StoreError says why it cannot be. Servers hear of each other's
    writes by `news`, by default through the database itself.
    """

    def __init__(
        self,
        address: str,
        keeping: Keeping | None = None,
        *,
        schema: str = "dragoman",
        news: News | None = None,
    ) -> None:
        self._keeping = keeping or Keeping()
        self._database = Database(address, schema)
        self._news = news or Notices(self._database)

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Keep a run that is about to start."""
        statement = """INSERT INTO responses (id, tenant, wire, created_at, status, running,
            previous, conversation, owner, lease, record, metadata)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"""
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
        async with self._database.transaction() as connection:
            try:
                await connection.execute(statement, *row)
            except UniqueViolationError:
                raise StoreError(f"There is a response {record.id} already.") from None
            await _index(connection, record.tenant, record.id, record.request.items)

    async def append(self, id: str, stretch: Stretch) -> None:
        """Add to the log of a run."""
        async with self._database.transaction() as connection:
            await _append(connection, id, stretch)
        self._news.tell(id)

    async def finish(
        self,
        id: str,
        response: Response,
        stretch: Stretch | None = None,
        said: Sequence[Item] = (),
        letters: Sequence[Letter] = (),
    ) -> bool:
        """End a run with what came of it."""
        statement = """UPDATE responses SET status = $2, running = false, response = $3
            WHERE id = $1 AND running RETURNING tenant, conversation"""
        async with self._database.transaction() as connection:
            if stretch is not None and not await _append(connection, id, stretch, strict=False):
                return False
            run = await connection.fetchrow(statement, clean(id), response.status, pack(response))
            if run is None:
                return False
            tenant, conversation = run
            await _index(connection, tenant, id, response.output)
            if said and conversation is not None and await held(connection, tenant, conversation):
                await extend(connection, conversation, said, rename=True)
            await post(connection, letters)
        self._news.tell(id)
        return True

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        found = await self._records("WHERE id = $1 AND tenant = $2", clean(id), tenant)
        return found[0] if found else None

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all that came before it, the earliest first."""
        statement = f"""
            WITH RECURSIVE chain (id, previous, depth) AS (
                SELECT id, previous, 0 FROM responses WHERE id = $1 AND tenant = $2
                UNION ALL
                SELECT r.id, r.previous, chain.depth + 1 FROM chain
                JOIN responses r ON r.id = chain.previous AND r.tenant = $2
            )
            SELECT {_COLUMNS} FROM chain JOIN responses USING (id) ORDER BY depth DESC
        """
        rows = await self._database.fetch(statement, clean(id), tenant)
        records = tuple(map(_record, rows))
        return records if records and records[0].previous is None else ()

    async def find(self, tenant: str, item: str) -> Item | None:
        """The item of any response with this id."""
        where = """WHERE id = (SELECT response FROM homes WHERE tenant = $1 AND item = $2
            ORDER BY response LIMIT 1)"""
        found = await self._records(where, tenant, clean(item))
        return found[0].item(item) if found else None

    async def log(self, id: str, first: int = 0) -> tuple[Stretch, ...]:
        """The log from this place on, in order."""
        statement = """SELECT first, events FROM stretches WHERE id = $1 AND first >= coalesce(
            (SELECT max(first) FROM stretches WHERE id = $1 AND first <= $2), 0) ORDER BY first"""
        rows = await self._database.fetch(statement, clean(id), first)
        kept = (Stretch(place, unpack_events(data)) for place, data in rows)
        return tuple(stretches_from(kept, first))

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        statement = "SELECT length FROM responses WHERE id = $1 AND running"
        end = time.monotonic() + seconds
        async with self._news.hearing(id) as told:
            while True:
                told.clear()
                rows = await self._database.fetch(statement, clean(id))
                left = end - time.monotonic()
                if not rows or rows[0][0] > length or left <= 0:
                    return
                try:
                    async with asyncio.timeout(min(POLL, left)):
                        await told.wait()
                except TimeoutError:
                    pass

    async def page(self, tenant: str, wire: str | None, paging: Paging) -> Records:
        """The responses of a tenant by the time of their creation."""
        sign, order = (">", "ASC") if paging.order == "asc" else ("<", "DESC")
        where = f"""WHERE tenant = $1 AND ($2::text IS NULL OR wire = $2) AND ($3::text IS NULL OR
            (created_at, id) {sign} (SELECT created_at, id FROM responses
            WHERE id = $3 AND tenant = $1)) ORDER BY created_at {order}, id {order} LIMIT $4"""
        after = None if paging.after is None else clean(paging.after)
        found = await self._records(where, tenant, wire, after, paging.limit + 1)
        return Records(tuple(found[: paging.limit]), len(found) > paging.limit)

    async def label(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a response other metadata."""
        statement = "UPDATE responses SET metadata = $3 WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._database.fetch(statement, clean(id), tenant, pack(metadata)))

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response and its log."""
        statement = "DELETE FROM responses WHERE id = $1 AND tenant = $2 RETURNING id"
        gone = await self._database.fetch(statement, clean(id), tenant)
        self._news.tell(id)
        return bool(gone)

    # ---- leases --------------------------------------------------------------------------

    async def renew(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on."""
        statement = """UPDATE responses SET lease = $2
            WHERE id = ANY($1) AND running AND NOT cancelling RETURNING id"""
        rows = await self._database.fetch(statement, cleaned(ids), until)
        renewed = {row[0] for row in rows}
        return tuple(id for id in ids if clean(id) not in renewed)

    async def cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run."""
        statement = """UPDATE responses SET cancelling = true
            WHERE id = $1 AND tenant = $2 RETURNING id"""
        return bool(await self._database.fetch(statement, clean(id), tenant))

    async def orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        statement = f"""UPDATE responses SET owner = $1, lease = $3 WHERE id IN (
                SELECT id FROM responses WHERE running AND lease < $2
                FOR UPDATE SKIP LOCKED)
            RETURNING {_COLUMNS}"""
        return tuple(map(_record, await self._database.fetch(statement, owner, now, until)))

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Forget what is too old, and what is too much."""
        keeping = self._keeping
        old = now - keeping.retention
        async with self._database.transaction() as connection:
            gone = await connection.fetch(
                """DELETE FROM responses WHERE NOT running AND (created_at < $1::float8 OR id IN (
                    SELECT id FROM responses WHERE NOT running ORDER BY created_at, place LIMIT
                    greatest(0, (SELECT count(*) FROM responses) - $2))) RETURNING id""",
                old,
                keeping.responses,
            )
            await connection.execute("DELETE FROM letters WHERE due < $1::float8", old)
            await connection.execute(
                """DELETE FROM stretches USING responses WHERE stretches.created_at < $1::float8
                    AND responses.id = stretches.id AND NOT running""",
                now - keeping.log_retention,
            )
            await connection.execute("DELETE FROM conversations WHERE created_at < $1::float8", old)
        return len(gone)

    async def ready(self) -> None:
        """Connect, and make the tables where they are missing."""
        await self._database.opened()

    async def close(self) -> None:
        """Let go of the database."""
        await self._news.close()
        await self._database.close()

    # ---- inside --------------------------------------------------------------------------

    async def _records(self, tail: str, *values: Any) -> list[Record]:
        statement = f"SELECT {_COLUMNS} FROM responses {tail}"
        return list(map(_record, await self._database.fetch(statement, *values)))


async def _index(connection: Session, tenant: str, id: str, items: Sequence[Item]) -> None:
    if ids := cleaned(item.id for item in items):
        statement = """INSERT INTO homes SELECT $1, item, $2 FROM unnest($3::text[]) AS item
            ON CONFLICT DO NOTHING"""
        await connection.execute(statement, tenant, id, ids)


async def _append(connection: Session, id: str, stretch: Stretch, *, strict: bool = True) -> bool:
    """Add to a log; unless `strict`, a run that has ended or is not known is False."""
    statement = """WITH longer AS (UPDATE responses SET length = length + $3
            WHERE id = $1 AND length = $2 AND running RETURNING id, created_at)
        INSERT INTO stretches SELECT id, $2, created_at, $4 FROM longer RETURNING first"""
    size, data = len(stretch.events), pack(stretch.events)
    if await connection.fetchval(statement, clean(id), stretch.first, size, data) is not None:
        return True
    known = "SELECT 1 FROM responses WHERE id = $1 AND running"
    if await connection.fetchval(known, clean(id)) is not None:
        raise StoreError(f"The log of {id} has a gap before {stretch.first}.")
    if strict:
        raise StoreError(f"No response {id} is being made.")
    return False


def _record(row: Any) -> Record:
    packed, status, owner, lease, cancelling, response, metadata = row
    record: Record = unpack(packed, Record)
    return replace(
        record,
        status=status,
        owner=owner,
        lease=lease,
        cancelling=cancelling,
        response=None if response is None else unpack(response, Response),
        metadata=unpack(metadata, Any),
    )
