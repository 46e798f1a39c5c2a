"""What can be done with a stored response: read it, replay it, stop it, list what it was asked,
forget it.

One handler for each; which of them is meant stands in the path. Their words come from the wire.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.interfaces import Caller
from dragoman.core.response import Response
from dragoman.server.exchange import Exchange
from dragoman.server.router import nothing_at
from dragoman.server.settings import DIALECTS, Settings
from dragoman.server.speech import Speech
from dragoman.server.stream import Stream
from dragoman.server.watch import Roster, Watch
from dragoman.stores.base import Paging, Record
from dragoman.wire.responses import RESPONSES, listing
from dragoman.wire.responses.seals import shown

from .asked import bare, understand
from .memory import ENCODER_VERSION, Memory
from .query import Query, paged
from .replay import Replay
from .run import folded

PATH = f"/v1{RESPONSES.path}/"

_MAX = 2**53


class Responses:
    """Handlers for what lies below `/v1/responses/`."""

    def __init__(self, memory: Memory, settings: Settings, roster: Roster) -> None:
        self._memory = memory
        self._settings = settings
        self._roster = roster

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
            await self._replay(exchange, record, after)
        else:
            await exchange.reply(200, await self.said(record))

    async def post(self, exchange: Exchange, caller: Caller) -> None:
        """Stop a run; one that has ended stays as it is."""
        record, rest = await self._find(exchange, caller)
        if rest != "cancel":
            raise FaultError(nothing_at(exchange.path))
        await exchange.reply(200, await self.said(await self._memory.runs.cancel(record)))

    async def delete(self, exchange: Exchange, caller: Caller) -> None:
        """Forget a response."""
        record, rest = await self._find(exchange, caller)
        if rest:
            raise FaultError(nothing_at(exchange.path))
        if record.running:
            record = await self._memory.runs.cancel(record)
        await self._memory.store.delete(caller.tenant, record.id)
        await exchange.reply(200, listing.encode_deleted(record.id))

    async def said(self, record: Record) -> bytes:
        """A response as it stands."""
        response = record.response
        if response is None:
            response = await self._unfinished(record)
        return RESPONSES.encode_response(response, record.request, DIALECTS[record.dialect])

    async def _unfinished(self, record: Record) -> Response:
        log = await self._memory.store.log(record.id)
        events = [event for stretch in log for event in stretch.events]
        if events:
            return folded(events)
        return Response(
            id=record.id,
            created_at=record.created_at,
            model=record.request.model,
            status="queued" if record.status == "queued" else "in_progress",
        )

    async def _replay(self, exchange: Exchange, record: Record, after: int) -> None:
        if record.version != ENCODER_VERSION or (
            not record.running and not await self._memory.store.log(record.id)
        ):
            problem = "the events of this response are no longer kept; read it without stream"
            raise FaultError(bad_request(problem, "stream"))
        encoder = Replay(RESPONSES.encoder(record.request, DIALECTS[record.dialect]), after)
        stream = Stream(exchange, Speech(exchange, encoder, self._settings), self._settings)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            await stream.run(self._memory.runs.follow(record), watch)

    async def _input_items(self, exchange: Exchange, record: Record, paging: Paging) -> None:
        request = replace(record.request, previous_response_id=record.previous)
        asked = await understand(request, self._memory.store, record.tenant, record.id, ids=True)
        found, more = paged([(item.id, item) for item in asked.whole.items], paging)
        seen = shown(found, record.request.include)
        await exchange.reply(200, listing.encode_list(seen, more))

    async def _find(self, exchange: Exchange, caller: Caller) -> tuple[Record, str]:
        id, _, rest = exchange.path.removeprefix(PATH).partition("/")
        record = await self._memory.store.get(caller.tenant, bare(id))
        if record is None or record.wire != RESPONSES.name:
            problem = f"There is no response {id[:100]!r}, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        return record, rest
