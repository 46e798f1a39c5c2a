"""Endpoints for stored responses, conversations and chat completions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import Item
from dragoman.core.response import Response
from dragoman.engines.base import new_id, now
from dragoman.server.cancellation import InFlight
from dragoman.server.exchange import Exchange, Route, nothing_at
from dragoman.server.limits import read_body
from dragoman.server.settings import DIALECTS, Settings
from dragoman.stores.base import Conversation, Order, Paging, Record, StoreError, named
from dragoman.wire import json
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.items import shown
from dragoman.wire.responses.response import (
    decode_items,
    decode_metadata,
    decode_opening,
    encode_conversation,
    encode_deleted_conversation,
    encode_deleted_listing,
    encode_item,
    encode_list,
)

from .resolve import bare, no_conversation, understand
from .run import unstarted
from .service import ENCODER_VERSION, Memory

Replay = Callable[[Record, int, Exchange, Caller], None]
"""Sends the events of a record from the frame with this number on."""

T = TypeVar("T")

MOST = 100
"""Entries on a page at the most."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Query:
    """The parameters of a request's address."""

    def __init__(self, exchange: Exchange) -> None:
        text = exchange.query.decode("latin-1")
        self._pairs = parse_qsl(text, keep_blank_values=True)
        self._values = dict(self._pairs)

    def text(self, name: str) -> str | None:
        """A parameter as it is."""
        return self._values.get(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """All that is given for a parameter that may be there more than once, as `name` or as
        `name[]`."""
        return tuple(value for key, value in self._pairs if key.partition("[")[0] == name)

    def entries(self, name: str) -> dict[str, str]:
        """What is given as `name[key]=value`."""
        return {
            key.removeprefix(f"{name}[").removesuffix("]"): value
            for key, value in self._values.items()
            if key.startswith(f"{name}[") and key.endswith("]")
        }

    def flag(self, name: str) -> bool:
        """A parameter that is true or false; absent is false."""
        value = self._values.get(name, "false").lower()
        if value not in ("true", "false", "1", "0"):
            raise FaultError(bad_request(f"is {value!r}, and must be true or false", name))
        return value in ("true", "1")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within bounds."""
        text = self._values.get(name, str(default))
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            problem = f"is {text[:40]!r}, and must be a whole number from {least} to {most}"
            raise FaultError(bad_request(problem, name))
        return int(text)

    def paging(self, order: Order = "desc") -> Paging:
        """Which part of a list is wanted; `order` is the default."""
        given = self._values.get("order", order)
        if given not in ("asc", "desc"):
            raise FaultError(bad_request(f"is {given!r}, and must be asc or desc", "order"))
        limit = self.number("limit", 20, 1, MOST)
        order = "asc" if given == "asc" else "desc"
        return Paging(after=self._values.get("after"), limit=limit, order=order)


def paged(entries: Sequence[tuple[str | None, T]], paging: Paging) -> tuple[list[T], bool]:
    """The part of a list that is asked for, and whether more follows it; each entry has its id."""
    ordered = entries if paging.order == "asc" else entries[::-1]
    if paging.after is not None:
        places = [place for place, (id, _) in enumerate(ordered) if id == paging.after]
        ordered = ordered[places[0] + 1 :] if places else ()
    return [entry for _, entry in ordered[: paging.limit]], len(ordered) > paging.limit


RESPONSES_PATH = f"/v1{RESPONSES.path}/"

_MAX = 2**53


class Responses:
    """Handlers for what lies below `/v1/responses/`."""

    def __init__(self, memory: Memory, replay: Replay) -> None:
        self._memory = memory
        self._replay = replay

    async def get(self, exchange: Exchange, caller: Caller) -> None:
        """A response, its replay, or the items it was asked with."""
        record, rest = await self._find(exchange, caller)
        query = Query(exchange)
        if include := query.texts("include"):  # to see more than the answer showed
            asked = record.request
            record = replace(record, request=replace(asked, include=(*asked.include, *include)))
        if rest == "input_items":
            await self._input_items(exchange, record, query.paging())
        elif rest:
            raise FaultError(nothing_at(exchange.path))
        elif query.flag("stream"):
            after = query.number("starting_after", -1, -1, _MAX)
            await self._send_log(exchange, caller, record, after + 1)
        else:
            exchange.reply(200, await self._encoded(record))

    async def post(self, exchange: Exchange, caller: Caller) -> None:
        """Stop a run; one that has ended stays as it is."""
        record, rest = await self._find(exchange, caller)
        if rest != "cancel":
            raise FaultError(nothing_at(exchange.path))
        exchange.reply(200, await self._encoded(await self._memory.runs.cancel(record)))

    async def delete(self, exchange: Exchange, caller: Caller) -> None:
        """Forget a response."""
        record, rest = await self._find(exchange, caller)
        if rest:
            raise FaultError(nothing_at(exchange.path))
        if record.running:
            record = await self._memory.runs.cancel(record)
        await self._memory.store.delete(caller.tenant, record.id)
        exchange.reply(200, encode_deleted_listing(record.id))

    async def _encoded(self, record: Record) -> bytes:
        """A response as it is now."""
        response = record.response
        if response is None:
            response = await self._unfinished(record)
        return RESPONSES.encode_response(response, record.request, DIALECTS[record.dialect])

    async def _unfinished(self, record: Record) -> Response:
        log = await self._memory.store.log(record.id)
        events = [event for segment in log for event in segment.events]
        return fold(events) if events else unstarted(record)

    async def _send_log(
        self, exchange: Exchange, caller: Caller, record: Record, first: int
    ) -> None:
        if record.version != ENCODER_VERSION or (
            not record.running and not await self._memory.store.log(record.id)
        ):
            problem = "the events of this response are no longer kept; read it without stream"
            raise FaultError(bad_request(problem, "stream"))
        self._replay(record, first, exchange, caller)

    async def _input_items(self, exchange: Exchange, record: Record, paging: Paging) -> None:
        request = replace(record.request, previous_response_id=record.previous)
        asked = await understand(request, self._memory.store, record.tenant, id=record.id)
        found, more = paged([(item.id, item) for item in asked.whole.items], paging)
        seen = shown(found, record.request.include)
        exchange.reply(200, encode_list(seen, more))

    async def _find(self, exchange: Exchange, caller: Caller) -> tuple[Record, str]:
        id, _, rest = exchange.path.removeprefix(RESPONSES_PATH).partition("/")
        record = await self._memory.store.get(caller.tenant, bare(id))
        if record is None or record.wire != RESPONSES.name:
            problem = f"There is no response {id[:100]!r}, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        return record, rest


CONVERSATIONS_PATH = "/v1/conversations"


class Conversations:
    """Handlers for `/v1/conversations` and what lies below it."""

    def __init__(self, memory: Memory, settings: Settings, roster: InFlight) -> None:
        self._store = memory.store
        self._settings = settings
        self._roster = roster

    async def create(self, exchange: Exchange, caller: Caller) -> None:
        """Make a conversation."""
        items, metadata = decode_opening(await self._body(exchange))
        id = new_id()
        made = Conversation(
            id=id, tenant=caller.tenant, created_at=now(), metadata=metadata or None
        )
        await self._store.create_conversation(made, _unique(named(items, id)))
        exchange.reply(200, encode_conversation(id, made.created_at, metadata))

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
            exchange.reply(200, encode_list(seen, page.more))
        elif len(rest) == 2 and rest[0] == "items":
            item = await self._store.get_item(caller.tenant, bare(id), rest[1])
            if item is None:
                raise FaultError(_no_item(id, rest[1]))
            (one,) = shown((item,), Query(exchange).texts("include"))
            exchange.reply(200, json.dump(encode_item(one)))
        else:
            raise FaultError(nothing_at(exchange.path))

    async def post(self, exchange: Exchange, caller: Caller) -> None:
        """Change a conversation's metadata, or add items."""
        id, rest = _place(exchange)
        data = await self._body(exchange)
        if not rest:
            metadata = decode_metadata(data)
            if not await self._store.set_conversation_metadata(caller.tenant, bare(id), metadata):
                raise FaultError(no_conversation(id))
            await self._show(exchange, caller, id)
        elif rest == ["items"]:
            await self._add(exchange, caller, id, decode_items(data))
        else:
            raise FaultError(nothing_at(exchange.path))

    async def delete(self, exchange: Exchange, caller: Caller) -> None:
        """Forget a conversation, or one of its items."""
        id, rest = _place(exchange)
        if not rest:
            if not await self._store.delete_conversation(caller.tenant, bare(id)):
                raise FaultError(no_conversation(id))
            exchange.reply(200, encode_deleted_conversation(bare(id)))
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
        exchange.reply(200, encode_list(items, more=False))

    async def _show(self, exchange: Exchange, caller: Caller, id: str) -> None:
        found = await self._store.get_conversation(caller.tenant, bare(id))
        if found is None:
            raise FaultError(no_conversation(id))
        exchange.reply(200, encode_conversation(found.id, found.created_at, found.metadata))

    async def _body(self, exchange: Exchange) -> bytes:
        return await read_body(exchange, self._settings, self._roster)


def _place(exchange: Exchange) -> tuple[str, list[str]]:
    """The conversation's id in the path, and what stands behind it."""
    id, *rest = exchange.path.removeprefix(f"{CONVERSATIONS_PATH}/").split("/")
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


COMPLETIONS_PATH = f"/v1{CHAT.path}"
PREFIX = "chatcmpl-"
"""What a completion's id begins with on this wire."""


class Completions:
    """Handlers for reading and changing what `POST /v1/chat/completions` stored."""

    def __init__(self, memory: Memory, settings: Settings, roster: InFlight) -> None:
        self._store = memory.store
        self._settings = settings
        self._roster = roster

    async def list(self, exchange: Exchange, caller: Caller) -> None:
        """The stored completions, the earliest first unless asked otherwise."""
        query = Query(exchange)
        paging = query.paging(order="asc")
        if paging.after is not None:
            paging = replace(paging, after=bare(paging.after))
        found = self._matching(caller, paging, query.text("model"), query.entries("metadata"))
        shown = [_completion(record) async for record in found]
        exchange.reply(200, _listing(shown[: paging.limit], len(shown) > paging.limit))

    async def _matching(
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
            exchange.reply(200, _listing(found, more))
        elif rest:
            raise FaultError(nothing_at(exchange.path))
        else:
            exchange.reply(200, json.dump(_completion(record)))

    async def post(self, exchange: Exchange, caller: Caller) -> None:
        """Give a completion other metadata."""
        record, rest = await self._find(exchange, caller)
        if rest:
            raise FaultError(nothing_at(exchange.path))
        data = await read_body(exchange, self._settings, self._roster)
        metadata = decode_metadata(data)
        await self._store.set_metadata(caller.tenant, record.id, metadata)
        exchange.reply(200, json.dump(_completion(replace(record, metadata=metadata))))

    async def delete(self, exchange: Exchange, caller: Caller) -> None:
        """Forget a completion."""
        record, rest = await self._find(exchange, caller)
        if rest:
            raise FaultError(nothing_at(exchange.path))
        await self._store.delete(caller.tenant, record.id)
        gone = {"object": "chat.completion.deleted", "id": PREFIX + record.id, "deleted": True}
        exchange.reply(200, json.dump(gone))

    async def _find(self, exchange: Exchange, caller: Caller) -> tuple[Record, str]:
        id, _, rest = exchange.path.removeprefix(f"{COMPLETIONS_PATH}/").partition("/")
        record = await self._store.get(caller.tenant, bare(id))
        if record is None or record.wire != CHAT.name or record.response is None:
            problem = f"There is no stored completion {id[:100]!r}, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        return record, rest


def _completion(record: Record) -> dict[str, Any]:
    """A completion as it was answered, with its metadata."""
    if record.response is None:
        raise RuntimeError("only what was answered can be shown")
    completion: dict[str, Any] = json.load(
        CHAT.encode_response(record.response, record.request, STANDARD)
    )
    return {**completion, "metadata": record.metadata or {}}


def _messages(record: Record) -> list[tuple[str, dict[str, Any]]]:
    """The messages of the request, each with an id."""
    asked, _ = CHAT.encode_request(record.request, STANDARD)
    ids = (f"{PREFIX}{record.id}-{place}" for place in count())
    return [
        (id, {"id": id, **message})
        for id, message in zip(ids, json.load(asked)["messages"], strict=False)
    ]


def _listing(shown: list[dict[str, Any]], more: bool) -> bytes:
    page = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": more,
    }
    return json.dump(page)


def routes(
    memory: Memory, settings: Settings, roster: InFlight, replay: Replay
) -> tuple[Route, ...]:
    """The routes to what is stored."""
    responses = Responses(memory, replay)
    completions = Completions(memory, settings, roster)
    conversations = Conversations(memory, settings, roster)
    return (
        Route("GET", RESPONSES_PATH, responses.get),
        Route("POST", RESPONSES_PATH, responses.post),
        Route("DELETE", RESPONSES_PATH, responses.delete),
        Route("GET", COMPLETIONS_PATH, completions.list),
        Route("GET", f"{COMPLETIONS_PATH}/", completions.get),
        Route("POST", f"{COMPLETIONS_PATH}/", completions.post),
        Route("DELETE", f"{COMPLETIONS_PATH}/", completions.delete),
        Route("POST", CONVERSATIONS_PATH, conversations.create),
        Route("GET", f"{CONVERSATIONS_PATH}/", conversations.get),
        Route("POST", f"{CONVERSATIONS_PATH}/", conversations.post),
        Route("DELETE", f"{CONVERSATIONS_PATH}/", conversations.delete),
    )
