"""A token engine that says in the model listing what its model is.

How a request is answered stands in `engines.token`; only the listing is changed here.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.interfaces import ANYONE, Caller, Model
from dragoman.engines.token.engine import TokenEngine


class DescribedEngine(TokenEngine):
    """A `TokenEngine` with a `description` of its model; all else is the same."""

    def __init__(self, *parts: Any, description: str, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.description = description

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        """The one model, described."""
        (model,) = await super().models(caller)
        shown = {"description": self.description, **(model.extra or {}).get("models", {})}
        return (replace(model, extra={"models": shown}),)
