"""Answers requests of every protocol: resolves state, starts the engine, sends its events.

A responder is the sink of one answer. It folds the events into one body, or encodes each batch into
one write; it ends the engine's work when the client disconnects, time is up or the server shuts
down, and sends one terminal event on every path.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished, ItemDone, Started
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Engine, Handle
from dragoman.core.request import Request
from dragoman.core.response import Guarantee, default_guarantee
from dragoman.engines.base import request_id, start
from dragoman.net.threads import TenantLock, Turns, reading
from dragoman.stores.base import Record
from dragoman.wire import sse
from dragoman.wire.json import LARGE, UNMARKED, VALUE, Limits
from dragoman.wire.losses import header, judge
from dragoman.wire.protocol import Dialect, Wire
from dragoman.wire.registry import BASE, WIRES
from dragoman.wire.responses import RESPONSES

from .cancellation import GONE, TERMINAL, UNFINISHED, InFlight, Watch, end_for, stalled, too_late
from .exchange import JSON_TYPE, Exchange, Handler, Headers, Held, fault_of, report_headers
from .limits import (
    ESCAPED,
    HEAVY,
    LIGHT,
    SMALL,
    Budget,
    Gate,
    check_head,
    measured,
    read_body,
    values_in,
    weigh,
    widened,
)
from .log import Entry, RequestLog
from .settings import DIALECTS, Settings
from .state.run import Run
from .state.service import Memory, Plan, unstarted, unstored

LAST_EVENT = 5.0
"""Seconds to store a cancelled answer, before the client gets its end all the same."""

MANY_TOKENS = 10_000
"""Tokens with log-probabilities, or other values, from which on they are encoded in a thread."""
WAITING = sse.comment("waiting")
"""The heartbeat of a stream that has no event yet."""

SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
"""Headers that prevent proxies from buffering, changing or compressing a stream."""

T = TypeVar("T")


class Service(Struct, frozen=True):
    """The shared services of a server's handlers."""

    engine: Engine
    settings: Settings
    roster: InFlight
    gate: Gate
    lane: Gate
    budget: Budget
    memory: Memory | None = None
    log: RequestLog | None = None
    turns: Turns = field(default_factory=Turns)
    steps: TenantLock = field(default_factory=TenantLock)

    async def read(
        self, exchange: Exchange, caller: Caller, decode: Callable[[bytes, Limits], T]
    ) -> T:
        """Read and decode the body of a request; cancelled when the client disconnects.
        Raises FaultError."""
        if exchange.hold is not None:
            exchange.hold.close()  # of what was read to check that it exists
        hold = self.budget.hold(caller.tenant)
        body = await read_body(exchange, self.settings, self.roster, hold)
        with Watch(self.roster, exchange):
            return await self.decoded(body, caller, decode, hold.add)

    async def decoded(
        self,
        body: bytes,
        caller: Caller,
        decode: Callable[[bytes, Limits], T],
        count: Callable[[int], None],
    ) -> T:
        """Decode a body; its decoded weight is accounted for before it is made.
        Raises FaultError."""
        try:
            if (weight := weigh(body)) <= HEAVY:
                count(weight - len(body) + widened(body))
                return decode(body, self.settings)
            found = None if len(body) > LARGE else (weight - len(body)) // VALUE
            count(await self._apart(partial(measured, found=found), body, caller.tenant))
            return await self._apart(decode, body, caller.tenant)
        finally:
            del body  # the exception refers to this frame

    async def _apart(self, work: Callable[[bytes, Limits], T], body: bytes, tenant: str) -> T:
        """Process a large body in a thread, one at a time: parallel ones would only contend for
        the GIL."""
        await self.lane.enter(tenant)
        try:
            done = asyncio.get_running_loop().run_in_executor(None, work, body, self.settings)
        except BaseException:  # no thread can be started
            self.lane.leave(tenant)
            raise
        done.add_done_callback(lambda _: self.lane.leave(tenant))  # also when we are cancelled
        try:
            return await asyncio.shield(done)
        finally:
            del done, body  # its exception refers to this frame: a reference cycle

    async def decode_request(
        self, wire: Wire, exchange: Exchange, caller: Caller
    ) -> tuple[Request, Caller]:
        """Read and decode a request; its caller has the size of a large one. Raises FaultError."""

        def decode(body: bytes, limits: Limits) -> tuple[Request, int]:
            return wire.decode_request(body, limits), len(body)

        request, size = await self.read(exchange, caller, decode)
        return request, replace(caller, size=size) if size > SMALL else caller

    async def admit(
        self, plan: Plan | Awaitable[Plan], caller: Caller, exchange: Exchange | None = None
    ) -> Plan:
        """Wait for a plan and, for a client, for a place; cancelled when the client
        disconnects. Raises FaultError."""
        with Watch(self.roster, exchange) as watch:
            watch.limit(self.settings.deadline)
            if not isinstance(plan, Plan):
                plan = await plan
            if not plan.background:
                await self.gate.enter(caller.tenant)
        return plan


