"""What one connection remembers: its own latest responses, also those that nobody may store.

A response is kept whole, with all that it builds on, so that the latest ones are enough to go on
from. It ends with the connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.item import Item
from dragoman.stores.base import ItemPage, Paging, Record, Retention, Store, StoredAnswer
from dragoman.stores.memory import MemoryStore

MOST = 64
"""Responses a connection remembers."""


class Near:
    """A source that looks at the connection first, and then in the server's store."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self.own = MemoryStore(Retention(max_age=float("inf"), max_responses=MOST))

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all that came before it."""
        record = await self.own.get(tenant, id)
        if record is not None:
            return (record,)
        return () if self._store is None else await self._store.chain(tenant, id)

    async def find_item(self, tenant: str, item: str) -> Item | None:
        """The item with this id."""
        found = await self.own.find_item(tenant, item)
        if found is None and self._store is not None:
            found = await self._store.find_item(tenant, item)
        return found

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None
    ) -> ItemPage | None:
        """The items of a conversation."""
        return None if self._store is None else await self._store.list_items(tenant, id, paging)

    async def find_answers(self, tenant: str, digests: Sequence[str]) -> tuple[StoredAnswer, ...]:
        """The answers that made calls; those of this connection this process knows anyway."""
        return () if self._store is None else await self._store.find_answers(tenant, digests)

    async def evict(self, tenant: str, id: str) -> None:
        """Forget a response that could not be gone on from."""
        await self.own.delete(tenant, id)
