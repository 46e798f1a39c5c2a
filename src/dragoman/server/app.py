"""The ASGI application: routes, access, and the engine's middleware."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.interfaces import ANYONE, HOPS_HEADER, Caller, Engine
from dragoman.engines.base import request_id
from dragoman.engines.compaction import Compacting, Truncating
from dragoman.engines.reasoning import EncryptingReasoning, ReasoningCipher, RetryingReasoning
from dragoman.engines.reasoning_cache import CachingReasoning, ReasoningCache
from dragoman.engines.router import Prompted
from dragoman.net.threads import Turns, reading
from dragoman.stores.base import StoreError
from dragoman.tools.files import FileSearch
from dragoman.tools.run import Hosted
from dragoman.voice.studio import Studio
from dragoman.wire import json
from dragoman.wire.registry import BASE, WIRES

from .asgi import ROOM, ASGIExchange, Receive, Scope, Send
from .audio import AudioHandlers
from .auth import Browsers, Keys
from .calls import CALLS, Calls
from .cancellation import GONE, SHUTTING_DOWN, InFlight
from .channel import Handshake
from .endpoints import Endpoints
from .exchange import CREDENTIALS, Exchange, MethodNotAllowedError, Route, Router, fault_of
from .files import FileHandlers, refusing
from .limits import Budget, Gate
from .log import Entry, RequestLog
from .realtime import SOCKET as REALTIME
from .realtime import Realtime
from .responder import Answers, Service
from .settings import Settings
from .state.files import Library
from .state.handlers import METHODS, STORED, Handlers
from .state.service import Memory
from .websocket import PATH as SOCKET
from .websocket import Sockets, deny


def with_middleware(
    engine: Engine,
    settings: Settings,
    cipher: ReasoningCipher | None = None,
    share: float = 1.0,
    tools: Sequence[Hosted] = (),
) -> Engine:
    """The engine, with all that makes conversations last around it, and these tools; `share` is the
    part of the cached reasoning that one tenant may have."""
    short = Compacting(Truncating(RetryingReasoning(engine, again=settings.reasoning_retry)))
    engine = CachingReasoning(short, ReasoningCache(settings.reasoning_cache, share))
    if tools:
        from dragoman.agent.hosted import HostedTools  # imported only where needed

        engine = HostedTools(engine, tools)
    return engine if cipher is None else EncryptingReasoning(engine, cipher)


_HOPS = HOPS_HEADER.encode()
_SECRET = secrets.token_bytes(32)
"""Derives tenant names, and the key of client secrets, where there is no store. The workers of a
server share it."""
MAX_HOPS = 8
"""Dragomans in a row before the request is refused as a loop."""

NO_FILES = "This server takes no files; start it with --tool files."
NO_STORE = "This server stores nothing (--store none), and so no files."
NO_WEBSOCKET = Fault("not_found", "There is no WebSocket here; ask by POST.", "client")
"""For clients that try a WebSocket first: at a 404 they fall back to HTTP."""


class App:
    """An ASGI 3 application. `drain` ends its work, `close` releases its engine and its tools.

    What its settings name is opened by others (`build.application`): without `memory` nothing is
    stored, and without a `studio` nothing spoken.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        memory: Memory | None = None,
        tools: Sequence[Hosted] = (),
        studio: Studio | None = None,
    ) -> None:
        plain, opened = Settings(), {"store": memory, "speech": studio, "transcription": studio}
        named = [name for name, by in opened.items() if by is None]
        named = [n for n in named if getattr(settings, n) not in ("none", getattr(plain, n))]
        if named or len(settings.keys) < len(settings.api_key_env):
            ignored = (*named, "api_key_env")[0]
            raise ValueError(f"App ignores {ignored}: call dragoman.asgi(engine, settings).")
        passed = getattr(engine, "passes_client_key", False)
        share = settings.share if passed or len(settings.keys) > 1 else 1.0
        cipher = None if memory is None else memory.cipher
        searches = [tool for tool in tools if isinstance(tool, FileSearch)]
        library = None
        if searches and memory is not None:
            library = searches[0].searched = Library(memory.store, engine, settings, share)
        engine = with_middleware(engine, settings, cipher, share, tools)
        self._engine = engine
        self._memory = memory
        self._studio = studio or Studio(None, None)
        self._settings = settings
        self._roster = InFlight()
        self._keys = Keys(
            settings, (lambda: _SECRET) if memory is None else (lambda: memory.store.secret)
        )
        self._browsers = Browsers(settings)
        gate = Gate(settings.concurrency, settings.queue, settings.queue_time, share)
        self.budget = budget = Budget(settings.memory, int(settings.memory * share))
        if memory is not None:
            # Keys are not stored: a run that was begun with its client's cannot be begun again.
            memory.runs.requeue = settings.requeue and not passed
            memory.runs.budget = budget
            memory.runs.places = Gate(settings.background, settings.background_queue, None, share)
        lane = Gate(1, settings.queue, settings.queue_time, share)
        self._log = RequestLog(
            settings.log_format == "json",
            self._keys.name,
            getattr(engine, "upstream_name", lambda model: ""),
        )
        log = self._log if settings.request_log else None
        turns = Turns() if memory is None else memory.store.turns
        service = Service(engine, settings, self._roster, gate, lane, budget, memory, log, turns)
        answers = Answers(service)
        prompts = Answers(replace(service, engine=Prompted(engine), memory=None))
        self._sockets = Sockets(service)
        self._realtime = Realtime(service, self._keys.signing, studio)
        self._calls = Calls(service, self._realtime, share)
        routes = [
            Route("GET", SOCKET, self._sockets.plain),
            Route("GET", "/healthz", self._health, public=True),
            Route("GET", "/readyz", self._readiness, public=True),
            *Endpoints(service).routes(),
            *AudioHandlers(service, self._studio, share).routes(),
            *self._realtime.routes(),
            *self._calls.routes(),
        ]
        for wire in WIRES.values():
            handler = (answers if wire.conversation else prompts).over(wire)
            routes.append(Route("POST", BASE + wire.path, handler))
        if memory is not None:
            lists = Gate(1, settings.queue, settings.queue_time, share)
            routes += Handlers(memory, self._roster, lists, service.read, answers.replay).routes()
        else:
            routes += [Route(each, path, _refuse_stored) for path in STORED for each in METHODS]
        if library is not None:
            routes += FileHandlers(service, library).routes()
        else:
            routes += refusing(NO_STORE if searches else NO_FILES)
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._lifespan(receive, send)
            return
        method = scope["method"] if kind == "http" else "GET"
        exchange = ASGIExchange(method, scope, receive, send, self._settings.stall)
        if kind == "http":
            await exchange.run(self.handle(exchange))
        else:
            await self._websocket(exchange, scope, receive, send)

    def handle(self, exchange: Exchange) -> Awaitable[None] | None:
        """Answer a request. Returns a coroutine to await, if any, which never raises."""
        request_id.set(exchange.id)
        if self._settings.request_log:
            exchange.entry = self.entry()
        caller, secret = ANYONE, None
        headers, path = exchange.headers, exchange.path
        try:
            if exchange.repeated:
                _check_once(exchange)
            if path not in self._router.public:
                if b"origin" in headers or headers.get(b"host") not in self._browsers.plain:
                    self._browsers.check(exchange)
                    if exchange.method == "OPTIONS" and self._browsers.preflight(exchange):
                        return None
                if path == CALLS and (secret := self._realtime.redeem(exchange)) is not None:
                    caller = secret.caller
                else:
                    caller = self._caller(exchange)
                exchange.tenant = caller.tenant
                reading.set(caller.tenant)  # of all that the store is asked for this request
                exchange.budget = self.budget
            if b"upgrade" in headers and exchange.header(b"upgrade").lower() == "websocket":
                raise FaultError(NO_WEBSOCKET)
            handler = self._router.handlers.get((exchange.method, path))
            if handler is None:
                handler = self._router.find(exchange.method, path).handler
            if secret is None:
                rest = handler(exchange, caller)
            else:
                rest = self._calls.make(exchange, caller, secret)
        except Exception as error:
            _refuse(error, exchange, caller)
            if exchange.hold is not None:
                exchange.hold.close()
            return None
        return None if rest is None else _finish(rest, exchange, caller)

    def entry(self) -> Entry | None:
        """A new entry of the request log, where it is on."""
        return Entry(self._log) if self._settings.request_log else None

    @property
    def busy(self) -> int:
        """The number of answers in progress for clients."""
        return len(self._roster.works)

    @property
    def background(self) -> int:
        """The number of answers in progress in the background."""
        return 0 if self._memory is None else self._memory.runs.background

    async def drain(self, patience: float) -> None:
        """Refuse new requests, and stop running ones that do not end within `patience` seconds,
        also in the background."""
        ending = [self._roster.drain(patience)]
        if self._memory is not None:
            ending.append(self._memory.runs.drain(patience))
        await asyncio.gather(*ending)
        await self._calls.close()

    def stop_all(self) -> None:
        """Stop running requests now."""
        self._roster.stop_all()
        if self._memory is not None:
            self._memory.runs.stop_all()

    async def rest(self) -> None:
        """End background runs; what is stored remains."""
        if self._memory is not None:
            await self._memory.runs.close()

    async def close(self) -> None:
        """End background runs, and close the store and the engine."""
        await self._calls.close()
        if self._memory is not None:
            await self._memory.close()
        await self._studio.close()
        await self._engine.close()

    def _websocket(
        self, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        try:
            request_id.set(exchange.id)
            exchange.entry = self.entry()
            _check_once(exchange)
            self._browsers.check(exchange)
            room = scope.get("extensions", {}).get(ROOM)
            if exchange.path == REALTIME:
                secret = self._realtime.redeem(exchange)
                caller = self._caller(exchange) if secret is None else secret.caller
                client = Handshake(exchange, caller, scope, receive, send, room)
                return self._realtime.connect(client, secret)
            caller = self._caller(exchange)
            return self._sockets.connect(Handshake(exchange, caller, scope, receive, send, room))
        except FaultError as error:
            return deny(error.fault, exchange, scope, receive, send)

    def _caller(self, exchange: Exchange) -> Caller:
        """The caller. Raises FaultError without a valid key, while the server shuts down, and for a
        request in a loop."""
        headers = exchange.headers
        tenant, key = "", None
        if self._keys.needed or not headers.keys().isdisjoint(CREDENTIALS):
            tenant, key = self._keys.check(exchange)
        if self._roster.closing:
            raise FaultError(SHUTTING_DOWN)
        hops = 0
        if _HOPS in headers:
            count = exchange.header(_HOPS)
            hops = int(count[:9]) if count.isdecimal() else 0
            if hops > MAX_HOPS:
                problem = f"has passed {hops} servers like this one; an upstream leads back to it"
                raise FaultError(bad_request(problem, HOPS_HEADER))
        if exchange.entry is not None:
            exchange.entry.tenant, exchange.entry.key = tenant, key
        for name, value in exchange.passed:
            if not value.replace("\t", " ").isprintable():  # not every ASGI server checks that
                raise FaultError(bad_request("holds characters that no header may have", name))
        return Caller(
            tenant,
            key,
            trace=exchange.id,
            hops=hops,
            headers=exchange.passed,
            bearer=b"x-api-key" not in headers,
        )

    def _health(self, exchange: Exchange, caller: Caller) -> None:
        exchange.reply(200, json.dump({"status": "ok"}))

    def _readiness(self, exchange: Exchange, caller: Caller) -> None:
        if self._roster.closing:
            raise FaultError(SHUTTING_DOWN)
        exchange.reply(200, json.dump({"status": "ready"}))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self._memory is not None:
                    with suppress(StoreError):  # the upkeep tries again
                        await self._memory.store.ready()
                    self._memory.begin()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _refuse_stored(exchange: Exchange, caller: Caller) -> None:
    raise FaultError(Fault("not_found", "This server stores nothing (--store none).", "client"))


def _check_once(exchange: Exchange) -> None:
    """Raise FaultError for a repeated header of which this server and a proxy that checks keys
    may read different values."""
    if exchange.repeated:
        raise FaultError(bad_request("is sent more than once", exchange.repeated.decode()))


async def _finish(rest: Awaitable[None], exchange: Exchange, caller: Caller) -> None:
    try:
        await rest
    except Exception as error:
        _refuse(error, exchange, caller)
    finally:
        if exchange.hold is not None:
            exchange.hold.close()


def _refuse(error: Exception, exchange: Exchange, caller: Caller) -> None:
    """Send an error response, where that is still possible."""
    if isinstance(error, MethodNotAllowedError):
        exchange.refuse(error.fault, (b"allow", error.allow.encode()))
        return
    fault = fault_of(error, exchange.id, caller.key)
    if exchange.status:
        exchange.abort()
    elif fault is GONE:
        exchange.end()
    else:
        exchange.refuse(fault)
