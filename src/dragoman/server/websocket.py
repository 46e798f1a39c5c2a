"""Responses over WebSocket: handshake, frames, turns, and what a connection remembers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import Item
from dragoman.core.request import Request
from dragoman.engines.base import batches, new_id, now
from dragoman.stores.base import ItemPage, Paging, Record, Retention, Store, StoredAnswer
from dragoman.stores.memory import MemoryStore
from dragoman.wire import error, json
from dragoman.wire.json import Fields
from dragoman.wire.responses import RESPONSES

from .asgi import Receive, Send
from .cancellation import InFlight, Watch
from .exchange import JSON_TYPE, Exchange, fault_of
from .limits import Gate
from .settings import DIALECTS, Settings
from .state.resolve import NOT_STORED, bare, understand
from .state.run import Run
from .state.service import Memory, Plan

_BLANK_LINE = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


def frames(said: bytes, lane: str | None) -> Iterator[str]:
    """The events in what an encoder said; comments and `[DONE]` have no frame.

    >>> list(frames(b'event: a\\ndata: {"type":"a"}\\n\\ndata: [DONE]\\n\\n', "1"))
    ['{"type":"a","stream_id":"1"}']
    """
    mark = b"" if lane is None else b',"stream_id":' + json.dump(lane) + b"}"
    for frame in said.split(_BLANK_LINE):
        _, found, data = frame.partition(_DATA)
        if found and data != _DONE:
            yield (data[:-1] + mark if mark else data).decode()


def refusal(fault: Fault, lane: str | None) -> str:
    """The frame that says that a turn failed before it began, or that a frame made no sense.

    Its code is always a string: clients of sockets tell errors apart by it alone, and some know
    no null there. Over HTTP the protocol has null where the type says it all.
    """
    object = error.error_object(fault)
    object["code"] = object["code"] or fault.code
    frame = {"type": "error", "status": error.status(fault), "error": object}
    return json.dump(frame if lane is None else {**frame, "stream_id": lane}).decode()


MOST = 64
"""Responses a connection remembers."""


class Near:
    """A source that looks at the connection first, and then in the server's store."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self.own = MemoryStore(Retention(max_age=float("inf"), max_responses=MOST))

    async def chain(self, tenant: str, id: str) -> tuple[Record, ...]:
        """A response and all that came before it."""
        record = await self.own.get(tenant, id)
        if record is not None:
            return (record,)
        return () if self._store is None else await self._store.chain(tenant, id)

    async def find_item(self, tenant: str, item: str) -> Item | None:
        """The item with this id."""
        found = await self.own.find_item(tenant, item)
        if found is None and self._store is not None:
            found = await self._store.find_item(tenant, item)
        return found

    async def list_items(
        self, tenant: str, id: str, paging: Paging | None = None
    ) -> ItemPage | None:
        """The items of a conversation."""
        return None if self._store is None else await self._store.list_items(tenant, id, paging)

    async def find_answers(self, tenant: str, digests: Sequence[str]) -> tuple[StoredAnswer, ...]:
        """The answers that made calls; those of this connection this process knows anyway."""
        return () if self._store is None else await self._store.find_answers(tenant, digests)

    async def evict(self, tenant: str, id: str) -> None:
        """Forget a response that could not be gone on from."""
        await self.own.delete(tenant, id)


CREATE = "response.create"


class Ask(Struct, frozen=True):
    """A frame that asks for a response. Without `generate` only its place in a chain is made."""

    request: Request
    lane: str | None = None
    generate: bool = True


def understood(text: str | bytes) -> Ask:
    """What a frame asks for. Raises FaultError naming what is wrong with it."""
    fields = json.parse(text.encode() if isinstance(text, str) else text)
    kind = fields.string("type")
    if kind != CREATE:
        raise FaultError(bad_request(f"is {kind!r}, and must be {CREATE!r}", "type"))
    generate = fields.boolean("generate")
    fields.boolean("stream")  # Codex and the Agents SDK send it; a socket streams in any case
    if fields.boolean("background"):
        raise FaultError(bad_request("is not supported over WebSocket", "background"))
    said = fields.rest()
    said.pop("stream_id", None)
    request = RESPONSES.decode_request(json.dump({**said, "stream": True}))
    return Ask(request, lane_of(fields), generate is not False)


def lane_of(fields: Fields) -> str | None:
    """The lane a frame belongs to. Raises FaultError for one that is no text."""
    return fields.string("stream_id")


