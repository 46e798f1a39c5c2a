"""A store in this process's memory: for tests, and for servers that shall leave no trace.

It keeps what any store keeps, and forgets it all when the process ends. One event loop may use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from dragoman.core.item import JSON, Item
from dragoman.core.response import Response

from .calls import marks
from .keeping import Keeping
from .record import (
    Answer,
    Conversation,
    Items,
    Letter,
    Paging,
    Record,
    Records,
    Stretch,
    another,
    stretches_from,
)
from .store import StoreError

T = TypeVar("T")


class _Run:
    """A record, its log, and those who wait for more of it."""

    __slots__ = ("length", "log", "record", "waiting")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.log: list[Stretch] = []
        self.length = 0
        self.waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()


class MemoryStore:
    """Keeps everything in dictionaries.

    >>> async def example():
    ...     store = MemoryStore()
    ...     return await store.get("", "nothing")
    >>> asyncio.run(example()) is None
    True
    """

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._keeping = keeping or Keeping()
        self._runs: dict[str, _Run] = {}
        self._conversations: dict[str, tuple[Conversation, dict[str, Item]]] = {}
        self._letters: dict[str, Letter] = {}
        # Of a tenant and an item: the responses it is in. One may be sent again and again.
        self._homes: dict[tuple[str, str], dict[str, None]] = {}
        # Of a tenant and the mark of a call: the latest response that made it.
        self._calls: dict[tuple[str, str], str] = {}

    # ---- responses -----------------------------------------------------------------------

    async def begin(self, record: Record) -> None:
        """Keep a run that is about to start."""
        if record.id in self._runs:
            raise StoreError(f"There is a response {record.id} already.")
        self._runs[record.id] = _Run(record)
        self._index(record, record.request.items)

    async def append(self, id: str, stretch: Stretch) -> None:
        """Add to the log of a run."""
        run = self._runs.get(id)
        if run is None or not run.record.running:
            raise StoreError(f"No response {id} is being made.")
        self._add(run, stretch)
        run.wake()

    async def finish(
        self,
        id: str,
        response: Response,
        stretch: Stretch | None = None,
        said: Sequence[Item] = (),
        letters: Sequence[Letter] = (),
    ) -> bool:
        """End a run with what came of it."""
        run = self._runs.get(id)
        if run is None or not run.record.running:
            return False
        if stretch is not None:
            self._add(run, stretch)
        run.record = replace(run.record, status=response.status, response=response)
        self._index(run.record, response.output)
        self._calls |= {(run.record.tenant, mark): id for mark in marks(response)}
        talk = self._held(run.record.tenant, run.record.conversation or "")
        if talk is not None:
            _join(talk[1], said)
        self._letters |= {letter.id: letter for letter in letters}
        run.wake()
        return True

    async def get(self, tenant: str, id: str) -> Record | None:
        """A response."""
        run = self._runs.get(id)
        return run.record if run is not None and run.record.tenant == tenant else None

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all that came before it, the earliest first."""
        found: list[Record] = []
        place: str | None = id
        while place is not None:
            record = await self.get(tenant, place)
            if record is None:
                return ()
            found.append(record)
            place = record.previous
        return tuple(reversed(found))

    async def find(self, tenant: str, item: str) -> Item | None:
        """The item of any response with this id."""
        for home in self._homes.get((tenant, item), ()):
            return self._runs[home].record.item(item)
        return None

    async def answers(self, tenant: str, marks: Sequence[str]) -> tuple[Answer, ...]:
        """The answers whose calls have these marks."""
        found = dict.fromkeys(self._calls.get((tenant, mark)) for mark in marks)
        records = (self._runs[id].record for id in found if id is not None)
        return tuple(
            Answer(record.request.model, record.response)
            for record in records
            if record.response is not None
        )

    async def log(self, id: str, first: int = 0) -> tuple[Stretch, ...]:
        """The log from this place on, in order."""
        run = self._runs.get(id)
        return () if run is None else tuple(stretches_from(run.log, first))

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

    async def page(self, tenant: str, wire: str | None, paging: Paging) -> Records:
        """The responses of a tenant by the time of their creation."""
        own = (run.record for run in self._runs.values() if run.record.tenant == tenant)
        records = sorted(
            (record for record in own if wire in (None, record.wire)),
            key=lambda record: (record.created_at, record.id),
        )
        found, more = _paged([(record.id, record) for record in records], paging)
        return Records(tuple(found), more)

    async def label(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a response other metadata."""
        if await self.get(tenant, id) is None:
            return False
        run = self._runs[id]
        run.record = replace(run.record, metadata=metadata)
        return True

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget a response and its log."""
        if await self.get(tenant, id) is None:
            return False
        self._forget(id)
        return True

    # ---- leases --------------------------------------------------------------------------

    async def renew(self, ids: Sequence[str], until: float) -> tuple[str, ...]:
        """Promise to go on with these runs; the ids of those that shall not go on."""
        unwanted: list[str] = []
        for id in ids:
            run = self._runs.get(id)
            if run is None or run.record.cancelling or not run.record.running:
                unwanted.append(id)
            else:
                run.record = replace(run.record, lease=until)
        return tuple(unwanted)

    async def cancel(self, tenant: str, id: str) -> bool:
        """Ask for the end of a run."""
        if await self.get(tenant, id) is None:
            return False
        run = self._runs[id]
        run.record = replace(run.record, cancelling=True)
        return True

    async def orphans(self, owner: str, now: float, until: float) -> tuple[Record, ...]:
        """Take over the runs that nobody has promised to go on with."""
        found: list[Record] = []
        for run in self._runs.values():
            if run.record.running and run.record.lease < now:
                run.record = replace(run.record, owner=owner, lease=until)
                found.append(run.record)
        return tuple(found)

    # ---- conversations -------------------------------------------------------------------

    async def open(self, conversation: Conversation, items: Sequence[Item] = ()) -> None:
        """Keep a new conversation."""
        if conversation.id in self._conversations:
            raise StoreError(f"There is a conversation {conversation.id} already.")
        self._conversations[conversation.id] = (conversation, {})
        await self.extend(conversation.tenant, conversation.id, items)

    async def conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        held = self._held(tenant, id)
        return None if held is None else held[0]

    async def relabel(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a conversation other metadata."""
        held = self._held(tenant, id)
        if held is None:
            return False
        self._conversations[id] = (replace(held[0], metadata=metadata), held[1])
        return True

    async def discard(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        if self._held(tenant, id) is None:
            return False
        del self._conversations[id]
        return True

    async def extend(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""
        held = self._held(tenant, id)
        if held is None:
            return False
        for item in items:
            if not item.id or item.id in held[1]:
                raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
            held[1][item.id] = item
        return True

    async def items(self, tenant: str, id: str, paging: Paging | None = None) -> Items | None:
        """A page of a conversation's items, or all of them in their order."""
        held = self._held(tenant, id)
        if held is None:
            return None
        if paging is None:
            return Items(tuple(held[1].values()), more=False)
        found, more = _paged(list(held[1].items()), paging)
        return Items(tuple(found), more)

    async def item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""
        held = self._held(tenant, id)
        return None if held is None else held[1].get(item)

    async def remove(self, tenant: str, id: str, item: str) -> bool:
        """Forget one item."""
        held = self._held(tenant, id)
        return held is not None and held[1].pop(item, None) is not None

    # ---- letters -------------------------------------------------------------------------

    async def due(self, now: float, until: float, most: int = 20) -> tuple[Letter, ...]:
        """Take out letters whose time has come."""
        found = [letter for letter in self._letters.values() if letter.due <= now]
        found.sort(key=lambda letter: letter.due)
        taken = [replace(each, due=until, attempts=each.attempts + 1) for each in found[:most]]
        self._letters |= {letter.id: letter for letter in taken}
        return tuple(taken)

    async def settle(self, id: str, due: float | None = None) -> None:
        """Forget a letter, or have it come again."""
        letter = self._letters.pop(id, None)
        if letter is not None and due is not None:
            self._letters[id] = replace(letter, due=due)

    # ---- upkeep --------------------------------------------------------------------------

    async def sweep(self, now: float) -> int:
        """Forget what is too old, and what is too much."""
        keeping = self._keeping
        ended = [run for run in self._runs.values() if not run.record.running]
        ended.sort(key=lambda run: run.record.created_at)
        excess = max(0, len(self._runs) - keeping.responses)
        old = [run for run in ended if run.record.created_at < now - keeping.retention]
        gone = {run.record.id for run in (*old, *ended[:excess])}
        for id in gone:
            self._forget(id)
        for run in ended:
            if run.record.created_at < now - keeping.log_retention:
                run.log.clear()
        self._conversations = {
            id: held
            for id, held in self._conversations.items()
            if held[0].created_at >= now - keeping.retention
        }
        self._letters = {
            id: letter
            for id, letter in self._letters.items()
            if letter.due >= now - keeping.retention
        }
        return len(gone)

    async def ready(self) -> None:
        """There is nothing that could be in the way."""

    async def close(self) -> None:
        """Let go of everything."""
        for run in self._runs.values():
            run.wake()

    # ---- inside --------------------------------------------------------------------------

    def _index(self, record: Record, items: Iterable[Item]) -> None:
        for item in items:
            if item.id:
                self._homes.setdefault((record.tenant, item.id), {})[record.id] = None

    def _forget(self, id: str) -> None:
        run = self._runs.pop(id)
        for item in run.record.items:
            place = run.record.tenant, item.id or ""
            homes = self._homes.get(place, {})
            homes.pop(id, None)
            if not homes:
                self._homes.pop(place, None)
        for mark in marks(run.record.response) if run.record.response is not None else ():
            if self._calls.get((run.record.tenant, mark)) == id:
                del self._calls[run.record.tenant, mark]
        run.wake()

    def _held(self, tenant: str, id: str) -> tuple[Conversation, dict[str, Item]] | None:
        held = self._conversations.get(id)
        return held if held is not None and held[0].tenant == tenant else None

    @staticmethod
    def _add(run: _Run, stretch: Stretch) -> None:
        if stretch.first != run.length:
            raise StoreError(f"The log of {run.record.id} has a gap at {run.length}.")
        run.log.append(stretch)
        run.length += len(stretch.events)


def _join(items: dict[str, Item], said: Sequence[Item]) -> None:
    """Add items to a conversation; one whose id is taken gets another."""
    for item in said:
        other = item if item.id not in items else replace(item, id=another(item, len(items)))
        items[other.id or ""] = other


def _paged(entries: list[tuple[str, T]], paging: Paging) -> tuple[list[T], bool]:
    """The part of a list that is asked for. An entry that is not there ends nothing: it is as if
    nothing came after it."""
    if paging.order == "desc":
        entries = entries[::-1]
    if paging.after is not None:
        places = [place for place, (id, _) in enumerate(entries) if id == paging.after]
        entries = entries[places[0] + 1 :] if places else []
    return [entry for _, entry in entries[: paging.limit]], len(entries) > paging.limit