class Responder(ABC):
    """Passes one answer from an engine on to a client.

    It is the sink of the engine or of the run that records it, the peer of the client's connection,
    and work that the server may cancel.
    """

    listens = True
    """Whether it watches the client of its exchange."""

    _handle: Handle | None = None  # None after the end
    _gated = False  # it holds a place at the gate
    _hold: Held | None = None  # of the request
    _paused = False
    _stopping: Fault | None = None
    _deadline = math.inf
    batches: list[list[Event]] | None = None  # that wait for one to be encoded in a thread
    made: Any = None  # of that
    _encoding: asyncio.Task[None] | None = None
    _found = 0  # events, and tokens and values in them

    def __init__(
        self, service: Service, exchange: Exchange, caller: Caller, plan: Plan, wire: Wire
    ) -> None:
        self.service = service
        self.exchange = exchange
        self.caller = caller
        self.plan = plan
        self.wire = wire
        # A background run does not need its client.
        self._run = None if plan.background else plan.run

    def start(self, engine: Engine | None = None, handle: Handle | None = None) -> None:
        """Start the engine; the place at the gate is taken already. With a handle, an answer
        was started with this sink before."""
        if self.exchange.hold is not None:
            self._hold, self.exchange.hold = self.exchange.hold, None
        asked = self.plan.request.sampling  # what engines count, or may be asked for, is looked at
        self._looks = handle is not None or bool(asked.logprobs or asked.top_logprobs)
        if handle is None:
            self._gated = True
            plan, source = self.plan, start if self._run is None else self._run.start
            caller = replace(
                self.caller, wire=self.wire.name, stored=plan.run is not None, count=self.count
            )
            try:
                handle = source(engine or self.service.engine, plan.request, caller, self)
            except BaseException:
                self.leave()
                raise
        self._handle = handle
        self.service.roster.works.add(self)
        if self.listens:
            self.exchange.listen(self)
        if (seconds := self.service.settings.deadline) is not None and not self.plan.background:
            self._deadline = asyncio.get_running_loop().time() + seconds
            self.schedule()

    def count(self, more: int) -> None:
        """Account for more bytes until the end of the answer. Raises FaultError for no room."""
        if self._gated or self._handle is not None:
            self._looks = True
            self._hold = self._hold or self.service.budget.hold(self.caller.tenant)
            self._hold.add(more)

    @abstractmethod
    def receive(self, events: list[Event]) -> None:
        """Send events to the client, while the answer is not over; after the last one `leave`."""

    def broken(self, error: Exception) -> None:
        """Fail an answer that could not be sent, for instance for events out of order."""
        self.stop(fault_of(error, self.exchange.id, self.caller.key))

    def stop(self, fault: Fault) -> None:
        """Cancel the answer, with this reason, if it is not over."""
        handle, run, ending = self._handle, self._run, self.plan.run
        if handle is None:
            return
        reading = fault is not GONE and fault.code != "stalled"
        if run is None:  # one in the background goes on, unless this server ends it at its shutdown
            reading = fault.code == "shutting_down"
        if ending is not None and reading and not (ending.ended or self._stopping):
            self._stopping = fault  # the end comes through the run, once it is stored
            self._deadline = asyncio.get_running_loop().time() + LAST_EVENT
            self.schedule()
            if run is not None:
                run.stop(fault)
            return
        self.leave()
        try:
            handle.cancel() if run is None else run.abandon(fault)
            self.fail(fault)
        except Exception as error:  # the other answers must be stopped, too
            fault_of(error, self.exchange.id, self.caller.key)
            self.abort()

    def tick(self, now: float) -> None:
        """Called by `InFlight` for the deadline or a heartbeat."""
        if now < self._deadline:
            self.schedule()
        elif self._stopping:
            self.stop(self._stopping)
        else:
            self.stop(too_late(self.service.settings.deadline or 0))

    def disconnected(self) -> None:
        """The client has closed the connection."""
        self.stop(GONE)

    def drained(self) -> None:
        """The client has read the buffer: resume the engine."""
        if self._paused and self._handle is not None:
            self._paused = False
            self._handle.resume()
            self.schedule()  # the next deadline is another one

    def pause(self) -> None:
        """The client reads too slowly: pause the engine."""
        if not self._paused and self._handle is not None:
            self._paused = True
            self._handle.pause()
            self.schedule()  # the next deadline is another one

    def leave(self) -> None:
        """End the answer."""
        self._handle = None
        self.service.roster.discard(self)
        if self._hold is not None:
            self._hold.close()
            self._hold = None
        if self._gated:
            self._gated = False
            self.service.gate.leave(self.caller.tenant)

    def due(self) -> float:
        """When to call `tick`, apart from the deadline."""
        return math.inf

    def schedule(self) -> None:
        """Schedule `tick` for the next deadline, unless the answer is over."""
        due = min(self._deadline, self.due())
        if due < math.inf and self._handle is not None:
            self.service.roster.call_at(self, due)

    def abort(self) -> None:
        """Drop the connection."""
        self.exchange.abort()

    def refuse(self, fault: Fault) -> None:
        """Send a fault with its own status, before the headers are sent."""
        if self.exchange.entry is not None:
            self.exchange.entry.end = fault.code
        if fault is GONE:
            self.exchange.end()
        elif self.exchange.status:
            self.exchange.abort()
        else:
            self.exchange.refuse(fault)

    @abstractmethod
    def fail(self, fault: Fault) -> None:
        """Send the client the reason of the end."""

    def is_much(self, events: list[Event]) -> bool:
        """Whether a batch takes long to encode, by its tokens with log-probabilities, other values
        and text; as does an end in an answer that had so many, or so many events: it repeats them,
        and lets go what waited for it."""
        found = values_in(events, MANY_TOKENS)
        self._found += found + len(events)
        ends = any(isinstance(each, (ItemDone, *TERMINAL)) for each in events)
        return (self._found if ends else found) > MANY_TOKENS

    def apart(self, make: Callable[[list[Event]], object], events: list[Event]) -> None:
        """Encode a batch in a thread. It is received again, as `made`, before later `batches`."""
        self.batches = []
        if self._handle is not None:
            self._handle.pause()  # else more and more waits for it
        self._encoding = asyncio.ensure_future(self._encode_apart(make, events))

    async def _encode_apart(
        self, make: Callable[[list[Event]], object], events: list[Event]
    ) -> None:
        reading.set(self.caller.tenant)
        try:
            self.made = await self.service.turns.take(make, events)
        except Exception as error:
            self.batches = None
            self.broken(error)
            return
        batches, self.batches = self.batches or [], None
        for batch in (events, *batches):
            self.receive(batch)
        if self._handle is not None and not self._paused and self.batches is None:
            self._handle.resume()
        self.schedule()


