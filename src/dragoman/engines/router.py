"""Routes each request to the engine that has its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, quoted, unsupported
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Engine, Model
from dragoman.core.item import JSON
from dragoman.core.request import Completion, Request

from .base import LRU, Prepared, Wrapper
from .fan_out import alternative, gather

if TYPE_CHECKING:
    from .remote_session import RemoteSession
    from .upstream import Upstream


class Prompted(Wrapper):
    """An engine for requests that are a `Completion`: it asks the engine inside for each prompt."""

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Continue the prompts. Each has `n` choices; those of one prompt are adjacent."""
        prompts = request.prompts if isinstance(request, Completion) else ()
        echo = isinstance(request, Completion) and request.echo
        if len(prompts) == 1:
            return complete(self.engine, prompts[0], request, caller, echo=echo)
        count = request.sampling.n or 1

        def ask(place: int) -> AsyncGenerator[Event, None]:
            one = alternative(request, place % count)
            return complete(self.engine, prompts[place // count], one, caller, echo=echo)

        return gather(ask, len(prompts) * count)


def complete(
    engine: Engine,
    prompt: str | Sequence[int],
    request: Request,
    caller: Caller = ANYONE,
    *,
    echo: bool = False,
) -> AsyncGenerator[Event, None]:
    """Continue a prompt, if this engine can."""
    able: Callable[..., AsyncGenerator[Event, None]] | None = getattr(engine, "complete", None)
    if able is None:
        return _refused(unsupported("takes conversations only, no bare prompts", "model"))
    return able(prompt, request, caller, echo=echo)


async def embed(
    engine: Engine, request: dict[str, JSON], caller: Caller = ANYONE
) -> dict[str, JSON]:
    """Embeddings, if this engine has any. Raises FaultError if it has none."""
    able: Callable[..., Awaitable[dict[str, JSON]]] | None = getattr(engine, "embed", None)
    if able is None:
        problem = f"{quoted(str(request.get('model')))} has no embeddings"
        raise FaultError(unsupported(problem, "model"))
    return await able(request, caller)


async def _refused(fault: Fault) -> AsyncGenerator[Event, None]:
    yield Failed(fault)


PATIENCE = 1.0
"""Seconds for an engine to list its models when a name is looked up."""
MEMORY = 30.0
"""Seconds after which the listings are refreshed for a name that was not in them."""
BRIEF = 3.0
"""Seconds after which an engine is asked again that could not list its models, which go to another
one until then; no request waits for it, unless the last time was broken off."""
MOST_LISTED = 100_000
"""Names in the listings that are remembered, where each caller has its own."""
MOST_NAMES = 20
"""Names shown in a fault."""


Dialect = Literal["", "ga", "beta"]


class Route(Struct, frozen=True):
    """An engine and its models; without any, every name may be routed to it.

    `aliases` are further names, each with the model it stands for; `name` is its name in the log.
    `realtime` is its server's dialect of Realtime, where sessions are relayed to it.
    """

    engine: Engine
    models: tuple[str, ...] = ()
    aliases: Mapping[str, str] = {}
    name: str = ""
    realtime: Dialect = ""


class Listed(Struct, eq=False):
    """The engines of the models that were listed, and when: for all callers, or for one
    whose own key was sent."""

    engines: dict[str, Engine] = {}
    looked: float = -inf
    silent: Sequence[Engine] = ()  # those that could not list their models, when they were
    tried: float = -inf  # asked for the last time
    begun: float = -inf  # later than that where they are asked, or that was broken off
    looking: dict[asyncio.Task[None], Sequence[Engine]] = {}  # who is asked, in each event loop

    @property
    def outdated(self) -> bool:
        """Whether all engines are asked again."""
        return time.monotonic() - self.looked >= MEMORY

    def due(self, engines: Sequence[Engine]) -> Sequence[Engine]:
        """Those of the engines that are to be asked again."""
        if self.outdated:
            return engines
        return self.silent if time.monotonic() - self.tried >= BRIEF else ()


class Router(Wrapper):
    """An engine that hands each request to the engine its model belongs to.

    Where two routes have the same name the first one has it. `default` is the model of requests
    that name none.
    """

    def __init__(self, routes: Iterable[Route], *, default: str = "") -> None:
        self._routes = tuple(routes)
        self._default = default
        self._named: dict[str, tuple[Engine, str]] = {}
        for route in self._routes:
            for name, model in (dict(route.aliases) | {m: m for m in route.models}).items():
                self._named.setdefault(name, (route.engine, model))
        self._open = [route.engine for route in self._routes if not route.models]
        self._listings = LRU[str, Listed](MOST_LISTED)  # by tenant
        self._listed: dict[str, Engine] = {}  # by each engine's last listing for any caller
        self._renewal: asyncio.Task[None] | None = None

    @property
    def passes_client_key(self) -> bool:
        """Whether some route sends callers' own keys to its server."""
        return any(getattr(route.engine, "passes_client_key", False) for route in self._routes)

    def prepare(self, request: Request, caller: Caller) -> Prepared | Awaitable[Prepared]:
        """Choose the engine of the model, and the model's name there."""
        name = request.model or self._default
        found = self._named.get(name)
        if found is None and name and len(self._open) == 1:
            found = self._open[0], name
        if found is None:
            return self._look_for(request, caller)
        engine, model = found
        asked = request if model == request.model else replace(request, model=model)
        return Prepared(asked, engine=engine)

    async def _look_for(self, request: Request, caller: Caller) -> Prepared:
        engine, model = await self.route(request.model, caller)
        return Prepared(replace(request, model=model), engine=engine)

    async def complete(
        self,
        prompt: str | Sequence[int],
        request: Request,
        caller: Caller = ANYONE,
        *,
        echo: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Continue a prompt with the engine of the model, if it can."""
        try:
            engine, model = await self.route(request.model, caller)
        except FaultError as error:
            yield Failed(error.fault)
            return
        asked = replace(request, model=model)
        async with aclosing(complete(engine, prompt, asked, caller, echo=echo)) as events:
            async for event in events:
                yield event

    async def embed(self, request: dict[str, JSON], caller: Caller = ANYONE) -> dict[str, JSON]:
        """Embeddings by the engine of the model. Raises FaultError if it has none."""
        engine, model = await self.route(request["model"], caller)
        return await embed(engine, request | {"model": model}, caller)

    async def count(self, request: Request, caller: Caller = ANYONE) -> int | None:
        """The prompt's tokens as counted by the engine of the model; None if it cannot.
        Raises FaultError where no engine has the model."""
        engine, model = await self.route(request.model, caller)
        able: Callable[..., Awaitable[int | None]] | None = getattr(engine, "count", None)
        return None if able is None else await able(replace(request, model=model), caller)

    async def route(self, name: str, caller: Caller = ANYONE) -> tuple[Engine, str]:
        """The engine for a model, and the model's name there.

        Raises FaultError (`model_not_found`) where no engine takes the name.
        """
        name = name or self._default
        found = self._named.get(name)
        if found is not None:
            return found
        if not self._open or not name:
            raise FaultError(self._unknown(name))
        if len(self._open) == 1:
            return self._open[0], name
        tenant = caller.tenant if self.passes_client_key else ""
        if (listed := self._listings.get(tenant)) is None:
            listed = Listed()
            self._listings.put(tenant, listed, 1)
        if asked := listed.due(self._open):
            broken_off = listed.begun > listed.tried and not any(map(_goes_on, [*listed.looking]))
            if name not in listed.engines and (listed.outdated or broken_off):
                await asyncio.wait((self._look(listed, asked, tenant, caller),))
            elif self._renewal is None or not _goes_on(self._renewal):
                # It may be at another server by now, which is not waited for.
                self._renewal = self._look(listed, asked, tenant, caller)
        engine = listed.engines.get(name) or self._listed.get(name) or self._open[0]
        return engine, name

    def _look(
        self, listed: Listed, asked: Sequence[Engine], tenant: str, caller: Caller
    ) -> asyncio.Task[None]:
        """Ask these engines, once for all in this event loop that want the same."""
        loop = asyncio.get_running_loop()
        for task, which in [*listed.looking.items()]:
            if not _goes_on(task):
                listed.looking.pop(task, None)
            elif which is asked and task.get_loop() is loop:
                return task
        listed.begun = time.monotonic()
        task = loop.create_task(self._list(listed, asked, tenant, caller))
        listed.looking[task] = asked
        task.add_done_callback(lambda done: listed.looking.pop(done, None))
        return task

    async def _list(
        self, listed: Listed, asked: Sequence[Engine], tenant: str, caller: Caller
    ) -> None:
        listings = await asyncio.gather(*(_listing(e, caller) for e in asked))
        listed.tried = time.monotonic()
        if asked is self._open:
            listed.looked = listed.tried
        found = list(zip(asked, listings, strict=True))
        others = [engine for engine in listed.silent if engine not in asked]
        listed.silent = others + [engine for engine, models in found if models is None]
        listed.engines = _renewed(listed.engines, found)
        self._listed = _renewed(self._listed, found)
        self._listings.put(tenant, listed, min(1 + len(listed.engines), MOST_LISTED))

    async def realtime_session(self, name: str, caller: Caller) -> RemoteSession | None:
        """A session of the model's server, where sessions are relayed; None where they
        are made here. Raises FaultError where no engine has the model."""
        engine, model = await self.route(name, caller)
        dialect = next((r.realtime for r in self._routes if r.engine is engine), "")
        upstream: Upstream | None = getattr(engine, "upstream", None)
        if not dialect or upstream is None:
            return None
        from .remote_session import RemoteSession  # imported only where needed

        key, base = upstream.key_for(caller), upstream.url + upstream.query
        beta, hops = dialect == "beta", caller.hops + 1
        return RemoteSession(base, model, key=key, beta=beta, hops=hops)

    def upstream_name(self, model: str) -> str:
        """The name of a model's route, as far as is known without a request."""
        found = self._named.get(model or self._default)
        engine = found[0] if found else self._listed.get(model, next(iter(self._open), None))
        return next((route.name for route in self._routes if route.engine is engine), "")

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """All models of all engines, with aliases; engines that cannot list theirs are left out.

        Raises FaultError when no engine can list models and no route names one.
        """
        return self.merge(await self.listings(caller))

    async def listings(
        self, caller: Caller = ANYONE, patience: float | None = None
    ) -> list[tuple[Model, ...] | BaseException]:
        """The models of each route, or what was raised: TimeoutError after `patience` seconds."""

        async def listing(engine: Engine) -> tuple[Model, ...]:
            async with asyncio.timeout(patience):
                return await engine.models(caller)

        asked = (listing(route.engine) for route in self._routes)
        return await asyncio.gather(*asked, return_exceptions=True)

    def merge(self, listings: Sequence[tuple[Model, ...] | BaseException]) -> tuple[Model, ...]:
        """The models of all routes, from what each lists; what was raised, if there are none."""
        found: dict[str, Model] = {}
        for route, listing in zip(self._routes, listings, strict=True):
            listed = {} if isinstance(listing, BaseException) else {m.id: m for m in listing}
            for name in route.models or listed:
                found.setdefault(name, listed.get(name) or Model(name))
            for name, model in route.aliases.items():
                found.setdefault(name, replace(listed.get(model) or Model(model), id=name))
        for listing in listings:
            if isinstance(listing, BaseException) and not found:
                raise listing
        return tuple(found.values())

    async def capabilities(self, model: str) -> Capabilities:
        """The capabilities of a model, by its engine; the defaults for an unknown model."""
        try:
            engine, name = await self.route(model)
        except FaultError:
            return Capabilities()
        return await engine.capabilities(name)

    async def close(self) -> None:
        """Close all engines, and raise what the first that failed to close raised."""
        if self._renewal is not None:
            self._renewal.cancel()
        engines = {id(route.engine): route.engine for route in self._routes}.values()
        outcomes = await asyncio.gather(*(e.close() for e in engines), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def _unknown(self, name: str) -> Fault:
        return no_model(name, self._named)


def no_model(name: str, names: Iterable[str]) -> Fault:
    """The fault for an unknown model, with a list of the known ones."""
    names = sorted(names)
    shown = ", ".join(names[:MOST_NAMES]) or "none"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    wanted = f"There is no model {name[:200]!r}." if name else "The request names no model."
    message = f"{wanted} The models are: {shown}{more}."
    return Fault("model_not_found", message, "client", "model")


def _renewed(
    table: Mapping[str, Engine], found: Sequence[tuple[Engine, tuple[Model, ...] | None]]
) -> dict[str, Engine]:
    """A table after a listing. It replaces the engine's old one, so that the table stays bounded;
    what an engine that cannot list its models listed before still counts."""
    known = [engine for engine, models in found if models is not None]
    engines = {name: engine for name, engine in table.items() if engine not in known}
    for engine, models in found:
        for model in models or ():
            engines.setdefault(model.id, engine)
    return engines


def _goes_on(task: asyncio.Task[None]) -> bool:
    """Whether a task will end: an event loop that was stopped leaves what it has as it is."""
    return not task.done() and task.get_loop().is_running()


async def _listing(engine: Engine, caller: Caller) -> tuple[Model, ...] | None:
    try:
        async with asyncio.timeout(PATIENCE):
            return await engine.models(caller)
    except Exception:  # of an engine of somebody's own, too: the others go on
        return None