class Turns:
    """Answers what is asked on one connection."""

    def __init__(self, engine: Engine, memory: Memory | None, caller: Caller) -> None:
        self._engine = engine
        self._memory = memory
        # Every turn is kept, by the connection where not by the store.
        self._caller = replace(caller, wire=RESPONSES.name, stored=True)
        self._near = Near(None if memory is None else memory.store)

    async def answer(self, ask: Ask) -> tuple[Plan, AsyncGenerator[list[Event], None]]:
        """The plan of a turn and its events. Raises FaultError when it cannot be begun; what it
        was to go on from is forgotten then."""
        try:
            plan = await self._plan(ask.request)
        except FaultError:
            await self.failed(ask)
            raise
        source = batches(self._engine, plan.request, self._caller) if ask.generate else _nothing()
        return plan, self._checked(ask, plan.recorded(source))

    async def failed(self, ask: Ask) -> None:
        """A turn failed: what it went on from must not be gone on from again."""
        previous = ask.request.previous_response_id
        if previous is not None:
            await self._near.evict(self._caller.tenant, bare(previous))

    async def _checked(
        self, ask: Ask, answer: AsyncGenerator[list[Event], None]
    ) -> AsyncGenerator[list[Event], None]:
        async with aclosing(answer):
            async for batch in answer:
                if isinstance(batch[-1], Failed):
                    await self.failed(ask)
                yield batch
        await self._near.own.sweep(0.0)

    async def _plan(self, request: Request) -> Plan:
        stored = request.store is not False
        if self._memory is not None and stored:
            wire = RESPONSES.name
            return await self._memory.plan(wire, request, self._caller, self._near)
        id, tenant = new_id(), self._caller.tenant
        asked = await understand(request, self._near, tenant, id)
        record = Record(
            id=id,
            tenant=tenant,
            wire=RESPONSES.name,
            created_at=now(),
            request=asked.whole,
        )
        losses = (NOT_STORED,) if request.store else ()
        echoed = replace(request, store=False)
        return Plan(asked.whole, echoed, losses, Run(record, self._near.own))


async def _nothing() -> AsyncGenerator[list[Event], None]:
    """The events of a turn that generates nothing."""
    yield [Started(new_id(), now(), ""), Finished("completed", completed_at=now())]


LANES = 32
"""Lanes a connection may have going at once."""
WAITING = 32
"""Turns that may wait in one lane."""
LIFETIME = 3600.0
"""Seconds a connection may last."""

TOO_OLD = Fault(
    "connection_limit",
    "This connection has lasted its 60 minutes; open another and go on there.",
    "client",
)


