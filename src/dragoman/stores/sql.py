"""Statements and rows that the SQLite and the PostgreSQL store share.

Whatever is one statement is written once, in the SQL that both databases understand, with its
values as `$1`, `$2` …, which both read. What takes a transaction or a lock stays with its store.

A response is one row of `responses`, in the order of storing (`seq`). A unary answer is written
whole, at its end. One that is followed while it is made has its record in that row, a row in `runs`
while it is live, rows in `segments` for its log, and a row in `ends` for its response: no row ever
grows, and only the small ones of `runs` are updated.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.core.fold import unfold
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
from .serialize import (
    Part,
    Parts,
    digests,
    model_of,
    pack,
    pack_record,
    unpack,
    unpack_events,
    unpack_record,
)

Row = Sequence[Any]

RECORD = """SELECT r.id, r.tenant, r.wire, r.created_at, r.previous, r.record, r.metadata, r.parts,
    coalesce(r.response, e.response), u.owner, u.lease, u.cancelling"""
"""What a record is read from; see `record_of`."""
JOINED = "LEFT JOIN ends e ON e.seq = r.seq LEFT JOIN runs u ON u.seq = r.seq"
_RESPONSES = f"FROM responses r {JOINED}"
_PARTS = 7  # the column of RECORD that holds the digests
NONE = Parts()

INSERT = """INSERT INTO responses
    (id, tenant, wire, created_at, previous, parts, metadata, record, response)"""
"""What `row_of` gives the values of."""
BEGIN = """INSERT INTO runs (seq, owner, lease, conversation)
    SELECT seq, $2, $3, $4 FROM responses WHERE id = $1"""
LIVE = """SELECT r.seq, r.tenant, u.conversation FROM responses r JOIN runs u ON u.seq = r.seq
    WHERE r.id = $1"""
APPEND = """INSERT INTO segments (seq, first, length, events) SELECT u.seq, $2, $3, $4
    FROM responses r JOIN runs u ON u.seq = r.seq WHERE r.id = $1 AND $2 = coalesce(
        (SELECT first + length FROM segments s WHERE s.seq = u.seq ORDER BY first DESC LIMIT 1),
        0)"""
"""Adds nothing where the run has ended, and where the segment does not follow the log's end."""
END = "INSERT INTO ends (seq, response) VALUES ($1, $2)"
CALL = """INSERT INTO calls (tenant, digest, seq) VALUES ($1, $2, $3)
    ON CONFLICT (tenant, digest) DO UPDATE SET seq = excluded.seq"""
LENGTH = """SELECT coalesce((SELECT first + length FROM segments s WHERE s.seq = u.seq
        ORDER BY first DESC LIMIT 1), 0)
    FROM responses r JOIN runs u ON u.seq = r.seq WHERE r.id = $1"""
OPEN = "INSERT INTO conversations VALUES ($1, $2, $3, $4)"
HELD = "SELECT 1 FROM conversations WHERE id = $1 AND tenant = $2"
EXTEND = """INSERT INTO items VALUES ($1, $2, $3, $4)
    ON CONFLICT (conversation, id) DO NOTHING RETURNING place"""
LAST = "SELECT coalesce(max(place), -1) FROM items WHERE conversation = $1"
POST = "INSERT INTO outbox (id, target, body, due, attempts) VALUES ($1, $2, $3, $4, $5)"

DIGESTS = 50
"""Digests that are looked for in one statement."""
_LIST = ", ".join(f"${number}" for number in range(2, DIGESTS + 2))
_ANSWERS = f"""SELECT r.id, r.record, coalesce(r.response, e.response) FROM responses r
    LEFT JOIN ends e ON e.seq = r.seq
    WHERE r.seq IN (SELECT seq FROM calls WHERE tenant = $1 AND digest IN ({_LIST}))"""
_OURS = "EXISTS (SELECT 1 FROM conversations WHERE conversations.id = $1 AND tenant = $3)"


