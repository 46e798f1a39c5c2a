"""Conversations under ids of their own: made, read, labelled, added to, forgotten.

One handler for each method; what is meant stands in the path. Their words come from the wire.
"""

from __future__ import annotations

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.interfaces import Caller
from dragoman.core.item import Item
from dragoman.engines.mint import new_id, now
from dragoman.server.exchange import Exchange
from dragoman.server.limits import whole_body
from dragoman.server.router import nothing_at
from dragoman.server.settings import Settings
from dragoman.server.watch import Roster
from dragoman.stores.base import Conversation, StoreError
from dragoman.wire import body
from dragoman.wire.responses import conversation, listing
from dragoman.wire.responses.seals import shown

from .asked import bare, named, no_conversation
from .memory import Memory
from .query import Query

PATH = "/v1/conversations"


class Conversations:
    """Handlers for `/v1/conversations` and what lies below it."""

    def __init__(self, memory: Memory, settings: Settings, roster: Roster) -> None:
        self._store = memory.store
        self._settings = settings
        self._roster = roster

    async def create(self, exchange: Exchange, caller: Caller) -> None:
        """Make a conversation."""
        items, metadata = conversation.decode_opening(await self._body(exchange))
        id = new_id()
        made = Conversation(
            id=id, tenant=caller.tenant, created_at=now(), metadata=metadata or None
        )
        await self._store.create_conversation(made, _unique(named(items, id)))
        await exchange.reply(200, conversation.encode(id, made.created_at, metadata))

    async def get(self, exchange: Exchange, caller: Caller) -> None:
        """A conversation, its items, or one of them."""
        id, rest = _place(exchange)
        if not rest:
            await self._show(exchange, caller, id)
        elif rest == ["items"]:
            query = Query(exchange)
            page = await self._store.list_items(caller.tenant, bare(id), query.paging())
            if page is None:
                raise FaultError(no_conversation(id))
            seen = shown(page.items, query.texts("include"))
            await exchange.reply(200, listing.encode_list(seen, page.more))
        elif len(rest) == 2 and rest[0] == "items":
            item = await self._store.get_item(caller.tenant, bare(id), rest[1])
            if item is None:
                raise FaultError(_no_item(id, rest[1]))
            (one,) = shown((item,), Query(exchange).texts("include"))
            await exchange.reply(200, body.dump(listing.encode_item(one)))
        else:
            raise FaultError(nothing_at(exchange.path))

    async def post(self, exchange: Exchange, caller: Caller) -> None:
        """Change a conversation's metadata, or add items."""
        id, rest = _place(exchange)
        data = await self._body(exchange)
        if not rest:
            metadata = conversation.decode_metadata(data)
            if not await self._store.set_conversation_metadata(caller.tenant, bare(id), metadata):
                raise FaultError(no_conversation(id))
            await self._show(exchange, caller, id)
        elif rest == ["items"]:
            await self._add(exchange, caller, id, conversation.decode_items(data))
        else:
            raise FaultError(nothing_at(exchange.path))

    async def delete(self, exchange: Exchange, caller: Caller) -> None:
        """Forget a conversation, or one of its items."""
        id, rest = _place(exchange)
        if not rest:
            if not await self._store.delete_conversation(caller.tenant, bare(id)):
                raise FaultError(no_conversation(id))
            await exchange.reply(200, conversation.encode_deleted(bare(id)))
        elif len(rest) == 2 and rest[0] == "items":
            if not await self._store.remove_item(caller.tenant, bare(id), rest[1]):
                raise FaultError(_no_item(id, rest[1]))
            await self._show(exchange, caller, id)
        else:
            raise FaultError(nothing_at(exchange.path))

    async def _add(
        self, exchange: Exchange, caller: Caller, id: str, given: tuple[Item, ...]
    ) -> None:
        items = _unique(named(given, new_id()))
        try:
            known = await self._store.add_items(caller.tenant, bare(id), items)
        except StoreError:
            problem = "an item with one of these ids is in the conversation already"
            raise FaultError(bad_request(problem, "items")) from None
        if not known:
            raise FaultError(no_conversation(id))
        await exchange.reply(200, listing.encode_list(items, more=False))

    async def _show(self, exchange: Exchange, caller: Caller, id: str) -> None:
        found = await self._store.get_conversation(caller.tenant, bare(id))
        if found is None:
            raise FaultError(no_conversation(id))
        await exchange.reply(200, conversation.encode(found.id, found.created_at, found.metadata))

    async def _body(self, exchange: Exchange) -> bytes:
        return await whole_body(exchange, self._settings, self._roster)


def _place(exchange: Exchange) -> tuple[str, list[str]]:
    """The conversation's id in the path, and what stands behind it."""
    id, *rest = exchange.path.removeprefix(f"{PATH}/").split("/")
    return id, rest


def _unique(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Raises FaultError where two items have one id."""
    ids = [item.id for item in items]
    for place, id in enumerate(ids):
        if id in ids[:place]:
            raise FaultError(bad_request(f"{id!r} is given twice", f"items[{place}].id"))
    return items


def _no_item(id: str, item: str) -> Fault:
    problem = f"There is no item {item[:100]!r} in the conversation {id[:100]!r}, or no longer."
    return Fault("not_found", problem, "client")
