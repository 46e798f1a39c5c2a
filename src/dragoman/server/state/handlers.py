"""Endpoints for stored responses, conversations and chat completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller
from dragoman.core.item import Item
from dragoman.core.response import Response, default_guarantee
from dragoman.engines.base import new_id
from dragoman.server.cancellation import FORGOTTEN, InFlight, Watch
from dragoman.server.exchange import Exchange, Headers, Route, nothing_at, report_headers
from dragoman.server.limits import Gate
from dragoman.server.settings import DIALECTS
from dragoman.stores.base import (
    ConflictError,
    Conversation,
    Order,
    Paging,
    Record,
    Room,
    input_id,
    named,
)
from dragoman.wire import json
from dragoman.wire.chat import CHAT
from dragoman.wire.json import Limits
from dragoman.wire.losses import judge
from dragoman.wire.protocol import STANDARD, Wire
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.items import shown
from dragoman.wire.responses.response import (
    Include,
    decode_items,
    decode_metadata,
    decode_opening,
    encode_conversation,
    encode_deleted_conversation,
    encode_deleted_listing,
    encode_item,
    encode_list,
)

from .resolve import (
    Asked,
    bare,
    earlier_items,
    no_conversation,
    room_of,
    understand,
    without_references,
)
from .run import SEGMENTS
from .service import ENCODER_VERSION, Memory, unstarted

Read = Callable[[Exchange, Caller, Callable[[bytes, Limits], Any]], Awaitable[Any]]
"""Reads and decodes the body of a request."""
Replay = Callable[[Record, int, Exchange, Caller], None]
"""Sends the events of a record from the frame with this number on."""
Look = Callable[[Exchange, Caller], Awaitable[Callable[[], None]]]
"""Looks up an object; returns a function that sends the response."""

T = TypeVar("T")

RESPONSES_PATH = f"/v1{RESPONSES.path}/"
CONVERSATIONS_PATH = "/v1/conversations"
COMPLETIONS_PATH = f"/v1{CHAT.path}"
STORED = (RESPONSES_PATH, CONVERSATIONS_PATH, f"{CONVERSATIONS_PATH}/", f"{COMPLETIONS_PATH}/")
"""Paths that a server without a store refuses, with each of METHODS."""
METHODS = ("GET", "POST", "DELETE")
PARAMETERS = 256
"""The most query parameters of a URL: many take long to parse."""
PAGE = 100
"""Completions that are read at once when filtering by model or metadata."""
PAGES = 20
"""The most such reads for one list, which then ends early."""


class Query(Struct):
    """The query parameters of a request. Lists are repeated as `name` or `name[]`, and
    entries of objects are `name[key]`."""

    after: str | None = None
    before: str | None = None
    include: tuple[Include, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    metadata: dict[str, str] = {}
    model: str | None = None
    order: Literal["asc", "desc"] | None = None
    starting_after: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    stream: bool = False

    def __post_init__(self) -> None:
        self.after = self.after or None  # empty means absent: some clients send it first

    def paging(self, order: Order = "desc") -> Paging:
        """The pagination of a list; `order` is the default. Raises FaultError for
        `before`."""
        if self.before is not None:
            raise FaultError(bad_request("is not supported; use after, and order", "before"))
        return Paging(after=self.after, limit=self.limit, order=self.order or order)


Q = TypeVar("Q", bound=Query)


def asked(exchange: Exchange, kind: type[Q]) -> Q:
    """Decode the query parameters. Raises FaultError naming the invalid one."""
    if exchange.query.count(b"&") >= PARAMETERS:
        raise FaultError(bad_request(f"The address has more than {PARAMETERS} parameters."))
    pairs = parse_qsl(exchange.query.decode("latin-1"), keep_blank_values=True)
    fields: dict[str, Any] = dict(pairs)
    fields["include"] = [value for name, value in pairs if name.partition("[")[0] == "include"]
    metadata = [(name, value) for name, value in pairs if name.startswith("metadata[")]
    fields["metadata"] = {name[len("metadata[") : -1]: value for name, value in metadata}
    try:
        return convert(fields, kind, strict=False)
    except ValidationError as error:
        raise json.invalid(error, "", json.choices(Query)) from None


def paged(
    entries: Sequence[T], name: Callable[[T], str | None], paging: Paging
) -> tuple[Sequence[T], bool]:
    """A page of a list, and whether more follows it; `name` gives an entry's
    id. Raises FaultError for an unknown `after`."""
    ordered = entries if paging.order == "asc" else entries[::-1]
    if paging.after is not None:
        places = [place for place, entry in enumerate(ordered) if name(entry) == paging.after]
        if not places:
            raise FaultError(nowhere(paging.after))
        ordered = ordered[places[0] + 1 :]
    return ordered[: paging.limit], len(ordered) > paging.limit


class Handlers:
    """Handlers for stored responses, conversations and completions."""

    def __init__(
        self, memory: Memory, roster: InFlight, lane: Gate, read: Read, replay: Replay
    ) -> None:
        self._memory = memory
        self._roster = roster
        self._lane = lane
        self._store = memory.store
        self._read = read
        self._replay = replay

    def routes(self) -> tuple[Route, ...]:
        """The routes to these handlers."""
        return (
            Route("GET", RESPONSES_PATH, partial(self._look, self.get_response)),
            Route("POST", RESPONSES_PATH, self.cancel),
            Route("DELETE", RESPONSES_PATH, partial(self.delete, RESPONSES)),
            Route("GET", COMPLETIONS_PATH, partial(self._look, self.list_completions)),
            Route("GET", f"{COMPLETIONS_PATH}/", partial(self._look, self.get_completion)),
            Route("POST", f"{COMPLETIONS_PATH}/", self.change_completion),
            Route("DELETE", f"{COMPLETIONS_PATH}/", partial(self.delete, CHAT)),
            Route("POST", CONVERSATIONS_PATH, self.create_conversation),
            Route("GET", f"{CONVERSATIONS_PATH}/", partial(self._look, self.get_conversation)),
            Route("POST", f"{CONVERSATIONS_PATH}/", self.change_conversation),
            Route("DELETE", f"{CONVERSATIONS_PATH}/", self.delete_conversation),
        )

    async def _look(self, look: Look, exchange: Exchange, caller: Caller) -> None:
        """Look up and send a stored object; cancelled when the client disconnects."""
        with Watch(self._roster, exchange):
            answer = await look(exchange, caller)
        answer()

    # ---- responses -----------------------------------------------------------------------

    async def get_response(self, exchange: Exchange, caller: Caller) -> Callable[[], None]:
        """A response, its replay, or its input items."""
        room = Room(count=exchange.count)
        record, rest = await self._find(RESPONSES, exchange, caller, room, "", "input_items")
        query = asked(exchange, Query)
        request = record.request
        if query.include:  # fields that the response did not include
            request = replace(request, include=(*request.include, *query.include))
            record = replace(record, request=request)
        if rest == "input_items":
            # Its conversation may have changed since.
            request = replace(request, previous_response_id=record.previous, conversation=None)
            earlier = await earlier_items(self._store, record, room) or ()
            fits = room_of(self._memory.settings, exchange.count)
            fits.left = fits.most = 2 * fits.most  # its items and the earlier ones did fit
            whole = await understand(request, self._store, record.tenant, fits)
            placed = _placed(earlier, whole, record.id)
            found, more = paged(_told_apart(placed), _name, query.paging())
            items = [replace(place[0], id=_name(place)) for place in found]
            make = partial(encode_list, shown(items, request.include), more)
            size = room.held + whole.size
            return partial(exchange.reply, 200, await self._store.apart(size, make))
        if not query.stream:
            return await self._shown(exchange, record, room)
        return await self._replayed(record, room, query.starting_after + 1, exchange, caller)

    async def _replayed(
        self, record: Record, room: Room, first: int, exchange: Exchange, caller: Caller
    ) -> Callable[[], None]:
        """Send the events of a response from a frame on, when there is room for a batch of them
        and for its frames. Raises FaultError."""
        _, together = await self._store.log_size(record.id, SEGMENTS)
        if record.version != ENCODER_VERSION or not (record.running or together):
            raise FaultError(FORGOTTEN)
        # Its last events have the whole answer, and so have their frames. The largest
        # wait until there is room.
        room.hold(min(together + room.held, exchange.room))
        exchange.counted = not record.running
        return partial(self._replay, replace(record, response=None), first, exchange, caller)

    async def cancel(self, exchange: Exchange, caller: Caller) -> None:
        """Cancel a run; one that has ended is not changed."""
        room = Room(count=exchange.count)
        record, _ = await self._find(RESPONSES, exchange, caller, room, "cancel")
        await self._memory.runs.cancel(record)
        record, _ = await self._find(RESPONSES, exchange, caller, room, "cancel")  # as it counts
        (await self._shown(exchange, record, room))()

    async def delete(self, wire: Wire, exchange: Exchange, caller: Caller) -> None:
        """Delete a response, or a completion."""
        room = Room(count=exchange.count)
        record, _ = await self._find(wire, exchange, caller, room, "")
        if record.running:
            record = await self._memory.runs.cancel(record)
        await self._store.delete(caller.tenant, record.id)
        gone = {"object": "chat.completion.deleted", "id": wire.id_prefix + record.id}
        if wire is RESPONSES:
            exchange.reply(200, encode_deleted_listing(record.id))
        else:
            exchange.reply(200, json.dump({**gone, "deleted": True}))

    async def _shown(self, exchange: Exchange, record: Record, room: Room) -> Callable[[], None]:
        """Send a response in its current state."""
        response = record.response
        if response is None:
            size, _ = await self._store.log_size(record.id, SEGMENTS)
            room.hold(size)
            fold, place = Fold(), 0
            while log := await self._store.log(record.id, place, SEGMENTS):
                events = [event for segment in log for event in segment.events]
                await self._store.apart(room.held, fold.feed_all, iter(events))
                place += len(events)
            response = fold.response if place else unstarted(record)
        dialect = DIALECTS[record.dialect]

        def make() -> tuple[bytes, Headers]:
            body = RESPONSES.encode_response(response, record.request, dialect)
            return body, _reports(RESPONSES, record, response)

        body, headers = await self._store.apart(room.held, make)
        return partial(exchange.reply, 200, body, *headers)

    async def _find(
        self, wire: Wire, exchange: Exchange, caller: Caller, room: Room, *rests: str
    ) -> tuple[Record, str]:
        """The record that a path names, below that of a wire, and the rest of the path, one of
        `rests`. Raises FaultError where there is none, and where there is no room for it."""
        id, _, rest = exchange.path.removeprefix(f"/v1{wire.path}/").partition("/")
        record = await self._store.get(caller.tenant, bare(id), room)
        # A completion exists once it has ended: this wire has no form for a running one.
        if record is None or record.wire != wire.name or (wire is CHAT and record.running):
            what = "stored completion" if wire is CHAT else "response"
            problem = f"There is no {what} {quoted(id)}, or no longer."
            raise FaultError(Fault("not_found", problem, "client"))
        if rest not in rests:
            raise FaultError(nothing_at(exchange.path))
        return record, rest

    # ---- conversations -------------------------------------------------------------------

    async def create_conversation(self, exchange: Exchange, caller: Caller) -> None:
        """Create a conversation."""
        given, metadata, losses = await self._read(exchange, caller, decode_opening)
        items = await self._referred(given, exchange, caller)
        id, moment = new_id(), int(self._store.now())
        made = Conversation(
            id=id, tenant=caller.tenant, created_at=moment, metadata=metadata or None
        )
        await self._store.create_conversation(made, _unique(named(items, id)))
        headers = report_headers(losses)
        exchange.reply(200, encode_conversation(id, moment, metadata), *headers)

    async def _referred(
        self, items: tuple[Item, ...], exchange: Exchange, caller: Caller
    ) -> tuple[Item, ...]:
        room = room_of(self._memory.settings, exchange.count)
        return await without_references(items, "items", self._store, caller.tenant, room)

    async def get_conversation(self, exchange: Exchange, caller: Caller) -> Callable[[], None]:
        """A conversation, its items, or one of them."""
        id, rest = _place(exchange)
        match rest:
            case []:
                return await self._conversation(exchange, caller, id)
            case ["items"]:
                query, room = asked(exchange, Query), Room(count=exchange.count)
                page = await self._store.list_items(caller.tenant, bare(id), query.paging(), room)
                if page is None:
                    raise FaultError(no_conversation(id))
                after = query.after if not page.items else None  # it may be the last item, or none
                if after and not await self._store.get_item(caller.tenant, bare(id), after, room):
                    raise FaultError(nowhere(after))
                make = partial(encode_list, shown(page.items, query.include), page.more)
                return partial(exchange.reply, 200, await self._store.apart(room.held, make))
            case ["items", name]:
                room = Room(count=exchange.count)
                item = await self._store.get_item(caller.tenant, bare(id), name, room)
                if item is None:
                    raise FaultError(_no_item(id, name))
                (one,) = shown((item,), asked(exchange, Query).include)
                body = await self._store.apart(room.held, lambda: json.dump(encode_item(one)))
                return partial(exchange.reply, 200, body)
            case _:
                raise FaultError(nothing_at(exchange.path))

    async def change_conversation(self, exchange: Exchange, caller: Caller) -> None:
        """Change a conversation's metadata, or add items."""
        id, rest = _place(exchange)
        if not rest:
            metadata = await self._read(exchange, caller, decode_metadata)
            if not await self._store.set_conversation_metadata(caller.tenant, bare(id), metadata):
                raise FaultError(no_conversation(id))
            (await self._conversation(exchange, caller, id))()
        elif rest == ["items"]:
            given = await self._read(exchange, caller, decode_items)
            items = _unique(named(await self._referred(given, exchange, caller), new_id()))
            try:
                known = await self._store.add_items(caller.tenant, bare(id), items)
            except ConflictError:
                problem = "an item with one of these ids is in the conversation already"
                raise FaultError(bad_request(problem, "items")) from None
            if not known:
                raise FaultError(no_conversation(id))
            size = exchange.hold.size if exchange.hold is not None else 0
            make = partial(encode_list, shown(items, encrypted=True), more=False)
            exchange.reply(200, await self._store.apart(size, make))
        else:
            raise FaultError(nothing_at(exchange.path))

    async def delete_conversation(self, exchange: Exchange, caller: Caller) -> None:
        """Delete a conversation, or one of its items."""
        id, rest = _place(exchange)
        match rest:
            case []:
                if not await self._store.delete_conversation(caller.tenant, bare(id)):
                    raise FaultError(no_conversation(id))
                exchange.reply(200, encode_deleted_conversation(bare(id)))
            case ["items", name]:
                if not await self._store.remove_item(caller.tenant, bare(id), name):
                    raise FaultError(_no_item(id, name))
                (await self._conversation(exchange, caller, id))()
            case _:
                raise FaultError(nothing_at(exchange.path))

    async def _conversation(
        self, exchange: Exchange, caller: Caller, id: str
    ) -> Callable[[], None]:
        room = Room(count=exchange.count)
        found = await self._store.get_conversation(caller.tenant, bare(id), room)
        if found is None:
            raise FaultError(no_conversation(id))
        make = partial(encode_conversation, found.id, found.created_at, found.metadata)
        return partial(exchange.reply, 200, await self._store.apart(room.held, make))

    # ---- completions ---------------------------------------------------------------------

    async def list_completions(self, exchange: Exchange, caller: Caller) -> Callable[[], None]:
        """The stored completions, by default the earliest first. A filtered
        list may end before its limit: there is more, after its `last_id`."""
        query, room = asked(exchange, Query), Room(count=exchange.count)
        async with self._lane.place(caller.tenant):  # not all at once
            records, last = await self._matching(caller, query, room)

            def make() -> bytes:
                found = [_completion(record) for record in records[: query.limit]]
                return _listing(found, last is not None or len(records) > query.limit, last)

            return partial(exchange.reply, 200, await self._store.apart(room.held, make))

    async def _matching(
        self, caller: Caller, query: Query, room: Room
    ) -> tuple[list[Record], str | None]:
        """The completions of a list, and one more where there are more; and the id of
        the last that was read, where the list ends early."""
        after = query.after and bare(query.after)
        if after is not None:
            await self._check_cursor(caller, after, room)
        few = limit = query.limit + 1
        if query.model is not None or query.metadata:
            limit = max(few, PAGE)
        found: list[Record] = []
        for _ in range(PAGES):
            paging, held = replace(query.paging("asc"), after=after, limit=limit), room.held
            try:
                page = await self._store.list_responses(caller.tenant, CHAT.name, paging, room)
            except FaultError:
                if limit == few:
                    raise
                limit = few  # they do not fit
                continue
            if after is not None and not page.items:  # its entry may have been deleted meanwhile
                await self._check_cursor(caller, after, room)
            wanted = [each for each in page.items if _is_wanted(each, query)]
            found += wanted
            if not wanted:
                room.hold(held - room.held)
            if len(found) >= few or not page.more:
                return found[:few], None
            after = page.items[-1].id
        return found, after

    async def _check_cursor(self, caller: Caller, after: str, room: Room) -> None:
        known = await self._store.get(caller.tenant, after, room)
        if known is None or known.wire != CHAT.name:
            raise FaultError(nowhere(CHAT.id_prefix + after))

    async def get_completion(self, exchange: Exchange, caller: Caller) -> Callable[[], None]:
        """A completion, or the messages of its request."""
        room, paging = Room(count=exchange.count), asked(exchange, Query).paging("asc")
        record, rest = await self._find(CHAT, exchange, caller, room, "", "messages")

        def make() -> bytes:
            if rest != "messages":
                return json.dump(_completion(record))
            encoded, _ = CHAT.encode_request(record.request, STANDARD)
            messages = [
                {"id": f"{CHAT.id_prefix}{record.id}-{place}", **message}
                for place, message in enumerate(json.load(encoded)["messages"])
            ]
            return _listing(*paged(messages, itemgetter("id"), paging))

        body, response = await self._store.apart(room.held, make), record.response
        headers = () if rest or response is None else _reports(CHAT, record, response)
        return partial(exchange.reply, 200, body, *headers)

    async def change_completion(self, exchange: Exchange, caller: Caller) -> None:
        """Replace the metadata of a completion."""
        await self._find(CHAT, exchange, caller, Room(count=exchange.count), "")
        metadata = await self._read(exchange, caller, decode_metadata)
        room = Room(count=exchange.count)
        record, _ = await self._find(CHAT, exchange, caller, room, "")
        await self._store.set_metadata(caller.tenant, record.id, metadata)
        changed = replace(record, metadata=metadata)
        body = await self._store.apart(room.held, lambda: json.dump(_completion(changed)))
        exchange.reply(200, body)


