"""Responses over WebSocket: handshake, frames, turns, and a connection's cache of responses."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import Item
from dragoman.core.request import Request
from dragoman.core.response import default_guarantee
from dragoman.engines.base import Wrapper, new_id, now
from dragoman.stores.base import OutboxMessage, Record
from dragoman.stores.memory import MemoryStore
from dragoman.wire import error, json
from dragoman.wire.json import LARGE, UNMARKED, VALUE, Limits
from dragoman.wire.realtime import PATH as REALTIME
from dragoman.wire.registry import BASE
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.encode import Encoder

from .asgi import Receive, Scope, Send
from .cancellation import GONE, SHUTTING_DOWN, TERMINAL
from .channel import Channel, Handshake, of_message
from .exchange import JSON_TYPE, Exchange, fault_of, report_headers, safe
from .limits import HEAVY, LIGHT, SMALL, Hold, too_large, widened
from .log import Entry
from .responder import Responder, Service
from .settings import DIALECTS
from .state.resolve import NOT_STORED, bare, room_of, understand
from .state.run import Runs
from .state.service import Plan


def refusal(fault: Fault, lane: str | None) -> bytes:
    """The error frame of a turn that failed before it began, or of an invalid frame.

    Its code is always a string: WebSocket clients distinguish errors by it alone, and some
    reject null. Over HTTP the protocol has null where the type is enough.
    """
    object = error.error_object(of_message(fault))
    object["code"] = object["code"] or fault.code
    frame = {"type": "error", "status": error.status(fault), "error": object}
    return json.dump(frame if lane is None else {**frame, "stream_id": lane})


MOST = 64
"""The most responses in a connection's cache."""
LONGEST_LANE = 256
"""Characters of a `stream_id`, which each event repeats."""


CREATE = "response.create"


class Lane(Struct, frozen=True):
    """The lane of a frame."""

    stream_id: str | None = None


class Frame(Lane, frozen=True):
    """The fields of a frame besides the body of a request: its lane and its kind. Without
    `generate` only an empty response is added to a chain."""

    type: str | None = None
    generate: bool | None = None
    response: Raw = json.ABSENT


_FRAMING = frozenset(Frame.__struct_fields__)
_decode = Decoder(Frame).decode
_decode_lane = Decoder(Lane).decode


def decode_frame(data: bytes, limits: Limits = json.LIMITS) -> tuple[Frame, Request]:
    """Decode a frame. Raises FaultError naming the invalid field."""
    try:
        frame = _decode(data)
    except json.BROKEN:  # decode field by field, for the error message
        fields = json.parse(data)
        lane = fields.string("stream_id")
        frame = Frame(lane, fields.string("type"), fields.boolean("generate"))
    if frame.type != CREATE:
        found = "is missing" if frame.type is None else f"is {quoted(frame.type)}"
        raise FaultError(bad_request(f"{found}, and must be {CREATE!r}", "type"))
    if frame.stream_id is not None and len(frame.stream_id) > LONGEST_LANE:
        raise FaultError(bad_request(f"has more than {LONGEST_LANE} characters", "stream_id"))
    if frame.response is not json.ABSENT:  # as in the Realtime protocol
        problem = "holds the request; its fields stand beside type here, as in a POST"
        raise FaultError(bad_request(problem, "response"))
    # The rest is the body of a POST. Codex and the Agents SDK send `stream` with it, too; a socket
    # streams in any case.
    request = RESPONSES.decode_request(data, limits)
    if request.background:
        raise FaultError(bad_request("is not supported over WebSocket", "background"))
    extra = {
        wire: {name: value for name, value in fields.items() if name not in _FRAMING}
        for wire, fields in (request.extra or {}).items()
    }
    return frame, replace(request, stream=True, extra=extra)


class Warmup(Wrapper):
    """Answers a turn without generating."""

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """An empty answer."""
        yield Started(new_id(), now(), request.model)
        yield Finished("completed", completed_at=now())


LANES = 32
"""The most lanes of a connection."""
WAITING = 32
"""The most queued turns of one lane."""
TOO_OLD = Fault(
    "connection_limit",
    "This connection has reached its limit of 60 minutes; open a new one and continue there.",
    "client",
)


class Waiting(Struct):
    """A queued turn: its bytes, its weight, and the items `found`
    for it. `entry` is its line in the request log, if there is one, and `status` that of a response
    over HTTP."""

    frame: Frame
    request: Request
    size: int
    weight: int = 0
    entry: Entry | None = None
    status: int = 0
    found: Hold | None = None


