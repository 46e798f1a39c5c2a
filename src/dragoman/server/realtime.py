"""Realtime over WebSocket: the handshake, the dialect, and a session for each connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.event import Delta, Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import JSON
from dragoman.core.request import Request
from dragoman.core.session_values import (
    Append,
    Command,
    ItemRetrieved,
    Refused,
    ResponseCreated,
    ResponseDone,
    SessionConfig,
    SessionEvent,
    SessionLimits,
)
from dragoman.core.sound import divided
from dragoman.engines.base import Wrapper, new_id
from dragoman.engines.session import TurnSession, Voice
from dragoman.net.threads import reading
from dragoman.voice.speech import NO_TRANSCRIBER
from dragoman.voice.studio import Studio
from dragoman.wire import json
from dragoman.wire.json import Limits
from dragoman.wire.pieces import long_size
from dragoman.wire.realtime import (
    BETA_HEADER,
    BETA_SUBPROTOCOL,
    PATH,
    SECRETS_PATH,
    SUBPROTOCOL,
)
from dragoman.wire.realtime.beta import to_beta, to_ga
from dragoman.wire.realtime.commands import command_of
from dragoman.wire.realtime.events import encode_events
from dragoman.wire.registry import BASE

from .auth import presented
from .cancellation import GONE, too_late
from .channel import LIFETIME, Channel, Handshake, Later, of_message
from .client_secrets import ClientSecret, ClientSecrets
from .exchange import Exchange, Route, fault_of, nothing_at
from .limits import HEAVY, LIGHT, SMALL, weigh, widened
from .log import Entry
from .relay import Relay
from .responder import Service
from .websocket import PLAIN, crowded, deny

if TYPE_CHECKING:
    from dragoman.engines.remote_session import RemoteSession

SOCKET = BASE + PATH

BETA_SESSIONS = ("sessions", "transcription_sessions")
"""The beta API's path for client secrets."""
SPARE = 0.125
"""The part of a key's share of `memory` that the answers of its sessions leave."""
OF_ITS_OWN = Fault(
    "authentication",
    "A client secret opens a session of its own: a call is joined with the key that it was made "
    "with (call_id).",
    "client",
)


