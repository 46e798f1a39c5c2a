"""The ASGI application: routes, access, and the engine's middleware."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.version import HOPS_HEADER
from dragoman.engines.compaction import Compacting, Fitting
from dragoman.engines.reasoning_cache import Recalling, Vault
from dragoman.engines.reasoning_encryption import Seal, Sealing
from dragoman.engines.reasoning_retry import Resending
from dragoman.engines.router import Prompted
from dragoman.wire import json
from dragoman.wire.chat import CHAT
from dragoman.wire.completions import COMPLETIONS
from dragoman.wire.responses import RESPONSES

from .answer import Answers
from .asgi import Application, Outlet, Receive, Scope, Send
from .auth import Browsers, Keys
from .cancellation import GONE, SHUTTING_DOWN, InFlight
from .endpoints import COMPACTING_PATH as COMPACTING
from .endpoints import COUNTING_PATH as COUNTING
from .endpoints import EMBEDDINGS_PATH as EMBEDDINGS
from .endpoints import MODELS_PATH as MODELS
from .endpoints import Compactions, Counting, Embeddings, Models
from .exchange import Exchange, Handler, MethodNotAllowedError, Route, Router, fault_of
from .limits import Gate
from .log import logged
from .settings import Settings
from .state.handlers import stored
from .state.service import Memory
from .websocket import PATH as SOCKET
from .websocket import Sockets, deny


def with_middleware(engine: Engine, settings: Settings, seal: Seal | None = None) -> Engine:
    """The engine, with all that makes conversations last around it."""
    again = Resending(engine, again=settings.resend_unsealed)
    short = Compacting(Fitting(again))
    recalling = Recalling(short, Vault(settings.reasoning_vault))
    return recalling if seal is None else Sealing(recalling, seal)


WIRES = (CHAT, RESPONSES)
AtOnce = Callable[[Exchange, Caller, Outlet], Handler | None]
_HOPS = HOPS_HEADER.encode()
MAX_HOPS = 8
"""Dragomans in a row before we think that it is a ring."""

NO_SOCKETS = Fault("not_found", "There is no WebSocket here; ask by POST.", "client")
"""For clients that try a socket first: at a 404 they fall back to HTTP."""


class App:
    """An ASGI 3 application. `drain` ends its work, `close` lets go of its engine."""

    def __init__(self, engine: Engine, settings: Settings, memory: Memory | None = None) -> None:
        engine = with_middleware(engine, settings, None if memory is None else memory.seal)
        self._engine = engine
        self._memory = memory
        self._answer = logged(self._http) if settings.request_log else self._http
        self._settings = settings
        self._roster = InFlight()
        self._keys = Keys(settings.keys, passed=getattr(engine, "passes_client_key", False))
        self._browsers = Browsers(settings)
        gate = Gate(settings.concurrency, settings.queue, settings.queue_time)
        answers = Answers(engine, settings, self._roster, gate, memory)
        prompts = Answers(Prompted(engine), settings, self._roster, gate)
        embeddings = Embeddings(engine, settings, self._roster, gate)
        counting = Counting(engine, settings, self._roster, memory)
        compactions = Compactions(engine, settings, self._roster, gate, memory)
        self._sockets = Sockets(engine, settings, self._roster, gate, memory)
        models = Models(engine, self._roster)
        self._at_once: dict[str, AtOnce] = {}
        if not settings.request_log:  # which is written by the task
            self._at_once |= {f"/v1{wire.path}": partial(answers.at_once, wire) for wire in WIRES}
        self._router = Router(
            (
                *(Route("POST", f"/v1{wire.path}", answers.over(wire)) for wire in WIRES),
                *(() if memory is None else stored(memory, settings, self._roster)),
                Route("POST", f"/v1{COMPLETIONS.path}", prompts.over(COMPLETIONS)),
                Route("POST", EMBEDDINGS, embeddings.answer),
                Route("POST", COUNTING, counting.answer),
                Route("POST", COMPACTING, compactions.answer),
                Route("GET", SOCKET, self._sockets.plain),
                Route("GET", MODELS, models.list),
                Route("GET", f"{MODELS}/", models.one),
                Route("GET", "/healthz", self._health, public=True),
                Route("GET", "/readyz", self._readiness, public=True),
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(Exchange(scope, receive, send))
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._socket(Exchange({**scope, "method": "GET"}, receive, send))

    def at_once(self, scope: Scope, outlet: Outlet) -> Application | None:
        """Begin to answer a request that is here whole, without being awaited. Where that cannot
        be done this gives the application that is to be called: this one, or its remainder."""
        answer = self._at_once.get(scope["path"])
        if answer is None or scope["method"] != "POST":
            return self
        exchange = Exchange(scope, outlet.receive, outlet.send)
        if b"upgrade" in exchange.headers:
            return self
        caller = ANYONE
        try:
            self._browsers.check(exchange)
            caller = self._caller(exchange)
            handler = answer(exchange, caller, outlet)
        except Exception as error:
            return _remainder(partial(self._tell, error, exchange, caller))
        if handler is None:
            return None
        return _remainder(partial(self._handle, handler, exchange, caller))

    @property
    def busy(self) -> int:
        """How many answers are being given to clients."""
        return self._roster.count

    @property
    def background(self) -> int:
        """How many answers are being given in the background."""
        return 0 if self._memory is None else self._memory.runs.background

    async def drain(self, patience: float) -> None:
        """Refuse new requests, and stop running ones that do not end within `patience` seconds,
        those in the background too."""
        ending = [self._roster.drain(patience)]
        if self._memory is not None:
            ending.append(self._memory.runs.drain(patience))
        await asyncio.gather(*ending)

    def hurry(self) -> None:
        """Stop running requests now."""
        self._roster.hurry()
        if self._memory is not None:
            self._memory.runs.hurry()

    async def rest(self) -> None:
        """End what runs in the background; what is stored stays."""
        if self._memory is not None:
            await self._memory.runs.close()

    async def close(self) -> None:
        """End what runs in the background, and let go of the store and the engine."""
        if self._memory is not None:
            await self._memory.close()
        await self._engine.close()

    async def _http(self, exchange: Exchange) -> None:
        caller = ANYONE
        try:
            if not self._router.is_public(exchange.path):
                self._browsers.check(exchange)
                if exchange.method == "OPTIONS" and await self._browsers.preflight(exchange):
                    return
                caller = self._caller(exchange)
            if exchange.header(b"upgrade").lower() == "websocket":
                raise FaultError(NO_SOCKETS)
            await self._router.find(exchange.method, exchange.path)(exchange, caller)
        except Exception as error:
            await self._tell(error, exchange, caller)

    async def _handle(self, handler: Handler, exchange: Exchange, caller: Caller) -> None:
        try:
            await handler(exchange, caller)
        except Exception as error:
            await self._tell(error, exchange, caller)

    async def _tell(self, error: Exception, exchange: Exchange, caller: Caller) -> None:
        """What went wrong, as far as that can still be told."""
        if isinstance(error, MethodNotAllowedError):
            await exchange.refuse(error.fault, (b"allow", error.allow.encode()))
            return
        fault = fault_of(error, exchange.id, caller.key)
        if exchange.opened:
            exchange.abort()
        elif fault is not GONE:
            await exchange.refuse(fault)

    async def _socket(self, exchange: Exchange) -> None:
        try:
            self._browsers.check(exchange)
            caller = self._caller(exchange)
            await self._sockets.serve(exchange, caller)
        except FaultError as error:
            await deny(exchange, error.fault)

    def _caller(self, exchange: Exchange) -> Caller:
        """Who asks. Raises FaultError for whoever may not, or not any more, and for a request that
        goes round in a ring."""
        key = self._keys.check(exchange)
        if self._roster.closing:
            raise FaultError(SHUTTING_DOWN)
        hops = 0
        if _HOPS in exchange.headers:
            passed = exchange.header(_HOPS)
            hops = int(passed[:9]) if passed.isdecimal() else 0
        if hops > MAX_HOPS:
            problem = f"has passed {hops} servers like this one; an upstream leads back to it"
            raise FaultError(bad_request(problem, HOPS_HEADER))
        return Caller(self._keys.tenant(key), key, trace=exchange.id, hops=hops)

    async def _health(self, exchange: Exchange, caller: Caller) -> None:
        await exchange.reply(200, json.dump({"status": "ok"}))

    async def _readiness(self, exchange: Exchange, caller: Caller) -> None:
        if self._roster.closing:
            raise FaultError(SHUTTING_DOWN)
        await exchange.reply(200, json.dump({"status": "ready"}))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self._memory is not None:
                    self._memory.begin()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _remainder(work: Callable[[], Awaitable[None]]) -> Application:
    """An application that has only this left to do."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await work()

    return application
