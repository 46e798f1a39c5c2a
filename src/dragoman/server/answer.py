"""The one way to answer a request, whatever its protocol: read, ask the engine, say what it says.

The wire tells what the bytes mean, the engine what to answer; here is the order of things, and
that the work ends when the client goes, when time is up, or when the server shuts down.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Encoder, Engine, Passed
from dragoman.core.request import Request
from dragoman.core.response import default_guarantee
from dragoman.engines.base import batches, relay, straight
from dragoman.stores.base import Record
from dragoman.wire.registry import Wire

from .asgi import Outlet
from .cancellation import TERMINAL, InFlight, Watch, too_late
from .direct import Direct, DirectStream, DirectWhole
from .exchange import Exchange, Handler, fault_of
from .limits import Gate, check_head, check_size, read_body
from .log import Noted
from .settings import DIALECTS, Settings
from .speech import Speech
from .splice import Splice
from .state.resolve import without_memory
from .state.run import Batches, Replay, Run
from .state.service import Memory, Plan
from .stream import Stream
from .whole import whole

Gifts = AsyncGenerator[Passed, None] | AsyncGenerator[list[Event], None]


class Answers:
    """Answers requests of every wire out of one engine."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
        memory: Memory | None = None,
    ) -> None:
        self._engine = Noted(engine) if settings.request_log else engine
        self._memory = memory
        if memory is not None:
            memory.runs.again = partial(self._again, memory)
        self._settings = settings
        self._roster = roster
        self._dialect = DIALECTS[settings.dialect]
        self._gate = gate

    def over(self, wire: Wire) -> Handler:
        """The handler that answers over this wire."""
        return partial(self._answer, wire)

    def at_once(
        self, wire: Wire, exchange: Exchange, caller: Caller, outlet: Outlet
    ) -> Handler | None:
        """Begin to answer without a task. Where that cannot be done nothing has happened but that
        the request was read; then this gives the handler that goes on. Raises FaultError."""
        settings = self._settings
        check_head(exchange, settings.body_limit)
        body = outlet.take_body()
        check_size(len(body), settings.body_limit)
        request = wire.decode_request(body)
        go_on = partial(self._go_on, wire, body, request)
        plan = self._plan_at_once(wire, request)
        if plan is None:
            return go_on
        caller = replace(caller, wire=wire.name)
        engine = straight(self._engine, plan.request, caller)
        unread = settings.relay and request.stream
        if unread and self._passed(body, request, caller, plan) is not None:
            return go_on  # a stream may pass unread, which costs less
        common = (exchange, outlet, caller, settings, self._roster, self._gate)
        direct: Direct
        if plan.request.stream:
            encoder = wire.encoder(plan.echoed, self._dialect)
            direct = DirectStream(*common, self._speech(exchange, encoder, plan))
        else:
            direct = DirectWhole(*common, wire, plan)
        return None if direct.begin(engine, plan) else go_on

    async def _answer(self, wire: Wire, exchange: Exchange, caller: Caller) -> None:
        settings = self._settings
        with Watch(self._roster) as watch:
            body = await read_body(exchange, settings.body_limit, settings.read_time, watch)
        await self._go_on(wire, body, wire.decode_request(body), exchange, caller)

    async def _go_on(
        self, wire: Wire, body: bytes, request: Request, exchange: Exchange, caller: Caller
    ) -> None:
        """Answer a request that was read."""
        watch = Watch(self._roster)
        plan = await self._plan(wire, request, caller)
        caller = replace(caller, wire=wire.name, stored=plan.run is not None)
        unread = self._settings.relay
        passed = self._passed(body, request, caller, plan) if unread else None
        answer = self._streamed if plan.request.stream else self._whole
        await answer(wire, exchange, caller, plan, watch, passed)

    def _passed(self, body: bytes, request: Request, caller: Caller, plan: Plan) -> Gifts | None:
        """The answer as bytes, where nothing was changed and nobody wants to see what is said."""
        if plan.run is not None or plan.request is not request:
            return None
        return relay(self._engine, body, request, caller)

    async def _plan(self, wire: Wire, request: Request, caller: Caller) -> Plan:
        memory = self._memory
        if memory is None:
            return _unkept(request)
        at_once = memory.plan_at_once(wire.name, request)
        return at_once or await memory.plan(wire.name, request, caller)

    def _plan_at_once(self, wire: Wire, request: Request) -> Plan | None:
        memory = self._memory
        return _unkept(request) if memory is None else memory.plan_at_once(wire.name, request)

    def _speech(self, exchange: Exchange, encoder: Encoder, plan: Plan) -> Speech:
        return Speech(
            exchange, encoder, self._settings, plan.losses, default_guarantee(plan.request)
        )

    async def _whole(
        self,
        wire: Wire,
        exchange: Exchange,
        caller: Caller,
        plan: Plan,
        watch: Watch,
        passed: Gifts | None,
    ) -> None:
        fold, body = Fold(), b""
        if plan.background:
            run = await self._work(caller, plan)
            response = run.snapshot
        else:
            with self._attending(watch, exchange, plan):
                async with self._gate, aclosing(passed or self._batches(caller, plan)) as answer:
                    async for batch in answer:
                        if isinstance(batch, bytes):
                            body = batch  # whole, and its end follows
                            continue
                        fold.feed_all(batch)
                        if isinstance(batch[-1], TERMINAL):
                            break
            response = fold.response
        body, headers = whole(wire, response, plan, self._settings, body)
        await exchange.reply(200, body, *headers)

    async def _streamed(
        self,
        wire: Wire,
        exchange: Exchange,
        caller: Caller,
        plan: Plan,
        watch: Watch,
        passed: Gifts | None,
    ) -> None:
        encoder: Encoder = wire.encoder(plan.echoed, self._dialect)
        if plan.run is not None:
            encoder = Replay(encoder)
        elif passed is not None:
            encoder = Splice(encoder)
        speech = self._speech(exchange, encoder, plan)
        stream = Stream(exchange, speech, self._settings)
        try:
            if plan.background:
                run = await self._work(caller, plan)
                with watch:
                    watch.listen(exchange.receive)
                    await stream.run(run.follow(), watch)
                return
            with self._attending(watch, exchange, plan):
                async with self._gate, aclosing(passed or self._batches(caller, plan)) as answer:
                    await stream.run(answer, watch)
        except Exception as error:
            await stream.fail(fault_of(error, exchange.id, caller.key))

    def _batches(self, caller: Caller, plan: Plan) -> Gifts:
        return plan.recorded(batches(self._engine, plan.request, caller))

    async def _work(self, caller: Caller, plan: Plan) -> Run:
        """Start a run that goes on without its client."""
        if self._memory is None or plan.run is None:
            raise RuntimeError("only a server with a memory runs anything in the background")
        await self._memory.runs.work(plan.run, self._admitted(caller, plan.request))
        return plan.run

    async def _admitted(self, caller: Caller, request: Request) -> Batches:
        """The events of a run in the background, once it is its turn."""
        async with self._gate, aclosing(batches(self._engine, request, caller)) as answer:
            async for batch in answer:
                yield batch

    async def _again(self, memory: Memory, record: Record) -> Batches:
        """The events of a run that another server died before."""
        caller = Caller(tenant=record.tenant, wire=record.wire, stored=True)
        async with aclosing(self._admitted(caller, await memory.once_more(record))) as answer:
            async for batch in answer:
                yield batch

    def _attending(self, watch: Watch, exchange: Exchange, plan: Plan) -> Watch:
        """The watch, set to stop what is done for a client that goes, or takes too long."""
        watch.listen(exchange.receive)
        if plan.run is not None:
            plan.run.watch = watch
        if (seconds := self._settings.deadline) is not None:
            watch.limit(seconds, too_late(seconds))
        return watch


def _unkept(request: Request) -> Plan:
    """The plan of a server without a memory. Raises FaultError for a request that needs one."""
    request, losses = without_memory(request)
    return Plan(request, replace(request, store=False), losses)
