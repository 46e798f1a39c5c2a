"""The PostgreSQL store: responses, logs, leases and conversations as rows.

Whatever must be true for several servers at once (that a run ends once, that an orphan goes to one
of them, that a log has no gaps) is said in one statement or under the lock of a row. How the
database is reached is known to `database`, how the tables came to be to `schema`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from asyncpg import UniqueViolationError
from asyncpg.pool import PoolConnectionProxy as Session

from dragoman.core.item import Item
from dragoman.core.response import Response
from dragoman.stores.calls import marks
from dragoman.stores.keeping import Keeping
from dragoman.stores.keys import clean, cleaned
from dragoman.stores.news import News
from dragoman.stores.pack import pack
from dragoman.stores.record import Letter, Record, Stretch
from dragoman.stores.rows import (
    BEGIN,
    CALL,
    COLUMNS,
    POST,
    bound,
    calls_of,
    record_of,
    row_of,
    rows_of,
)
from dragoman.stores.store import StoreError

from .conversations import PostgresConversations, extend, held
from .database import Database
from .letters import PostgresLetters
from .notices import Notices

POLL = 1.0
"""Seconds after which one who waits looks again, though nobody told him to."""


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
        async with self._database.transaction() as connection:
            try:
                await connection.execute(BEGIN, *bound(row_of(record)))
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
            await connection.executemany(CALL, calls_of(tenant, clean(id), marks(response)))
            if said and conversation is not None and await held(connection, tenant, conversation):
                await extend(connection, conversation, said, rename=True)
            await connection.executemany(POST, rows_of(letters))
        self._news.tell(id)
        return True

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

    async def orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        statement = f"""UPDATE responses SET owner = $1, lease = $3 WHERE id IN (
                SELECT id FROM responses WHERE running AND lease < $2
                FOR UPDATE SKIP LOCKED)
            RETURNING {COLUMNS}"""
        return tuple(map(record_of, await self._database.fetch(statement, owner, now, until)))

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
