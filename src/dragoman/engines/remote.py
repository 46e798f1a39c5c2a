"""Any OpenAI-compatible server, spoken to over whichever wire it speaks best.

This engine joins a wire to a connection: it encodes the request, sends it, feeds what comes back
to the wire's decoder and hands on the events. What a kind of server needs is a profile's value,
what HTTP needs is the net layer's business, what a byte means is the wire's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Code, Fault, FaultError, bad_request
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.identity import HOPS
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Decoder, Model
from dragoman.core.loss import Loss
from dragoman.core.lower import Limits, Lowered, lower
from dragoman.core.request import Request
from dragoman.core.secret import Secret
from dragoman.core.turn import Turn
from dragoman.net.error import NetError, NetTimeoutError
from dragoman.net.http import Client, HeaderFields
from dragoman.net.limits import Timeouts
from dragoman.net.proxy import Proxies
from dragoman.net.response import Response
from dragoman.net.url import parse_url
from dragoman.wire import error as wire_error
from dragoman.wire.chat import CHAT
from dragoman.wire.codec import Wire
from dragoman.wire.loss import worded
from dragoman.wire.responses import RESPONSES

from . import failure, probe
from .fanout import Ask, fan_out
from .mint import new_id, now
from .profiles import BY_NAME, GENERIC, Profile, by_answers, by_url

WIRES = {wire.name: wire for wire in (CHAT, RESPONSES)}
_ENDS = (Finished, Failed)
LATE_NEWS = 0.25
"""Seconds to read on after the end, for usage that comes late and to free the connection."""

_log = logging.getLogger("dragoman")


class _Plan(Struct):
    """A request made ready for one wire."""

    wire: Wire
    headers: HeaderFields
    body: bytes
    lowered: Lowered
    turn: Turn
    decoder: Decoder
    stream: bool


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
        self._server: str | None = None  # the last `Server` header that told nothing
        self._wires: tuple[str, ...] = (wire,) if wire != "auto" else self.profile.wires
        self._looking: asyncio.Task[probe.Found] | None = None
        self._senses: probe.Senses = {}

    # ---- the engine ----------------------------------------------------------------------

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer one request by asking the server once."""
        try:
            if not self._wires:
                await self._find_out(caller)
            several = (request.sampling.n or 1) > 1
            if several and not ("chat" in self._wires and self.profile.choices):
                async with aclosing(fan_out(self._one(caller), request)) as events:
                    async for event in events:
                        yield event
                return
            plan = self._plan(request, caller)
        except FaultError as error:
            yield Failed(error.fault)
            return
        undo = plan.lowered.events
        heard = self._held(plan, caller) if plan.stream else self._hear(plan, caller)
        async with aclosing(heard) as batches:
            async for batch in batches:
                if batch and isinstance(end := batch[-1], _ENDS):  # it is the last of all
                    batch[-1] = self._stamped(end, caller)
                for event in batch:
                    if undo is None:
                        yield event
                    else:
                        for raised in undo(event):
                            yield raised

    def _one(self, caller: Caller) -> Ask:
        return lambda request: self.stream(request, caller)

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
                    "models": entry,
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

    async def _held(self, plan: _Plan, caller: Caller) -> AsyncGenerator[list[Event], None]:
        """The events as they come, begun after `header_hold` whatever the server does."""
        heard = self._hear(plan, caller)
        first = asyncio.ensure_future(anext(heard))
        try:
            if not (await asyncio.wait((first,), timeout=self._header_hold))[0]:
                plan.turn.begin()
                yield plan.turn.take()
            yield await first
            async for events in heard:
                yield events
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait((first,))
            await heard.aclose()

    async def _hear(self, plan: _Plan, caller: Caller) -> AsyncGenerator[list[Event], None]:
        """Send the request and give the events of each read. Gives at least one list."""
        decoder, url = plan.decoder, self.base_url + plan.wire.path
        headers = (("content-type", "application/json"), *plan.headers)
        try:
            for left in range(self._retries, -1, -1):
                async with self._client.stream(
                    "POST", url, headers, plan.body, timeouts=self._timeouts
                ) as response:
                    if response.status in (429, 503) and left:
                        wait = failure.wait(
                            response.headers.get("retry-after"), self._retries - left
                        )
                    elif response.status != 200:
                        plan.turn.fail(await self._refusal(response, caller))
                        yield plan.turn.take()
                        return
                    else:
                        self._note_server(response.headers.get("server"))
                        chunks = response.chunks()
                        async for data in chunks:
                            if events := decoder.feed(data):
                                try:
                                    yield events
                                except GeneratorExit:  # who has the end need not wait for more
                                    if decoder.ended:
                                        await self._late(decoder, chunks)
                                    raise
                            if decoder.ended:
                                break
                        else:
                            yield decoder.close()
                            return
                        yield (await self._late(decoder, chunks)) + decoder.close()
                        return
                await asyncio.sleep(wait)
        except NetError as error:
            yield self._broken(plan, error)

    async def _late(self, decoder: Decoder, chunks: AsyncIterator[bytes]) -> list[Event]:
        """What comes after the end. Usage may, and a body read to its end frees the connection
        for the next request; neither is waited for long."""
        late: list[Event] = []
        with suppress(TimeoutError, NetError):
            async with asyncio.timeout(LATE_NEWS):
                async for data in chunks:
                    late += decoder.feed(data)
        return late

    def _plan(self, request: Request, caller: Caller) -> _Plan:
        """Encode for the wire the caller speaks, or else for the first that can say it all."""
        headers = self._headers(caller)
        names = sorted(self._wires, key=lambda name: name != caller.wire)
        if caller.wire is None or len(self.profile.wires) < 2:
            names = list(self._wires)
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
                body, losses = wire.encode_request(asked, dialect)
            except FaultError as error:
                refused = refused or error
                continue
            turn = Turn(
                new_id(),
                now(),
                request.model,
                losses=(*worded(lowered.losses, request, caller.wire), *lowered.placed(losses)),
                think=self.profile.think,
            )
            return _Plan(wire, headers, body, lowered, turn, wire.decoder(turn), request.stream)
        raise refused or FaultError(failure.unreachable(f"{self.base_url} speaks no wire we know"))

    def _broken(self, plan: _Plan, error: NetError) -> list[Event]:
        """The connection broke: the end if the answer had ended, else a fault that says how."""
        turn = plan.turn
        if not turn.finishing and (not turn.spoken or isinstance(error, NetTimeoutError)):
            turn.fail(failure.broken(error))
        return [*plan.decoder.close(), *turn.take()]

    async def _refusal(self, response: Response, caller: Caller) -> Fault:
        said = await failure.words(response)
        fault = wire_error.decode(response.status, said, response.headers.get("retry-after"))
        if response.status in (401, 403) and not self._passes(caller):
            return failure.key_refused(self.base_url, response.status)
        if response.status in (401, 403):
            code: Code = "authentication" if response.status == 401 else "permission"
            return replace(fault, code=code, blame="client")
        return fault

    def _stamped(self, event: Finished | Failed, caller: Caller) -> Finished | Failed:
        """The end, with the time, and with a word of warning where the profile has one."""
        if event.completed_at is None:
            event = replace(event, completed_at=now())
        if isinstance(event, Failed):
            return replace(event, fault=failure.without(event.fault, self._key_for(caller)))
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
        if not self._recognised and header != self._server:
            self._server = header
            self._recognise(by_answers(header))

    def _recognise(self, profile: Profile | None) -> None:
        if profile is not None and not self._recognised:
            self.profile, self._recognised = profile, True

    def _limits(self, model: str) -> Limits:
        """What a model can take. A server that lists one model answers every name with that."""
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
        headers: list[tuple[str, str]] = [(HOPS, str(caller.hops + 1))]
        try:
            key = failure.sendable(self._key_for(caller))
        except ValueError as error:  # which does not show the key
            raise FaultError(bad_request(str(error))) from None
        if key:
            name = self.profile.key_header
            value = key.reveal()
            headers.append((name, f"Bearer {value}" if name == "authorization" else value))
        return tuple(headers)


def _text(value: object) -> str:
    return value if isinstance(value, str) else "unknown"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