class Rows(ABC):
    """The part of a store that is one statement at a time."""

    @abstractmethod
    async def _read(self, statement: str, *values: object) -> Sequence[Row]:
        """The rows that a statement finds."""

    @abstractmethod
    async def _read_parts(self, digests: Sequence[bytes]) -> Sequence[Row]:
        """The digest and the bytes of each of these parts."""

    @abstractmethod
    async def _write(self, statement: str, *values: object) -> Sequence[Row]:
        """The rows that a statement changed, as far as it gives them back."""

    # ---- responses -----------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        found = await self._records("WHERE r.id = $1 AND r.tenant = $2", id, tenant)
        return found[0] if found else None

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all before it, the earliest first."""
        statement = f"""
            WITH RECURSIVE chain (seq, previous, depth) AS (
                SELECT seq, previous, 0 FROM responses WHERE id = $1 AND tenant = $2
                UNION ALL
                SELECT p.seq, p.previous, chain.depth + 1 FROM chain
                JOIN responses p ON p.id = chain.previous AND p.tenant = $2
            )
            {RECORD} FROM chain JOIN responses r ON r.seq = chain.seq {JOINED}
            ORDER BY chain.depth DESC
        """
        rows = await self._read(statement, id, tenant)
        records = await self._recorded(rows)
        whole = records and len(records) == len(rows) and records[0].previous is None
        return tuple(records) if whole else ()

    async def find_item(self, tenant: str, item: str) -> Item | None:
        """The item of any response with this id."""
        key, last = index_key(item), ""
        where = """WHERE r.tenant = $1 AND (r.id = $2 OR r.seq IN (
                SELECT seq FROM item_index WHERE tenant = $1 AND item = $2))
            AND r.seq > coalesce((SELECT seq FROM responses WHERE id = $3), 0)
            ORDER BY r.seq LIMIT 1"""
        while records := await self._records(where, tenant, key, last):
            if (found := records[0].item(item)) is not None:
                return found
            last = records[0].id
        return None

    async def find_answers(self, tenant: str, digests: Sequence[str]) -> tuple[StoredAnswer, ...]:
        """The responses that made the calls with these digests."""
        found: dict[str, StoredAnswer] = {}
        for start in range(0, len(digests), DIGESTS):
            some = list(digests[start : start + DIGESTS])
            some += some[:1] * (DIGESTS - len(some))  # one text, so that it is prepared once
            for id, record, response in await self._read(_ANSWERS, tenant, *some):
                found[id] = StoredAnswer(model_of(record), unpack(response, Response))
        return tuple(found.values())

    async def log(self, id: str, first: int = 0) -> tuple[LogSegment, ...]:
        """The log from this index on, in order."""
        statement = """SELECT s.first, s.events FROM segments s
            JOIN responses r ON r.seq = s.seq WHERE r.id = $1 AND s.first >= coalesce(
                (SELECT max(first) FROM segments WHERE seq = s.seq AND first <= $2), 0)
            ORDER BY s.first"""
        rows = await self._read(statement, id, first)
        log = [LogSegment(place, unpack_events(data)) for place, data in rows]
        if not log:
            whole = "SELECT response FROM responses WHERE id = $1 AND response IS NOT NULL"
            for (response,) in await self._read(whole, id):
                log = [LogSegment(0, tuple(unfold(unpack(response, Response))))]
        return tuple(segments_from(log, first))

    async def list_responses(self, tenant: str, wire: str | None, paging: Paging) -> RecordPage:
        """The responses of a tenant in the order of storing."""
        sign, order = _direction(paging)
        values: list[object] = [tenant, paging.limit + 1]
        where = "WHERE r.tenant = $1"
        if wire is not None:
            values.append(wire)
            where += f" AND r.wire = ${len(values)}"
        if paging.after is not None:
            values.append(paging.after)
            where += f""" AND r.seq {sign} (SELECT seq FROM responses
                WHERE id = ${len(values)} AND tenant = $1)"""
        found = await self._records(f"{where} ORDER BY r.seq {order} LIMIT $2", *values)
        return RecordPage(tuple(found[: paging.limit]), len(found) > paging.limit)

    async def set_metadata(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Replace the metadata of a response."""
        statement = "UPDATE responses SET metadata = $3 WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._write(statement, id, tenant, pack(metadata)))

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run."""
        own = "SELECT seq FROM responses WHERE id = $1 AND tenant = $2"
        statement = f"UPDATE runs SET cancelling = true WHERE seq IN ({own}) RETURNING seq"
        return bool(await self._write(statement, id, tenant) or await self._read(own, id, tenant))

    async def _records(self, tail: str, *values: object) -> list[Record]:
        return await self._recorded(await self._read(f"{RECORD} {_RESPONSES} {tail}", *values))

    async def _recorded(self, rows: Sequence[Row]) -> list[Record]:
        """The records of rows, with the parts they refer to. One whose parts are gone was deleted
        between the two statements."""
        wanted = {digest for row in rows for digest in digests(row[_PARTS])}
        if not wanted:
            return [record_of(row, NONE) for row in rows]
        parts = Parts(await self._read_parts(list(wanted)))
        return [record_of(row, parts) for row in rows if parts.have(digests(row[_PARTS]))]

    # ---- conversations -------------------------------------------------------------------

    async def get_conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        statement = "SELECT conversation FROM conversations WHERE id = $1 AND tenant = $2"
        rows = await self._read(statement, id, tenant)
        return unpack(rows[0][0], Conversation) if rows else None

    async def set_conversation_metadata(
        self, tenant: str, id: str, metadata: dict[str, JSON]
    ) -> bool:
        """Replace the metadata of a conversation."""
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
        """Delete one item."""
        statement = f"""DELETE FROM items WHERE conversation = $1 AND id = $2 AND {_OURS}
            RETURNING id"""
        return bool(await self._write(statement, id, item, tenant))

    # ---- outbox --------------------------------------------------------------------------

    async def settle(self, id: str, due: float | None = None) -> None:
        """Delete a message, or have it sent again."""
        if due is None:
            await self._write("DELETE FROM outbox WHERE id = $1", id)
        else:
            await self._write("UPDATE outbox SET due = $2 WHERE id = $1", id, due)


# ---- rows ----------------------------------------------------------------------------------


def row_of(record: Record) -> tuple[list[object], list[Part]]:
    """What INSERT stores of a record, with its response if it has ended, and its parts."""
    data, parts = pack_record(record)
    row = bound(
        (
            record.id,
            record.tenant,
            record.wire,
            record.created_at,
            record.previous,
            b"".join(digest for digest, _ in parts) or None,
            None if record.metadata is None else pack(record.metadata),
            data,
            None if record.response is None else pack(record.response),
        )
    )
    return row, parts


def record_of(row: Row, parts: Parts) -> Record:
    """The record of a row of RECORD."""
    id, tenant, wire, created_at, previous, data, metadata, _, packed, owner, lease, cancelling = (
        row
    )
    record = unpack_record(id, tenant, wire, created_at, previous, data, parts)
    response = None if packed is None else unpack(packed, Response)
    return replace(
        record,
        status=record.status if response is None else response.status,
        response=response,
        owner=owner or "",
        lease=lease or 0.0,
        cancelling=bool(cancelling),
        metadata=None if metadata is None else unpack(metadata, Any),
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


def rows_of(messages: Iterable[OutboxMessage]) -> list[Row]:
    """What POST stores of messages."""
    return [(each.id, each.target, each.body, each.due, each.attempts) for each in messages]


def index_key(item: str) -> str:
    """What an item is found by: the part of its id that all items of one turn share, or its id.

    >>> index_key("msg_018f_in0"), index_key("fc_018f_2"), index_key("item_of_a_client")
    ('018f', '018f', 'item_of_a_client')
    """
    ours = _ITEM_ID.fullmatch(item)
    return item if ours is None else ours[1]


_ITEM_ID = re.compile(r"[a-z]+_([^_]+)_(?:in)?\d+")


def index_keys(id: str, items: Iterable[Item]) -> list[str]:
    """The keys that items of a response need in the index: none for the ids that hold the
    response's own, which finds them anyway."""
    own = f"_{id}_"
    others = (item.id for item in items if item.id and own not in item.id)
    return list(dict.fromkeys(clean(index_key(other)) for other in others))


def _direction(paging: Paging) -> tuple[str, str]:
    return (">", "ASC") if paging.order == "asc" else ("<", "DESC")


def bound(values: Iterable[object]) -> list[object]:
    """Values for a statement, the texts among them as a database can hold them."""
    return [clean(value) if isinstance(value, str) else value for value in values]


def clean(text: str) -> str:
    """An id without NUL and halves of surrogate pairs, which databases refuse; others unchanged.

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
