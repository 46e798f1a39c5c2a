"""A store in this process's memory: for tests, and for servers that leave no trace.

It stores what any store does, and loses it when the process ends. One event loop may use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
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
    Retention,
    StoredAnswer,
    StoreError,
    Subscribers,
    call_digests,
    ended,
    renamed_id,
    segments_from,
)

T = TypeVar("T")
Items = dict[str, Item]


class _Run(Struct, eq=False):
    """A record and its log; without one it is that which unfolding the response gives."""

    record: Record
    log: list[LogSegment] | None


class MemoryStore:
    """Stores everything in dictionaries; see `Store` for what its methods do.

    >>> import asyncio
    >>> async def example():
    ...     store = MemoryStore()
    ...     return await store.get("", "nothing")
    >>> asyncio.run(example()) is None
    True
    """

    def __init__(self, retention: Retention | None = None) -> None:
        self._retention = retention or Retention()
        self._runs: dict[str, _Run] = {}
        self._conversations: dict[str, tuple[Conversation, Items]] = {}
        self._outbox: dict[str, OutboxMessage] = {}
        # Of the keys of records: the responses that have them, in the order of storing.
        self._index: dict[tuple[str, str, str], dict[str, None]] = {}
        self._subscribers = Subscribers()
        self._closed = 0

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        self._insert(record, [])
        self._add(record)

    async def append(self, id: str, segment: LogSegment) -> None:
        run = self._live(id)
        if run is None:
            raise StoreError(f"No response {id} is being made.")
        self._append(run, segment)

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        run = self._live(id)
        if run is None:
            return False
        if segment is not None:
            self._append(run, segment)
        record = replace(run.record, status=response.status, response=response)
        self._add(record, items, messages)
        run.record = record
        self._subscribers.notify(id)
        return True

    async def put(
        self,
        record: Record,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> None:
        ended(record)
        self._insert(record, None)
        self._add(record, items, messages)

    async def get(self, tenant: str, id: str) -> Record | None:
        run = self._runs.get(id)
        return run.record if run is not None and run.record.tenant == tenant else None

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        found: list[Record] = []
        place: str | None = id
        while place is not None:
            record = await self.get(tenant, place)
            if record is None:
                return ()
            found.append(record)
            place = record.previous
        return tuple(reversed(found))

    async def find_item(self, tenant: str, item: str) -> Item | None:
        for id in self._index.get(("item", tenant, item), ()):
            return self._runs[id].record.item(item)
        return None

    async def find_answers(self, tenant: str, digests: Sequence[str]) -> tuple[StoredAnswer, ...]:
        made = (self._index.get(("call", tenant, digest)) for digest in digests)
        latest = dict.fromkeys(next(reversed(ids)) for ids in made if ids)
        records = (self._runs[id].record for id in latest)
        return tuple(StoredAnswer(each.request.model, ended(each)) for each in records)

    async def log(self, id: str, first: int = 0) -> tuple[LogSegment, ...]:
        run = self._runs.get(id)
        if run is None:
            return ()
        log = run.log
        if log is None:
            log = [LogSegment(0, tuple(unfold(ended(run.record))))]
        return tuple(segments_from(log, first))

    async def wait(self, id: str, length: int, seconds: float) -> None:
        closed = self._closed

        async def is_over() -> bool:
            run = self._live(id)
            return run is None or _length(run) > length or self._closed > closed

        await self._subscribers.wait(id, is_over, seconds, seconds)

    async def list_responses(self, tenant: str, wire: str | None, paging: Paging) -> RecordPage:
        own = (run.record for run in self._runs.values() if run.record.tenant == tenant)
        found, more = _page({each.id: each for each in own if wire in (None, each.wire)}, paging)
        return RecordPage(found, more)

    async def set_metadata(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        record = await self.get(tenant, id)
        if record is not None:
            self._runs[id].record = replace(record, metadata=metadata)
        return record is not None

    async def delete(self, tenant: str, id: str) -> bool:
        record = await self.get(tenant, id)
        if record is not None:
            self._forget(record)
        return record is not None

    # ---- leases --------------------------------------------------------------------------

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        stopped: list[str] = []
        for id in ids:
            run = self._live(id)
            if run is None or run.record.cancelling:
                stopped.append(id)
            else:
                run.record = replace(run.record, lease=until)
        return tuple(stopped)

    async def request_cancel(self, tenant: str, id: str) -> bool:
        record = await self.get(tenant, id)
        if record is not None and record.running:
            self._runs[id].record = replace(record, cancelling=True)
        return record is not None

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        found: list[Record] = []
        for run in self._runs.values():
            if run.record.running and run.record.lease < now:
                run.record = replace(run.record, owner=owner, lease=until)
                found.append(run.record)
        return tuple(found)

    # ---- conversations -------------------------------------------------------------------

    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item] = ()
    ) -> None:
        if conversation.id in self._conversations:
            raise StoreError(f"There is a conversation {conversation.id} already.")
        self._conversations[conversation.id] = (conversation, _extended({}, items))

    async def get_conversation(self, tenant: str, id: str) -> Conversation | None:
        held = self._held(tenant, id)
        return None if held is None else held[0]

    async def set_conversation_metadata(
        self, tenant: str, id: str, metadata: dict[str, JSON]
    ) -> bool:
        held = self._held(tenant, id)
        if held is not None:
            self._conversations[id] = (replace(held[0], metadata=metadata), held[1])
        return held is not None

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        return self._held(tenant, id) is not None and bool(self._conversations.pop(id))

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        held = self._held(tenant, id)
        if held is not None:
            self._conversations[id] = (held[0], _extended(held[1], items))
        return held is not None

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None
    ) -> ItemPage | None:
        held = self._held(tenant, id)
        if held is None:
            return None
        return ItemPage(*_page(held[1], paging or Paging(limit=len(held[1]), order="asc")))

    async def get_item(self, tenant: str, id: str, item: str) -> Item | None:
        held = self._held(tenant, id)
        return None if held is None else held[1].get(item)

    async def remove_item(self, tenant: str, id: str, item: str) -> bool:
        held = self._held(tenant, id)
        return held is not None and held[1].pop(item, None) is not None

    # ---- outbox --------------------------------------------------------------------------

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        due = sorted((m for m in self._outbox.values() if m.due <= now), key=attrgetter("due"))
        taken = [replace(each, due=until, attempts=each.attempts + 1) for each in due[:most]]
        self._outbox |= {message.id: message for message in taken}
        return tuple(taken)

    async def settle(self, id: str, due: float | None = None) -> None:
        message = self._outbox.pop(id, None)
        if message is not None and due is not None:
            self._outbox[id] = replace(message, due=due)

    # ---- the store -----------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        retention = self._retention
        old = now - retention.max_age
        excess = len(self._runs) - retention.max_responses
        done = [run for run in self._runs.values() if not run.record.running]
        gone = [
            run.record
            for place, run in enumerate(done)
            if place < excess or run.record.created_at < old
        ]
        for record in gone:
            self._forget(record)
        for run in done:
            if run.log and run.record.created_at < now - retention.max_log_age:
                run.log.clear()
        for id in [id for id, (talk, _) in self._conversations.items() if talk.created_at < old]:
            del self._conversations[id]
        for id in [id for id, message in self._outbox.items() if message.due < old]:
            del self._outbox[id]
        return len(gone)

    async def ready(self) -> None:
        """Memory is always ready."""

    async def close(self) -> None:
        """Wake everybody who waits."""
        self._closed += 1
        for id in self._runs:
            self._subscribers.notify(id)

    def _live(self, id: str) -> _Run | None:
        run = self._runs.get(id)
        return run if run is not None and run.record.running else None

    def _insert(self, record: Record, log: list[LogSegment] | None) -> None:
        if record.id in self._runs:
            raise StoreError(f"There is a response {record.id} already.")
        self._runs[record.id] = _Run(record, log)

    def _append(self, run: _Run, segment: LogSegment) -> None:
        if run.log is None or segment.first != _length(run):
            raise StoreError(f"The log of {run.record.id} has a gap before {segment.first}.")
        run.log.append(segment)
        self._subscribers.notify(run.record.id)

    def _add(
        self, record: Record, items: Sequence[Item] = (), messages: Sequence[OutboxMessage] = ()
    ) -> None:
        """Index a record, and add to its conversation and to the outbox."""
        held = self._held(record.tenant, record.conversation or "")
        if held is not None:
            self._conversations[held[0].id] = (held[0], _extended(held[1], items, rename=True))
        for key in _keys(record):
            self._index.setdefault(key, {})[record.id] = None
        self._outbox |= {message.id: message for message in messages}

    def _forget(self, record: Record) -> None:
        del self._runs[record.id]
        for key in set(_keys(record)):
            self._index[key].pop(record.id)
            if not self._index[key]:
                del self._index[key]
        self._subscribers.notify(record.id)

    def _held(self, tenant: str, id: str) -> tuple[Conversation, Items] | None:
        held = self._conversations.get(id)
        return held if held is not None and held[0].tenant == tenant else None


def _length(run: _Run) -> int:
    return run.log[-1].first + len(run.log[-1].events) if run.log else 0


def _keys(record: Record) -> Iterator[tuple[str, str, str]]:
    """What a record is found by, beside its id: its items and its calls."""
    for item in record.items:
        if item.id:
            yield "item", record.tenant, item.id
    for digest in call_digests(record.response) if record.response is not None else ():
        yield "call", record.tenant, digest


def _extended(items: Items, added: Sequence[Item], *, rename: bool = False) -> Items:
    """Items with more at the end; one whose id is taken is renamed or refused."""
    items = dict(items)
    for item in added:
        if not item.id or (item.id in items and not rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        own = item.id if item.id not in items else renamed_id(item, len(items))
        items[own] = replace(item, id=own)
    return items


def _page(entries: dict[str, T], paging: Paging) -> tuple[tuple[T, ...], bool]:
    """The part of a list that is asked for; nothing follows an entry that is not there."""
    ids = list(entries) if paging.order == "asc" else list(reversed(entries))
    if paging.after is not None:
        ids = ids[ids.index(paging.after) + 1 :] if paging.after in entries else []
    return tuple(entries[id] for id in ids[: paging.limit]), len(ids) > paging.limit
