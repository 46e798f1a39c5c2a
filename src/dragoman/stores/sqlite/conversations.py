"""The conversations of the SQLite store, and the two ways into the file that both halves share.

The tables are made by `schema`; threads and connections are known to `threads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection, IntegrityError
from typing import Any

from msgspec.structs import replace

from dragoman.core.item import JSON, Item
from dragoman.stores.keys import clean
from dragoman.stores.pack import pack, unpack
from dragoman.stores.record import Conversation, Items, Paging, another
from dragoman.stores.store import StoreError

from .threads import Readers, Writer


class SqliteConversations:
    """The half of the store that keeps conversations."""

    _writer: Writer
    _readers: Readers

    async def open(self, conversation: Conversation, items: Sequence[Item] = ()) -> None:
        """Keep a new conversation."""
        row = (conversation.id, conversation.tenant, conversation.created_at, pack(conversation))

        def work(connection: Connection) -> None:
            try:
                connection.execute("INSERT INTO conversations VALUES (?, ?, ?, ?)", row)
            except IntegrityError:
                problem = f"There is a conversation {conversation.id} already."
                raise StoreError(problem) from None
            extend(connection, conversation.id, items)

        await self._writer.run(work)

    async def conversation(self, tenant: str, id: str) -> Conversation | None:
        """A conversation."""
        statement = "SELECT conversation FROM conversations WHERE id = ? AND tenant = ?"
        rows = await self._select(statement, (id, tenant))
        return unpack(rows[0][0], Conversation) if rows else None

    async def relabel(self, tenant: str, id: str, metadata: dict[str, JSON]) -> bool:
        """Give a conversation other metadata."""
        held = await self.conversation(tenant, id)
        if held is None:
            return False
        statement = "UPDATE conversations SET conversation = ? WHERE id = ? AND tenant = ?"
        return (
            await self._change(statement, (pack(replace(held, metadata=metadata)), id, tenant)) > 0
        )

    async def discard(self, tenant: str, id: str) -> bool:
        """Forget a conversation and its items."""

        def work(connection: Connection) -> bool:
            statement = "DELETE FROM conversations WHERE id = ? AND tenant = ?"
            if not connection.execute(statement, (clean(id), tenant)).rowcount:
                return False
            connection.execute("DELETE FROM items WHERE conversation = ?", (id,))
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

    async def items(self, tenant: str, id: str, paging: Paging | None = None) -> Items | None:
        """A page of a conversation's items, or all of them in their order."""
        return await self._readers.run(lambda connection: _page(connection, tenant, id, paging))

    async def item(self, tenant: str, id: str, item: str) -> Item | None:
        """One item."""
        statement = """SELECT item FROM items WHERE conversation = ? AND id = ? AND EXISTS
            (SELECT 1 FROM conversations WHERE conversations.id = ? AND tenant = ?)"""
        rows = await self._select(statement, (id, item, id, tenant))
        return _item(rows[0][0]) if rows else None

    async def remove(self, tenant: str, id: str, item: str) -> bool:
        """Forget one item."""
        statement = """DELETE FROM items WHERE conversation = ? AND id = ? AND EXISTS
            (SELECT 1 FROM conversations WHERE conversations.id = ? AND tenant = ?)"""
        return await self._change(statement, (id, item, id, tenant)) > 0

    async def _select(self, statement: str, values: Any) -> list[tuple[Any, ...]]:
        values = _bound(values)
        return await self._readers.run(
            lambda connection: connection.execute(statement, values).fetchall()
        )

    async def _change(self, statement: str, values: Any) -> int:
        """How many rows a statement changed."""
        values = _bound(values)
        return await self._writer.run(
            lambda connection: connection.execute(statement, values).rowcount
        )


def _bound(values: Any) -> Any:
    """Values for a statement, the texts among them as the file can hold them."""
    if isinstance(values, dict):
        return {name: clean(v) if isinstance(v, str) else v for name, v in values.items()}
    return tuple(clean(value) if isinstance(value, str) else value for value in values)


def held(connection: Connection, tenant: str, id: str) -> bool:
    """Whether a tenant has this conversation."""
    statement = "SELECT 1 FROM conversations WHERE id = ? AND tenant = ?"
    return connection.execute(statement, (clean(id), tenant)).fetchone() is not None


def extend(connection: Connection, id: str, items: Sequence[Item], *, rename: bool = False) -> None:
    """Add items at the end; one whose id is taken is renamed or refused."""
    statement = "SELECT coalesce(max(place), -1) FROM items WHERE conversation = ?"
    (last,) = connection.execute(statement, (id,)).fetchone()
    for place, item in enumerate(items, last + 1):
        if not item.id:
            raise StoreError(f"An item of a conversation needs an id of its own: {item.id!r}.")
        try:
            _insert(connection, id, place, item)
        except IntegrityError:
            if rename:
                _insert(connection, id, place, replace(item, id=another(item, place)))
                continue
            problem = f"An item of a conversation needs an id of its own: {item.id!r}."
            raise StoreError(problem) from None


def _insert(connection: Connection, id: str, place: int, item: Item) -> None:
    row = (id, place, clean(item.id or ""), pack(item))
    connection.execute("INSERT INTO items VALUES (?, ?, ?, ?)", row)


def _page(connection: Connection, tenant: str, id: str, paging: Paging | None) -> Items | None:
    if not held(connection, tenant, id):
        return None
    if paging is None:
        statement = "SELECT item FROM items WHERE conversation = ? ORDER BY place"
        rows = connection.execute(statement, (clean(id),))
        return Items(tuple(_item(row[0]) for row in rows), False)
    sign, order = (">", "ASC") if paging.order == "asc" else ("<", "DESC")
    where = "WHERE conversation = :conversation"
    if paging.after is not None:
        where += f""" AND place {sign} (SELECT place FROM items
            WHERE conversation = :conversation AND id = :after)"""
    statement = f"SELECT item FROM items {where} ORDER BY place {order} LIMIT :limit"
    values = {"conversation": id, "after": paging.after, "limit": paging.limit + 1}
    found = [_item(row[0]) for row in connection.execute(statement, _bound(values))]
    return Items(tuple(found[: paging.limit]), len(found) > paging.limit)


def _item(data: bytes) -> Item:
    item: Item = unpack(data, Item)
    return item
