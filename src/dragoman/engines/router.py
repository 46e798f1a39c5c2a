"""Sends a request to the engine that answers for the model it names.

A route may list its models, give others alternative names, or take any name at all. The router
looks at the model's name and at nothing else of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Engine, Model
from dragoman.core.request import Request

NAMED = 20
"""Models an error message names; the rest are counted."""


class Route(Struct, frozen=True):
    """An engine and the names it answers to.

    `models` are the names it is asked for; with none it takes every name that no other route
    lists. `aliases` are further names and the model each stands for.
    """

    engine: Engine
    models: tuple[str, ...] = ()
    aliases: dict[str, str] = {}


class Router:
    """One engine made of several. Names that are listed win; then whoever offers the model by
    its own listing; then the first route that takes every name.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)
        self._named: dict[str, tuple[Engine, str]] = {}
        for route in self._routes:
            for name in route.models:
                self._named.setdefault(name, (route.engine, name))
            for name, model in route.aliases.items():
                self._named[name] = (route.engine, model)
        self._offers: dict[str, Engine] = {}  # learned from listings, as names are asked for
        self._open = tuple(route.engine for route in self._routes if not route.models)

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer by the engine of the model."""
        try:
            engine, model = await self._find(request.model)
        except FaultError as error:
            yield Failed(error.fault)
            return
        if model != request.model:
            request = replace(request, model=model)
        async with aclosing(engine.stream(request, caller)) as events:
            async for event in events:
                yield event

    async def models(self) -> tuple[Model, ...]:
        """All models of all routes, each name once. Raises FaultError when no route can tell."""
        listings = await asyncio.gather(
            *(self._listing(route) for route in self._routes), return_exceptions=True
        )
        found: dict[str, Model] = {}
        failed: BaseException | None = None
        for listing in listings:
            if isinstance(listing, BaseException):
                if not isinstance(listing, FaultError):
                    raise listing
                failed = failed or listing
            else:
                for model in listing:
                    found.setdefault(model.id, model)
        if failed is not None and not found:
            raise failed
        return tuple(found.values())

    async def capabilities(self, model: str) -> Capabilities:
        """What the engine of the model knows of it. Raises FaultError for an unknown one."""
        engine, name = await self._find(model)
        return await engine.capabilities(name)

    async def close(self) -> None:
        """Close all engines."""
        await asyncio.gather(*(route.engine.close() for route in self._routes))

    async def _find(self, name: str) -> tuple[Engine, str]:
        found = self._named.get(name)
        if found is not None:
            return found
        if not self._open:
            raise FaultError(self._unknown(name))
        if len(self._open) > 1 and name not in self._offers:
            for engine in reversed(self._open):  # the first that offers a name has it
                with suppress(FaultError):
                    self._offers.update({m.id: engine for m in await engine.models()})
        return self._offers.get(name, self._open[0]), name

    async def _listing(self, route: Route) -> list[Model]:
        """What a route offers: of its engine's own listing, the names that lead to it."""
        own: dict[str, Model] = {}
        try:
            own = {model.id: model for model in await route.engine.models()}
        except FaultError:
            if not route.models:
                raise
        names = route.models or tuple(own)
        listed = [own.get(name) or Model(name) for name in names]
        for name, model in route.aliases.items():
            known = own.get(model) or Model(model)
            listed.append(replace(known, id=name))
        return listed

    def _unknown(self, name: str) -> Fault:
        names = sorted(self._named)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        there = ", ".join(names[:NAMED]) or "no model at all"
        return Fault(
            "model_not_found",
            f"There is no model {name[:200]!r} here. There is: {there}{more}.",
            "client",
            "model",
        )
