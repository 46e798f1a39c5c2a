"""Endpoints beside the answers: models, embeddings, token counts, compaction."""

from __future__ import annotations

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller, Engine, Model
from dragoman.core.item import Compaction
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.engines.base import new_id, now
from dragoman.engines.compaction import count, seal, summarise
from dragoman.engines.router import embed
from dragoman.wire import embeddings, json
from dragoman.wire.registry import BASE, wire_at
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.response import encode_compaction

from .cancellation import InFlight, Watch
from .exchange import Exchange, loss_header
from .limits import Gate, whole_body
from .settings import Settings
from .state.resolve import understand, without_memory
from .state.service import Memory


class Models:
    """Handlers for the listing and for one model."""

    def __init__(self, engine: Engine, roster: InFlight) -> None:
        self._engine = engine
        self._roster = roster

    async def list(self, exchange: Exchange, caller: Caller) -> None:
        """All models."""
        models = await self._models(exchange, caller)
        await exchange.reply(200, wire_at(exchange.path).encode_models(models))

    async def one(self, exchange: Exchange, caller: Caller) -> None:
        """The model named by the rest of the path, slashes and all."""
        wire = wire_at(exchange.path)
        name = exchange.path.removeprefix(f"{BASE}{wire.models_path}/")
        for model in await self._models(exchange, caller):
            if model.id == name:
                await exchange.reply(200, wire.encode_model(model))
                return
        raise FaultError(Fault("model_not_found", f"There is no model {name!r}.", "client"))

    async def _models(self, exchange: Exchange, caller: Caller) -> tuple[Model, ...]:
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            return await self._engine.models(caller)


EMBEDDINGS_PATH = f"/v1{embeddings.PATH}"


class Embeddings:
    """Answers requests for vectors out of one engine."""

    def __init__(self, engine: Engine, settings: Settings, roster: InFlight, gate: Gate) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._gate = gate

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Read, ask and answer; given up when the client goes or time is up."""
        settings = self._settings
        said = await whole_body(exchange, self._settings, self._roster)
        request = embeddings.decode_request(said)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            if settings.deadline is not None:
                problem = f"There was no answer within {settings.deadline:g} s."
                watch.limit(settings.deadline, Fault("upstream_timeout", problem, "upstream"))
            async with self._gate:
                answer = await embed(self._engine, request, caller)
        await exchange.reply(200, json.dump(answer))


COUNTING_PATH = f"/v1{RESPONSES.path}/input_tokens"
ESTIMATED = Loss(
    "input_tokens", "dropped", "an estimate: the model's own tokens are not known here"
)


class Counting:
    """Counts prompts for one engine."""

    def __init__(
        self, engine: Engine, settings: Settings, roster: InFlight, memory: Memory | None
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._memory = memory

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Count what a request and all that it builds on come to."""
        data = await whole_body(exchange, self._settings, self._roster)
        request = await whole(RESPONSES.decode_request(data), caller, self._memory)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            tokens, exact = await count(self._engine, request)
        told = () if exact else (ESTIMATED,)
        said = {"object": "response.input_tokens", "input_tokens": tokens}
        await exchange.reply(200, json.dump(said), *loss_header(told))


async def whole(request: Request, caller: Caller, memory: Memory | None) -> Request:
    """The request with all that it builds on. Raises FaultError when something is not there."""
    if memory is None:
        return without_memory(request)[0]
    return (await understand(request, memory.store, caller.tenant, "once")).whole


COMPACTING_PATH = f"/v1{RESPONSES.path}/compact"


class Compactions:
    """Has conversations summarised by one engine."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        roster: InFlight,
        gate: Gate,
        memory: Memory | None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._roster = roster
        self._gate = gate
        self._memory = memory

    async def answer(self, exchange: Exchange, caller: Caller) -> None:
        """Summarise what a request holds and all that it builds on."""
        data = await whole_body(exchange, self._settings, self._roster)
        request: Request = await whole(RESPONSES.decode_request(data), caller, self._memory)
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            async with self._gate:
                summary, usage = await summarise(self._engine, request, caller)
        id = new_id()
        item = Compaction(seal(summary), f"cmp_{id}")
        await exchange.reply(200, encode_compaction(id, now(), item, usage))