class Unary(Responder):
    """A response in one body."""

    _fold: Fold | None = None

    def receive(self, events: list[Event]) -> None:
        """Collect events; the last one sends the answer."""
        if self._handle is None:
            return
        plan, wire, last = self.plan, self.wire, events[-1]
        try:
            if plan.run is not None and plan.run.response is not None:
                fold, response = plan.run.fold, plan.run.response
            else:
                fold = self._fold = self._fold or Fold()
                if self.made is None:
                    fold.feed_all(events)
                if not isinstance(last, TERMINAL):
                    return
                response = fold.response
            if self.exchange.entry is not None and isinstance(last, TERMINAL):
                self.exchange.entry.note(last)
            if response.status in ("failed", "in_progress"):
                self.refuse(response.error or UNFINISHED)
            else:
                dialect, body = DIALECTS[self.service.settings.dialect], self.made
                if body is None:
                    if (self._hold is not None and self._hold.size > HEAVY) or (
                        self._looks and values_in(response.output, MANY_TOKENS) > MANY_TOKENS
                    ):
                        make = partial(wire.encode_response, response, plan.echoed, dialect)
                        self.apart(lambda _: make(), events)
                        return
                    body = wire.encode_response(response, plan.echoed, dialect)
                losses = plan.losses + response.losses + judge(response, wire.losses)
                guarantee = response.guarantee or default_guarantee(plan.request)
                headers = report_headers(losses, guarantee) if losses or guarantee else ()
                self.exchange.reply(200, body, *headers)
            self.leave()
        except Exception as error:
            self.broken(error)

    def fail(self, fault: Fault) -> None:
        """Refuse the request."""
        self.refuse(fault)


