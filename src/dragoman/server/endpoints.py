"""Endpoints beside the answers: models, embeddings, token counts, compaction."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.interfaces import Caller, Model
from dragoman.core.item import Compaction
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.base import new_id, now
from dragoman.engines.compaction import count, encode_summary, summarise
from dragoman.engines.router import embed, no_model
from dragoman.wire import embeddings, json
from dragoman.wire.registry import BASE, WIRES
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.response import encode_compaction

from .cancellation import Watch
from .exchange import Exchange, Route, report_headers
from .limits import SMALL
from .responder import Service
from .state.resolve import room_of, understand, without_store

ESTIMATED = Loss(
    "input_tokens", "dropped", "an estimate: the model's own tokens are not known here"
)


class Endpoints:
    """Handlers for the other functions of an engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """The routes to these handlers."""
        routes = [
            Route("POST", BASE + embeddings.PATH, self.embed),
            Route("POST", f"{BASE}{RESPONSES.path}/compact", self.compact),
        ]
        for wire in WIRES.values():
            if wire.count_path:
                routes.append(Route("POST", BASE + wire.count_path, self.count))
        for path in dict.fromkeys(BASE + wire.models_path for wire in WIRES.values()):
            below = f"{path}/"
            routes.append(Route("GET", path, self.models))
            routes.append(Route("GET", below, partial(self.model, below)))
        return routes

    async def models(self, exchange: Exchange, caller: Caller) -> None:
        """All models."""
        models = await self._models(exchange, caller)
        exchange.reply(200, exchange.wire.encode_models(models))

    async def model(self, listing: str, exchange: Exchange, caller: Caller) -> None:
        """The model with the id in the rest of the path, which may contain slashes."""
        name = exchange.path.removeprefix(listing)
        models = await self._models(exchange, caller)
        for model in models:
            if model.id == name:
                exchange.reply(200, exchange.wire.encode_model(model))
                return
        raise FaultError(no_model(name, [model.id for model in models]))

    async def _models(self, exchange: Exchange, caller: Caller) -> tuple[Model, ...]:
        with Watch(self._service.roster, exchange) as watch:
            watch.limit(self._service.settings.deadline)
            models = await self._service.engine.models(replace(caller, wire=exchange.wire.name))
        return tuple(map(_with_guarantees, models))

    async def embed(self, exchange: Exchange, caller: Caller) -> None:
        """Embeddings; cancelled when the client disconnects or time is up."""
        service = self._service
        request = await service.read(exchange, caller, embeddings.decode_request)
        _note(exchange, str(request["model"]))
        with Watch(service.roster, exchange) as watch:
            watch.limit(service.settings.deadline)
            async with service.gate.place(caller.tenant):
                asking = replace(caller, count=exchange.count)
                answer = await embed(service.engine, request, asking)
        exchange.reply(200, json.dump(answer))

    async def count(self, exchange: Exchange, caller: Caller) -> None:
        """Count the tokens of a request, with its references resolved."""
        wire, service = exchange.wire, self._service
        asked, caller = await service.decode_request(wire, exchange, caller)
        _note(exchange, asked.model)
        with Watch(service.roster, exchange) as watch:
            watch.limit(service.settings.deadline)
            request, size = await self._whole(asked, exchange)
            async with service.gate.place(caller.tenant):
                asking = replace(caller, wire=wire.name, size=caller.size + size)
                tokens, exact = await count(service.engine, request, asking)
        losses = () if exact else (ESTIMATED,)
        exchange.reply(200, wire.encode_count(tokens), *report_headers(losses))

    async def compact(self, exchange: Exchange, caller: Caller) -> None:
        """Summarise the conversation of a request, with its references resolved."""
        service = self._service
        asked, caller = await service.decode_request(RESPONSES, exchange, caller)
        _note(exchange, asked.model)
        with Watch(service.roster, exchange) as watch:
            watch.limit(service.settings.deadline)
            request, size = await self._whole(asked, exchange)
            async with service.gate.place(caller.tenant):
                asking = replace(caller, size=caller.size + size, count=exchange.count)
                summary, usage = await summarise(service.engine, request, asking)
        id = new_id()
        item = Compaction(encode_summary(summary), f"cmp_{id}")
        exchange.reply(200, encode_compaction(id, now(), item, usage))

    async def _whole(self, request: Request, exchange: Exchange) -> tuple[Request, int]:
        """The request with its references resolved, and their size where it is large. Raises
        FaultError when one does not exist."""
        memory = self._service.memory
        if memory is None:
            return without_store(request)[0], 0
        room = room_of(self._service.settings, exchange.count)
        asked = await understand(request, memory.store, exchange.tenant, room)
        return asked.whole, asked.size if asked.size > SMALL else 0


def _with_guarantees(model: Model) -> Model:
    """A model with the guarantees of its answers: `default_guarantee` where its engine gives none,
    so that a client does not take fields that are passed on for fields that are enforced."""
    extra = model.extra or {}
    known = {"guarantees": ["best-effort"], **extra.get("models", {})}
    return replace(model, extra={**extra, "models": known})


def _note(exchange: Exchange, model: str) -> None:
    """Note for the request log which model is asked."""
    if exchange.entry is not None:
        exchange.entry.model = model
