"""The common part of the SQL stores: nearly everything that SQLite and PostgreSQL do.

Statements are written once, in the SQL of PostgreSQL with its `$1`, `$2` …; SQLite leaves out the
locks, because it has one writer. A transaction of several statements is a generator that yields
each of them and is sent its rows, so that SQLite runs it in the writer's thread and PostgreSQL on
the event loop.

A response is one row of `responses`, in the order of storing (`seq`). A unary answer is written
whole, at its end. A streamed one has its record in that row, a row in `runs`
while it is live, rows in `segments` for its log, and a row in `ends` for its response: no row ever
grows, and only the small ones of `runs` are updated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

from msgspec.structs import replace

from dragoman.core.fold import unfold
from dragoman.core.item import JSON, Item, ItemReference
from dragoman.core.response import Response
from dragoman.net.threads import TenantLock, Turns, reading

from . import retention
from .base import (
    APART,
    AT_ONCE,
    RUNNING,
    ConflictError,
    Conversation,
    LogSegment,
    OutboxMessage,
    Page,
    Paging,
    Record,
    Room,
    StoredAnswer,
    StoreError,
    Subscribers,
    Together,
    TooMuchError,
    call_digests,
    slower,
)
from .files import Files
from .retention import SWEPT, TURN, Retention
from .serialize import (
    BLOCK_BYTES,
    DIGEST,
    PARTS,
    Parts,
    clean,
    digests,
    is_long,
    pack,
    pack_apart,
    pack_events,
    pack_items,
    texts_of,
    unpack,
    unpack_answers,
    unpack_items,
    unpack_records,
    unpack_segments,
)
from .statements import (
    DATA,
    DUE,
    FITTING,
    LENGTH,
    LIVE,
    RECORD,
    RESPONSE_DATA,
    RUN,
    SEGMENTS_FROM,
    SIZE,
    USED,
    Insert,
    Row,
    Steps,
    Values,
    add_parts,
    add_to,
    append,
    bound,
    chunks,
    direction,
    extend,
    index,
    index_keys,
    inserts_of,
    places,
    remaining,
    renewal,
    taking,
)

T = TypeVar("T")
SWEEPING, BRIEF = 12.0, 0.1
"""Multiply the store's patience: for sweeps, as no request waits for them, and for the lease of a
run that is locked."""
DIGESTS = 50
"""Digests of calls in one statement."""

_Making = Callable[[], Steps[None]] | None
_Packed = Sequence[tuple[Item, bytes]]
_ENDS = "LEFT JOIN ends e ON e.seq = r.seq"
_JOINED = f"{_ENDS} LEFT JOIN runs u ON u.seq = r.seq"
_ANSWER = "SELECT r.id, r.record, coalesce(r.response, e.response)"
_FITTING_ANSWER = f"""SELECT r.id, CASE WHEN {SIZE} <= {AT_ONCE} THEN r.record END,
    CASE WHEN {SIZE} <= {AT_ONCE} THEN coalesce(r.response, e.response) END, {SIZE}"""
_END = """DELETE FROM runs WHERE seq = (SELECT seq FROM responses WHERE id = $1) RETURNING seq,
    (SELECT tenant FROM responses r WHERE r.seq = runs.seq), conversation"""
_FILLED = "SELECT count(*), coalesce(sum(length(item)), 0) FROM items WHERE conversation = $1"
_OURS = "EXISTS (SELECT 1 FROM conversations WHERE conversations.id = $1 AND tenant = $3)"
_TALK = "FROM conversations WHERE id = $1 AND tenant = $2"
_OWN = "SELECT seq FROM responses WHERE id = $1 AND tenant = $2"


class Store(Files):
    """The store of a server, in a SQL database.

    One conformance suite holds for all stores. A method that writes returns when what it wrote
    survives a crash of this process. A method that takes a tenant finds nothing of another
    tenant's; unknown ids give None or False, never an error. Ids are bare, without the prefix a
    wire puts before them, and times are Unix seconds.
    """

    POLL: ClassVar[float]
    """Seconds between two polls for writes of other processes."""
    CASCADES: ClassVar[bool]
    """Whether the database deletes the rows of a response with it (foreign keys)."""

    _secret: bytes | None = None  # until the store was opened

    def __init__(self, kept: Retention | None, pubsub: Subscribers) -> None:
        self._retention = kept or Retention()
        self._added = 0  # since the last sweep
        self._pubsub = pubsub
        self.turns = Turns()
        self._large, self._indexing = TenantLock(), TenantLock()
        self._asked = Together()

    @property
    def secret(self) -> bytes:
        """The secret for tenant names (`tenant_name`), created with the store and the same
        for all its servers. Raises StoreError before `ready`."""
        if self._secret is None:
            raise StoreError("The store could not be opened yet: whose data is whose is unknown.")
        return self._secret

    async def ready(self) -> None:
        """Return when the store can be used. Raises StoreError, within about a minute, with the
        problem and advice."""
        await self._read("SELECT 1")

    async def close(self) -> None:
        """Write what is queued and release everything."""
        await self._pubsub.close()

    # ---- responses -----------------------------------------------------------------------

    def begin(self, record: Record) -> Awaitable[None]:
        """Store a run that is about to start."""
        self._added += 1
        run = (RUN, bound((record.id, record.owner, record.lease, record.conversation)))
        if record.size:
            return self._transact_large(record.tenant, lambda: [*inserts_of(record), run])
        return self._transact([*inserts_of(record), run])

    async def _transact_large(
        self, tenant: str, make: Callable[[], list[Insert]], steps: _Making = None
    ) -> None:
        """Insert a record that is packed in a thread, and written before the next one is."""
        reading.set(tenant)
        async with self._large.turn(tenant):
            await self._transact(await self.turns.take(make), steps)

    def put(
        self,
        record: Record,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> Awaitable[None]:
        """Store a finished response in one step: for answers that could not be followed while
        they were generated. The log is the one that unfolding `record.response` gives."""
        if record.response is None or record.status in RUNNING:
            raise ValueError(f"response {record.id} has not ended")
        self._added += 1
        steps, packed = None, list[tuple[Item, bytes]]()
        if items or messages:
            given = int(self.now()), record.tenant, record.conversation, packed, messages
            steps = partial(add_to, *given)
        if not record.size:
            packed += pack_items(items) if items else ()
            return self._transact(inserts_of(record), steps)

        def made() -> list[Insert]:
            packed.extend(pack_items(items))
            return inserts_of(record)

        return self._transact_large(record.tenant, made, steps)

    async def append(self, id: str, segment: LogSegment, size: int = 0, tenant: str = "") -> None:
        """Add to the log of a run, or replace its last segment by one that has more. Any other
        place or owner is an error; so is a run that has ended or is not known. `size` is in bytes,
        where it is so large that it is packed in a thread, for the `tenant` of the run."""
        reading.set(tenant)
        parts: dict[bytes, bytes] = {}
        pack_all = partial(pack_apart, tenant=tenant, parts=parts) if size > APART else pack
        data = await self.apart(size, pack_events, segment.events, pack_all)
        if not await self._transact((), partial(append, id, segment, data, parts)):
            raise ConflictError(f"No response {id} is being made.")
        self._pubsub.publish_soon(id)

    def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
        size: int = 0,
        tenant: str = "",
        place: int | None = None,
    ) -> Awaitable[bool]:
        """End a run with its response, the last segment of its log, the items it adds to its
        conversation (one whose id is taken gets another), and the messages that announce its end,
        in one step. False, and nothing is written, when the run had ended or is not known.
        `size`: in bytes, of an answer that is packed in a thread, for the `tenant`."""

        def made() -> Callable[[], Steps[bool]]:
            parts: dict[bytes, bytes] = {}
            packed = partial(pack_apart, tenant=tenant, parts=parts) if size > APART else pack
            data, added = packed(response), pack_items(items) if items else ()
            events = b"" if segment is None else pack_events(segment.events, packed)
            others = [item.id for item in response.output if item.id and f"_{id}_" not in item.id]
            keys, calls = index_keys(others), call_digests(response, place)

            def steps() -> Steps[bool]:
                if parts:
                    yield from add_parts(id, parts)
                if segment is not None and not (yield from append(id, segment, events, {})):
                    return False
                live = yield _END, (id,)
                if not live:
                    return False
                ((seq, owner, conversation),) = live
                yield "INSERT INTO ends (seq, response) VALUES ($1, $2)", (seq, data)
                if keys or calls:
                    yield from index(seq, owner, keys, calls)
                yield from add_to(int(self.now()), owner, conversation, added, messages)
                return True

            return steps

        async def apart() -> bool:
            reading.set(tenant)
            async with self._large.turn(tenant):
                return await self._transact((), await self.turns.take(made))

        ending = asyncio.ensure_future(apart() if size > APART else self._transact((), made()))
        ending.add_done_callback(lambda _: self._pubsub.publish_soon(id))
        return ending

    async def get(self, tenant: str, id: str, room: Room | None = None) -> Record | None:
        """A response."""
        reading.set(tenant)
        found = await self._records("WHERE r.id = $1 AND r.tenant = $2", id, tenant, room=room)
        return found[0] if found else None

    async def chain(self, tenant: str, id: str, room: Room | None = None) -> tuple[Record, ...]:
        """A response and all before it through `previous`, the earliest first; empty when one of
        them is not known. Raises TooMuchError where there is no room for them."""
        reading.set(tenant)
        room = room or Room()
        statement = f"""
            WITH RECURSIVE chain (seq, previous, depth) AS (
                SELECT seq, previous, 0 FROM responses WHERE id = $1 AND tenant = $2
                UNION ALL
                SELECT p.seq, p.previous, chain.depth + 1 FROM chain
                JOIN responses p ON p.id = chain.previous AND p.tenant = $2
            ), size (bytes) AS (
                SELECT coalesce(sum({SIZE}), 0)
                FROM chain JOIN responses r ON r.seq = chain.seq {_ENDS}
            )
            {RECORD}, size.bytes FROM size LEFT JOIN chain ON size.bytes <= $3
            LEFT JOIN responses r ON r.seq = chain.seq {_JOINED} ORDER BY chain.depth DESC
        """
        fits, size = room.left if room.count is None else min(room.left, AT_ONCE), 0
        while True:
            rows = await self._read(statement, id, tenant, fits)
            size, before = rows[0][-1], size
            room.read(size - before)
            if size <= fits:
                break
            fits = size
        if rows[0][0] is None:
            return ()
        records = await self._recorded([row[:-1] for row in rows], room)
        whole = records and len(records) == len(rows) and records[0].previous is None
        return tuple(records) if whole else ()

    async def find_items(
        self, tenant: str, items: Iterable[str], room: Room | None = None
    ) -> dict[str | None, Item]:
        """The items with these ids in the input or output of any response, the first of each."""
        reading.set(tenant)
        wanted, room, sizes = dict.fromkeys(items), room or Room(), dict[int, int]()
        for keys in chunks(index_keys(wanted)):
            listed = places(len(keys), 2)
            where = f"""r.tenant = $1 AND (r.id IN ({listed}) OR r.seq IN (
                SELECT seq FROM item_index WHERE tenant = $1 AND item IN ({listed})))"""
            # With blocks of its input, each of a few kilobytes; long texts are more.
            size = f"{SIZE} + {BLOCK_BYTES // DIGEST} * coalesce(length(r.parts), 0)"
            statement = f"SELECT r.seq, {size} FROM responses r {_ENDS} WHERE {where}"
            sizes |= dict(map(tuple, await self._read(statement, tenant, *keys)))
        room.seen += sum(sizes.values())
        found: dict[str | None, Item] = {}
        for some in chunks(sorted(sizes), 1 if max(sizes.values(), default=0) > AT_ONCE else 8):
            where = f"WHERE r.seq IN ({places(len(some))}) ORDER BY r.seq"
            each = Room(count=room.count)
            for record in await self._records(where, *some, room=each):
                for item in record.items:
                    if item.id in wanted and not isinstance(item, ItemReference):
                        found.setdefault(item.id, item)
            each.hold(-each.held)  # what is wanted of it is counted by its own size
            if len(found) == len(wanted):
                break
        return found

    async def find_answers(
        self, tenant: str, digests: Sequence[str], room: Room | None = None
    ) -> tuple[StoredAnswer, ...]:
        """The responses with reasoning that made the calls with these digests, each once. Of
        several that made the same call, it is the latest. Raises TooMuchError where there is no
        room for them."""
        reading.set(tenant)
        found, room = dict[str, StoredAnswer](), room or Room()
        tail = f"""FROM responses r {_ENDS} WHERE r.seq IN (SELECT seq FROM calls
                WHERE tenant = $1 AND digest IN ({places(DIGESTS, 2)}))"""
        for some in chunks(digests, DIGESTS):
            some += some[:1] * (DIGESTS - len(some))  # one text, so that it is prepared once
            rows = await self._read(f"{_FITTING_ANSWER} {tail}", tenant, *some)
            size = sum([row[-1] for row in rows])
            room.read(size)
            if None in [row[1] for row in rows]:
                rows = await self._read(f"{_ANSWER} {tail}", tenant, *some)
            found |= await self._whole_of([row[2] for row in rows], unpack_answers, rows, room=room)
        return tuple(found.values())

    async def log_size(self, id: str, most: int) -> tuple[int, int]:
        """The bytes of a response's log, and of `most` segments in a row at most; 0 without one."""
        statement = f"""SELECT coalesce(sum(size), 0), coalesce(max(together), 0) FROM (
            SELECT length(s.events) AS size,
                sum(length(s.events)) OVER (ORDER BY s.first ROWS {most - 1} PRECEDING) AS together
            FROM segments s JOIN responses r ON r.seq = s.seq WHERE r.id = $1) AS sizes"""
        ((size, together),) = await self._read(statement, id)
        if not size:
            whole = "SELECT coalesce(sum(length(response)), 0) FROM responses WHERE id = $1"
            ((size,),) = await self._read(whole, id)
        return size, together or size

    async def log(self, id: str, first: int = 0, most: int = 2**31) -> tuple[LogSegment, ...]:
        """The log from this index on, in order, `most` segments of it; nothing at its end."""
        return await self._asked.ask((id, first, most), partial(self._log, id, first, most)) or ()

    async def size_of_log(self, id: str, first: int, most: int) -> int:
        """The bytes of what `log` reads."""
        statement = f"SELECT coalesce(sum(length(events)), 0) FROM ({SEGMENTS_FROM}) AS found"
        ((size,),) = await self._read(statement, id, first, most)
        return int(size)

    async def _log(self, id: str, first: int, most: int) -> tuple[LogSegment, ...]:
        rows = await self._read(SEGMENTS_FROM, id, first, most)
        if rows:
            log = await self._whole_of([data for _, data in rows], unpack_segments, rows)
        else:
            whole = "SELECT response FROM responses WHERE id = $1 AND response IS NOT NULL"
            log = ()
            for (data,) in await self._read(whole, id):
                response = await self._whole_of([data], unpack, data, Response)
                log = (LogSegment(0, tuple(unfold(response))),)
        cut = [(each, max(0, first - each.first)) for each in log]
        return tuple([LogSegment(s.first + n, s.events[n:]) for s, n in cut if n < len(s.events)])

    async def wait(self, id: str, length: int, seconds: float) -> bool:
        """Return when the log is longer than this, when the run has ended, or on a timeout.
        Returns whether the run is running, as far as is known."""

        async def looked() -> bool:
            live = True

            async def is_over() -> bool:
                nonlocal live
                rows = await self._read(f"SELECT {LENGTH} {LIVE}", id)
                live = bool(rows)
                return not rows or rows[0][0] > length

            await self._pubsub.wait(id, is_over, seconds, self.POLL)
            return live

        return await self._asked.ask((id, length), looked, seconds) is not False

    async def list_responses(
        self, tenant: str, wire: str | None, paging: Paging, room: Room | None = None
    ) -> Page[Record]:
        """The responses of a tenant (on one wire, or on all) by the time of their creation."""
        reading.set(tenant)
        sign, order = direction(paging)
        values, where = list[object]((tenant, paging.limit + 1)), "WHERE r.tenant = $1"
        if wire is not None:
            values.append(wire)
            where += f" AND r.wire = ${len(values)}"
        if paging.after is not None:
            values.append(paging.after)
            where += f""" AND r.seq {sign} (SELECT seq FROM responses
                WHERE id = ${len(values)} AND tenant = $1)"""
        found = await self._records(f"{where} ORDER BY r.seq {order} LIMIT $2", *values, room=room)
        return Page(tuple(found[: paging.limit]), len(found) > paging.limit)

    async def set_metadata(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Replace the metadata of a response."""
        statement = "UPDATE responses SET metadata = $3 WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._write(statement, id, tenant, pack(metadata)))

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response and its log. Deleting a live run also cancels it."""
        find = "SELECT seq, parts, tenant FROM responses WHERE id = $1 AND tenant = $2"
        gone = await self._forget(find, (id, tenant))
        self._pubsub.publish_soon(id)
        return gone > 0

    async def apart(self, size: int, work: Callable[..., T], *given: object) -> T:
        """Run work on so many bytes; for many, in a thread and in turn."""
        return work(*given) if size <= APART else await self.turns.take(work, *given)

    async def _records(self, tail: str, *values: object, room: Room | None = None) -> list[Record]:
        columns = RECORD if room is None else FITTING
        rows = await self._read(f"{columns} FROM responses r {_JOINED} {tail}", *values)
        if room is not None:
            room.read(sum([row[-1] for row in rows]))
            if None in [row[DATA] for row in rows]:
                rows = await self._read(f"{RECORD} FROM responses r {_JOINED} {tail}", *values)
        return await self._recorded(rows, room)

    async def _recorded(self, rows: Sequence[Row], room: Room | None = None) -> list[Record]:
        """The records of rows, with the parts they refer to. One whose parts are gone was deleted
        between the two statements. Raises TooMuchError where there is no room for the parts."""
        packed = [data for row in rows for data in (row[DATA], row[RESPONSE_DATA] or b"")]
        wanted = {digest for row in rows for digest in digests(row[PARTS])}
        return await self._whole_of(packed, unpack_records, rows, more=wanted, room=room)

    async def _whole_of(
        self,
        packed: Sequence[bytes],
        work: Callable[..., T],
        *given: object,
        more: Iterable[bytes] = (),
        room: Room | None = None,
    ) -> T:
        """Unpack values with pieces of their long texts, and with parts. Raises TooMuchError."""
        room, found = room or Room(), list[Row]()
        for some in chunks({*more, *[digest for data in packed for digest in texts_of(data)]}):
            where = f"digest IN ({places(len(some), 2)})"
            statement = f"""SELECT digest, data, size FROM
                (SELECT coalesce(sum(length(data)), 0) AS size FROM parts WHERE {where}) AS sizes
                LEFT JOIN parts ON size <= $1 AND {where}"""
            fits = room.left if room.count is None else min(room.left, AT_ONCE)
            data = await self._read(statement, fits, *some)
            if (size := data[0][-1]) > fits:
                if size > room.left:
                    raise TooMuchError
                room.hold(size)
                data = await self._read(statement, size, *some)
            found += [row[:2] for row in data if row[1] is not None]
        parts = Parts(found, room)
        whole = await self.apart(parts.size + sum(map(len, packed)), work, *given, parts)
        room.hold(max(parts.taken - parts.size, 0))  # a text may be the same piece again and again
        return whole

    # ---- leases --------------------------------------------------------------------------

    async def clock(self) -> float:
        """The time of `now`, from the database itself where it may be on another machine."""
        return self.now()

    async def renew_leases(self, owner: str, ids: Sequence[str], until: float) -> dict[str, bool]:
        """Extend the leases of an owner's runs. Returns the ids of the others: true for those that
        have ended or have another owner, false for those that were cancelled or deleted."""
        renewed, left = set[str](), dict[str, bool]()
        for some in chunks(ids):
            renewed.update(*await self._write(renewal(len(some)), owner, *some, until))
        for some in chunks(others := [id for id in ids if clean(id) not in renewed]):
            left.update(map(tuple, await self._read(remaining(len(some)), owner, *some)))
        for id in filter(left.get, left):  # locked by a write, but that holds up no other lease
            with slower(BRIEF), suppress(StoreError):
                await self._write(renewal(1, ""), owner, id, until)
        return {id: clean(id) in left for id in others if not left.get(clean(id))}

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Request the cancellation of a run, wherever it runs; False for an unknown one."""
        statement = f"UPDATE runs SET cancelling = true WHERE seq IN ({_OWN}) RETURNING seq"
        return bool(await self._write(statement, id, tenant) or await self._read(_OWN, id, tenant))

    async def take_orphans(self, owner: str, now: float, until: float) -> AsyncIterator[Record]:
        """Take over the runs whose lease has expired, one after the other, as their requests may be
        large; each goes to one server only."""
        # SKIP LOCKED: a run whose row another server holds is just being taken, renewed or ended.
        statement = """UPDATE runs SET owner = $1, lease = $3 WHERE seq = (SELECT seq FROM runs
            WHERE lease < $2 ORDER BY lease LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING seq"""
        # Where there is none, no writer is disturbed.
        while await self._read("SELECT 1 FROM runs WHERE lease < $1 LIMIT 1", now):
            if not (taken := await self._write(statement, owner, now, until)):
                return
            with suppress(StoreError):  # it is damaged, and tried again when its lease expires
                for record in await self._records("WHERE r.seq = $1", taken[0][0]):
                    yield record

    # ---- conversations -------------------------------------------------------------------

    async def create_conversation(self, made: Conversation, items: Sequence[Item] = ()) -> None:
        """Store a new conversation."""
        self._added += 1
        row = (made.id, made.tenant, made.created_at, pack(made))
        packed = await self.apart(APART + 1 if is_long(items) else 0, pack_items, items)
        self._retention.check_room(len(packed), sum(len(data) for _, data in packed))

        def steps() -> Steps[None]:
            statement = """INSERT INTO conversations (id, tenant, used_at, created_at, conversation)
                VALUES ($1, $2, $3, $3, $4) ON CONFLICT DO NOTHING RETURNING id"""
            if not (yield statement, row):
                raise ConflictError(f"There is a conversation {made.id} already.")
            yield from extend(made.id, packed)

        await self._transact((), steps)

    async def get_conversation(
        self, tenant: str, id: str, room: Room | None = None
    ) -> Conversation | None:
        """A conversation."""
        reading.set(tenant)
        if room is not None:
            for (size,) in await self._read(f"SELECT length(conversation) {_TALK}", id, tenant):
                room.read(size)
        rows = await self._read(f"SELECT conversation {_TALK}", id, tenant)
        data = rows[0][0] if rows else b""
        found = await self.apart(len(data), unpack, data, Conversation) if rows else None
        return found and replace(found, tenant=tenant)  # it may be known by an earlier name

    async def set_conversation_metadata(
        self, tenant: str, id: str, metadata: dict[str, JSON]
    ) -> bool:
        """Replace the metadata of a conversation."""
        reading.set(tenant)
        if not (rows := await self._read(f"SELECT created_at {_TALK}", id, tenant)):
            return False
        statement = """UPDATE conversations SET conversation = $3
            WHERE id = $1 AND tenant = $2 RETURNING id"""
        made = Conversation(id=id, tenant=tenant, created_at=rows[0][0], metadata=metadata)
        return bool(await self._write(statement, id, tenant, pack(made)))

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Delete a conversation and its items."""

        def steps() -> Steps[bool]:
            statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"
            if not (yield statement, (id, tenant)):
                return False
            yield "DELETE FROM items WHERE conversation = $1", (id,)
            return True

        return await self._transact((), steps)

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items, each with an id of its own, at the end."""
        packed = await self.apart(APART + 1 if is_long(items) else 0, pack_items, items)

        def steps() -> Steps[bool]:
            if not (yield from self._use(tenant, id, packed)):
                return False
            yield from extend(id, packed)
            return True

        return await self._transact((), steps)

    def _use(self, tenant: str, id: str, items: _Packed = (), ahead: int = 0) -> Steps[bool]:
        """Record a conversation's use; false for an unknown one. Raise FaultError for no room."""
        if not (yield USED, (id, tenant, int(self.now()) + ahead)):
            return False
        ((count, size),) = yield _FILLED, (id,)
        self._retention.check_room(count + len(items), size + sum(len(data) for _, data in items))
        return True

    async def begin_turn(self, tenant: str, id: str) -> None:
        """Raise FaultError where a conversation is full; items of an answer are stored anyway."""
        await self._transact((), partial(self._use, tenant, id, ahead=TURN))

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None, room: Room | None = None
    ) -> Page[Item] | None:
        """A page of a conversation's items, or all of them in their order. Raises TooMuchError
        where there is no room for all of them."""
        reading.set(tenant)
        if not await self._read(f"SELECT 1 {_TALK}", id, tenant):
            return None
        where, paging = "WHERE conversation = $1", paging or Paging(limit=2**31, order="asc")
        sign, order = direction(paging)
        values: list[object] = [id, paging.limit + 1]
        if paging.after is not None:
            values.append(paging.after)
            where += f" AND place {sign} (SELECT place FROM items {where} AND id = $3)"
        rows = await self._items(f"{where} ORDER BY place {order} LIMIT $2", values, room)
        size = sum([len(data) for data, _ in rows])
        items = await self.apart(size, unpack_items, rows[: paging.limit])
        return Page(items, len(rows) > paging.limit)

    async def get_item(
        self, tenant: str, id: str, item: str, room: Room | None = None
    ) -> Item | None:
        """One item."""
        reading.set(tenant)
        where = f"WHERE conversation = $1 AND id = $2 AND {_OURS}"
        rows = await self._items(where, (id, item, tenant), room)
        return (await self.apart(len(rows[0][0]), unpack_items, rows))[0] if rows else None

    async def _items(self, tail: str, values: Values, room: Room | None) -> Sequence[Row]:
        if room is not None:
            statement = f"SELECT length(item) AS size FROM items {tail}"
            size = f"SELECT coalesce(sum(size), 0) FROM ({statement}) AS sizes"
            room.read((await self._read(size, *values))[0][0])
        return await self._read(f"SELECT item, id FROM items {tail}", *values)

    async def remove_item(self, tenant: str, id: str, item: str) -> bool:
        """Delete one item."""
        gone = f"DELETE FROM items WHERE conversation = $1 AND id = $2 AND {_OURS} RETURNING id"
        return bool(await self._write(gone, id, item, tenant))

    # ---- outbox --------------------------------------------------------------------------

    async def take_due(
        self, target: str, now: float, until: float, most: int = 20, after: str = ""
    ) -> tuple[OutboxMessage, ...]:
        """Take out messages to a target that are due, those of the tenant next `after` one first;
        one that is not settled is due again at `until`. Each goes to one server only."""
        names = OutboxMessage.__struct_fields__
        for due in (f"{DUE} > $3", f"{DUE} <= $3"):  # each goes through the index
            if not await self._read(f"{due} LIMIT 1", target, now, after):
                continue  # and no writer was disturbed
            taken = taking(due, names)
            if rows := await self._write(taken, target, now, after, most, until):
                return tuple(OutboxMessage(**dict(zip(names, row, strict=True))) for row in rows)
        return ()

    async def settle(self, id: str, due: float | None = None) -> None:
        """Delete a message, or have it sent again at another time."""
        if due is None:
            await self._write("DELETE FROM outbox WHERE id = $1", id)
        else:
            await self._write("UPDATE outbox SET due = $2 WHERE id = $1", id, due)

    # ---- deleting ------------------------------------------------------------------------

    def is_crowded(self, seconds: float) -> bool:
        """Whether it is time for a sweep, so many seconds after the last."""
        return self._retention.is_due(seconds, self._added)

    async def sweep(self, now: float) -> int:
        """Delete what is older or more than the retention allows, the oldest first, and give the
        number of responses deleted. Live runs stay."""
        with slower(SWEEPING):
            return await self._swept(now)

    async def _swept(self, now: float) -> int:
        kept, gone, self._added = self._retention, 0, 0
        old = now - kept.max_age
        for counted, steps in (
            (1, partial(retention.forget, retention.OLD, (SWEPT, old), self.CASCADES)),
            (1, partial(retention.forget_surplus, kept, self.CASCADES)),
            (0, partial(retention.forget_logs, now - kept.max_log_age)),
            (0, partial(retention.forget_surplus_talks, kept)),
            (0, partial(retention.forget_talks, retention.OLD_TALKS, (old, SWEPT))),
        ):
            while some := await self._transact((), steps):
                gone += counted * some
        await self._write("DELETE FROM outbox WHERE due < $1", old)
        await self._forget_files(now)
        await self._compact()
        return gone

    def _forget(self, find: str, values: Values) -> Awaitable[int]:
        return self._transact((), partial(retention.forget, find, values, self.CASCADES))

    async def _compact(self) -> None:
        """Release free space to the system."""