class Stream(Responder):
    """A response as server-sent events, with backpressure.

    The head waits for the first event, so that a failure before it has a status of its own; silence
    is filled with heartbeats; a client that does not read is disconnected. With `first` the reader
    of a stored answer already has the frames before that number.
    """

    _begun = False  # an event was encoded
    _unread = 0  # unread bytes at the last check

    def __init__(
        self,
        service: Service,
        exchange: Exchange,
        caller: Caller,
        plan: Plan,
        wire: Wire,
        dialect: Dialect | None = None,
        first: int | None = None,
    ) -> None:
        super().__init__(service, exchange, caller, plan, wire)
        self._encoder = wire.encoder(plan.echoed, dialect or DIALECTS[service.settings.dialect])
        self._losses = plan.losses
        self._guarantee: Guarantee | None = default_guarantee(plan.request)
        agent = exchange.header(b"user-agent").lower()
        # An event would take a sequence number, and the stored ones would shift.
        stored = plan.run is not None or first is not None
        self._data = not stored and any(w in agent for w in service.settings.heartbeat_data)
        self._skip = first or 0
        self._now = asyncio.get_running_loop().time
        self._since = self._now()  # of the last write

    def receive(self, events: list[Event]) -> None:
        """Encode a batch, and write it."""
        if self._handle is None:
            return
        if self.batches is not None:
            self.batches.append(events)
            return
        exchange, last = self.exchange, events[-1]
        end = last if isinstance(last, TERMINAL) else None
        try:
            if not self._begun and self.made is None:
                first = events[0]
                if isinstance(first, Failed) and not exchange.status:
                    self.refuse(first.fault)
                    self.leave()
                    return
                if isinstance(first, Started):
                    # The headers were sent before the first event.
                    if exchange.status and (comment := self._late(first)):
                        exchange.write(comment, more=True)
                    self._losses += first.losses
                    self._guarantee = first.guarantee or self._guarantee
            if self.made is not None:
                data, self.made = self.made, None
            elif self._looks and self.is_much(events):
                self.apart(self._encoded, events)
                return
            else:
                data = self._encoder.feed(events) if end is None else self._encoded(events)
            self._begun = True
            if self._skip:
                data, self._skip = sse.unseen(data, self._skip)
                if self._skip and end is not None and not exchange.status:
                    problem = "is beyond the last event of this response"
                    self.refuse(bad_request(problem, "starting_after"))
                    self.leave()
                    return
            if end is not None:
                self._end(data, end)
            elif data:
                if not exchange.status:
                    self._open()
                full = exchange.write(data, more=True)
                if not self._paused:  # or the client's timeout is running since then
                    self._since = self._now()
                    if full:
                        self.pause()
                else:
                    self._unread += len(data)
        except FaultError as error:
            if end is not None:  # no room for the end: another end would be as large
                self.stop(replace(error.fault, code="stalled"))
            else:
                self.broken(error)
        except Exception as error:
            self.broken(error)

    def fail(self, fault: Fault) -> None:
        """Send the end, as a plain error while that is possible."""
        if fault is GONE:
            self.exchange.end()
        elif fault.code == "stalled" or self.batches is not None:
            self.exchange.abort()  # the client does not read, or the encoder is in a thread
        elif (self.exchange.status or self._begun) and not self.plan.background:
            end = end_for(fault)
            self._end(self._encoder.feed((end,)), end)
        else:  # or a stored response goes on, whose numbered events the client reads again
            self.refuse(fault)

    def _encoded(self, events: list[Event]) -> bytes:
        """The encoded bytes of a batch."""
        encoder, last = self._encoder, events[-1]
        if isinstance(last, Finished) and (comment := self._late(last)):
            return encoder.feed(events[:-1]) + comment + encoder.feed((last,))
        return encoder.feed(events)

    def _open(self) -> None:
        """Send the headers."""
        headers = report_headers(self._losses, self._guarantee)
        self.exchange.open(200, [*SSE_HEADERS, *headers])
        self._since = self._now()
        self.schedule()  # the next deadline is another one

    def _end(self, data: bytes, end: Finished | Failed) -> None:
        """Send the last bytes."""
        exchange = self.exchange
        if exchange.entry is not None:
            exchange.entry.note(end)
        if not exchange.status:
            self._open()
        exchange.write(data, more=False)
        exchange.end()
        self.leave()

    def start(self, engine: Engine | None = None, handle: Handle | None = None) -> None:
        """The same; also start heartbeats."""
        super().start(engine, handle)
        self.schedule()

    def pause(self) -> None:
        """The same; also start the check for a stalled client."""
        self._unread = self.exchange.unread
        super().pause()

    def drained(self) -> None:
        """The same; the client is reading."""
        self._since = self._now()
        super().drained()

    def due(self) -> float:
        """When a heartbeat, or the check for a stalled client, is due."""
        if self.batches is not None:
            return math.inf
        settings = self.service.settings
        if self.exchange.full:
            return self._since + settings.stall
        return self._since + (settings.heartbeat if self.exchange.status else settings.header_hold)

    def tick(self, now: float) -> None:
        """The same; send a heartbeat."""
        if self.due() <= now < self._deadline:
            exchange, settings = self.exchange, self.service.settings
            if exchange.full:
                # One large write may take longer to read than that time.
                unread, before = exchange.unread, self._unread
                if not unread or unread > before - settings.min_rate * settings.stall:
                    self.stop(stalled(settings.stall))
                    return
                self._unread, self._since = unread, now
                self.schedule()
                return
            try:
                if not exchange.status:
                    self._open()
                self._since = now
                if exchange.write(self._encoder.heartbeat(data=self._data) or WAITING, more=True):
                    self.pause()
            except Exception as error:  # `InFlight` continues with the others
                self.broken(error)
        super().tick(now)

    def _late(self, event: Started | Finished) -> bytes:
        """The report of losses and the guarantee, as comments: the headers are sent already."""
        late = header(event.losses)
        comments = sse.comment(f"x-dragoman-loss: {late}") if late else b""
        if event.guarantee in (None, self._guarantee):
            return comments
        return comments + sse.comment(f"x-dragoman-guarantee: {event.guarantee}")