class Turn(Responder):
    """The answer to one frame: each event is a frame of its own."""

    listens = False  # its connection does

    def __init__(self, connection: Connection, asked: Waiting, plan: Plan, caller: Caller) -> None:
        service, lane = connection.service, asked.frame.stream_id
        super().__init__(service, connection.exchange, caller, plan, RESPONSES)
        self._connection = connection
        self._asked = asked
        # The end of each event in a named lane.
        self._ending = b"" if lane is None else b',"stream_id":' + json.dump(lane) + b"}"
        self._encoder = Encoder(plan.echoed, DIALECTS[service.settings.dialect])
        self._losses = plan.losses
        self._guarantee = default_guarantee(plan.request)
        self.failed = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, events: list[Event]) -> None:
        """Send a frame for each event."""
        if self._handle is None:
            return
        if self.batches is not None:
            self.batches.append(events)
            return
        first, last = events[0], events[-1]
        try:
            if not self._asked.status and isinstance(first, Failed):
                self.fail(first.fault)
                self.leave()
                return
            if self.made is not None:
                frames, self.made = self.made, None
            elif self._looks and self.is_much(events):
                self.apart(self._encoder.frames, events)
                return
            else:
                frames = self._encoder.frames(events)
            # A turn has its headers in its first event, and again in its last.
            known = self._losses or self._guarantee
            if isinstance(first, Started) and (known or first.losses or first.guarantee):
                self._report(frames, 0, first)
            known = self._losses or self._guarantee  # with those of a first event beside it
            if isinstance(last, Finished) and (known or last.losses or last.guarantee):
                self._report(frames, -1, last)
            if self._ending:
                frames = [frame[:-1] + self._ending for frame in frames]
            full = self._connection.write(*frames)
            self._asked.status = 200
            if isinstance(last, TERMINAL):
                if self.plan.run is not None:  # the last frame has the whole response
                    self._connection.grow(self.plan.run.record.id, len(frames[-1]))
                if self._asked.entry is not None:
                    self._asked.entry.note(last)
                self.failed = isinstance(last, Failed)
                self.leave()
            elif full:
                self.pause()
        except Exception as error:
            self.broken(error)

    def _report(self, frames: list[bytes], place: int, event: Started | Finished) -> None:
        """Add the headers of a response over HTTP to a frame, as `headers`."""
        self._losses += event.losses
        self._guarantee = event.guarantee or self._guarantee
        pairs = report_headers(self._losses, self._guarantee)
        headers = json.dump({name.decode(): value.decode() for name, value in pairs})
        frames[place] = b'%b,"headers":%b}' % (frames[place][:-1], headers)

    def fail(self, fault: Fault) -> None:
        """Send the reason of the turn's end."""
        self.failed = True
        if fault is not GONE:
            self._connection.refuse(fault, self._asked)

    def leave(self) -> None:
        """End the turn."""
        super().leave()
        if not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        """Drop the connection."""
        self._connection.abort()


