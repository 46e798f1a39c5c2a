"""Bare prompts asked of an engine that may or may not take them, and vectors likewise.

Which engine can do what is told by what it offers; one that cannot is a fault that says so. Several
prompts become the choices of one answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from dragoman.core.completion import Completion
from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.event import Event, Failed
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import JSON
from dragoman.core.request import Request

from .fanout import alternative, gather
from .wrap import Wrapper


class Prompted(Wrapper):
    """An engine for requests that are a `Completion`: it asks the engine inside for each prompt."""

    def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
        """Go on from the prompts. Each has `n` choices; all of one prompt stand together."""
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
    """Go on from a prompt, if this engine can."""
    able: Callable[..., AsyncGenerator[Event, None]] | None = getattr(engine, "complete", None)
    if able is None:
        return _refused(unsupported("takes conversations only, no bare prompts", "model"))
    return able(prompt, request, caller, echo=echo)


async def embed(
    engine: Engine, request: dict[str, JSON], caller: Caller = ANYONE
) -> dict[str, JSON]:
    """Vectors, if this engine has any. Raises FaultError if it has none."""
    able: Callable[..., Awaitable[dict[str, JSON]]] | None = getattr(engine, "embed", None)
    if able is None:
        raise FaultError(unsupported("has no embeddings", "model"))
    return await able(request, caller)


async def _refused(fault: Fault) -> AsyncGenerator[Event, None]:
    yield Failed(fault)
