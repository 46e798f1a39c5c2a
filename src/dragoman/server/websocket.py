"""Responses over WebSocket: handshake, frames, turns, and what a connection remembers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from functools import cached_property

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import Item
from dragoman.core.request import Request
from dragoman.engines.base import Wrapper, new_id, now
from dragoman.stores.base import OutboxMessage, Record
from dragoman.stores.memory import MemoryStore
from dragoman.wire import error, json
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.encode import Encoder

from .asgi import BUFFER, Receive, Scope, Send
from .cancellation import GONE, TERMINAL
from .exchange import JSON_TYPE, Exchange, fault_of
from .responder import Responder, Service
from .settings import DIALECTS
from .state.resolve import NOT_STORED, bare, understand
from .state.run import Runs
from .state.service import Plan


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


CREATE = "response.create"


class Frame(Struct, frozen=True):
    """What a frame says besides the body of a request: its kind and its lane. Without `generate`
    only a place in a chain is made."""

    type: str | None = None
    stream_id: str | None = None
    generate: bool | None = None


_FRAMING = frozenset(Frame.__struct_fields__)
_decode = Decoder(Frame).decode


def decode_frame(data: bytes) -> tuple[Frame, Request]:
    """What a frame asks for. Raises FaultError naming what is wrong with it."""
    try:
        frame = _decode(data)
    except json.BROKEN:  # read field by field, which finds the words for what is wrong
        fields = json.parse(data)
        lane = fields.string("stream_id")
        frame = Frame(fields.string("type"), lane, fields.boolean("generate"))
    if frame.type != CREATE:
        raise FaultError(bad_request(f"is {frame.type!r}, and must be {CREATE!r}", "type"))
    # The rest is the body of a POST. Codex and the Agents SDK send `stream` with it, too; a socket
    # streams in any case.
    request = RESPONSES.decode_request(data)
    if request.background:
        raise FaultError(bad_request("is not supported over WebSocket", "background"))
    extra = {
        wire: {name: value for name, value in fields.items() if name not in _FRAMING}
        for wire, fields in (request.extra or {}).items()
    }
    return frame, replace(request, stream=True, extra=extra)


class Warmup(Wrapper):
    """Answers a turn that generates nothing."""

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """An empty answer."""
        yield Started(new_id(), now(), "")
        yield Finished("completed", completed_at=now())


LANES = 32
"""Lanes a connection may have at once."""
WAITING = 32
"""Turns that may wait in one lane."""
LIFETIME = 3600.0
"""Seconds a connection may last."""

TOO_OLD = Fault(
    "connection_limit",
    "This connection has lasted its 60 minutes; open another and go on there.",
    "client",
)


class Turn(Responder):
    """The answer to one frame: each event is a frame of its own."""

    listens = False  # its connection does

    def __init__(self, connection: Connection, lane: str | None, plan: Plan) -> None:
        service = connection.service
        super().__init__(service, connection.exchange, connection.caller, plan, RESPONSES)
        self._connection = connection
        self._lane = lane
        # What ends each event: of which lane it is.
        self._ending = b"}" if lane is None else b',"stream_id":' + json.dump(lane) + b"}"
        self._encoder = Encoder(plan.echoed, DIALECTS[service.settings.dialect])
        self._begun = False  # an event was sent
        self.failed = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, events: list[Event]) -> None:
        """Send a frame for each event."""
        if self._handle is None:
            return
        first, last = events[0], events[-1]
        try:
            if not self._begun and isinstance(first, Failed):
                self.fail(first.fault)
                self.leave()
                return
            found = self._encoder.frames(events)
            texts = [(data[:-1] + self._ending).decode() for data in found]
            full = self._connection.write(*texts)
            self._begun = True
            if isinstance(last, TERMINAL):
                self.failed = isinstance(last, Failed)
                self.leave()
            elif full:
                self.pause()
        except Exception as error:
            self.broken(error)

    def fail(self, fault: Fault) -> None:
        """Send why the turn ends here."""
        self.failed = True
        if fault is not GONE:
            self._connection.write(refusal(fault, self._lane))

    def leave(self) -> None:
        """The turn is over."""
        super().leave()
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        """Drop the connection."""
        self._connection.abort()


class Connection:
    """Serves one client until it disconnects, or its time is over.

    Turns of one lane are answered one after the other, those of different lanes at once. One task
    sends the frames of all; a client that does not read is disconnected.
    """

    def __init__(
        self,
        service: Service,
        runs: Runs,
        exchange: Exchange,
        caller: Caller,
        receive: Receive,
        send: Send,
    ) -> None:
        self.service = service
        self.exchange = exchange
        self.caller = caller
        self._receive = receive
        self._send = send
        self._runs = runs
        self._recent: dict[str, Record] = {}
        self._lanes: dict[str | None, deque[tuple[Frame, Request]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: set[Turn] = set()
        self._queue: deque[str] = deque()  # frames to be sent
        self._size = 0  # of those
        self._sending = False
        self._closing = False  # what is queued is the last
        self._wakeup = asyncio.Event()
        self._time = asyncio.timeout(None)

    async def serve(self, lifetime: float = LIFETIME) -> None:
        """Accept the connection, receive frames and answer them."""
        await self._receive()  # that it wants to connect
        await self._send({"type": "websocket.accept", "headers": self.exchange.marks})
        self._time = asyncio.timeout(lifetime)
        sender = asyncio.get_running_loop().create_task(self._send_queued())
        try:
            async with self._time:
                while (message := await self._receive())["type"] == "websocket.receive":
                    text = message.get("text")
                    self._take(text.encode() if text else message.get("bytes") or b"")
        except TimeoutError:
            if not sender.done():  # or it was the client that did not read
                self._closing = True
                self.write(refusal(TOO_OLD, None))
                await sender
        finally:
            for task in (*self._tasks, sender):
                task.cancel()
            await asyncio.gather(*self._tasks, sender, return_exceptions=True)

    # ---- turns ---------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Put what a frame asks for into its lane; refuse one that makes no sense."""
        try:
            frame, request = decode_frame(data)
            self._enqueue(frame.stream_id, (frame, request))
        except FaultError as error:
            lane = None
            with suppress(FaultError):  # even the lane may make no sense
                lane = json.parse(data).string("stream_id")
            self.write(refusal(error.fault, lane))

    def _enqueue(self, lane: str | None, turn: tuple[Frame, Request]) -> None:
        waiting = self._lanes.get(lane)
        if waiting is not None:
            if len(waiting) >= WAITING:
                raise FaultError(_crowded(f"{WAITING} turns are waiting in this lane"))
            waiting.append(turn)
            return
        if len(self._lanes) >= LANES:
            raise FaultError(_crowded(f"{LANES} lanes are open on this connection"))
        self._lanes[lane] = deque([turn])
        task = asyncio.get_running_loop().create_task(self._work(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, lane: str | None) -> None:
        """Answer the turns of a lane until there are none."""
        queue = self._lanes[lane]
        try:
            while queue:
                frame, request = queue.popleft()
                previous = request.previous_response_id
                if not await self._answer(frame, request) and previous is not None:
                    # What a failed turn went on from must not be gone on from again.
                    self._recent.pop(bare(previous), None)
        finally:
            del self._lanes[lane]

    async def _answer(self, frame: Frame, request: Request) -> bool:
        """Answer a turn; false if that failed."""
        service, lane = self.service, frame.stream_id
        try:
            plan = self._plan(request)
            tenant = self.caller.tenant
            if not isinstance(plan, Plan) or not service.gate.enter_at_once(tenant):
                plan = await service.admit(plan, self.caller)
            turn = Turn(self, lane, plan)
            turn.start(Warmup(service.engine) if frame.generate is False else None)
        except Exception as error:
            self.write(refusal(fault_of(error, self.exchange.id, self.caller.key), lane))
            return False
        self._turns.add(turn)
        try:
            await turn.ended
        finally:
            self._turns.discard(turn)
            turn.stop(GONE)
        return not turn.failed

    def _plan(self, request: Request) -> Plan | Awaitable[Plan]:
        memory = self.service.memory
        if memory is not None and request.store is not False:
            return memory.plan(RESPONSES.name, request, self.caller, self._recent)
        return self._remembered(request)

    async def _remembered(self, request: Request) -> Plan:
        """The plan of a turn that only the connection remembers."""
        id, tenant = new_id(), self.caller.tenant
        asked = await understand(
            request,
            self._runs.store,
            tenant,
            most=self.service.settings.body_limit,
            recent=self._recent,
        )
        record = Record(
            id=id, tenant=tenant, wire=RESPONSES.name, created_at=now(), request=asked.whole
        )
        losses = (NOT_STORED,) if request.store else ()
        run = self._runs.open(record, (), self._remember)
        return Plan(asked.whole, replace(request, store=False), losses, run)

    def _remember(
        self, record: Record, items: Sequence[Item], messages: Sequence[OutboxMessage]
    ) -> Awaitable[None]:
        """Remember an answer that has ended, and forget the oldest of too many."""
        self._recent[record.id] = record
        if len(self._recent) > MOST:
            del self._recent[next(iter(self._recent))]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    # ---- frames --------------------------------------------------------------------------

    def write(self, *texts: str) -> bool:
        """Send frames. True where the client does not keep up."""
        self._queue.extend(texts)
        self._size += sum(map(len, texts))
        self._wakeup.set()
        return self._sending or self._size > BUFFER

    def abort(self) -> None:
        """End the connection."""
        with suppress(RuntimeError):  # its time is over already
            self._time.reschedule(0.0)

    async def _send_queued(self) -> None:
        """Send what is queued. A frame that the client does not take in time is the last: what
        followed it would follow a gap."""
        try:
            while not self._closing or self._queue:
                await self._wakeup.wait()
                self._wakeup.clear()
                self._sending = True
                async with asyncio.timeout(self.service.settings.stall):
                    while self._queue:
                        text = self._queue.popleft()
                        self._size -= len(text)
                        await self._send({"type": "websocket.send", "text": text})
                self._sending = False
                for turn in tuple(self._turns):
                    turn.drained()
            await self._send({"type": "websocket.close", "code": 1000})
        except TimeoutError:
            self.abort()
        except (OSError, RuntimeError):  # how hosts say that the client is gone
            pass


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
    """The WebSocket connections to one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def _runs(self) -> Runs:
        memory = self._service.memory
        return Runs(MemoryStore(), upkeep=False) if memory is None else memory.runs

    def plain(self, exchange: Exchange, caller: Caller) -> None:
        """Answer a GET that asks for no WebSocket."""
        exchange.refuse(PLAIN, (b"upgrade", b"websocket"))

    def connect(
        self, exchange: Exchange, caller: Caller, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Serves a connection. Raises FaultError where there is nothing to connect to."""
        if exchange.path != PATH:
            raise FaultError(NO_SOCKET)
        return Connection(self._service, self._runs, exchange, caller, receive, send).serve()


async def deny(
    fault: Fault, exchange: Exchange, scope: Scope, receive: Receive, send: Send
) -> None:
    """Refuse a connection: as an HTTP error where the host can do that."""
    await receive()
    if DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": fault.message[:120]})
        return
    headers = [*exchange.marks, JSON_TYPE]
    await send({"type": f"{DENIAL}.start", "status": error.status(fault), "headers": headers})
    await send({"type": f"{DENIAL}.body", "body": error.encode(fault)})
