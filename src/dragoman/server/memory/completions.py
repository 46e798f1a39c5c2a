"""Stored chat completions: listed, read, labelled, forgotten, and what they were asked.

They are kept only where a request says so. Their words come from the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller
from dragoman.server.exchange import Exchange
from dragoman.server.limits import whole_body
from dragoman.server.router import nothing_at
from dragoman.server.settings import Settings
from dragoman.server.watch import Roster
from dragoman.stores.base import Paging, Record
from dragoman.wire import body
from dragoman.wire.chat import CHAT
from dragoman.wire.dialect import STANDARD
from dragoman.wire.responses import conversation

from .asked import bare
from .memory import Memory
from .query import Query, paged

PATH = f"/v1{CHAT.path}"
PREFIX = "chatcmpl-"
"""What a completion's id begins with on this wire."""


class Completions:
    """Handlers for reading and changing what `POST /v1/chat/completions` stored."""

    def __init__(self, memory: Memory, settings: Settings, roster: Roster) -> None:
        self._store = memory.store
        self._settings = settings
        self._roster = roster

    async def list(self, exchange: Exchange, caller: Caller) -> None:
        """The stored completions, the earliest first unless asked otherwise."""
        query = Query(exchange)
        paging = query.paging(order="asc")
        if paging.after is not None:
            paging = replace(paging, after=bare(paging.after))
        found = self._meant(caller, paging, query.text("model"), query.entries("metadata"))
        shown = [_said(record) async for record in found]
        await exchange.reply(200, _listing(shown[: paging.limit], len(shown) > paging.limit))

    async def _meant(
        self, caller: Caller, paging: Paging, model: str | None, metadata: dict[str, str]
    ) -> AsyncIterator[Record]:
        """The completions that a list is to show, and one more where there are more."""
        left, more = paging.limit + 1, True
        paging = replace(paging, limit=left)
        while more and left > 0:
            page = await self._store.list_responses(caller.tenant, CHAT.name, paging)
            for record in page.records:
                named = model in (None, record.request.model)
                labelled = metadata.items() <= (record.metadata or {}).items()
                if left and record.response is not None and named and labelled:
                    left -= 1
                    yield record
            more = page.more
            if more:
                paging = replace(paging, after=page.records[-1].id)

    async def get(self, exchange: Exchange, caller: Caller) -> None:
        """A completion, or the messages it was asked with."""
        record, rest = await self._find(exchange, caller)
        if rest == "messages":
            found, more = paged(_messages(record), Query(exchange).paging(order="asc"))
            await exchange.reply(200, _listing(found, more))
        elif rest:
            raise FaultError(nothing_at(exchange.path))
        else:
            await exchange.reply(200, body.dump(_said(record)))

    async def post(self, exchange: Exchange, caller: Caller) -> None:
        """Give a completion other metadata."""
        record, rest = await self._find(exchange, caller)
        if rest:
            raise FaultError(nothing_at(exchange.path))
        data = await whole_body(exchange, self._settings, self._roster)
        metadata = conversation.decode_metadata(data)
        await self._store.set_metadata(caller.tenant, record.id, metadata)
        await exchange.reply(200, body.dump(_said(replace(record, metadata=metadata))))

    async def delete(self, exchange: Exchange, caller: Caller) -> None:
        """Forget a completion."""
        record, rest = await self._find(exchange, caller)
        if rest:
            raise FaultError(nothing_at(exchange.path))
        await self._store.delete(caller.tenant, record.id)
        gone = {"object": "chat.completion.deleted", "id": PREFIX + record.id, "deleted": True}
        await exchange.reply(200, body.dump(gone))

    async def _find(self, exchange: Exchange, caller: Caller) -> tuple[Record, str]:
        id, _, rest = exchange.path.removeprefix(f"{PATH}/").partition("/")
        record = await self._store.get(caller.tenant, bare(id))
        if record is None or record.wire != CHAT.name or record.response is None:
            problem = f"There is no stored completion {id[:100]!r}, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        return record, rest


def _said(record: Record) -> dict[str, Any]:
    """A completion as it was answered, with its metadata."""
    if record.response is None:
        raise RuntimeError("only what was answered can be shown")
    said: dict[str, Any] = body.load(
        CHAT.encode_response(record.response, record.request, STANDARD)
    )
    return {**said, "metadata": record.metadata or {}}


def _messages(record: Record) -> list[tuple[str, dict[str, Any]]]:
    """The messages of the request, each with an id."""
    asked, _ = CHAT.encode_request(record.request, STANDARD)
    ids = (f"{PREFIX}{record.id}-{place}" for place in count())
    return [
        (id, {"id": id, **said})
        for id, said in zip(ids, body.load(asked)["messages"], strict=False)
    ]


def _listing(shown: list[dict[str, Any]], more: bool) -> bytes:
    page = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": more,
    }
    return body.dump(page)
