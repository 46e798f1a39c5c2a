"""Endpoints beside the answers: models, embeddings, token counts, compaction."""

from __future__ import annotations

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller, Model
from dragoman.core.item import Compaction
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.base import new_id, now
from dragoman.engines.compaction import count, encode_summary, summarise
from dragoman.engines.router import embed
from dragoman.wire import embeddings, json
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.response import encode_compaction

from .cancellation import Watch
from .exchange import Exchange, report_headers
from .limits import read_body
from .responder import Service
from .state.resolve import understand, without_store
from .state.service import Memory


class Models:
    """Handlers for the listing and for one model."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, exchange: Exchange, caller: Caller) -> None:
        """All models."""
        models = await self._models(exchange, caller)
        exchange.reply(200, exchange.wire.encode_models(models))

    async def one(self, listing: str, exchange: Exchange, caller: Caller) -> None:
        """The model named by the path below that of a listing, slashes and all."""
        name = exchange.path.removeprefix(listing)
        for model in await self._models(exchange, caller):
            if model.id == name:
                exchange.reply(200, exchange.wire.encode_model(model))
                return
        raise FaultError(Fault("model_not_found", f"There is no model {name!r}.", "client"))

    async def _models(self, exchange: Exchange, caller: Caller) -> tuple[Model, ...]:
        with Watch(self._service.roster, exchange):
            return await self._service.engine.models(caller)


EMBEDDINGS_PATH = f"/v1{embeddings.PATH}"


class Embeddings:
    """Answers requests for vectors out of one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Read, ask and answer; cancelled when the client disconnects or time is up."""
        service = self._service
        body = await read_body(exchange, service.settings, service.roster)
        request = embeddings.decode_request(body)
        with Watch(service.roster, exchange) as watch:
            watch.limit(service.settings.deadline)
            async with service.gate:
                answer = await embed(service.engine, request, caller)
        exchange.reply(200, json.dump(answer))


ESTIMATED = Loss(
    "input_tokens", "dropped", "an estimate: the model's own tokens are not known here"
)


class Counting:
    """Counts prompts for one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Count the tokens of a request and all that it builds on."""
        service, wire = self._service, exchange.wire
        body = await read_body(exchange, service.settings, service.roster)
        with Watch(service.roster, exchange):
            request = await whole(wire.decode_request(body), caller, service.memory)
            tokens, exact = await count(service.engine, request)
        losses = () if exact else (ESTIMATED,)
        exchange.reply(200, wire.encode_count(tokens), *report_headers(losses))


async def whole(request: Request, caller: Caller, memory: Memory | None) -> Request:
    """The request with all that it builds on. Raises FaultError when something is not there."""
    if memory is None:
        return without_store(request)[0]
    return (await understand(request, memory.store, caller.tenant)).whole


COMPACTING_PATH = f"/v1{RESPONSES.path}/compact"


class Compactions:
    """Has conversations summarised by one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Summarise what a request holds and all that it builds on."""
        service = self._service
        body = await read_body(exchange, service.settings, service.roster)
        with Watch(service.roster, exchange):
            request = await whole(RESPONSES.decode_request(body), caller, service.memory)
            async with service.gate:
                summary, usage = await summarise(service.engine, request, caller)
        id = new_id()
        item = Compaction(encode_summary(summary), f"cmp_{id}")
        exchange.reply(200, encode_compaction(id, now(), item, usage))