class Admitted(Wrapper):
    """The engine behind the gate: each answer of a session takes a place, like a request."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.engine)
        self._service = service

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """The events of the engine, once it has a place."""
        seconds = self._service.settings.deadline
        try:
            async with (
                self._service.gate.place(caller.tenant),
                asyncio.timeout(seconds),
                aclosing(super().stream(request, caller)) as events,
            ):
                async for event in events:
                    yield event
        except TimeoutError:
            yield Failed(too_late(seconds or 0))


class Counted(Wrapper):
    """An engine whose answers count in `memory` while they are made and spoken, like those of
    requests, and whose sound comes a second in each turn of the loop.

    They leave `SPARE` of a share to the sessions' events: without room for those, connections are
    dropped whose clients have read all they were sent, and here only the answer fails.
    """

    def __init__(self, service: Service, engine: Engine) -> None:
        super().__init__(engine)
        self._service = service

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """The events of the engine."""
        budget = self._service.budget
        hold, spare = budget.hold(caller.tenant), budget.hold(caller.tenant)

        def count(more: int) -> None:
            hold.add(more)
            if more > 0:
                spare.resize(int(budget.share * SPARE))
                spare.close()

        counted = replace(caller, count=count)
        try:
            async with aclosing(super().stream(request, counted)) as events:
                async for event in events:
                    match event:
                        case Delta(kind="audio", data=str(data)):
                            for piece in divided(data):  # one may have minutes of sound
                                yield replace(event, data=piece)
                                await asyncio.sleep(0)
                        case _:
                            yield event
        finally:
            hold.close()


def decode_frame(data: bytes, limits: Limits, *, beta: bool = False) -> list[Command]:
    """The commands of a frame. Raises FaultError for one that is no JSON object."""
    json.check_size(data, limits)
    value = json.parse(data).left()
    return [command_of(event) for event in (to_ga(value) if beta else [value])]


def query_of(exchange: Exchange) -> dict[str, str]:
    """The first value of each parameter of the query."""
    return {name: values[0] for name, values in parse_qs(exchange.query.decode()).items()}


class Participant(Protocol):
    """A client of a session."""

    def emit(self, events: list[dict[str, JSON]]) -> bool:
        """Send events of the GA dialect. True where the client reads too slowly."""
        ...

    def close(self) -> None:
        """The session is over: close the connection after its buffer was sent."""
        ...


class ServedSession:
    """One session and its clients: the sink of its events, and work that the server may cancel
    while an answer is in progress.

    Events are sent to all clients, in the order in which they joined; replies to one of them
    (an error, or a retrieved item) to that one alone.
    """

    def __init__(
        self,
        service: Service,
        caller: Caller,
        config: SessionConfig,
        voice: Voice | None,
        request: tuple[str, str],
    ) -> None:
        self.service = service
        self.caller = caller
        self.clients: list[Participant] = []
        self._slow: set[object] = set()  # the clients that pause the answers
        self._asking: Participant | None = None
        self._request = request  # the path and the id of the request that opened it
        self._seed = new_id()
        self._sent = 0
        self._model = config.model
        self._running: dict[str, Entry | None] = {}
        self._held = service.budget.hold(caller.tenant)
        limits = SessionLimits(audio=service.settings.session_audio)
        asking = replace(caller, wire="realtime", count=None)
        reading.set(caller.tenant)  # of all tasks of the session
        engine, apart, counted = Admitted(service), service.turns.take, partial(Counted, service)
        self.live = TurnSession(engine, config, asking, self, voice, limits, apart, counted)

    # ---- for clients ---------------------------------------------------------------------------

    async def join(self, client: Participant) -> None:
        """Join. The first client opens the session; others get its current state."""
        self.clients.append(client)
        if len(self.clients) == 1:
            await self.live.open()
        else:
            client.emit(encode_events(self.live.session.open(), self._event_id))

    def leave(self, client: Participant) -> None:
        """Leave."""
        self.clients.remove(client)
        self.caught_up(client)

    async def take(self, client: Participant, data: bytes, *, beta: bool = False) -> None:
        """Process a frame of a client: usually a command."""
        service, settings = self.service, self.service.settings
        try:
            size = len(data)
            self._hold(self.live.size + size)
            if (weight := weigh(data)) <= HEAVY:
                self._hold(self.live.size + weight + (widened(data) if size > LIGHT else 0))
                if size > SMALL:  # one in a turn of the loop, though many sessions send them
                    async with service.steps.turn(self.caller.tenant):
                        await asyncio.sleep(0)
                commands = decode_frame(data, settings, beta=beta)
            else:
                hold = service.budget.hold(self.caller.tenant)
                try:
                    commands = await service.decoded(
                        data,
                        self.caller,
                        lambda body, limits: decode_frame(body, limits, beta=beta),
                        hold.add,
                    )
                finally:
                    hold.close()
        except Exception as problem:  # the session continues
            self._asking = client
            fault = fault_of(problem, self._request[1], self.caller.key)
            self.receive([Refused(of_message(fault))])
            self._asking = None
            return
        for command in commands:
            self.send(command, client)
            if isinstance(command, Append) and len(command.audio) > LIGHT:
                await self.live.drain()

    def send(self, command: Command, client: Participant | None = None) -> None:
        """Process a command of a client, or of the server itself."""
        asking, self._asking = self._asking, client
        self.live.send(command)
        self._asking = asking
        try:
            self._hold(self.live.size)
        except FaultError as problem:
            self.stop(problem.fault)

    def caught_up(self, client: object) -> None:
        """A client has read its buffer: resume the answers."""
        self._slow.discard(client)
        if not self._slow:
            self.live.resume()

    async def close(self) -> None:
        """End the session."""
        self.service.roster.discard(self)
        for id in [*self._running]:
            self._log(id, None)
        await self.live.close()
        self._held.close()

    # ---- for the session -----------------------------------------------------------------------

    def receive(self, events: list[SessionEvent]) -> None:
        """Send events to the clients."""
        mine: list[SessionEvent] = []  # only for the client that requested them
        if self._asking is not None and len(self.clients) > 1:
            mine = [event for event in events if isinstance(event, Refused | ItemRetrieved)]
            events = [event for event in events if not isinstance(event, Refused | ItemRetrieved)]
        for event in events:
            if isinstance(event, ResponseCreated):
                self._begun(event.response.id)
            elif isinstance(event, ResponseDone):
                self._log(event.response.id, event)
        shown = encode_events(self.shown(events), self._event_id)
        for client in [*self.clients]:
            asked = client is self._asking
            objects = shown + encode_events(mine, self._event_id) if asked else shown
            if objects and client.emit(objects):
                self._slow.add(client)
                self.live.pause()

    def shown(self, events: list[SessionEvent]) -> list[SessionEvent]:
        """The events for clients."""
        return events

    def ended(self, fault: Fault) -> None:
        """Close the clients; the session has sent the reason."""
        for client in [*self.clients]:
            client.close()

    def _event_id(self) -> str:
        self._sent += 1
        return f"event_{self._seed}{self._sent:04x}"

    def _hold(self, size: int) -> None:
        """Account for so many bytes. Raises FaultError where there is no room."""
        self._held.resize(size if size > SMALL else 0)

    # ---- for the server ------------------------------------------------------------------------

    def stop(self, fault: Fault) -> None:
        """End the session for this reason."""
        self.service.roster.discard(self)
        if fault is not GONE:
            self.receive([Refused(fault)])
        self.ended(fault)

    def tick(self, now: float) -> None:
        """No-op: the session has its own clock."""

    def disconnected(self) -> None:
        """No-op: its clients detect it, too."""

    def drained(self) -> None:
        """No-op: its clients report it themselves."""

    def _begun(self, id: str) -> None:
        log, caller = self.service.log, self.caller
        self._running[id] = None
        if log is not None:
            entry = Entry(log, self._model, "cancelled", None, caller.tenant, caller.key)
            self._running[id] = entry
        self.service.roster.works.add(self)

    def _log(self, id: str, done: ResponseDone | None) -> None:
        """Write the log line of a finished answer."""
        entry = self._running.pop(id, None)
        if not self._running:
            self.service.roster.discard(self)
        if entry is not None:
            if done is not None:
                response = done.response
                entry.usage = response.usage
                failed = response.fault.code if response.fault else response.status
                entry.end = "" if response.status == "completed" else failed
            entry.write("TURN", self._request[0], 200, self._request[1])


class Connection(Channel):
    """A client of a session by WebSocket: of its own session, or of an existing one."""

    def __init__(
        self,
        service: Service,
        client: Handshake,
        session: ServedSession,
        *,
        beta: bool,
    ) -> None:
        super().__init__(service, client)
        self._beta = beta
        self._session = session
        self._own = not session.clients

    async def opened(self) -> None:
        """Open the session, or join it."""
        await self._session.join(self)

    async def take(self, data: bytes) -> None:
        """Process a frame of the client."""
        await self._session.take(self, data, beta=self._beta)

    def expired(self) -> None:
        """No-op: the session has sent the error."""

    def drained(self) -> None:
        """The client has read the buffer."""
        self._session.caught_up(self)

    async def finish(self) -> None:
        """End this client's own session."""
        if self in self._session.clients:
            self._session.leave(self)
        if self._own:
            await self._session.close()

    def emit(self, events: list[dict[str, JSON]]) -> bool:
        """Send events to the client."""
        if self._beta:
            events = [each for event in events for each in to_beta(event)]
        return self.write(*map(encode_event, events))


