"""Reads past requests and answers from a store, without a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager

from dragoman.core.error import Fault, FaultError, quoted
from dragoman.core.interfaces import Secret
from dragoman.core.item import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
)
from dragoman.server.auth import tenant_of
from dragoman.server.config import ConfigurationError
from dragoman.server.settings import DIALECTS
from dragoman.stores.base import Paging, Record
from dragoman.stores.factory import open_store, store_path
from dragoman.stores.retention import Retention
from dragoman.stores.sql import Store
from dragoman.wire import json
from dragoman.wire.registry import WIRES

from .resolve import bare
from .run import Batches, Runs

PAGE = 100
"""Records read at a time."""


class History:
    """The stored requests and answers of one tenant."""

    def __init__(self, store: Store, tenant: str = "") -> None:
        self._store = store
        self._tenant = tenant

    async def records(self, search: str = "") -> AsyncGenerator[Record, None]:
        """The records, the newest first; with `search` only those that contain this text,
        case-insensitively."""
        wanted, after = search.casefold(), None
        while True:
            page = await self._store.list_responses(
                self._tenant, None, Paging(after=after, limit=PAGE)
            )
            for record in page.items:
                if not wanted or any(wanted in text.casefold() for text in _texts(record.items)):
                    yield record
            if not page.more:
                return
            after = page.items[-1].id

    async def events(self, id: str) -> Batches:
        """The events of a response from the first on: the stored ones, then live ones until
        its end. Raises FaultError when there is none, or its events are no longer stored."""
        record = await self._store.get(self._tenant, bare(id))
        if record is None:
            problem = f"There is no response {quoted(id)} in this store, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        if not record.running and not await self._store.log(record.id, 0, 1):
            problem = f"The events of {id[:100]} are no longer stored; dragoman log has its answer."
            raise FaultError(Fault("not_found", problem, "client"))
        async for batch in Runs(self._store, upkeep=False).follow(record):
            yield batch


@asynccontextmanager
async def open_history(
    address: str, pubsub: str, environ: Mapping[str, str], key: Secret | None
) -> AsyncGenerator[History, None]:
    """The history of a key's tenant in the store at an address. Raises ConfigurationError for one
    that cannot be read from here."""
    file = store_path(address, environ)
    if file is not None and not file.exists():  # reading does not create a store
        raise ConfigurationError(f"There is no store at {file}: nothing has been stored there yet.")
    store = None if address == "memory" else open_store(address, Retention(), environ, pubsub)
    if store is None:
        problem = f"The store {address!r} has nothing that could be read from here; see --store."
        raise ConfigurationError(problem)
    try:
        await store.ready()
        yield History(store, "" if key is None else tenant_of(key, store.secret))
    finally:
        await store.close()


def name(record: Record) -> str:
    """The id of a response with the prefix of its wire."""
    return WIRES[record.wire].id_prefix + record.id


def asked(record: Record) -> str:
    """The text of the last input message."""
    return next((text for text in _texts(reversed(record.request.items)) if text), "")


def answered(record: Record) -> str:
    """The text of the answer, or why there is none."""
    response = record.response
    if response is None:
        return ""
    if response.error is not None:
        return response.error.message
    return " ".join(text for text in _texts(response.output) if text)


def exported(record: Record) -> bytes:
    """One line of JSON: the request and the answer as their wire encodes them."""
    wire, dialect = WIRES[record.wire], DIALECTS[record.dialect]
    request, _ = wire.encode_request(record.request, dialect)
    response = None
    if record.response is not None:
        response = json.load(wire.encode_response(record.response, record.request, dialect))
    entry = {
        "id": name(record),
        "created_at": record.created_at,
        "wire": record.wire,
        "model": record.request.model,
        "status": record.status,
        "metadata": record.metadata,
        "request": json.load(request),
        "response": response,
    }
    return json.dump(entry)


def _texts(items: Iterable[Item]) -> Iterable[str]:
    """The text of items, joined."""
    for item in items:
        match item:
            case Message() | Reasoning():
                yield item.text
            case FunctionCall():
                yield f"{item.name}({item.arguments})"
            case CustomToolCall():
                yield f"{item.name}({item.input})"
            case FunctionCallOutput(output=str(text)) | CustomToolCallOutput(output=str(text)):
                yield text
            case _:
                pass
