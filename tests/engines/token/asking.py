"""What tests of the token engine share: a question, and an engine that is put away afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dragoman.core.item import Message
from dragoman.core.request import Request, Sampling
from dragoman.engines.token import TokenEngine
from tests.engines.token.plain import TOY, Plain


def asked(text: str = "hi", *, max_tokens: int | None = None, **settings: Any) -> Request:
    return Request(
        model="toy",
        items=(Message("user", text),),
        sampling=Sampling(**settings),
        max_output_tokens=max_tokens,
        stream=True,
    )


@asynccontextmanager
async def serving(model: Any, **options: Any) -> AsyncIterator[TokenEngine]:
    """An engine around a model, in the plain format."""
    engine = TokenEngine(options.pop("format", Plain()), model, TOY, name="toy", **options)
    try:
        yield engine
    finally:
        await engine.close()