class Answers:
    """Handles requests of every wire with one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service
        if service.memory is not None:
            service.memory.runs.launch = self._launch

    def over(self, wire: Wire) -> Handler:
        """The handler of a wire's path."""
        return partial(self._answer, wire)

    def replay(self, record: Record, first: int, exchange: Exchange, caller: Caller) -> None:
        """Send the events of a stored response, from the frame with this number on. For one that
        has ended, everything buffered is accounted for."""
        if self._service.memory is None:
            raise RuntimeError("only a server with a store has stored responses")
        runs, request, dialect = self._service.memory.runs, record.request, DIALECTS[record.dialect]
        plan = Plan(request, request, run=runs.live.get(record.id), background=True)
        responder = Stream(self._service, exchange, caller, plan, RESPONSES, dialect, first)
        responder.start(handle=runs.send(record, responder, responder.stop))

    async def _when_read(self, wire: Wire, exchange: Exchange, caller: Caller) -> None:
        request, caller = await self._service.decode_request(wire, exchange, caller)
        rest = self._answer(wire, exchange, caller, request)
        if rest is not None:
            await rest

    def _answer(
        self, wire: Wire, exchange: Exchange, caller: Caller, request: Request | None = None
    ) -> Awaitable[None] | None:
        """Resolve the request's references, and answer. Returns an awaitable where the body, a
        lookup or a place has to be waited for."""
        if request is None:
            headers, settings, body = exchange.headers, self._service.settings, exchange.whole
            if headers.get(b"content-type") != JSON_TYPE[1] or b"content-encoding" in headers:
                check_head(exchange, settings.body_limit)  # the fast path of most requests
            size = weight = len(body or b"")
            if body and size > LIGHT:
                weight += VALUE * len(body.translate(None, UNMARKED))
                if not body.isascii() or ESCAPED.search(body):
                    weight += widened(body)
            if body is None or size > settings.body_limit or weight > HEAVY:
                return self._when_read(wire, exchange, caller)
            if weight > SMALL:
                exchange.count(weight)
                caller = replace(caller, size=size) if size > SMALL else caller
            exchange.whole = None
            request = wire.decode_request(body, settings)
        if exchange.entry is not None:
            exchange.entry.model, exchange.entry.end = request.model, "cancelled"
        memory = self._service.memory
        if memory is None:
            plan: Plan | Awaitable[Plan] = unstored(request)
        else:
            plan = memory.plan(wire.name, request, caller, None, exchange.count)
        gate = self._service.gate
        if isinstance(plan, Plan) and not plan.background and gate.enter_at_once(caller.tenant):
            kind: type[Responder] = Stream if plan.request.stream else Unary
            kind(self._service, exchange, caller, plan, wire).start()
            return None
        return self._when_resolved(wire, plan, exchange, caller)

    async def _when_resolved(
        self, wire: Wire, plan: Plan | Awaitable[Plan], exchange: Exchange, caller: Caller
    ) -> None:
        service, memory = self._service, self._service.memory
        plan = await service.admit(plan, caller, exchange)
        if plan.size > SMALL:
            caller = replace(caller, size=caller.size + plan.size)
        if not plan.background:
            kind: type[Responder] = Stream if plan.request.stream else Unary
            kind(service, exchange, caller, plan, wire).start()
            return
        if memory is None or plan.run is None:
            raise RuntimeError("only a server with a store runs anything in the background")
        if exchange.entry is not None:
            exchange.entry.end = ""  # the run has a log line of its own, at its end
        await memory.runs.begin_in_background(plan.run, plan.request, caller)
        if not plan.run.ended:  # the request is held until then
            plan.run.hold, exchange.hold = exchange.hold, None
        if plan.request.stream:
            responder = Stream(service, exchange, caller, plan, wire)
            responder.start(handle=memory.runs.send(plan.run.record, responder, responder.stop))
        else:
            response, dialect = unstarted(plan.run.record), DIALECTS[service.settings.dialect]
            body = wire.encode_response(response, plan.echoed, dialect)
            exchange.reply(200, body, *report_headers(plan.losses))

    async def _launch(self, run: Run, request: Request | None, caller: Caller) -> None:
        """Execute a background run, which has a place; without a request, that of the
        record."""
        service, record, entry = self._service, run.record, None
        hold = run.hold = run.hold or service.budget.hold(record.tenant)
        if service.log is not None:
            entry = Entry(service.log, record.request.model, "", None, caller.tenant, caller.key)
        try:
            if request is None and service.memory is not None:
                request_id.set(record.id)  # it was stored by the task of another request
                request = await service.memory.reread(record, hold.add)
            caller = replace(caller, wire=record.wire, stored=True, count=hold.add)
            if request is not None:
                run.start(service.engine, request, caller, None)
            await run.finished()
        except Exception as error:
            run.stop(fault_of(error, record.id, caller.key))
            await run.finished()
        finally:
            hold.close()  # it may have ended while its request was loaded
        if entry is not None and isinstance(last := run.events[-1], TERMINAL):
            entry.note(last)
            wire = WIRES[record.wire]
            status = run.response.status if run.response is not None else "failed"
            entry.write("RUN", BASE + wire.path, status, f"{wire.id_prefix}{record.id}")
