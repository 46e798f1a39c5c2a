"""Any OpenAI-compatible server, spoken to over whichever wire it speaks best.

This engine joins a wire to a connection: it encodes the request, sends it, feeds what comes back
to the wire's decoder and hands on the events. What a kind of server needs is a profile's value,
what HTTP needs is the net layer's business, what a byte means is the wire's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing, suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.completion import Completion, prompted
from dragoman.core.error import Code, Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.guarantee import Guarantee, unsure
from dragoman.core.identity import HOPS
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Decoder, Model, Passed
from dragoman.core.item import JSON
from dragoman.core.loss import Loss
from dragoman.core.lower import Limits, Lowered, lower
from dragoman.core.request import Request
from dragoman.core.secret import Secret
from dragoman.core.turn import Turn
from dragoman.net.error import NetError, NetTimeoutError
from dragoman.net.http import Client, Exchange, HeaderFields
from dragoman.net.limits import Timeouts
from dragoman.net.proxy import Proxies
from dragoman.net.response import Response
from dragoman.net.url import parse_url
from dragoman.wire import body, embeddings
from dragoman.wire import error as wire_error
from dragoman.wire.chat import CHAT
from dragoman.wire.codec import Through, Wire
from dragoman.wire.completions import COMPLETIONS
from dragoman.wire.loss import worded
from dragoman.wire.responses import RESPONSES

from . import failure, probe
from .fanout import Ask, fan_out
from .mint import now
from .profiles import BY_NAME, GENERIC, Profile, by_answers, by_url
from .relay import relayed, through
from .turns import new_turn

WIRES = {wire.name: wire for wire in (CHAT, RESPONSES, COMPLETIONS)}
_ENDS = (Finished, Failed)
LATE_NEWS = 0.25
"""Seconds to read on after the end, for usage that comes late and to free the connection."""

_log = logging.getLogger("dragoman")


class Plan(Struct):
    """A request made ready for one wire."""

    wire: Wire
    headers: HeaderFields
    body: bytes
    lowered: Lowered
    turn: Turn
    decoder: Decoder
    stream: bool
    heard: Turn
    """What the server said, where that is parsed once more; else the turn itself."""
    guarantee: Guarantee | None


class Remote:
    """An engine behind an address.

    - `base_url` is what clients of that server are given, with `/v1` where it has one.
    - `key` is our key to it; with `pass_client_key` the caller's own key travels instead.
    - `wire` is `auto` (find out once, for free), `chat` or `responses`.
    - `profile` names a kind of server; by default it is recognised by its answers.
    - `retries` is how often a 429 or 503 before the first byte is tried again; 0 passes it on.
    - `header_hold` is how many seconds a stream may be silent before it is begun all the same.
    """

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
        self.base_url = base_url.rstrip("/")
        parse_url(self.base_url)  # says at once what is wrong with an address
        self._key = failure.sendable(key)
        self._pass_client_key = pass_client_key
        self._retries = retries
        self._header_hold = header_hold
        self._timeouts = timeouts
        self._own_client = client is None
        self._client = client or Client(proxies=Proxies.from_environ(os.environ))
        known = BY_NAME[profile] if profile else by_url(self.base_url)
        self.profile: Profile = known or GENERIC
        self._recognised = known is not None
        self._known_headers: dict[int, HeaderFields] = {}  # by hops; every request has the same
        self._server: str | None = None  # the last `Server` header that told nothing
        self._wires: tuple[str, ...] = (wire,) if wire != "auto" else self.profile.wires
        self._looking: asyncio.Task[probe.Found] | None = None
        self._senses: probe.Senses = {}

    # ---- the engine ----------------------------------------------------------------------

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer one request by asking the server once."""
        async with aclosing(self.batches(request, caller)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def batches(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[list[Event], None]:
        """The same, with all events of a read at once."""
        try:
            if not self._wires:
                await self._find_out(caller)
            several = (request.sampling.n or 1) > 1
            if several and not ("chat" in self._wires and self.profile.choices):
                async with aclosing(fan_out(self._one(caller), request)) as events:
                    async for event in events:
                        yield [event]
                return
            plan = self._plan(request, caller)
        except FaultError as error:
            yield [Failed(error.fault)]
            return
        first: asyncio.Task[list[Event]] | None = None
        heard = self._hear(plan, caller)
        try:
            if plan.stream:  # begun after `header_hold`, whatever the server does
                first = asyncio.ensure_future(anext(heard))
                if not (await asyncio.wait((first,), timeout=self._header_hold))[0]:
                    plan.turn.begin()
                    yield self._given(plan, plan.turn.take(), caller)
                if batch := self._given(plan, await first, caller):
                    yield batch
            undone = plan.lowered.events is not None
            async for batch in heard:
                if undone or not batch or isinstance(batch[-1], _ENDS):
                    batch = self._given(plan, batch, caller)
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
        wire = WIRES.get(caller.wire or "")
        if wire is None or wire.name not in self._wires:
            return None
        way = through(wire, self.profile, self._limits(request.model), body, request)
        return None if way is None else self._relayed(wire, way, body, request, caller)

    async def _relayed(
        self, wire: Wire, way: Through, body: bytes, request: Request, caller: Caller
    ) -> AsyncGenerator[Passed, None]:
        async def heard(exchange: Exchange, read: bytes) -> AsyncGenerator[list[Event], None]:
            plan = self._plan(request, caller)
            async with aclosing(self._hear(plan, caller, exchange, read)) as batches:
                async for batch in batches:
                    if given := self._given(plan, batch, caller):
                        yield given

        try:
            exchange = await self._ask(wire, self._headers(caller), body, caller)
        except FaultError as error:
            yield [Failed(failure.without(error.fault, self._key_for(caller)))]
            return
        except NetError as error:
            yield [Failed(failure.broken(error))]
            return
        async with aclosing(relayed(exchange, way, heard, stream=request.stream)) as gifts:
            async for gift in gifts:
                yield gift

    def _one(self, caller: Caller) -> Ask:
        return lambda request: self.stream(request, caller)

    def _given(self, plan: Plan, batch: list[Event], caller: Caller) -> list[Event]:
        """A batch as the caller gets it: the end stamped, the rewriting of the request undone."""
        if batch and isinstance(end := batch[-1], _ENDS):  # it is the last of all
            batch[-1] = self._stamped(end, plan, caller)
        undo = plan.lowered.events
        return batch if undo is None else [raised for event in batch for raised in undo(event)]

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
        url, said = self.base_url + embeddings.PATH, body.dump(request)
        headers = (("content-type", "application/json"), *self._headers(caller))
        try:
            async with self._client.stream(
                "POST", url, headers, said, timeouts=self._timeouts
            ) as response:
                if response.status == 200:
                    return embeddings.decode_response(await response.read())
                fault = await self._refusal(response, caller)
        except NetError as error:
            fault = failure.broken(error)
        raise FaultError(failure.without(fault, self._key_for(caller)))

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The server's own listing. Raises FaultError when it has none to give."""
        answer = await probe.question(
            self._client, "GET", f"{self.base_url}/models", self._headers(caller), patience=5.0
        )
        if answer.fault is not None:
            raise FaultError(answer.fault)
        if not answer.status:
            raise FaultError(failure.unreachable(f"{self.base_url} did not answer"))
        if answer.status in (401, 403):
            raise FaultError(failure.key_refused(self.base_url, answer.status))
        if answer.status != 200:
            raise FaultError(failure.unreachable(f"{self.base_url} has no model listing"))
        self._recognise(probe.recognise(answer))
        listing = probe.entries(answer.value)
        self._senses = probe.senses(listing)
        return tuple(
            Model(
                entry["id"],
                _text(entry.get("owned_by")),
                _whole(entry.get("created")),
                {
                    "models": entry | _sized(probe.context(entry)),
                    "upstream": {"url": self.base_url, "kind": self.profile.name},
                },
            )
            for entry in listing
            if isinstance(entry.get("id"), str)
        )

    async def capabilities(self, model: str) -> Capabilities:
        """What the profile says, and what the server's listing said of the model."""
        limits = self._limits(model)
        return Capabilities(
            images=limits.images,
            audio=limits.audio,
            custom_tools=limits.custom_tools,
            namespaces=limits.namespaces,
            choices=self.profile.choices,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
        if self._own_client:
            await self._client.aclose()

    # ---- one exchange --------------------------------------------------------------------

    async def _hear(
        self, plan: Plan, caller: Caller, exchange: Exchange | None = None, read: bytes = b""
    ) -> AsyncGenerator[list[Event], None]:
        """Send the request and give the events of each read. Gives at least one list.

        Where it was sent already, `exchange` is that, and `read` what was read of the answer.
        """
        decoder = plan.decoder
        try:
            exchange = exchange or await self._ask(plan.wire, plan.headers, plan.body, caller)
        except FaultError as error:
            plan.turn.fail(error.fault)
            yield plan.turn.take()
            return
        except NetError as error:
            yield self._broken(plan, error)
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
                            await self._late(decoder, response)
                        raise
                if decoder.ended:
                    yield (await self._late(decoder, response)) + decoder.close()
                    return
            yield decoder.close()
        except NetError as error:
            yield self._broken(plan, error)
        finally:
            exchange.close()

    async def _ask(
        self, wire: Wire, headers: HeaderFields, said: bytes, caller: Caller
    ) -> Exchange:
        """Send a body, again where that is configured, until it is answered with 200.

        Whoever gets the exchange closes it. Raises NetError, and FaultError for a refusal.
        """
        url, fields = self.base_url + wire.path, (("content-type", "application/json"), *headers)
        attempt = 0
        while True:
            exchange = self._client.stream("POST", url, fields, said, timeouts=self._timeouts)
            response = await exchange.open()
            if response.status == 200:
                if not self._recognised:
                    self._note_server(response.headers.get("server"))
                return exchange
            with closing(exchange):
                if attempt == self._retries or response.status not in (429, 503):
                    raise FaultError(await self._refusal(response, caller))
                seconds = failure.wait(response.headers.get("retry-after"), attempt)
            await asyncio.sleep(seconds)
            attempt += 1

    async def _late(self, decoder: Decoder, response: Response) -> list[Event]:
        """What comes after the end. Usage may, and a body read to its end frees the connection
        for the next request; neither is waited for long."""
        late: list[Event] = []
        with suppress(TimeoutError, NetError):
            async with asyncio.timeout(LATE_NEWS):
                while data := await response.more():
                    late += decoder.feed(data)
        return late

    def _plan(self, request: Request, caller: Caller) -> Plan:
        """Encode for the wire the caller speaks, or else for the first that can say it all."""
        headers = self._headers(caller)
        names: Sequence[str] = self._wires
        if caller.wire is not None and len(names) > 1 and len(self.profile.wires) > 1:
            names = sorted(names, key=lambda name: name != caller.wire)
        raw = isinstance(request, Completion)
        if raw:
            names = [COMPLETIONS.name]
        lowered = lower(request, self._limits(request.model))
        asked = lowered.request
        if self.profile.only_streams and not asked.stream:
            asked = replace(asked, stream=True)
        refused: FaultError | None = None
        for name in names:
            wire = WIRES[name]
            dialect = self.profile.dialect
            if caller.wire is not None and caller.wire != name:
                # Another protocol's way to say a text is a list; many servers take strings only.
                dialect = replace(dialect, content_parts=False)
            try:
                said, losses = wire.encode_request(asked, dialect)
            except FaultError as error:
                refused = refused or error
                continue
            lost = (*worded(lowered.losses, request, caller.wire), *lowered.placed(losses))
            turn = new_turn(self.profile, asked, lost, raw=raw)
            decoder, streamed = wire.decoder(turn), request.stream
            return Plan(
                wire, headers, said, lowered, turn, decoder, streamed, turn, unsure(request)
            )
        raise refused or FaultError(failure.unreachable(f"{self.base_url} speaks no wire we know"))

    def _broken(self, plan: Plan, error: NetError) -> list[Event]:
        """The connection broke: the end if the answer had ended, else a fault that says how."""
        heard = plan.heard
        if not heard.finishing and (not heard.spoken or isinstance(error, NetTimeoutError)):
            heard.fail(failure.broken(error))
        return [*plan.decoder.close(), *plan.turn.take()]

    async def _refusal(self, response: Response, caller: Caller) -> Fault:
        said = await failure.words(response)
        fault = wire_error.decode(response.status, said, response.headers.get("retry-after"))
        if response.status in (401, 403) and not self._passes(caller):
            return failure.key_refused(self.base_url, response.status)
        if response.status in (401, 403):
            code: Code = "authentication" if response.status == 401 else "permission"
            return replace(fault, code=code, blame="client")
        return fault

    def _stamped(self, event: Finished | Failed, plan: Plan, caller: Caller) -> Finished | Failed:
        """The end, with the time, with a word on demands that the server alone knows of, and with
        one of warning where the profile has one."""
        if event.completed_at is None:
            event = replace(event, completed_at=now())
        if isinstance(event, Failed):
            return replace(event, fault=failure.without(event.fault, self._key_for(caller)))
        if plan.guarantee is not None:
            event = replace(event, guarantee=plan.guarantee)
        limit, usage = self.profile.silent_context, event.usage
        if limit is None or usage is None:
            return event
        if (usage.input_tokens or 0) + (usage.output_tokens or 0) != limit:
            return event
        why = (
            f"prompt and answer together are exactly {limit} tokens: this server cuts longer "
            "prompts without saying so; raise its context size"
        )
        _log.warning("%s: %s", self.base_url, why)
        return replace(event, losses=(*event.losses, Loss("input", "told", why)))

    # ---- the server ----------------------------------------------------------------------

    async def _find_out(self, caller: Caller) -> None:
        """Look once, however many ask at the same time. Raises FaultError where no connection to
        the server can be had; whoever asks next looks again."""
        headers = self._headers(caller)
        if self._looking is None:
            self._looking = asyncio.ensure_future(probe.look(self._client, self.base_url, headers))
            self._looking.add_done_callback(self._looked)
        found = await asyncio.shield(self._looking)
        if found.fault is not None:
            raise FaultError(found.fault)
        self._recognise(found.profile if found.profile is not GENERIC else None)
        self._wires, self._senses = found.wires, found.senses

    def _looked(self, looking: asyncio.Task[probe.Found]) -> None:
        """Forget a look that found nothing, for whatever reason: the next may find more."""
        failed = looking.cancelled() or looking.exception() is not None
        if failed or looking.result().fault is not None:
            self._looking = None

    def _note_server(self, header: str | None) -> None:
        if header != self._server:
            self._server = header
            self._recognise(by_answers(header))

    def _recognise(self, profile: Profile | None) -> None:
        if profile is not None and not self._recognised:
            self.profile, self._recognised = profile, True
            self._known_headers.clear()

    def _limits(self, model: str) -> Limits:
        """What a model can take. A server that lists one model answers every name with that."""
        if not self._senses:
            return self.profile.limits
        only = next(iter(self._senses.values())) if len(self._senses) == 1 else None
        senses = self._senses.get(model, only)
        if senses is None:
            return self.profile.limits
        return replace(self.profile.limits, images="image" in senses, audio="audio" in senses)

    def _passes(self, caller: Caller) -> bool:
        return self._pass_client_key and caller.key is not None

    def _key_for(self, caller: Caller) -> Secret | None:
        return caller.key if self._passes(caller) else self._key

    def _headers(self, caller: Caller) -> HeaderFields:
        """What goes with every request. Raises FaultError for a client's key no header takes."""
        if not self._pass_client_key and (known := self._known_headers.get(caller.hops)):
            return known
        headers: list[tuple[str, str]] = [(HOPS, str(caller.hops + 1))]
        try:
            key = failure.sendable(self._key_for(caller))
        except ValueError as error:  # which does not show the key
            raise FaultError(bad_request(str(error))) from None
        if key:
            name = self.profile.key_header
            value = key.reveal()
            headers.append((name, f"Bearer {value}" if name == "authorization" else value))
        if not self._pass_client_key:
            self._known_headers[caller.hops] = tuple(headers)
        return tuple(headers)


def _sized(context: int | None) -> dict[str, JSON]:
    return {} if context is None else {"context_window": context}


def _text(value: object) -> str:
    return value if isinstance(value, str) else "unknown"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
