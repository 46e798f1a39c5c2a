"""The conversations of the PostgreSQL store: one row for each, and one for each of their items.

Whoever adds to a conversation holds its row, so that items of two servers do not share a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg import UniqueViolationError
from asyncpg.pool import PoolConnectionProxy as Session
from msgspec.structs import replace

from dragoman.core.item import JSON, Item
from dragoman.stores.keys import clean
from dragoman.stores.pack import pack, unpack
from dragoman.stores.record import Conversation, Items, Paging, another
from dragoman.stores.store import StoreError

from .database import Database


class PostgresConversations:
    """The half of the store that keeps conversations."""

    _database: Database

    async def open(self, conversation: Conversation, items: Sequence[Item] = ()) -> None:
        """Keep a new conversation."""
        made = conversation
        statement = "INSERT INTO conversations VALUES ($1, $2, $3, $4)"
        async with self._database.transaction() as connection:
            try:
                await connection.execute(
                    statement, clean(made.id), made.tenant, made.created_at, pack(made)
                )
            except UniqueViolationError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            await extend(connection, made.id, items)

    async def conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        statement = "SELECT conversation FROM conversations WHERE id = $1 AND tenant = $2"
        rows = await self._database.fetch(statement, clean(id), tenant)
        return unpack(rows[0][0], Conversation) if rows else None

    async def relabel(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a conversation other metadata."""
        known = await self.conversation(tenant, id)
        if known is None:
            return False
        statement = """UPDATE conversations SET conversation = $1
            WHERE id = $2 AND tenant = $3 RETURNING id"""
        data = pack(replace(known, metadata=metadata))
        return bool(await self._database.fetch(statement, data, clean(id), tenant))

    async def discard(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._database.fetch(statement, clean(id), tenant))

    async def extend(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""
        async with self._database.transaction() as connection:
            if not await held(connection, tenant, id):
                return False
            await extend(connection, id, items)
        return True

    async def items(self, tenant: str, id: str, paging: Paging | None = None) -> Items | None:
        """A page of a conversation's items, or all of them in their order."""
        if await self.conversation(tenant, id) is None:
            return None
        if paging is None:
            statement = "SELECT item FROM items WHERE conversation = $1 ORDER BY place"
            rows = await self._database.fetch(statement, clean(id))
            return Items(tuple(map(_item, rows)), more=False)
        sign, order = (">", "ASC") if paging.order == "asc" else ("<", "DESC")
        statement = f"""SELECT item FROM items WHERE conversation = $1 AND ($2::text IS NULL
            OR place {sign} (SELECT place FROM items WHERE conversation = $1 AND id = $2))
            ORDER BY place {order} LIMIT $3"""
        after = None if paging.after is None else clean(paging.after)
        rows = await self._database.fetch(statement, clean(id), after, paging.limit + 1)
        return Items(tuple(map(_item, rows[: paging.limit])), len(rows) > paging.limit)

    async def item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""
        statement = """SELECT item FROM items WHERE conversation = $1 AND id = $2 AND EXISTS
            (SELECT 1 FROM conversations WHERE id = $1 AND tenant = $3)"""
        rows = await self._database.fetch(statement, clean(id), clean(item), tenant)
        return _item(rows[0]) if rows else None

    async def remove(self, tenant: str, id: str, item: str) -> bool:
        """Forget one item."""
        statement = """DELETE FROM items WHERE conversation = $1 AND id = $2 AND EXISTS
            (SELECT 1 FROM conversations WHERE id = $1 AND tenant = $3) RETURNING id"""
        return bool(await self._database.fetch(statement, clean(id), clean(item), tenant))


async def held(connection: Session, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation. Nobody else adds to it until the transaction ends."""
    statement = "SELECT 1 FROM conversations WHERE id = $1 AND tenant = $2 FOR UPDATE"
    return await connection.fetchval(statement, clean(id), tenant) is not None


async def extend(
    connection: Session, id: str, items: Sequence[Item], *, rename: bool = False
) -> None:
    """Add items at the end of a conversation that is held; one whose id is taken is renamed or
    refused."""
    statement = "SELECT coalesce(max(place), -1) FROM items WHERE conversation = $1"
    last = await connection.fetchval(statement, clean(id))
    for place, item in enumerate(items, last + 1):
        if item.id and await _insert(connection, id, place, item):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        await _insert(connection, id, place, replace(item, id=another(item, place)))


async def _insert(connection: Session, id: str, place: int, item: Item) -> bool:
    statement = """INSERT INTO items VALUES ($1, $2, $3, $4)
        ON CONFLICT (conversation, id) DO NOTHING RETURNING place"""
    key = clean(item.id or "")
    return await connection.fetchval(statement, clean(id), place, key, pack(item)) is not None


def _item(row: Any) -> Item:
    item: Item = unpack(row[0], Item)
    return item
