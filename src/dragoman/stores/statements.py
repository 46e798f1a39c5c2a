"""Statements, what they are given (lists of values, texts that a database can hold), and the steps
that several transactions have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from secrets import token_bytes, token_hex
from typing import Any, TypeVar

from dragoman.core.item import Item, Reasoning

from .base import (
    AT_ONCE,
    LONGEST_ID,
    ConflictError,
    LogSegment,
    OutboxMessage,
    Paging,
    Record,
    call_digests,
    index_key,
    tenant_name,
)
from .serialize import clean, digests, pack, pack_record

T = TypeVar("T")
Row = Sequence[Any]
Values = Sequence[object]
Steps = Generator[tuple[str, Values], Sequence[Row], T]
"""The statements of a transaction, one by one."""
Insert = tuple[str, Values]
"""A statement that inserts one row, and its values."""
_Placed = tuple[int, str, bytes]
"""The place of an item in its conversation, its id there, and the item with the id it was given."""

LISTED = 250
"""Values that one statement lists."""
TOGETHER = 8
"""Pieces of a long text that one statement stores."""


def places(length: int, first: int = 1) -> str:
    """The places of a list of values in a statement.

    >>> places(3, 2)
    '$2, $3, $4'
    """
    return ", ".join(f"${number}" for number in range(first, first + length))


def chunks(values: Iterable[T], size: int = LISTED) -> Iterator[list[T]]:
    """The values in lists of this size."""
    found = list(values)
    for start in range(0, len(found), size):
        yield found[start : start + size]


def bound(values: Iterable[object]) -> list[object]:
    """Values for a statement, the texts among them as a database can hold them."""
    return [
        value
        if type(value) is not str or value.isprintable()  # then there is nothing strange in it
        else clean(value)
        for value in values
    ]


def direction(paging: Paging) -> tuple[str, str]:
    """How places compare, and are ordered, in the direction of a page."""
    return (">", "ASC") if paging.order == "asc" else ("<", "DESC")


def advisory_lock(name: str, kind: str = "") -> str:
    """The call that locks a name, such as a tenant's, until the end of the transaction: alone, or
    `_shared` with others of this kind. Each schema has its own."""
    return f"pg_advisory_xact_lock{kind}(hashtextextended({name}, hashtext(current_schema())))"


# ---- a response ----------------------------------------------------------------------------

_RESPONSE = """INSERT INTO responses
    (id, tenant, wire, created_at, previous, parts, metadata, record, response)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"""
_SEQ = "(SELECT seq FROM responses WHERE id = $1)"
_ONCE = "ON CONFLICT DO NOTHING"
RUN = f"INSERT INTO runs (seq, owner, lease, conversation) VALUES ({_SEQ}, $2, $3, $4)"
_PART = f"INSERT INTO parts (digest, data) VALUES ($1, $2) {_ONCE}"
_KEPT = f"id = $1 AND {advisory_lock('tenant', '_shared')} IS NOT NULL"
"""Finds a response, and makes deletions of its tenant wait until the end of the transaction."""
_USE = f"INSERT INTO part_uses (seq, digest) SELECT seq, $2 FROM responses WHERE {_KEPT} {_ONCE}"
_ITEM = f"INSERT INTO item_index (seq, tenant, item) VALUES {{}} {_ONCE}"
_CALL = """INSERT INTO calls (seq, tenant, digest) VALUES {}
    ON CONFLICT (tenant, digest) DO UPDATE SET seq = excluded.seq"""

SIZE = """length(r.record) + coalesce(length(r.response), length(e.response), 0)
    + coalesce(length(r.metadata), 0)"""
RECORD = """SELECT r.id, r.tenant, r.wire, r.created_at, r.previous, r.record, r.metadata, r.parts,
    coalesce(r.response, e.response), u.owner, u.lease, u.cancelling"""
FITTING = f"""SELECT r.id, r.tenant, r.wire, r.created_at, r.previous,
    CASE WHEN {SIZE} <= {AT_ONCE} THEN r.record END,
    CASE WHEN {SIZE} <= {AT_ONCE} THEN r.metadata END, r.parts,
    CASE WHEN {SIZE} <= {AT_ONCE} THEN coalesce(r.response, e.response) END,
    u.owner, u.lease, u.cancelling, {SIZE}"""
"""The same without what is large, and the size of that."""
DATA, RESPONSE_DATA = 5, 8  # the columns of what is large


def inserts_of(record: Record) -> list[Insert]:
    """The rows of a record, with its response if it has ended; that of the response first."""
    data, response, parts = pack_record(record)
    row = bound(
        (
            record.id,
            record.tenant,
            record.wire,
            record.created_at,
            record.previous,
            b"".join(parts) or None,
            None if record.metadata is None else pack(record.metadata),
            data,
            response,
        )
    )
    id, tenant = row[:2]
    inserts: list[Insert] = [(_RESPONSE, row)]
    # Uses come before parts: from here on a deletion waits, so that it does not remove a part that
    # is found to be there. In one order, because two servers that inserted the
    # same parts in different orders would deadlock.
    inserts += [(_USE, (id, digest)) for digest in sorted(parts)]
    inserts += [(_PART, part) for part in sorted(parts.items())]
    items = record.request.items
    if record.response is not None:
        items += record.response.output
        if Reasoning in map(type, items):
            call = _CALL.format(f"({_SEQ}, $2, $3)")
            found = call_digests(record.response, record.place)
            inserts += [(call, (id, tenant, digest)) for digest in found]
    own = f"_{record.id}_"
    if others := [item.id for item in items if item.id and own not in item.id]:
        entry = _ITEM.format(f"({_SEQ}, $2, $3)")
        inserts += [(entry, (id, tenant, key)) for key in index_keys(others)]
    return inserts


def index_keys(items: Iterable[str]) -> list[str]:
    """The keys of items in the index. One whose id holds that of its response needs none: that
    finds it anyway."""
    return list(dict.fromkeys([clean(index_key(item)) for item in items]))


# ---- leases --------------------------------------------------------------------------------


def remaining(count: int) -> str:
    """Finds those of so many responses that were neither cancelled nor deleted, and whether an
    owner has their runs."""
    return f"""SELECT r.id, coalesce(u.owner = $1, false)
        FROM responses r LEFT JOIN runs u ON u.seq = r.seq
        WHERE r.id IN ({places(count, 2)}) AND u.cancelling IS NOT TRUE"""


def renewal(count: int, waits: str = " SKIP LOCKED") -> str:
    """Extends their leases, and gives the ids of those that it did."""
    return f"""WITH own AS MATERIALIZED (
            SELECT u.seq FROM runs u JOIN responses r ON r.seq = u.seq
            WHERE r.id IN ({places(count, 2)}) AND u.owner = $1 AND NOT u.cancelling
            FOR UPDATE OF u{waits})
        UPDATE runs SET lease = ${count + 2} WHERE seq IN (SELECT seq FROM own)
        RETURNING (SELECT id FROM responses r WHERE r.seq = runs.seq)"""


SEGMENTS_FROM = """SELECT s.first, s.events FROM segments s
    JOIN responses r ON r.seq = s.seq WHERE r.id = $1 AND s.first >= coalesce(
        (SELECT max(first) FROM segments WHERE seq = s.seq AND first <= $2), 0)
    ORDER BY s.first LIMIT $3"""
"""Finds so many segments of a log, from the one with this index on."""


# ---- outbox ---------------------------------------------------------------------------------

DUE = "SELECT id FROM outbox WHERE target = $1 AND due <= $2 AND tenant"
"""Finds the messages to a target that are due, of the tenants on one side of another."""


def taking(due: str, columns: Iterable[str]) -> str:
    """Takes so many of those, tenant by tenant, and gives these columns."""
    return f"""WITH ids AS MATERIALIZED ( -- `IN` alone may be asked again for each row
            {due} ORDER BY tenant, due LIMIT $4 FOR UPDATE SKIP LOCKED)
        UPDATE outbox SET due = $5, attempts = attempts + 1 WHERE id IN (SELECT id FROM ids)
        RETURNING {", ".join(columns)}"""


# ---- steps of several transactions ---------------------------------------------------------

LENGTH = """coalesce((SELECT first + length FROM segments s WHERE s.seq = u.seq
    ORDER BY first DESC LIMIT 1), 0)"""
LIVE = "FROM responses r JOIN runs u ON u.seq = r.seq WHERE r.id = $1"
_LAST = """(SELECT CASE WHEN length <= $3 THEN first END FROM segments s WHERE s.seq = u.seq
    ORDER BY first DESC LIMIT 1)"""
_APPEND = f"""INSERT INTO segments (seq, first, length, events) SELECT u.seq, $2, $3, $4
    {LIVE} AND u.owner = $5 AND $2 IN ({LENGTH}, {_LAST}) FOR UPDATE OF u
    ON CONFLICT (seq, first) DO UPDATE SET length = excluded.length, events = excluded.events
    RETURNING first"""
"""Adds nothing where the run has ended or has another owner, and where the segment does not follow
the log's end. The last segment is replaced by one with as many events or more: it was stored, but
the answer of the database was lost, so that it is stored again, with what came since."""
_EXTEND = """INSERT INTO items (conversation, place, id, item) VALUES {}
    ON CONFLICT (conversation, id) DO NOTHING RETURNING place"""
USED = "UPDATE conversations SET used_at = $3 WHERE id = $1 AND tenant = $2 RETURNING id"
"""Locks the conversation, too, so that two servers do not give items the same place."""


def add_parts(id: str, parts: dict[bytes, bytes]) -> Steps[None]:
    """Add parts to a response, if it is there; the first step of a transaction, as with the uses of
    parts it has to wait for a deletion while nothing is locked that that needs."""
    if not (rows := (yield f"SELECT seq, parts FROM responses WHERE {_KEPT}", (id,))):
        return
    seq, known = rows[0][0], rows[0][1] or b""
    for some in chunks(sorted(parts)):
        uses = ", ".join(f"($1, ${place})" for place in range(2, len(some) + 2))
        yield f"INSERT INTO part_uses (seq, digest) VALUES {uses} {_ONCE}", (seq, *some)
    for each in chunks(sorted(parts.items()), TOGETHER):
        pairs = ", ".join(f"(${n}, ${n + 1})" for n in range(1, 2 * len(each), 2))
        values = [value for part in each for value in part]
        yield f"INSERT INTO parts (digest, data) VALUES {pairs} {_ONCE}", values
    more = b"".join(parts.keys() - set(digests(known)))
    yield "UPDATE responses SET parts = $2 WHERE id = $1", (id, known + more)


def index(seq: int, tenant: str, items: Sequence[str], calls: Sequence[str]) -> Steps[None]:
    """Have a response found by its items and its calls. A run that ends is locked meanwhile, so
    that there is not one statement for each of thousands."""
    for statement, keys in ((_ITEM, items), (_CALL, calls)):
        for some in chunks(keys):
            rows = ", ".join(f"($1, $2, ${place})" for place in range(3, len(some) + 3))
            yield statement.format(rows), (seq, tenant, *some)


def append(id: str, segment: LogSegment, events: bytes, parts: dict[bytes, bytes]) -> Steps[bool]:
    """Add to a log; False where no such run is live. Raises StoreError for a gap."""
    if parts:
        yield from add_parts(id, parts)
    if (yield _APPEND, (id, segment.first, len(segment.events), events, segment.owner)):
        return True
    if (yield f"SELECT u.seq {LIVE}", (id,)):
        raise ConflictError(f"The log of {id} is another's, or has a gap before {segment.first}.")
    return False


def add_to(
    moment: int,
    tenant: str,
    conversation: str | None,
    items: Sequence[tuple[Item, bytes]],
    messages: Sequence[OutboxMessage],
) -> Steps[None]:
    """What the end of a run adds to its conversation and to the outbox."""
    if items and conversation is not None and (yield USED, (conversation, tenant, moment)):
        yield from extend(conversation, items, rename=True)
    statement = """INSERT INTO outbox (id, target, body, due, attempts, tenant)
        VALUES ($1, $2, $3, $4, $5, $6)"""
    for each in messages:
        yield statement, (each.id, each.target, each.body, each.due, each.attempts, each.tenant)


def extend(id: str, items: Sequence[tuple[Item, bytes]], *, rename: bool = False) -> Steps[None]:
    """Add items at the end of a conversation; one whose id is taken, or long, is renamed, or
    refused where it is taken."""
    problem = "An item of a conversation needs an id of its own: %r."
    if nameless := [item for item, _ in items if not item.id]:
        raise ConflictError(problem % nameless[0].id)
    statement = "SELECT coalesce(max(place), -1) FROM items WHERE conversation = $1"
    ((last,),) = yield statement, (id,)
    first, again = last + 1, False
    names = [(item.id or "")[: LONGEST_ID if rename else None] for item, _ in items]
    rows = [(place, names[place - first], data) for place, (_, data) in enumerate(items, first)]
    while rows:
        refused: list[_Placed] = []
        for some in _together(rows):
            added = {place for (place,) in (yield _added(id, some))}
            refused += [row for row in some if row[0] not in added]
        if refused and not rename:
            raise ConflictError(problem % refused[0][1])
        # A client may have chosen an id that ends with a place, too, but none that is random.
        rows = [
            (place, f"{names[place - first]}_{token_hex(8) if again else place}", data)
            for place, _, data in refused
        ]
        again = True


def _together(rows: Sequence[_Placed]) -> Iterator[list[_Placed]]:
    """Items, as many together as one statement stores."""
    some, size = list[_Placed](), 0
    for row in rows:
        data = row[2]
        if some and (len(some) == LISTED or size + len(data) > AT_ONCE):
            yield some
            some, size = [], 0
        some.append(row)
        size += len(data)
    if some:
        yield some


def _added(id: str, rows: Sequence[_Placed]) -> tuple[str, Values]:
    """The statement that adds items; gives the places of those added."""
    values = [value for row in rows for value in row]
    listed = [f"($1, {places(3, first)})" for first in range(2, len(values) + 2, 3)]
    return _EXTEND.format(", ".join(listed)), (id, *values)


_TENANTS = "SELECT tenant FROM responses UNION SELECT tenant FROM conversations"


def read_secret(new: bytes | None = None) -> Steps[bytes]:
    """The secret of a store. Where there is none it becomes `new`, or is made; the tenants of an
    earlier version, which were digests without a key, then get their names."""
    rows = yield "SELECT tenants FROM secrets", ()
    if rows:
        return bytes(rows[0][0])
    secret = new or token_bytes(32)
    yield "INSERT INTO secrets (tenants) VALUES ($1)", (secret,)
    for (digest,) in (yield _TENANTS, ()):
        for table in ("responses", "conversations", "item_index", "calls"):
            statement = f"UPDATE {table} SET tenant = $1 WHERE tenant = $2"
            yield statement, (tenant_name(secret, digest), digest)
    return secret
