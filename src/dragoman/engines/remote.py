"""An engine behind an address: any OpenAI-compatible server, over the wire it speaks best."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing, suppress

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import (
    ANYONE,
    Caller,
    Capabilities,
    Decoder,
    Listener,
    Model,
    Passed,
    Secret,
    Telling,
)
from dragoman.core.item import JSON
from dragoman.core.lower import UpstreamLimits, lower
from dragoman.core.request import Request, completion_request
from dragoman.core.turn import CUT
from dragoman.net.client import Client, Exchange, HeaderFields, Response
from dragoman.net.connection import Connection, Timeouts
from dragoman.net.errors import DisconnectedError, NetError
from dragoman.wire import embeddings, json
from dragoman.wire.protocol import Passing, Through, Wire
from dragoman.wire.registry import WIRES

from . import errors
from .fan_out import Ask, fan_out
from .profiles import Profile
from .upstream import Upstream
from .upstream_request import ENDS, Plan, make_plan

LATE_NEWS = 0.25
"""Seconds to read on after the end, for usage that comes late and to free the connection."""

Course = Callable[[Plan, Exchange], AsyncGenerator[list[Event], None]]
"""The answer to a plan, to be awaited; the exchange is where it was sent, and its head has come."""


class Told:
    """The answer to one plan, told to a listener: a `Telling`."""

    __slots__ = (
        "_course",
        "_ending",
        "_exchange",
        "_free",
        "_late",
        "_listener",
        "_loop",
        "_over",
        "_plan",
        "_reading",
        "_task",
        "_timer",
    )

    def __init__(self, plan: Plan, exchange: Exchange, listener: Listener, course: Course) -> None:
        self._plan = plan
        self._exchange = exchange
        self._listener: Listener | None = listener  # none, once it wants to hear no more
        self._course = course
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._free: asyncio.Event | None = None  # while it is held: what comes when it is not
        self._reading = False  # the head has come, and is a good one
        self._ending = False  # the wire said that it is over
        self._late: list[Event] = []  # what came after that
        self._over = False

    def begin(self, hold: float) -> Told:
        """Send it. A stream is begun after `hold` seconds, whatever the server does."""
        if not self._exchange.begin(self._came):
            self._task = self._loop.create_task(self._connect(fresh=False))
        if self._plan.stream:
            self._timer = self._loop.call_later(hold, self._guard, self._begin)
        return self

    # ---- for the listener ----------------------------------------------------------------

    def stop(self) -> None:
        """Say no more, and let go of the connection."""
        self._listener = None
        self._leave()

    def hold(self) -> None:
        """Read as little as may be."""
        if self._over or self._free is not None:
            return
        self._free = asyncio.Event()
        if self._ending:
            self._quiet()  # late news is not late while nobody reads
        if self._task is None:
            self._exchange.connection.hold()

    def go_on(self) -> None:
        """Read on."""
        if self._over or self._free is None:
            return
        self._free.set()
        self._free = None
        if self._ending:
            self._linger()
        if self._task is None:
            self._exchange.connection.go_on()

    # ---- what comes ----------------------------------------------------------------------

    def _came(self) -> None:
        """Something has come, or nothing more will."""
        try:
            if self._reading or self._is_good(self._exchange.connection):
                self._hear(self._exchange.connection)
        except Exception as error:
            self._break(error)

    def _is_good(self, connection: Connection) -> bool:
        """Whether this is the head of an answer that can be told; any other is seen to."""
        error = connection.error
        if connection.status or error is None:
            response = self._exchange.adopt()
            if response.status != 200 or response.coded:
                self._await()
                return False
            connection.ear = self._came
            self._plan.upstream.note(response)
            self._reading = True
            return True
        if isinstance(error, DisconnectedError) and error.reused and error.before_first_byte:
            # The server had closed the idle connection: it never saw the request.
            self._exchange.close()
            self._task = self._loop.create_task(self._connect(fresh=True))
        else:
            self._fail(error)
        return False

    def _hear(self, connection: Connection) -> None:
        decoder, data = self._plan.decoder, connection.take()
        events = decoder.feed(data) if data else []
        if connection.over:
            self._end(events)
        elif self._ending:
            self._late += events
        else:
            self._ending = decoder.ended
            if self._ending:
                self._linger()
            if events:
                if not self._ending:
                    self._quiet()
                self._say(events)

    def _linger(self) -> None:
        """Wait for late news, but not for long."""
        self._quiet()
        self._timer = self._loop.call_later(LATE_NEWS, self._guard, self._end, [])

    def _end(self, events: list[Event]) -> None:
        """Nothing more comes, or is waited for."""
        plan, error = self._plan, self._exchange.connection.error
        self._leave()
        if error is None or self._ending or plan.decoder.ended:
            last = plan.decoder.close()
        else:
            last = plan.broken(error)
        self._say(self._late + events + last)

    def _fail(self, error: NetError) -> None:
        """There is no answer."""
        self._leave()
        self._say(self._plan.broken(error))

    def _say(self, batch: list[Event]) -> None:
        plan = self._plan
        if batch and (plan.lowered.restore is not None or isinstance(batch[-1], ENDS)):
            batch = plan.given(batch)
        if batch and self._listener is not None:
            self._listener.heard(batch)

    def _begin(self) -> None:
        """It took long enough: the answer begins, empty."""
        self._timer = None
        self._plan.turn.begin()
        self._say(self._plan.turn.take())

    def _leave(self) -> None:
        """The exchange is over, or given up."""
        if self._over:
            return
        self._over = True
        self._quiet()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._exchange.close()

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _guard(self, step: Callable[..., None], *what: object) -> None:
        """Do what no connection asks for; whoever fails, the listener learns of it."""
        try:
            step(*what)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """The engine has failed, or its listener."""
        listener, self._listener = self._listener, None
        self._leave()
        if listener is not None:
            listener.broke(error)

    # ---- what must be awaited ------------------------------------------------------------

    async def _connect(self, *, fresh: bool) -> None:
        """Have a connection, and send the request on it."""
        try:
            await self._exchange.connect(self._came, fresh=fresh)
            self._task = None
            if self._free is not None:
                self._exchange.connection.hold()
        except NetError as error:
            self._task = None
            self._guard(self._fail, error)
        except Exception as error:
            self._task = None
            self._break(error)

    def _await(self) -> None:
        """Have it awaited, from its head on."""
        self._quiet()
        batches = self._course(self._plan, self._exchange)
        self._task = self._loop.create_task(self._pass_on(batches))

    async def _pass_on(self, batches: AsyncGenerator[list[Event], None]) -> None:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    if self._free is not None:
                        await self._free.wait()
                    if self._listener is None:
                        return
                    self._listener.heard(batch)
            self._task = None
            self._leave()
        except Exception as error:
            self._task = None
            self._break(error)


Heard = Callable[[Exchange, bytes], AsyncGenerator[list[Event], None]]
"""Hears an exchange, of which these bytes were read, in the ordinary way, and closes it."""


def through(
    wire: Wire, profile: Profile, limits: UpstreamLimits, body: bytes, request: Request
) -> Through | None:
    """How the answer may pass; None if it must be heard.

    The server must be one that speaks cleanly, the body must say to it what we would, and nothing
    may be rewritten for it.
    """
    if wire.through is None or wire.name not in profile.clean:
        return None
    lowered = lower(request, limits)
    if lowered.request is not request or lowered.restore is not None or lowered.losses:
        return None
    return wire.through if wire.through.passes(request, body, profile.dialect) else None


async def relayed(
    exchange: Exchange, way: Through, heard: Heard, *, stream: bool
) -> AsyncGenerator[Passed, None]:
    """An answer with status 200: bytes that may pass, then one terminal event for how it ended.

    What is no answer, and what is no stream where one was asked for, is heard instead.
    """
    body, response = b"", exchange.response
    if stream and _is_stream(response):
        with closing(exchange):
            async with aclosing(_streamed(response, way.passing())) as gifts:
                async for gift in gifts:
                    yield gift
        return
    if not stream:
        try:
            body = await response.read()
        except BaseException as error:
            exchange.close()
            if not isinstance(error, NetError):
                raise
            yield [Failed(errors.broken(error))]
            return
        if (end := way.whole(body)) is not None:
            exchange.close()
            yield body
            yield [end]
            return
    async with aclosing(heard(exchange, body)) as batches:
        async for batch in batches:
            yield batch


async def _streamed(response: Response, passing: Passing) -> AsyncGenerator[Passed, None]:
    fault = CUT
    try:
        while data := await response.more():
            if whole := passing.feed(data):
                yield whole
            if passing.ended:
                await _read_on(response)
                break
    except NetError as error:
        fault = errors.broken(error)
    except ValueError as problem:
        fault = Fault("upstream_error", f"The model's server sent {problem}.", "upstream")
    rest, end = passing.close(fault)
    if rest:
        yield rest
    yield [end]


async def _read_on(response: Response) -> None:
    """A body that is read to its end frees the connection for the next request."""
    with suppress(TimeoutError, NetError):
        async with asyncio.timeout(LATE_NEWS):
            while await response.more():
                pass


def _is_stream(response: Response) -> bool:
    kind = response.headers.get("content-type") or ""
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


JSON_BODY = ("content-type", "application/json")


class Remote:
    """An engine behind an address.

    - `base_url` is what clients of that server are given, with `/v1` where it has one.
    - `key` is our key to it; with `pass_client_key` the caller's own key travels instead.
    - `wire` is `auto` (find out once, for free), `chat` or `responses`.
    - `profile` names a kind of server; by default it is recognised by its answers.
    - `retries` is how often a 429 or 503 before the first byte is tried again; 0 passes it on.
    - `header_hold` is how many seconds a stream may be silent before it is begun all the same.
    """

    _kind: type[Upstream] = Upstream

    def __init__(
        self,
        base_url: str,
        *,
        key: Secret | str | None = None,
        pass_client_key: bool = False,
        wire: str = "auto",
        profile: str | None = None,
        retries: int = 0,
        header_hold: float = 5.0,
        timeouts: Timeouts | None = None,
        client: Client | None = None,
    ) -> None:
        self.upstream = self._kind(
            base_url,
            key=key,
            pass_client_key=pass_client_key,
            wire=wire,
            profile=profile,
            client=client,
        )
        self._retries = retries
        self._header_hold = header_hold
        self._timeouts = timeouts

    @property
    def base_url(self) -> str:
        """Where the server is."""
        return self.upstream.url

    @property
    def passes_client_key(self) -> bool:
        """Whether callers' own keys travel to the server: then they tell callers apart."""
        return self.upstream.passes_client_key

    @property
    def profile(self) -> Profile:
        """What kind of server it is, as far as is known."""
        return self.upstream.profile

    # ---- the engine ----------------------------------------------------------------------

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer one request by asking the server once."""
        async with aclosing(self.batches(request, caller)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same, with all events of a read at once."""
        if not self.upstream.wires:
            return self._found(request, caller)
        if self._several(request):
            return self._fanned(request, caller)
        try:
            plan = self._plan(request, caller)
        except FaultError as error:
            return _failed(error)
        return self._asked(plan)

    def tell(self, request: Request, caller: Caller, listener: Listener) -> Telling | None:
        """Answer without being awaited, where a connection stands ready; see `Teller`."""
        if not self.upstream.wires or self._several(request):
            return None
        try:
            plan = self._plan(request, caller)
        except FaultError:  # whoever awaits the answer will be told
            return None
        told = Told(plan, self._sent(plan), listener, self._asked)
        return told.begin(self._header_hold)

    async def _found(self, request: Request, caller: Caller) -> AsyncGenerator[list[Event], None]:
        """The batches, once it is known what the server speaks."""
        try:
            await self.upstream.find_out(caller)
        except FaultError as error:
            yield [Failed(error.fault)]
            return
        async with aclosing(self.batches(request, caller)) as batches:
            async for batch in batches:
                yield batch

    def _several(self, request: Request) -> bool:
        """Whether more than one answer is wanted of a server that gives one."""
        if (request.sampling.n or 1) == 1:
            return False
        return not ("chat" in self.upstream.wires and self.profile.choices)

    async def _fanned(self, request: Request, caller: Caller) -> AsyncGenerator[list[Event], None]:
        try:
            async with aclosing(fan_out(self._one(caller), request)) as events:
                async for event in events:
                    yield [event]
        except FaultError as error:
            yield [Failed(error.fault)]

    async def _asked(
        self, plan: Plan, exchange: Exchange | None = None
    ) -> AsyncGenerator[list[Event], None]:
        """The answer to a plan; `exchange` is where it was sent already, and its head has come."""
        first: asyncio.Task[list[Event]] | None = None
        heard = self._hear(plan, exchange)
        try:
            if plan.stream:  # begun after `header_hold`, whatever the server does
                first = asyncio.ensure_future(anext(heard))
                if not (await asyncio.wait((first,), timeout=self._header_hold))[0]:
                    plan.turn.begin()
                    if begun := plan.given(plan.turn.take()):
                        yield begun
                if batch := plan.given(await first):
                    yield batch
            undone = plan.lowered.restore is not None
            async for batch in heard:
                if undone or not batch or isinstance(batch[-1], ENDS):
                    batch = plan.given(batch)
                if batch:
                    yield batch
        finally:
            if first is not None and not first.done():
                first.cancel()
                await asyncio.wait((first,))
            await heard.aclose()

    def relay(
        self, body: bytes, request: Request, caller: Caller
    ) -> AsyncGenerator[Passed, None] | None:
        """The answer as its own bytes, where they need not be looked into; see `Relay`."""
        wire, upstream = WIRES.get(caller.wire or ""), self.upstream
        if wire is None or wire.name not in upstream.wires or wire.name not in self.profile.clean:
            return None
        way = through(wire, self.profile, upstream.limits(request.model), body, request)
        return None if way is None else self._relayed(wire, way, body, request, caller)

    async def _relayed(
        self, wire: Wire, way: Through, body: bytes, request: Request, caller: Caller
    ) -> AsyncGenerator[Passed, None]:
        async def heard(exchange: Exchange, read: bytes) -> AsyncGenerator[list[Event], None]:
            plan = self._plan(request, caller)
            async with aclosing(self._hear(plan, exchange, read)) as batches:
                async for batch in batches:
                    if given := plan.given(batch):
                        yield given

        upstream = self.upstream
        try:
            url, headers = upstream.url + wire.path, upstream.headers(caller)
            exchange = await self._ask(self._exchange(url, headers, body), caller)
        except FaultError as error:
            yield [Failed(errors.without(error.fault, upstream.key_for(caller)))]
            return
        except NetError as error:
            yield [Failed(errors.broken(error))]
            return
        async with aclosing(relayed(exchange, way, heard, stream=request.stream)) as gifts:
            async for gift in gifts:
                yield gift

    def _one(self, caller: Caller) -> Ask:
        return lambda request: self.stream(request, caller)

    def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Go on from a prompt, as the server itself does over `/completions`."""
        return self.stream(completion_request(request, (prompt,), echo=echo), caller)

    async def embed(self, request: dict[str, JSON], caller: Caller = ANYONE) -> dict[str, JSON]:
        """The server's own vectors. Raises FaultError."""
        upstream = self.upstream
        url, said = self.base_url + embeddings.PATH, json.dump(request)
        try:
            async with self._exchange(url, upstream.headers(caller), said) as response:
                if response.status == 200:
                    return embeddings.decode_response(await response.read())
                fault = await upstream.refusal(response, caller)
        except NetError as error:
            fault = errors.broken(error)
        raise FaultError(errors.without(fault, upstream.key_for(caller)))

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The server's own listing. Raises FaultError when it has none to give."""
        return await self.upstream.models(caller)

    async def capabilities(self, model: str) -> Capabilities:
        """What the profile says, and what the server's listing said of the model."""
        limits = self.upstream.limits(model)
        return Capabilities(
            images=limits.images,
            audio=limits.audio,
            custom_tools=limits.custom_tools,
            namespaces=limits.namespaces,
            choices=self.profile.choices,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.upstream.close()

    # ---- one exchange --------------------------------------------------------------------

    def _plan(self, request: Request, caller: Caller) -> Plan:
        return make_plan(self.upstream, request, caller)

    def _exchange(self, url: str, headers: HeaderFields, said: bytes) -> Exchange:
        fields = (JSON_BODY, *headers)
        return self.upstream.client.stream("POST", url, fields, said, timeouts=self._timeouts)

    def _sent(self, plan: Plan) -> Exchange:
        return self._exchange(plan.url, plan.headers, plan.body)

    async def _hear(
        self, plan: Plan, exchange: Exchange | None = None, read: bytes = b""
    ) -> AsyncGenerator[list[Event], None]:
        """Send the request and give the events of each read. Gives at least one list.

        Where it was sent already, `exchange` is that, and `read` what was read of the answer.
        """
        decoder = plan.decoder
        try:
            exchange = await self._ask(exchange or self._sent(plan), plan.caller)
        except FaultError as error:
            plan.turn.fail(error.fault)
            yield plan.turn.take()
            return
        except NetError as error:
            yield plan.broken(error)
            return
        response = exchange.response
        try:
            while data := read or await response.more():
                read = b""
                if events := decoder.feed(data):
                    try:
                        yield events
                    except GeneratorExit:  # who has the end need not wait for more
                        if decoder.ended:
                            await _late(decoder, response)
                        raise
                if decoder.ended:
                    yield (await _late(decoder, response)) + decoder.close()
                    return
            yield decoder.close()
        except NetError as error:
            yield plan.broken(error)
        finally:
            exchange.close()

    async def _ask(self, exchange: Exchange, caller: Caller) -> Exchange:
        """Send a request, again where that is configured, until it is answered with 200.

        Whoever gets the exchange closes it. Raises NetError, and FaultError for a refusal.
        """
        attempt = 0
        while True:
            response = await exchange.open()
            if response.status == 200:
                self.upstream.note(response)
                return exchange
            with closing(exchange):
                if attempt == self._retries or response.status not in (429, 503):
                    raise FaultError(await self.upstream.refusal(response, caller))
                seconds = errors.wait(response.headers.get("retry-after"), attempt)
            await asyncio.sleep(seconds)
            attempt += 1


async def _late(decoder: Decoder, response: Response) -> list[Event]:
    """What comes after the end. Usage may, and a body read to its end frees the connection
    for the next request; neither is waited for long."""
    late: list[Event] = []
    with suppress(TimeoutError, NetError):
        async with asyncio.timeout(LATE_NEWS):
            while data := await response.more():
                late += decoder.feed(data)
    return late


async def _failed(error: FaultError) -> AsyncGenerator[list[Event], None]:
    yield [Failed(error.fault)]
