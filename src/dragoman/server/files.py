"""Endpoints for files, and for the vector stores in which they are searched."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import quote

from msgspec import Meta
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.files import IndexedFile, StoredFile, VectorStore
from dragoman.core.interfaces import Caller
from dragoman.engines.base import new_id
from dragoman.stores.base import Page, Room
from dragoman.wire import files as wire
from dragoman.wire import json
from dragoman.wire.files import BATCH_PREFIX, FILE_PREFIX, STORE_PREFIX, Addition
from dragoman.wire.multipart import MEDIA_TYPE, find_boundary, read_parts

from .cancellation import Watch
from .exchange import Exchange, Route, nothing_at
from .limits import read_body
from .responder import Service
from .state.files import Library, no_file, no_vector_store
from .state.handlers import METHODS, Query, asked, nowhere

T = TypeVar("T")

FILES, VECTOR_STORES = f"/v1{wire.FILES}", f"/v1{wire.VECTOR_STORES}"
PATHS = (FILES, f"{FILES}/", VECTOR_STORES, f"{VECTOR_STORES}/")
FORM = 64 * 1024
"""Bytes of a form beside those of the file in it."""
LISTED = 1_000
"""The most entries of one page."""


class Listing(Query):
    """The parameters of a list of vector stores, or of files in one."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 20
    purpose: str | None = None
    filter: str | None = None


