"""Statements and rows that the SQLite and the PostgreSQL store share.

Whatever is one statement is written once, in the SQL that both databases understand, with its
values as `$1`, `$2` …, which both read. What takes a transaction or a lock stays with its store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.core.item import JSON, Item
from dragoman.core.response import Response

from .base import (
    Conversation,
    ItemPage,
    LogSegment,
    OutboxMessage,
    Paging,
    Record,
    RecordPage,
    StoredAnswer,
    segments_from,
)
from .serialize import pack, unpack, unpack_events

Row = Sequence[Any]

COLUMNS = "record, status, owner, lease, cancelling, response, metadata"
"""What a record is read from; see `record_of`."""

BEGIN = """INSERT INTO responses (id, tenant, wire, created_at, status, running, previous,
    conversation, owner, lease, record, metadata, model)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"""
CALL = """INSERT INTO calls VALUES ($1, $2, $3)
    ON CONFLICT (tenant, call) DO UPDATE SET response = excluded.response"""
OPEN = "INSERT INTO conversations VALUES ($1, $2, $3, $4)"
HELD = "SELECT 1 FROM conversations WHERE id = $1 AND tenant = $2"
EXTEND = """INSERT INTO items VALUES ($1, $2, $3, $4)
    ON CONFLICT (conversation, id) DO NOTHING RETURNING place"""
LAST = "SELECT coalesce(max(place), -1) FROM items WHERE conversation = $1"
POST = "INSERT INTO letters (id, target, body, due, attempts) VALUES ($1, $2, $3, $4, $5)"

MARKS = 50
"""Marks that are looked for in one statement."""
_ANSWERS = f"""SELECT id, model, response FROM responses WHERE model IS NOT NULL AND id IN (
    SELECT response FROM calls WHERE tenant = $1
        AND call IN ({", ".join(f"${number}" for number in range(2, MARKS + 2))}))"""
_OURS = "EXISTS (SELECT 1 FROM conversations WHERE conversations.id = $1 AND tenant = $3)"


class Rows(ABC):
    """The part of a store that is one statement at a time."""

    @abstractmethod
    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        """The rows that a statement finds."""

    @abstractmethod
    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        """The rows that a statement changed, as far as it gives them back."""

    # ---- responses -----------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        found = await self._records("WHERE id = $1 AND tenant = $2", id, tenant)
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
            SELECT {COLUMNS} FROM chain JOIN responses USING (id) ORDER BY depth DESC
        """
        records = tuple(map(record_of, await self._read(statement, id, tenant)))
        return records if records and records[0].previous is None else ()

    async def find_item(self, tenant: str, item: str) -> Item | None:
        """The item of any response with this id."""
        where = """WHERE id = (SELECT response FROM homes WHERE tenant = $1 AND item = $2
            ORDER BY response LIMIT 1)"""
        found = await self._records(where, tenant, item)
        return found[0].item(item) if found else None

    async def find_answers(self, tenant: str, marks: Sequence[str]) -> tuple[StoredAnswer, ...]:
        """The answers whose calls have these marks."""
        found: dict[str, StoredAnswer] = {}
        for start in range(0, len(marks), MARKS):
            some = list(marks[start : start + MARKS])
            some += some[:1] * (MARKS - len(some))  # it stays one statement, which is prepared once
            for id, model, response in await self._read(_ANSWERS, tenant, *some):
                found[id] = StoredAnswer(model, unpack(response, Response))
        return tuple(found.values())

    async def log(self, id: str, first: int = 0) -> tuple[LogSegment, ...]:
        """The log from this place on, in order."""
        statement = """SELECT first, events FROM stretches WHERE id = $1 AND first >= coalesce(
            (SELECT max(first) FROM stretches WHERE id = $1 AND first <= $2), 0) ORDER BY first"""
        rows = await self._read(statement, id, first)
        kept = (LogSegment(place, unpack_events(data)) for place, data in rows)
        return tuple(segments_from(kept, first))

    async def list_responses(self, tenant: str, wire: str | None, paging: Paging) -> RecordPage:
        """The responses of a tenant by the time of their creation."""
        sign, order = _direction(paging)
        values: list[object] = [tenant, paging.limit + 1]
        where = "WHERE tenant = $1"
        if wire is not None:
            values.append(wire)
            where += f" AND wire = ${len(values)}"
        if paging.after is not None:
            values.append(paging.after)
            where += f""" AND (created_at, id) {sign} (SELECT created_at, id FROM responses
                WHERE id = ${len(values)} AND tenant = $1)"""
        tail = f"{where} ORDER BY created_at {order}, id {order} LIMIT $2"
        found = await self._records(tail, *values)
        return RecordPage(tuple(found[: paging.limit]), len(found) > paging.limit)

    async def set_metadata(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a response other metadata."""
        statement = "UPDATE responses SET metadata = $3 WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._write(statement, id, tenant, pack(metadata)))

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run."""
        statement = """UPDATE responses SET cancelling = true
            WHERE id = $1 AND tenant = $2 RETURNING id"""
        return bool(await self._write(statement, id, tenant))

    async def _records(self, tail: str, *values: object) -> list[Record]:
        statement = f"SELECT {COLUMNS} FROM responses {tail}"
        return list(map(record_of, await self._read(statement, *values)))

    # ---- conversations -------------------------------------------------------------------

    async def get_conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        statement = "SELECT conversation FROM conversations WHERE id = $1 AND tenant = $2"
        rows = await self._read(statement, id, tenant)
        return unpack(rows[0][0], Conversation) if rows else None

    async def set_conversation_metadata(
        self, tenant: str, id: str, metadata: dict[str, JSON]
    ) -> bool:
        """Give a conversation other metadata."""
        known = await self.get_conversation(tenant, id)
        if known is None:
            return False
        statement = """UPDATE conversations SET conversation = $3
            WHERE id = $1 AND tenant = $2 RETURNING id"""
        data = pack(replace(known, metadata=metadata))
        return bool(await self._write(statement, id, tenant, data))

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None
    ) -> ItemPage | None:
        """A page of a conversation's items, or all of them in their order."""
        if await self.get_conversation(tenant, id) is None:
            return None
        where = "WHERE conversation = $1"
        if paging is None:
            rows = await self._read(f"SELECT item FROM items {where} ORDER BY place", id)
            return ItemPage(tuple(map(item_of, rows)), more=False)
        sign, order = _direction(paging)
        values: list[object] = [id, paging.limit + 1]
        if paging.after is not None:
            values.append(paging.after)
            where += f" AND place {sign} (SELECT place FROM items {where} AND id = $3)"
        statement = f"SELECT item FROM items {where} ORDER BY place {order} LIMIT $2"
        rows = await self._read(statement, *values)
        return ItemPage(tuple(map(item_of, rows[: paging.limit])), len(rows) > paging.limit)

    async def get_item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""
        statement = f"SELECT item FROM items WHERE conversation = $1 AND id = $2 AND {_OURS}"
        rows = await self._read(statement, id, item, tenant)
        return item_of(rows[0]) if rows else None

    async def remove_item(self, tenant: str, id: str, item: str) -> bool:
        """Forget one item."""
        statement = f"""DELETE FROM items WHERE conversation = $1 AND id = $2 AND {_OURS}
            RETURNING id"""
        return bool(await self._write(statement, id, item, tenant))

    # ---- messages -------------------------------------------------------------------------

    async def settle(self, id: str, due: float | None = None) -> None:
        """Forget a letter, or have it come again."""
        if due is None:
            await self._write("DELETE FROM letters WHERE id = $1", id)
        else:
            await self._write("UPDATE letters SET due = $2 WHERE id = $1", id, due)