class Connection:
    """Serves one client until it leaves, or its time is over."""

    def __init__(
        self,
        turns: Turns,
        caller: Caller,
        receive: Receive,
        send: Send,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
        trace: str,
    ) -> None:
        self._turns = turns
        self._caller = caller
        self._receive = receive
        self._send = send
        self._settings = settings
        self._roster = roster
        self._gate = gate
        self._trace = trace
        self._lanes: dict[str | None, deque[Ask]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._time = asyncio.timeout(None)
        self._stalled = False  # the client did not read in time

    async def serve(self, lifetime: float = LIFETIME) -> None:
        """Hear frames and answer them."""
        self._time = asyncio.timeout(lifetime)
        try:
            async with self._time:
                while (message := await self._receive())["type"] == "websocket.receive":
                    await self._hear(message.get("text") or message.get("bytes") or "")
        except TimeoutError:
            await self._say(refusal(TOO_OLD, None))
            await self._close()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hear(self, text: str | bytes) -> None:
        """Put what a frame asks for into its lane; say so where it makes no sense."""
        try:
            ask = understood(text)
            self._queue(ask)
        except FaultError as error:
            await self._say(refusal(error.fault, _lane(text)))

    def _queue(self, ask: Ask) -> None:
        lane = self._lanes.get(ask.lane)
        if lane is not None:
            if len(lane) >= WAITING:
                raise FaultError(_crowded(f"{WAITING} turns are waiting in this lane"))
            lane.append(ask)
            return
        if len(self._lanes) >= LANES:
            raise FaultError(_crowded(f"{LANES} lanes are going on this connection"))
        self._lanes[ask.lane] = deque([ask])
        task = asyncio.get_running_loop().create_task(self._work(ask.lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, lane: str | None) -> None:
        """Answer the turns of a lane, one after the other, until there are none."""
        queue = self._lanes[lane]
        try:
            while queue:
                await self._turn(queue.popleft())
        finally:
            del self._lanes[lane]

    async def _turn(self, ask: Ask) -> None:
        try:
            with Watch(self._roster) as watch:
                if (seconds := self._settings.deadline) is not None:
                    problem = f"There was no complete answer within {seconds:g} s."
                    watch.limit(seconds, Fault("upstream_timeout", problem, "upstream"))
                async with self._gate:
                    await self._answer(ask, watch)
        except Exception as error:
            fault = fault_of(error, self._trace, self._caller.key)
            await self._turns.failed(ask)
            await self._say(refusal(fault, ask.lane))

    async def _answer(self, ask: Ask, watch: Watch) -> None:
        plan, events = await self._turns.answer(ask)
        if plan.run is not None:
            plan.run.watch = watch
        encoder = RESPONSES.encoder(plan.echoed, DIALECTS[self._settings.dialect])
        begun = False
        async with aclosing(events) as answer:
            async for batch in answer:
                if not begun and isinstance(batch[0], Failed):
                    raise FaultError(batch[0].fault)
                begun = True
                await self._say(*frames(encoder.feed(batch), ask.lane))

    async def _say(self, *texts: str) -> None:
        """Send frames. One that the client does not take in time is the last: what followed it
        would follow a gap."""
        if self._stalled:
            return
        try:
            async with asyncio.timeout(self._settings.stall):
                for text in texts:
                    await self._send({"type": "websocket.send", "text": text})
        except TimeoutError:
            self._stalled = True
            with suppress(RuntimeError):  # its time is over already
                self._time.reschedule(0.0)
        except (OSError, RuntimeError):  # how hosts say that the client is gone
            pass

    async def _close(self) -> None:
        """Say goodbye to a client that listens."""
        if not self._stalled:
            with suppress(OSError, RuntimeError):
                async with asyncio.timeout(self._settings.stall):
                    await self._send({"type": "websocket.close", "code": 1000})


def _lane(text: str | bytes) -> str | None:
    """The lane of a frame that makes no sense, where at least that can be read."""
    try:
        return lane_of(json.parse(text.encode() if isinstance(text, str) else text))
    except FaultError:
        return None


def _crowded(problem: str) -> Fault:
    return Fault("rate_limited", f"Too much at once: {problem}.", "client")


PATH = f"/v1{RESPONSES.path}"
"""The one path that speaks WebSocket."""

DENIAL = "websocket.http.response"
"""The ASGI extension by which a refusal has a status and a body."""

NO_SOCKET = Fault("not_found", f"There is no WebSocket here, only at {PATH}.", "client")
PLAIN = Fault(
    "upgrade_required", "GET opens a WebSocket here: send `Upgrade: websocket`, or POST.", "client"
)


class Sockets:
    """The connections to one engine."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
        memory: Memory | None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._gate = gate
        self._memory = memory

    async def plain(self, exchange: Exchange, caller: Caller) -> None:
        """Answer a GET that asks for no WebSocket."""
        await exchange.refuse(PLAIN, (b"upgrade", b"websocket"))

    async def serve(self, exchange: Exchange, caller: Caller) -> None:
        """Serve a connection to its end. Raises FaultError where there is nothing to connect to."""
        if exchange.path != PATH:
            raise FaultError(NO_SOCKET)
        await exchange.receive()  # that it wants to connect
        await exchange.send({"type": "websocket.accept", "headers": exchange.marks})
        connection = Connection(
            Turns(self._engine, self._memory, caller),
            caller,
            exchange.receive,
            exchange.send,
            self._settings,
            self._roster,
            self._gate,
            exchange.id,
        )
        await connection.serve()


async def deny(exchange: Exchange, fault: Fault) -> None:
    """Refuse a connection: in the words of an HTTP error where the host can say them."""
    await exchange.receive()
    if DENIAL not in exchange.scope.get("extensions", {}):
        await exchange.send(
            {"type": "websocket.close", "code": 1008, "reason": fault.message[:120]}
        )
        return
    status = error.status(fault)
    headers = [*exchange.marks, JSON_TYPE]
    await exchange.send({"type": f"{DENIAL}.start", "status": status, "headers": headers})
    await exchange.send({"type": f"{DENIAL}.body", "body": error.encode(fault)})