def _place(exchange: Exchange) -> tuple[str, list[str]]:
    """The conversation's id in the path, and the rest of the path."""
    id, *rest = exchange.path.removeprefix(f"{CONVERSATIONS_PATH}/").split("/", 2)  # as in an item
    return id, rest


_Place = tuple[Item, str, int]
"""An item, the response that has it as input, and its position there."""


def _placed(earlier: Sequence[Item], asked: Asked, id: str) -> list[_Place]:
    """The input items of a response, with earlier ones, in order."""
    start, items = 0, asked.whole.items
    found: list[_Place] = [*zip(earlier, repeat(""), repeat(0))]
    for owner, length in (*asked.before, (id, len(items))):
        own = items[start : start + length]
        found += zip(own, repeat(owner), range(len(own)))
        start += length
    return found


def _told_apart(placed: Sequence[_Place]) -> list[_Place]:
    """The items, of which those that were given twice have two ids: `after` would find the first
    again and again."""
    own = [item.id for item, _, _ in placed if item.id]
    # Responses of which an item is referred to: where it has no id, that has the one given here.
    referred = {id.rpartition("_in")[0].partition("_")[2] for id in own}
    names = [_name(each) if each[1] in referred else each[0].id for each in placed]
    ids, found = set(names), [*placed]
    left = ids.copy()
    for number, name in enumerate(names):
        if name is None or name in left:
            left.discard(name)
            continue
        while name in ids:
            name = f"{name}_{number}"
        ids.add(name)
        item, owner, place = placed[number]
        found[number] = replace(item, id=name), owner, place
    return found