class Connection(Channel):
    """Answers the turns of one client.

    Turns of one lane are answered in order, those of different lanes concurrently.
    """

    def __init__(
        self,
        service: Service,
        runs: Runs,
        client: Handshake,
    ) -> None:
        super().__init__(service, client)
        caller = client.caller
        self._runs = runs
        self._recent: dict[str, Record] = {}
        self._sizes: dict[str, int] = {}
        self._remembered = 0  # bytes of those together
        self._kept = service.budget.hold(caller.tenant)  # for those
        self._lanes: dict[str | None, deque[Waiting]] = {}
        self._waiting = 0  # weight of the queued and running frames
        self._asked = service.budget.hold(caller.tenant)  # for those, if they are many
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: set[Turn] = set()

    async def opened(self) -> None:
        """No-op: the client sends first."""

    async def take(self, data: bytes) -> None:
        """Queue a frame's turn in its lane; refuse an invalid one, or one for which
        there is no room. A heavy one is decoded in a thread, before the next one."""
        size, asked = len(data), None
        weight = HEAVY + 1
        if size <= LARGE:
            weight = size + VALUE * len(data.translate(None, UNMARKED))
        if weight > HEAVY:
            if (decoded := await self._decoded(data)) is None:
                return
            weight, asked = decoded
        elif size > LIGHT:
            weight += widened(data)
        try:
            frame, request = asked or decode_frame(data, self.service.settings)
            lane = frame.stream_id
            queue = self._lanes.get(lane)
            if queue is None and len(self._lanes) >= LANES:
                raise FaultError(crowded(f"{LANES} lanes are open on this connection"))
            if queue is not None and len(queue) >= WAITING:
                raise FaultError(crowded(f"{WAITING} turns are waiting in this lane"))
            waiting = self._waiting + weight
            if waiting > SMALL:
                self._asked.resize(waiting)
            self._waiting = waiting
        except FaultError as error:
            self._refuse(error.fault, data)
            return
        turn = Waiting(frame, request, size, weight)
        if self.service.log is not None:
            turn.entry = self._entry(request.model)
        if queue is not None:
            queue.append(turn)
            return
        self._lanes[lane] = deque([turn])
        task = asyncio.get_running_loop().create_task(self._work(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def expired(self) -> None:
        """Send the error for the time limit."""
        self.write(refusal(TOO_OLD, None))

    def drained(self) -> None:
        """Resume the turns."""
        for turn in tuple(self._turns):
            turn.drained()

    def holds(self) -> tuple[Hold, ...]:
        """Account for the cache and the queued turns."""
        return self._kept, self._asked

    async def finish(self) -> None:
        """Cancel the turns."""
        for turn in [turn for lane in self._lanes.values() for turn in lane]:
            self._log(turn)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._recent.clear()  # cancelled turns were cached as they ended

    # ---- turns ---------------------------------------------------------------------------

    async def _decoded(self, data: bytes) -> tuple[int, tuple[Frame, Request]] | None:
        """Decode a heavy frame in a thread, with its weight; None for one that is refused."""
        hold = self.service.budget.hold(self.caller.tenant)
        try:
            hold.resize(len(data))
            asked = await self.service.decoded(data, self.caller, decode_frame, hold.add)
            return hold.size, asked
        except Exception as error:  # the other lanes continue
            self._refuse(fault_of(error, self.exchange.id, self.caller.key), data)
            return None
        finally:
            hold.close()

    def _refuse(self, fault: Fault, data: bytes) -> None:
        lane = None
        if len(data) <= json.LARGE:
            with suppress(*json.BROKEN):  # even the lane may be invalid
                lane = _decode_lane(data).stream_id
        asked = Waiting(Frame(stream_id=lane), Request(model=""), len(data), entry=self._entry())
        self.refuse(fault, asked)
        self._log(asked)

    def refuse(self, fault: Fault, asked: Waiting) -> None:
        """Send the reason of a turn's end."""
        asked.status = asked.status or error.status(fault)
        if asked.entry is not None:
            asked.entry.end = fault.code
        self.write(refusal(fault, asked.frame.stream_id))

    def _entry(self, model: str = "") -> Entry | None:
        """A new entry of the request log, where it is on."""
        log, caller = self.service.log, self.caller
        if log is None:
            return None
        return Entry(log, model, "cancelled", None, caller.tenant, caller.key)

    def _log(self, asked: Waiting) -> None:
        if asked.entry is not None:
            asked.entry.write("TURN", self.exchange.path, asked.status, self.exchange.id)

    async def _work(self, lane: str | None) -> None:
        """Answer the turns of a lane until there are none."""
        queue = self._lanes[lane]
        try:
            while queue:
                turn = queue.popleft()
                previous = turn.request.previous_response_id
                try:
                    if not await self._answer(turn) and previous is not None:
                        # The response that a failed turn continued must not be continued again.
                        self._forget(bare(previous))
                finally:
                    if turn.found is not None:
                        turn.found.close()
                    if turn.entry is not None:
                        self._log(turn)
                    self._waiting -= turn.weight
                    if self._asked.size:
                        self._asked.resize(self._waiting if self._waiting > SMALL else 0)
        finally:
            del self._lanes[lane]

    async def _answer(self, asked: Waiting) -> bool:
        """Answer a turn; false if it failed."""
        service, caller = self.service, self.caller
        if asked.size > SMALL:
            caller = replace(caller, size=asked.size)

        def count(more: int) -> None:
            asked.found = asked.found or service.budget.hold(caller.tenant)
            asked.found.add(more)

        try:
            if service.roster.over:  # it waited for a turn that was stopped
                raise FaultError(SHUTTING_DOWN)
            memory, request = service.memory, asked.request
            plan: Plan | Awaitable[Plan]
            if memory is not None and request.store is not False:
                plan = memory.plan(RESPONSES.name, request, caller, self._recent, count)
            else:
                plan = self._whole(request, asked.size, count)
            if not isinstance(plan, Plan) or not service.gate.enter_at_once(caller.tenant):
                plan = await service.admit(plan, caller)
            if plan.size > SMALL:
                caller = replace(caller, size=caller.size + plan.size)
            turn = Turn(self, asked, plan, caller)
            turn.start(Warmup(service.engine) if asked.frame.generate is False else None)
        except Exception as error:
            self.refuse(fault_of(error, self.exchange.id, self.caller.key), asked)
            return False
        self._turns.add(turn)
        try:
            await turn.ended
        finally:
            self._turns.discard(turn)
            turn.stop(GONE)
        return not turn.failed

    async def _whole(self, request: Request, size: int, count: Callable[[int], None]) -> Plan:
        """The plan of a turn that is only cached by the connection. Raises FaultError for one
        that is larger, with its references, than a body may be."""
        id, tenant = new_id(), self.caller.tenant
        limit, recent = self.service.settings.body_limit, self._recent
        room = room_of(self.service.settings, count)
        asked = await understand(request, self._runs.store, tenant, room, recent=recent)
        size += asked.size
        if size > limit:
            raise FaultError(too_large(limit))
        record = Record(
            id=id,
            tenant=tenant,
            wire=RESPONSES.name,
            created_at=now(),
            request=asked.whole,
            size=size,
        )
        losses = (NOT_STORED,) if request.store else ()
        run = self._runs.open(record, (), self._remember)
        run.losses = losses
        return Plan(asked.whole, replace(request, store=False), losses, run, size=asked.size)

    def _remember(
        self, record: Record, items: Sequence[Item], messages: Sequence[OutboxMessage]
    ) -> Awaitable[None]:
        """Cache a finished answer. Its last frame follows, which counts it."""
        self._recent[record.id], self._sizes[record.id] = record, record.size
        self._remembered += record.size
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def grow(self, id: str, more: int) -> None:
        """Count more bytes of a cached answer, and evict the oldest ones beyond the limits:
        together, they may be as large as a body."""
        recent, limit = self._recent, self.service.settings.body_limit
        if id not in recent:
            return
        self._sizes[id] += more
        self._remembered += more
        while recent:
            size = self._remembered
            if len(recent) <= MOST and (size <= limit or len(recent) == 1):
                with suppress(FaultError):
                    self._kept.resize(size if size > SMALL else 0)
                    break
            self._forget(next(iter(recent)))

    def _forget(self, id: str) -> None:
        if self._recent.pop(id, None) is not None:
            self._remembered -= self._sizes.pop(id)


def crowded(problem: str) -> Fault:
    """The fault for a full queue."""
    return Fault("rate_limited", f"Too much at once: {problem}.", "client")


PATH = BASE + RESPONSES.path
"""The path of Responses over WebSocket."""

DENIAL = "websocket.http.response"
"""The ASGI extension for a refusal with a status and a body."""

NO_SOCKET = Fault(
    "not_found", f"There is no WebSocket here, only at {PATH} and {BASE}{REALTIME}.", "client"
)
PLAIN = Fault(
    "upgrade_required", "GET opens a WebSocket here: send `Upgrade: websocket`.", "client"
)


class Sockets:
    """Serves the WebSocket connections to one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: Counter[str] = Counter()  # by tenant

    @cached_property
    def _runs(self) -> Runs:
        memory = self._service.memory
        return Runs(MemoryStore(), upkeep=False) if memory is None else memory.runs

    def plain(self, exchange: Exchange, caller: Caller) -> None:
        """Answer a GET that asks for no WebSocket."""
        exchange.refuse(PLAIN, (b"upgrade", b"websocket"))

    def connect(self, client: Handshake) -> Awaitable[None]:
        """Serve a connection. Raises FaultError for an unknown path, and for too many
        connections."""
        if client.exchange.path != PATH:
            raise FaultError(NO_SOCKET)
        most = self._service.settings.max_sockets_per_key
        if self._open[client.caller.tenant] >= most:
            raise FaultError(crowded(f"{most} WebSockets are open (max_sockets_per_key)"))
        made = Connection(self._service, self._runs, client)
        made.open = self._open
        return made.serve()


async def deny(
    fault: Fault, exchange: Exchange, scope: Scope, receive: Receive, send: Send
) -> None:
    """Refuse a connection: as an HTTP error where the host can do that."""
    if exchange.entry is not None:
        exchange.entry.end, exchange.status = fault.code, error.status(fault)
        exchange.end()
    await receive()
    if DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": fault.message[:120]})
        return
    headers = [*exchange.marks, JSON_TYPE]
    if fault.retry_after is not None:
        headers.append((b"retry-after", safe(fault.retry_after)))
    await send({"type": f"{DENIAL}.start", "status": error.status(fault), "headers": headers})
    await send({"type": f"{DENIAL}.body", "body": error.encode(fault)})