def bound(values: Sequence[object]) -> list[object]:
    """Values for a statement, the texts among them as a database can hold them."""
    return [clean(value) if isinstance(value, str) else value for value in values]


def row_of(record: Record) -> Row:
    """What BEGIN keeps of a record."""
    return (
        record.id,
        record.tenant,
        record.wire,
        record.created_at,
        record.status,
        record.running,
        record.previous,
        record.conversation,
        record.owner,
        record.lease,
        pack(replace(record, metadata=None)),
        pack(record.metadata),
        record.request.model,
    )


def record_of(row: Row) -> Record:
    """The record of a row of COLUMNS."""
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


def item_of(row: Row) -> Item:
    """The item of a row that holds nothing else."""
    item: Item = unpack(row[0], Item)
    return item


def messages_of(rows: Sequence[Row]) -> tuple[OutboxMessage, ...]:
    """The messages of rows of all their columns."""
    return tuple(
        OutboxMessage(id=id, target=target, body=body, due=due, attempts=attempts)
        for id, target, body, due, attempts in rows
    )


def calls_of(tenant: str, id: str, marks: Sequence[str]) -> list[Row]:
    """What CALL keeps of the calls of a response."""
    return [(tenant, mark, id) for mark in marks]


def rows_of(messages: Sequence[OutboxMessage]) -> list[Row]:
    """What POST keeps of messages."""
    return [(each.id, each.target, each.body, each.due, each.attempts) for each in messages]


def _direction(paging: Paging) -> tuple[str, str]:
    return (">", "ASC") if paging.order == "asc" else ("<", "DESC")


def clean(text: str) -> str:
    """An id without NUL and without halves of characters; any other stays as it is.

    >>> clean("a\\0b"), clean("\\ud83d")
    ('a\\\\x00b', '\\\\ud83d')
    """
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def cleaned(ids: Iterable[str | None]) -> list[str]:
    """Those that are ids, each as a database can hold it, and once."""
    return list(dict.fromkeys(clean(id) for id in ids if id))