def _name(entry: _Place) -> str | None:
    """The id of an item: its own, or the one assigned here."""
    item, owner, place = entry
    return item.id or (input_id(item, owner, place) if owner else None)


def _unique(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Raises FaultError where two items have one id."""
    ids = set[str | None]()
    for place, item in enumerate(items):
        if item.id in ids:
            problem = f"{quoted(item.id or '')} is given twice"
            raise FaultError(bad_request(problem, f"items[{place}].id"))
        ids.add(item.id)
    return items


def nowhere(after: str) -> Fault:
    """The fault for a cursor that is no entry of its list."""
    return bad_request(f"there is no {quoted(after)} in this list, or no longer", "after")


def _no_item(id: str, item: str) -> Fault:
    problem = f"There is no item {quoted(item)} in the conversation {quoted(id)}, or no longer."
    return Fault("not_found", problem, "client")


def _reports(wire: Wire, record: Record, response: Response) -> Headers:
    """The loss and guarantee headers of the answer so far."""
    losses, sure = response.losses + judge(response, wire.losses), response.guarantee
    if response.status != "queued" and response.error is None:
        sure = sure or default_guarantee(record.request)
    return report_headers(losses, sure)


def _completion(record: Record) -> dict[str, Any]:
    """A completion as it was sent, with its metadata."""
    if record.response is None:
        raise RuntimeError("only what was answered can be shown")
    completion = json.load(CHAT.encode_response(record.response, record.request, STANDARD))
    return {**completion, "metadata": record.metadata or {}}


def _is_wanted(record: Record, query: Query) -> bool:
    """Whether a completion matches a list's filters."""
    of_model = query.model in (None, record.request.model)
    labelled = query.metadata.items() <= (record.metadata or {}).items()
    return record.response is not None and of_model and labelled


def _listing(shown: Sequence[dict[str, Any]], more: bool, last: str | None = None) -> bytes:
    page = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": CHAT.id_prefix + last if last else shown[-1]["id"] if shown else None,
        "has_more": more,
    }
    return json.dump(page)
