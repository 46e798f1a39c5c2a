"""The conversations of the PostgreSQL store, as far as they take a transaction.

Whoever adds to a conversation holds its row, so that items of two servers do not share a place.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import UniqueViolationError
from asyncpg.pool import PoolConnectionProxy as Session
from msgspec.structs import replace

from dragoman.core.item import Item
from dragoman.stores.pack import pack
from dragoman.stores.record import Conversation, another
from dragoman.stores.rows import EXTEND, HELD, LAST, OPEN, bound
from dragoman.stores.store import StoreError

from .rows import PostgresRows


class PostgresConversations(PostgresRows):
    """The half of the store that keeps conversations."""

    async def open(self, conversation: Conversation, items: Sequence[Item] = ()) -> None:
        """Keep a new conversation."""
        made = conversation
        row = bound((made.id, made.tenant, made.created_at, pack(made)))
        async with self._database.transaction() as connection:
            try:
                await connection.execute(OPEN, *row)
            except UniqueViolationError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            await extend(connection, made.id, items)

    async def discard(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"
        return bool(await self._write(statement, id, tenant))

    async def extend(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""
        async with self._database.transaction() as connection:
            if not await held(connection, tenant, id):
                return False
            await extend(connection, id, items)
        return True


async def held(connection: Session, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation. Nobody else adds to it until the transaction ends."""
    return await connection.fetchval(f"{HELD} FOR UPDATE", *bound((id, tenant))) is not None


async def extend(
    connection: Session, id: str, items: Sequence[Item], *, rename: bool = False
) -> None:
    """Add items at the end of a conversation that is held; one whose id is taken is renamed or
    refused."""
    last = await connection.fetchval(LAST, *bound((id,)))
    for place, item in enumerate(items, last + 1):
        if item.id and await _insert(connection, id, place, item):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        await _insert(connection, id, place, replace(item, id=another(item, place)))


async def _insert(connection: Session, id: str, place: int, item: Item) -> bool:
    row = bound((id, place, item.id, pack(item)))
    return await connection.fetchval(EXTEND, *row) is not None
