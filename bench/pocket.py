"""How fast the pocket model writes: `python -m bench.pocket` prints one JSON object.

Alone and in 32 streams at once, which must share it fairly; and what a mask of a grammar costs. It
is a process of its own, so that its memory can be told.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from contextlib import aclosing

import numpy as np

from dragoman.core.event import Delta, Finished
from dragoman.core.item import Message
from dragoman.core.request import Request, Sampling
from dragoman.core.response import Usage
from dragoman.engines.pocket import pocket
from dragoman.engines.token.constraints import GrammarCompiler
from dragoman.engines.token.engine import TokenEngine
from dragoman.formats.format import Grammar
from dragoman.formats.prompt import Tokenizer

from . import machine
from .replay import vocabulary

STREAMS = 32
SECONDS = 4.0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4},
        "mail": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]+@[a-z]+$"}]},
    },
    "required": ["name", "age", "tags", "mail"],
    "additionalProperties": False,
}


def main() -> None:
    """Measure and print."""
    found = asyncio.run(_speeds())
    found["mask_us"], found["mask_p99_us"] = _masks(vocabulary())
    print(json.dumps(found))


async def _speeds() -> dict[str, float]:
    engine = pocket()
    alone = await _alone(engine)
    together = await _written(engine, STREAMS)
    await engine.close()
    return {
        "alone": alone,
        "together": sum(together) / SECONDS,
        "ratio": max(together) / min(together),
        "rss_mb": machine.rss(os.getpid()),
    }


async def _alone(engine: TokenEngine) -> float:
    """Tokens in a second of one stream, as clients usually ask."""
    request = _request(engine, 0, logprobs=None)
    begun = time.monotonic()
    async for event in engine.stream(request):
        match event:
            case Finished(usage=Usage(output_tokens=int(count))):
                return count / (time.monotonic() - begun)
    raise RuntimeError("the answer did not end")


async def _written(engine: TokenEngine, streams: int) -> list[int]:
    """The tokens each of so many streams gets in the time: all begin and end together."""
    await asyncio.gather(*(_read(engine, 0, None) for _ in range(streams)))
    until = time.monotonic() + SECONDS
    return await asyncio.gather(*(_read(engine, place, until) for place in range(streams)))


async def _read(engine: TokenEngine, place: int, until: float | None) -> int:
    """Read a stream that does not end by itself until then; a few tokens of it to warm up."""
    request = _request(engine, place, logprobs=True)  # so that tokens can be counted
    count = 0
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, Delta):
                count += len(event.tokens)
            if (count > 5) if until is None else (time.monotonic() > until):
                break
    return count


def _request(engine: TokenEngine, place: int, *, logprobs: bool | None) -> Request:
    """A question whose answer does not end."""
    ends = {str(id): -100.0 for id in engine.tokenizer.controls.values()}
    return Request(
        model="pocket",
        items=(Message("user", f"Count to {place + 20}."),),
        sampling=Sampling(seed=place, logit_bias=ends, logprobs=logprobs),
        max_output_tokens=3_000,
    )


def _masks(tokenizer: Tokenizer) -> tuple[float, float]:
    """Microseconds of a mask, in the mean and at worst but one in a hundred, on a random walk
    through a schema."""
    lark = f"start: %json {json.dumps({**SCHEMA, 'x-guidance': {'whitespace_flexible': False}})}"
    guide, chance = GrammarCompiler(tokenizer), np.random.default_rng(1)
    times: list[float] = []
    for _ in range(30):
        constraint = guide.constrain(Grammar(lark))
        while not constraint.over and len(times) < 3_000:
            scores = chance.normal(size=tokenizer.size)
            begun = time.perf_counter()
            constraint.mask(scores)
            times.append((time.perf_counter() - begun) * 1e6)
            constraint.accept([int(scores.argmax())])
    return statistics.fmean(times), statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
