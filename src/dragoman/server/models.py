"""The listing of models, and each of them alone.

It asks the engine and writes JSON; which models there are and what is known of them comes from
the engine. Both protocols share these two routes.
"""

from __future__ import annotations

from typing import Any

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Caller, Engine, Model
from dragoman.wire import body

from .exchange import Exchange
from .watch import Roster, Watch

PATH = "/v1/models"


class Models:
    """Handlers for the listing and for one model."""

    def __init__(self, engine: Engine, roster: Roster) -> None:
        self._engine = engine
        self._roster = roster

    async def list(self, exchange: Exchange, caller: Caller) -> None:
        """All models."""
        data = [_entry(model) for model in await self._models(exchange, caller)]
        await exchange.reply(200, body.dump({"object": "list", "data": data}))

    async def one(self, exchange: Exchange, caller: Caller) -> None:
        """The model named by the rest of the path, slashes and all."""
        name = exchange.path.removeprefix(f"{PATH}/")
        for model in await self._models(exchange, caller):
            if model.id == name:
                await exchange.reply(200, body.dump(_entry(model)))
                return
        raise FaultError(Fault("model_not_found", f"There is no model {name!r}.", "client"))

    async def _models(self, exchange: Exchange, caller: Caller) -> tuple[Model, ...]:
        with Watch(self._roster) as watch:
            watch.listen(exchange.receive)
            return await self._engine.models(caller)


def _entry(model: Model) -> dict[str, Any]:
    return {
        **(model.extra or {}).get("models", {}),
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
    }