def encode_event(event: dict[str, JSON]) -> bytes | Later:
    """An event as a frame."""
    try:
        return json.encode(event)
    except TypeError:  # it has long texts
        return Later(partial(json.dump, event), long_size(event))
    except UnicodeEncodeError:
        return json.dump(event)


class Realtime:
    """Serves the sessions of one engine; `key` returns what signs client secrets, `studio` has
    their voices."""

    def __init__(
        self, service: Service, key: Callable[[], bytes], studio: Studio | None = None
    ) -> None:
        self._service = service
        self._studio = studio
        self.calls: dict[str, ServedSession] = {}
        """The sessions of the current WebRTC calls, by the calls' ids."""
        self._open: Counter[str] = Counter()  # by tenant
        self._secrets = ClientSecrets(service, key)

    def routes(self) -> list[Route]:
        """The HTTP routes."""
        return [
            Route("GET", SOCKET, self.plain),
            Route("POST", BASE + SECRETS_PATH, self._secrets.make),
            *[Route("POST", f"{SOCKET}/{name}", self.beta_sessions) for name in BETA_SESSIONS],
        ]

    def beta_sessions(self, exchange: Exchange, caller: Caller) -> None:
        """Refuse the beta API's sessions, with the new path."""
        hint = f" Pages get a key for a session by POST {BASE + SECRETS_PATH}, as in the GA API."
        raise FaultError(nothing_at(exchange.path, hint))

    def plain(self, exchange: Exchange, caller: Caller) -> None:
        """Answer a GET without an Upgrade."""
        exchange.refuse(PLAIN, (b"upgrade", b"websocket"))

    def redeem(self, exchange: Exchange) -> ClientSecret | None:
        """The session of a connection's client secret. Raises FaultError for one that is expired
        or used."""
        return self._secrets.redeem(presented(exchange))

    async def connect(self, client: Handshake, secret: ClientSecret | None = None) -> None:
        """Serves a session, or refuses the connection."""
        scope = client.scope
        try:
            made = await self._made(client, secret)
            most = self._service.settings.max_sockets_per_key
            if self._open[client.caller.tenant] >= most:  # others may have come meanwhile
                raise FaultError(crowded(f"{most} sessions are open (max_sockets_per_key)"))
        except FaultError as problem:
            await deny(problem.fault, client.exchange, scope, client.receive, client.send)
            return
        made.open = self._open
        if SUBPROTOCOL in (scope.get("subprotocols") or ()):
            made.subprotocol = SUBPROTOCOL
        # The session ends by itself a little earlier, with an error.
        await made.serve(LIFETIME + 60)

    async def _made(self, client: Handshake, secret: ClientSecret | None) -> Connection | Relay:
        """The requested session. Raises FaultError where none can be opened."""
        service, exchange, caller = self._service, client.exchange, client.caller
        query = query_of(exchange)
        offered = client.scope.get("subprotocols") or ()
        header = exchange.headers.get(BETA_HEADER, b"")
        beta = b"realtime=v1" in header or BETA_SUBPROTOCOL in offered
        if "call_id" in query:
            if secret is not None:
                raise FaultError(OF_ITS_OWN)
            return Connection(service, client, self.call(query["call_id"], caller), beta=beta)
        changes = {} if secret is None else secret.changes
        config = SessionConfig(**changes)
        if query.get("intent") == "transcription":
            config = replace(config, kind="transcription")
        if query.get("model") and not changes.get("model"):  # a secret is for its model alone
            config = replace(config, model=query["model"])
        if not config.model and config.kind == "realtime":
            raise FaultError(bad_request("is missing in the query, ?model=…", "model"))
        if (live := await self.upstream(config.model, caller)) is not None:
            # The other server has the model already, and refuses to change it.
            asked = {name: value for name, value in changes.items() if name != "model"}
            return Relay(service, client, live, config.model, asked, beta=beta)
        request = exchange.path, exchange.id
        session = ServedSession(service, caller, config, await self.voice(config), request)
        return Connection(service, client, session, beta=beta)

    async def upstream(self, model: str, caller: Caller) -> RemoteSession | None:
        """A session of a model's server, if it is a Realtime server. Raises FaultError
        where no engine has it."""
        find = getattr(self._service.engine, "realtime_session", None)
        if find is None or not model:
            return None
        found: RemoteSession | None = await find(model, caller)
        return found

    async def voice(self, config: SessionConfig) -> Voice | None:
        """The voice of one session. Raises FaultError where it can do nothing without one."""
        voice = None
        if self._studio is not None:
            await self._studio.ready()
            voice = self._studio.open()
        if config.kind == "transcription" and (voice is None or not voice.transcribes):
            raise FaultError(NO_TRANSCRIBER)
        return voice

    def call(self, id: str, caller: Caller) -> ServedSession:
        """The session of a call. Raises FaultError for an unknown call."""
        found = self.calls.get(id)
        if found is None or found.caller.tenant != caller.tenant:
            problem = f"There is no call {quoted(id)}; it may have ended."
            raise FaultError(Fault("not_found", problem, "client", "call_id"))
        return found