class FileListing(Listing):
    """The parameters of a list of files, which is as long as it may be."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = LISTED


def refusing(problem: str) -> list[Route]:
    """The routes of a server without files."""

    def refuse(exchange: Exchange, caller: Caller) -> None:
        raise FaultError(Fault("not_found", problem, "client"))

    return [Route(method, path, refuse) for path in PATHS for method in METHODS]


class FileHandlers:
    """Handlers for files and vector stores. `service` is that of the server."""

    def __init__(self, service: Service, library: Library) -> None:
        self._service = service
        self._settings = service.settings
        self._library = library
        self._store = library.store

    def routes(self) -> list[Route]:
        """The routes to files and vector stores."""
        return [
            Route("POST", FILES, self.upload),
            Route("GET", FILES, self.list_files),
            Route("GET", f"{FILES}/", self.get_file),
            Route("DELETE", f"{FILES}/", self.delete_file),
            Route("POST", VECTOR_STORES, self.create_store),
            Route("GET", VECTOR_STORES, self.list_stores),
            Route("GET", f"{VECTOR_STORES}/", self.get_store),
            Route("POST", f"{VECTOR_STORES}/", self.change_store),
            Route("DELETE", f"{VECTOR_STORES}/", self.delete_store),
        ]

    # ---- files ---------------------------------------------------------------------------

    async def upload(self, exchange: Exchange, caller: Caller) -> None:
        """Store a file."""
        settings, service = self._settings, self._service
        hold = service.budget.hold(caller.tenant)
        body = await read_body(
            exchange,
            settings,
            service.roster,
            hold,
            media_type=(MEDIA_TYPE,),
            limit=settings.max_file_bytes + FORM,
            setting="max_file_bytes",
        )
        boundary = find_boundary(exchange.header(b"content-type"))
        given = wire.decode_upload(read_parts(body, boundary))
        size, moment = len(given.data), int(self._store.now())
        if size > settings.max_file_bytes:
            problem = f"has {size} bytes, more than {settings.max_file_bytes} (max_file_bytes)"
            raise FaultError(Fault("too_large", f"file: {problem}", "client", "file"))
        hold.add(size)  # the database copies it
        file = StoredFile(
            id=new_id(),
            tenant=caller.tenant,
            name=given.name,
            purpose=given.purpose,
            size=size,
            created_at=moment,
            expires_at=None if given.seconds is None else moment + given.seconds,
        )
        most, most_bytes = settings.max_files_per_key, settings.max_file_bytes_per_key
        await self._store.add_file(file, given.data, most, most_bytes)
        exchange.reply(200, json.dump(wire.file_object(file)))

    async def list_files(self, exchange: Exchange, caller: Caller) -> None:
        """The files, the latest first unless asked otherwise."""
        query = asked(exchange, FileListing)
        after = query.after and query.after.removeprefix(FILE_PREFIX)
        paging = replace(query.paging(), after=after, limit=min(query.limit, LISTED))
        page = await self._store.list_files(caller.tenant, query.purpose, paging)
        if after and not (page.items or await self._store.get_file(caller.tenant, after)):
            raise FaultError(nowhere(after))
        exchange.reply(200, wire.encode_listing([*map(wire.file_object, page.items)], page.more))

    async def get_file(self, exchange: Exchange, caller: Caller) -> None:
        """A file, or its bytes."""
        id, rest = _place(exchange, FILES)
        file = await self._file(caller, id)
        if rest == ["content"]:
            exchange.count(2 * file.size)
            data = await self._store.file_data(caller.tenant, file.id)
            if data is None:
                raise FaultError(no_file(file.id))
            name = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
            headers = [
                (b"content-type", b"application/octet-stream"),  # whatever was declared
                (b"content-disposition", name.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
            exchange.start(200, [*exchange.marks, *headers], data)
            exchange.status = 200
            exchange.end()
        elif rest:
            raise FaultError(nothing_at(exchange.path))
        else:
            exchange.reply(200, json.dump(wire.file_object(file)))

    async def delete_file(self, exchange: Exchange, caller: Caller) -> None:
        """Delete a file, also from all vector stores."""
        id, rest = _place(exchange, FILES)
        if rest or not await self._store.delete_file(caller.tenant, id):
            raise FaultError(nothing_at(exchange.path) if rest else no_file(id))
        exchange.reply(200, wire.encode_deleted(FILE_PREFIX + id, "file"))

    async def _file(self, caller: Caller, id: str, param: str | None = None) -> StoredFile:
        if (file := await self._store.get_file(caller.tenant, id)) is None:
            raise FaultError(no_file(id, param))
        return file

    # ---- vector stores -------------------------------------------------------------------

    async def create_store(self, exchange: Exchange, caller: Caller) -> None:
        """Create a vector store, and index its files."""
        given = await self._service.read(exchange, caller, wire.decode_opening)
        files = await self._files(caller, given.files, "file_ids")
        moment, id = int(self._store.now()), new_id()
        made = VectorStore(
            id=id,
            tenant=caller.tenant,
            created_at=moment,
            active_at=moment,
            name=given.name,
            description=given.description,
            metadata=given.metadata,
            days=given.days,
        )
        await self._store.add_vector_store(made, self._settings.max_vector_stores_per_key)
        try:
            await self._index(exchange, caller, id, given.files, files)
        except BaseException:  # the client does not have its id, and cannot delete it
            await self._store.delete_vector_store(caller.tenant, id)
            raise
        exchange.reply(200, json.dump(wire.store_object(await self._find(caller, id))))

    async def list_stores(self, exchange: Exchange, caller: Caller) -> None:
        """The vector stores, the latest first unless asked otherwise."""
        query = asked(exchange, Listing)
        after = query.after and query.after.removeprefix(STORE_PREFIX)
        paging = replace(query.paging(), after=after, limit=min(query.limit, LISTED))
        room = Room(count=exchange.count)
        page = await self._store.list_vector_stores(caller.tenant, paging, wire.store_entry, room)
        missing = after if not page.items else None
        if missing and not await self._store.get_vector_stores(caller.tenant, (missing,)):
            raise FaultError(nowhere(missing))
        exchange.reply(200, wire.encode_listing(page.items, page.more))

    async def get_store(self, exchange: Exchange, caller: Caller) -> None:
        """A vector store, its files, one of them, its text, or a batch of them."""
        id, rest = _place(exchange, VECTOR_STORES)
        match rest:
            case []:
                exchange.reply(200, json.dump(wire.store_object(await self._find(caller, id))))
            case ["files"]:
                await self._list_indexed(exchange, caller, id)
            case ["files", file]:
                exchange.reply(
                    200, json.dump(wire.indexed_object(await self._one(caller, id, file)))
                )
            case ["files", file, "content"]:
                found = await self._one(caller, id, file)
                room = Room(count=exchange.count)
                chunks = await self._store.chunks_of(caller.tenant, id, found.file, room)
                shown = [chunk.text for chunk in chunks]
                page = partial(wire.encode_content, shown)
                exchange.reply(200, await self._store.apart(room.held, page))
            case ["file_batches", batch]:
                await self._batch(exchange, caller, id, batch)
            case ["file_batches", batch, "files"]:
                await self._list_indexed(exchange, caller, id, batch.removeprefix(BATCH_PREFIX))
            case _:
                raise FaultError(nothing_at(exchange.path))

    async def change_store(self, exchange: Exchange, caller: Caller) -> None:
        """Change or search a vector store; add files to it, or change their attributes."""
        id, rest = _place(exchange, VECTOR_STORES)
        store, read = await self._find(caller, id), self._service.read
        match rest:
            case []:
                given = await read(exchange, caller, wire.decode_change)
                changed = replace(store, active_at=int(self._store.now()), **given)
                await self._store.change_vector_store(changed)
                exchange.reply(200, json.dump(wire.store_object(await self._find(caller, id))))
            case ["search"]:
                search = await read(exchange, caller, wire.decode_search)
                found = await self._waited(
                    exchange,
                    caller,
                    lambda asking: self._library.search(asking, (STORE_PREFIX + id,), search),
                )
                exchange.reply(200, wire.encode_found(search.queries, found))
            case ["files"]:
                addition = await read(exchange, caller, wire.decode_addition)
                files = await self._files(caller, (addition,), "file_id")
                (added,) = await self._index(exchange, caller, id, (addition,), files)
                exchange.reply(200, json.dump(wire.indexed_object(added)))
            case ["files", file]:
                attributes = await read(exchange, caller, wire.decode_attributes)
                found_file = replace(await self._one(caller, id, file), attributes=attributes)
                if found_file.status == "in_progress":  # its end would undo the change
                    raise FaultError(bad_request("The file is being indexed: ask again later."))
                await self._store.end_indexing(found_file)
                exchange.reply(200, json.dump(wire.indexed_object(found_file)))
            case ["file_batches"]:
                additions = await read(exchange, caller, wire.decode_batch)
                files = await self._files(caller, additions, "file_ids")
                batch = new_id()
                done = await self._index(exchange, caller, id, additions, files, batch)
                exchange.reply(200, json.dump(wire.batch_object(batch, done)))
            case ["file_batches", batch, "cancel"]:  # it has ended before its id was sent
                await self._batch(exchange, caller, id, batch)
            case _:
                raise FaultError(nothing_at(exchange.path))

    async def delete_store(self, exchange: Exchange, caller: Caller) -> None:
        """Delete a vector store, or take a file out of it."""
        id, rest = _place(exchange, VECTOR_STORES)
        match rest:
            case []:
                if not await self._store.delete_vector_store(caller.tenant, id):
                    raise FaultError(no_vector_store(id))
                deleted = wire.encode_deleted(STORE_PREFIX + id, "vector_store.deleted")
            case ["files", file]:
                bare = file.removeprefix(FILE_PREFIX)
                if not await self._store.remove_indexed(caller.tenant, id, bare):
                    raise FaultError(no_file(bare))
                deleted = wire.encode_deleted(FILE_PREFIX + bare, "vector_store.file.deleted")
            case _:
                raise FaultError(nothing_at(exchange.path))
        exchange.reply(200, deleted)

    # ---- steps ---------------------------------------------------------------------------

    async def _find(self, caller: Caller, id: str) -> VectorStore:
        found = await self._store.get_vector_stores(caller.tenant, (id,))
        if not found:
            raise FaultError(no_vector_store(id))
        return found[0]

    async def _one(self, caller: Caller, id: str, file: str) -> IndexedFile:
        bare = file.removeprefix(FILE_PREFIX)
        found = await self._store.get_indexed(caller.tenant, id, bare)
        if found is None:
            raise FaultError(no_file(bare))
        return found

    async def _files(
        self, caller: Caller, additions: Sequence[Addition], param: str
    ) -> list[StoredFile]:
        """The files to be added. Raises FaultError where one does not exist."""
        return [await self._file(caller, each.file, param) for each in additions]

    async def _index(
        self,
        exchange: Exchange,
        caller: Caller,
        id: str,
        additions: Sequence[Addition],
        files: Sequence[StoredFile],
        batch: str | None = None,
    ) -> list[IndexedFile]:
        """Index files, one after the other, before the response."""
        done: list[IndexedFile] = []
        for addition, file in zip(additions, files, strict=True):
            entry = IndexedFile(
                store=id,
                file=file.id,
                name=file.name,
                created_at=int(self._store.now()),
                batch=batch,
                attributes=addition.attributes,
                tokens=addition.tokens,
                overlap=addition.overlap,
                model=self._settings.embedding_model,
            )
            index = partial(self._library.index, file=file, entry=entry)
            done.append(await self._waited(exchange, caller, index))
        return done

    async def _waited(
        self, exchange: Exchange, caller: Caller, work: Callable[[Caller], Awaitable[T]]
    ) -> T:
        """Queue and run slow work; it is cancelled when the client disconnects."""
        service = self._service
        with Watch(service.roster, exchange) as watch:
            watch.limit(self._settings.deadline)
            async with service.gate.place(caller.tenant):
                return await work(replace(caller, count=exchange.count))

    async def _list_indexed(
        self, exchange: Exchange, caller: Caller, id: str, batch: str | None = None
    ) -> None:
        await self._find(caller, id)
        query = asked(exchange, Listing)
        after = query.after and query.after.removeprefix(FILE_PREFIX)
        paging = replace(query.paging(), after=after, limit=min(query.limit, LISTED))
        room = Room(count=exchange.count)
        page: Page[IndexedFile] = await self._store.list_indexed(
            caller.tenant, id, paging, batch, query.filter, room
        )
        if after and not (page.items or await self._store.get_indexed(caller.tenant, id, after)):
            raise FaultError(nowhere(after))
        shown = [*map(wire.indexed_object, page.items)]
        made = partial(wire.encode_listing, shown, page.more)
        exchange.reply(200, await self._store.apart(room.held, made))

    async def _batch(self, exchange: Exchange, caller: Caller, id: str, batch: str) -> None:
        batch = batch.removeprefix(BATCH_PREFIX)
        paging = replace(Listing().paging(), limit=wire.MOST_AT_ONCE)
        room = Room(count=exchange.count)  # their attributes may be long
        page: Page[IndexedFile] = await self._store.list_indexed(
            caller.tenant, id, paging, batch, room=room
        )
        if not page.items:
            problem = f"There is no batch of files {BATCH_PREFIX}{batch[:64]}, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        exchange.reply(200, json.dump(wire.batch_object(batch, page.items)))


def _place(exchange: Exchange, path: str) -> tuple[str, list[str]]:
    """The bare id in the path, and what stands behind it."""
    id, *rest = exchange.path.removeprefix(f"{path}/").split("/")
    return id.removeprefix(FILE_PREFIX if path == FILES else STORE_PREFIX), rest
