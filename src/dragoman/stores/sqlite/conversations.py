"""The conversations of the SQLite store, as far as they take a transaction.

The tables are made by `schema`; threads and connections are known to `threads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection, IntegrityError

from msgspec.structs import replace

from dragoman.core.item import Item
from dragoman.stores.pack import pack
from dragoman.stores.record import Conversation, another
from dragoman.stores.rows import EXTEND, HELD, LAST, OPEN
from dragoman.stores.store import StoreError

from .rows import SqliteRows, rows


class SqliteConversations(SqliteRows):
    """The half of the store that keeps conversations."""

    async def open(self, conversation: Conversation, items: Sequence[Item] = ()) -> None:
        """Keep a new conversation."""
        made, data = conversation, pack(conversation)

        def work(connection: Connection) -> None:
            try:
                rows(connection, OPEN, made.id, made.tenant, made.created_at, data)
            except IntegrityError:
                raise StoreError(f"There is a conversation {made.id} already.") from None
            extend(connection, made.id, items)

        await self._writer.run(work)

    async def discard(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""
        statement = "DELETE FROM conversations WHERE id = $1 AND tenant = $2 RETURNING id"

        def work(connection: Connection) -> bool:
            if not rows(connection, statement, id, tenant):
                return False
            rows(connection, "DELETE FROM items WHERE conversation = $1", id)
            return True

        return await self._writer.run(work)

    async def extend(self, tenant: str, id: str, items: Sequence[Item]) -> bool:
        """Add items at the end."""

        def work(connection: Connection) -> bool:
            if not held(connection, tenant, id):
                return False
            extend(connection, id, items)
            return True

        return await self._writer.run(work)


def held(connection: Connection, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation."""
    return bool(rows(connection, HELD, id, tenant))


def extend(connection: Connection, id: str, items: Sequence[Item], *, rename: bool = False) -> None:
    """Add items at the end; one whose id is taken is renamed or refused."""
    ((last,),) = rows(connection, LAST, id)
    for place, item in enumerate(items, last + 1):
        if item.id and rows(connection, EXTEND, id, place, item.id, pack(item)):
            continue
        if not (item.id and rename):
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        own = replace(item, id=another(item, place))
        rows(connection, EXTEND, id, place, own.id, pack(own))
