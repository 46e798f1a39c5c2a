"""Any OpenAI-compatible server, spoken to over whichever wire it speaks best.

This engine joins a plan to a connection: it sends the request, feeds what comes back to the wire's
decoder and hands on the events. What a kind of server needs is a profile's value, what HTTP needs
is the net layer's business, what a byte means is the wire's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing, suppress

from dragoman.core.completion import prompted
from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import (
    ANYONE,
    Caller,
    Capabilities,
    Decoder,
    Listener,
    Model,
    Passed,
    Telling,
)
from dragoman.core.item import JSON
from dragoman.core.request import Request
from dragoman.core.secret import Secret
from dragoman.net.error import NetError
from dragoman.net.http import Client, Exchange, HeaderFields
from dragoman.net.limits import Timeouts
from dragoman.net.response import Response
from dragoman.wire import body, embeddings
from dragoman.wire.codec import Through, Wire

from . import failure
from .fanout import Ask, fan_out
from .plan import ENDS, WIRES, Plan, make_plan
from .profiles import Profile
from .relay import relayed, through
from .tell import LATE_NEWS, Told
from .upstream import Upstream

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
            undone = plan.lowered.events is not None
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
            yield [Failed(failure.without(error.fault, upstream.key_for(caller)))]
            return
        except NetError as error:
            yield [Failed(failure.broken(error))]
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
        return self.stream(prompted(request, (prompt,), echo=echo), caller)

    async def embed(self, request: dict[str, JSON], caller: Caller = ANYONE) -> dict[str, JSON]:
        """The server's own vectors. Raises FaultError."""
        upstream = self.upstream
        url, said = self.base_url + embeddings.PATH, body.dump(request)
        try:
            async with self._exchange(url, upstream.headers(caller), said) as response:
                if response.status == 200:
                    return embeddings.decode_response(await response.read())
                fault = await upstream.refusal(response, caller)
        except NetError as error:
            fault = failure.broken(error)
        raise FaultError(failure.without(fault, upstream.key_for(caller)))

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
                seconds = failure.wait(response.headers.get("retry-after"), attempt)
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
