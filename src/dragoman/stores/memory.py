"""A store in this process's memory: for tests, and for servers that leave no trace.

It stores what any store does, and loses it when the process ends. One event loop may use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar

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
    call_digests,
    ended,
    renamed_id,
    segments_from,
)

T = TypeVar("T")


class _Run:
    """A record, its log, and the futures of those who wait for more of it."""

    __slots__ = ("derived", "length", "log", "record", "waiting")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.log: list[LogSegment] = []
        self.length = 0
        self.derived = False  # the log is unfolded from the response and lives as long
        self.waiting: set[asyncio.Future[None]] = set()

    def add(self, segment: LogSegment) -> None:
        if segment.first != self.length:
            raise StoreError(f"The log of {self.record.id} has a gap at {self.length}.")
        self.log.append(segment)
        self.length += len(segment.events)

    def wake(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()


class MemoryStore:
    """Stores everything in dictionaries.

    >>> async def example():
    ...     store = MemoryStore()
    ...     return await store.get("", "nothing")
    >>> asyncio.run(example()) is None
    True
    """

    def __init__(self, retention: Retention | None = None) -> None:
        self._retention = retention or Retention()
        self._runs: dict[str, _Run] = {}
        self._conversations: dict[str, tuple[Conversation, dict[str, Item]]] = {}
        self._outbox: dict[str, OutboxMessage] = {}
        # Of a tenant and an item: the responses it is in. One may be sent again and again.
        self._item_index: dict[tuple[str, str], dict[str, None]] = {}
        # Of a tenant and the digest of a call: the latest response that made it.
        self._calls: dict[tuple[str, str], str] = {}

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Store a run that is about to start."""
        if record.id in self._runs:
            raise StoreError(f"There is a response {record.id} already.")
        self._runs[record.id] = _Run(record)
        self._index(record, record.request.items)

    async def append(self, id: str, segment: LogSegment) -> None:
        """Add to the log of a run."""
        run = self._runs.get(id)
        if run is None or not run.record.running:
            raise StoreError(f"No response {id} is being made.")
        run.add(segment)
        run.wake()

    async def finish(
        self,
        id: str,
        response: Response,
        segment: LogSegment | None = None,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> bool:
        """End a run with its response."""
        run = self._runs.get(id)
        if run is None or not run.record.running:
            return False
        if segment is not None:
            run.add(segment)
        self._end(run, response, items, messages)
        return True

    async def put(
        self,
        record: Record,
        items: Sequence[Item] = (),
        messages: Sequence[OutboxMessage] = (),
    ) -> None:
        """Store a response that has ended, whole."""
        response = ended(record)
        await self.begin(record)
        run = self._runs[record.id]
        run.add(LogSegment(0, tuple(unfold(response))))
        run.derived = True
        self._end(run, response, items, messages)

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        run = self._runs.get(id)
        return run.record if run is not None and run.record.tenant == tenant else None

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all before it, the earliest first."""
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
        """The item of any response with this id."""
        for id in self._item_index.get((tenant, item), ()):
            return self._runs[id].record.item(item)
        return None

    async def find_answers(self, tenant: str, digests: Sequence[str]) -> tuple[StoredAnswer, ...]:
        """The responses that made the calls with these digests."""
        found = dict.fromkeys(self._calls.get((tenant, digest)) for digest in digests)
        records = (self._runs[id].record for id in found if id is not None)
        return tuple(
            StoredAnswer(record.request.model, record.response)
            for record in records
            if record.response is not None
        )

    async def log(self, id: str, first: int = 0) -> tuple[LogSegment, ...]:
        """The log from this index on, in order."""
        run = self._runs.get(id)
        return () if run is None else tuple(segments_from(run.log, first))

    async def wait(self, id: str, length: int, seconds: float) -> None:
        """Return when the log is longer than this, when the run has ended, or when time is up."""
        run = self._runs.get(id)
        if run is None or run.length > length or not run.record.running:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        run.waiting.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            run.waiting.discard(future)

    async def list_responses(self, tenant: str, wire: str | None, paging: Paging) -> RecordPage:
        """The responses of a tenant by the time of their creation."""
        own = (run.record for run in self._runs.values() if run.record.tenant == tenant)
        records = sorted(
            (record for record in own if wire in (None, record.wire)),
            key=lambda record: (record.created_at, record.id),
        )
        found, more = _page([(record.id, record) for record in records], paging)
        return RecordPage(tuple(found), more)

    async def set_metadata(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Replace the metadata of a response."""
        if await self.get(tenant, id) is None:
            return False
        run = self._runs[id]
        run.record = replace(run.record, metadata=metadata)
        return True

    async def delete(self, tenant: str, id: str) -> bool:
        """Delete a response and its log."""
        if await self.get(tenant, id) is None:
            return False
        self._forget(id)
        return True

    # ---- leases --------------------------------------------------------------------------

    async def renew_leases(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Extend the leases of these runs; the ids of those that must stop."""
        stopped: list[str] = []
        for id in ids:
            run = self._runs.get(id)
            if run is None or run.record.cancelling or not run.record.running:
                stopped.append(id)
            else:
                run.record = replace(run.record, lease=until)
        return tuple(stopped)

    async def request_cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run."""
        if await self.get(tenant, id) is None:
            return False
        run = self._runs[id]
        if run.record.running:
            run.record = replace(run.record, cancelling=True)
        return True

    async def take_orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs whose lease has expired."""
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
        """Store a new conversation."""
        if conversation.id in self._conversations:
            raise StoreError(f"There is a conversation {conversation.id} already.")
        held: dict[str, Item] = {}
        _add(held, items)
        self._conversations[conversation.id] = (conversation, held)

    async def get_conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        held = self._held(tenant, id)
        return None if held is None else held[0]

    async def set_conversation_metadata(
        self, tenant: str, id: str, metadata: dict[str, JSON]
    ) -> bool:
        """Replace the metadata of a conversation."""
        held = self._held(tenant, id)
        if held is None:
            return False
        self._conversations[id] = (replace(held[0], metadata=metadata), held[1])
        return True

    async def delete_conversation(self, tenant: str, id: str) -> bool:
        """Delete a conversation and its items."""
        if self._held(tenant, id) is None:
            return False
        del self._conversations[id]
        return True

    async def add_items(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""
        held = self._held(tenant, id)
        if held is None:
            return False
        added = dict(held[1])
        _add(added, items)
        self._conversations[id] = (held[0], added)
        return True

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None
    ) -> ItemPage | None:
        """A page of a conversation's items, or all of them in their order."""
        held = self._held(tenant, id)
        if held is None:
            return None
        if paging is None:
            return ItemPage(tuple(held[1].values()), more=False)
        found, more = _page(list(held[1].items()), paging)
        return ItemPage(tuple(found), more)

    async def get_item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""
        held = self._held(tenant, id)
        return None if held is None else held[1].get(item)

    async def remove_item(self, tenant: str, id: str, item: str) -> bool:
        """Delete one item."""
        held = self._held(tenant, id)
        return held is not None and held[1].pop(item, None) is not None

    # ---- outbox --------------------------------------------------------------------------

    async def take_due(self, now: float, until: float, most: int = 20) -> tuple[OutboxMessage, ...]:
        """Take out messages that are due."""
        due = sorted((each for each in self._outbox.values() if each.due <= now), key=_due)
        taken = [replace(each, due=until, attempts=each.attempts + 1) for each in due[:most]]
        self._outbox |= {message.id: message for message in taken}
        return tuple(taken)

    async def settle(self, id: str, due: float | None = None) -> None:
        """Delete a message, or have it sent again."""
        message = self._outbox.pop(id, None)
        if message is not None and due is not None:
            self._outbox[id] = replace(message, due=due)

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Delete what is older or more than the retention allows."""
        retention = self._retention
        ended = [run for run in self._runs.values() if not run.record.running]
        ended.sort(key=lambda run: run.record.created_at)
        excess = max(0, len(self._runs) - retention.max_responses)
        old = [run for run in ended if run.record.created_at < now - retention.max_age]
        gone = {run.record.id for run in (*old, *ended[:excess])}
        for id in gone:
            self._forget(id)
        for run in ended:
            if not run.derived and run.record.created_at < now - retention.max_log_age:
                run.log.clear()
        self._conversations = {
            id: held
            for id, held in self._conversations.items()
            if held[0].created_at >= now - retention.max_age
        }
        self._outbox = {
            id: message
            for id, message in self._outbox.items()
            if message.due >= now - retention.max_age
        }
        return len(gone)

    async def ready(self) -> None:
        """Memory is always ready."""

    async def close(self) -> None:
        """Wake everybody who waits."""
        for run in self._runs.values():
            run.wake()

    # ---- inside --------------------------------------------------------------------------

    def _end(
        self,
        run: _Run,
        response: Response,
        items: Sequence[Item],
        messages: Sequence[OutboxMessage],
    ) -> None:
        record = run.record = replace(run.record, status=response.status, response=response)
        self._index(record, response.output)
        self._calls |= {(record.tenant, digest): record.id for digest in call_digests(response)}
        held = self._held(record.tenant, record.conversation or "")
        if held is not None:
            _add_renamed(held[1], items)
        self._outbox |= {message.id: message for message in messages}
        run.wake()

    def _index(self, record: Record, items: Iterable[Item]) -> None:
        for item in items:
            if item.id:
                self._item_index.setdefault((record.tenant, item.id), {})[record.id] = None

    def _forget(self, id: str) -> None:
        run = self._runs.pop(id)
        for item in run.record.items:
            key = run.record.tenant, item.id or ""
            responses = self._item_index.get(key, {})
            responses.pop(id, None)
            if not responses:
                self._item_index.pop(key, None)
        digests = call_digests(run.record.response) if run.record.response is not None else ()
        for digest in digests:
            if self._calls.get((run.record.tenant, digest)) == id:
                del self._calls[run.record.tenant, digest]
        run.wake()

    def _held(self, tenant: str, id: str) -> tuple[Conversation, dict[str, Item]] | None:
        held = self._conversations.get(id)
        return held if held is not None and held[0].tenant == tenant else None


def _due(message: OutboxMessage) -> float:
    return message.due


def _add(items: dict[str, Item], added: Sequence[Item]) -> None:
    """Add items to a conversation. Raises StoreError for one whose id is missing or taken."""
    for item in added:
        if not item.id or item.id in items:
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        items[item.id] = item


def _add_renamed(items: dict[str, Item], added: Sequence[Item]) -> None:
    """Add items to a conversation; one whose id is taken gets another."""
    for item in added:
        own = item if item.id not in items else replace(item, id=renamed_id(item, len(items)))
        items[own.id or ""] = own


def _page(entries: list[tuple[str, T]], paging: Paging) -> tuple[list[T], bool]:
    """The part of a list that is asked for; nothing follows an entry that is not there."""
    if paging.order == "desc":
        entries = entries[::-1]
    if paging.after is not None:
        places = [place for place, (id, _) in enumerate(entries) if id == paging.after]
        entries = entries[places[0] + 1 :] if places else []
    return [entry for _, entry in entries[: paging.limit]], len(entries) > paging.limit
