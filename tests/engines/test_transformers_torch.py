"""The pocket model's folder under the real transformers and torch: the same words as in numpy."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from dragoman.core.request import JSONSchema
from dragoman.engines.pocket import FOLDER, pocket
from dragoman.engines.pocket.model import load
from dragoman.engines.token.engine import TokenEngine
from dragoman.engines.transformers import prepare
from tests.engines.pocket.asking import heard, request_of
from tests.engines.stage import answered
from tests.engines.test_llamacpp import asking
from training.pocket.suite import CASES, Case

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

DIFFERENCE = 0.02


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
async def engine() -> AsyncIterator[TokenEngine]:
    made = await asyncio.to_thread(prepare(str(FOLDER), device="cpu", threads=1))
    yield made
    await made.close()


async def test_the_suite_is_answered_as_in_numpy(engine: TokenEngine) -> None:
    small = pocket()

    async def differ(case: Case) -> bool:
        request = request_of(case.lesson)
        told = [heard(await answered(each, request)) for each in (engine, small)]
        return told[0] != told[1]

    chosen = CASES[::4]
    found = await asyncio.gather(*map(differ, chosen))
    assert not [case.name for case, wrong in zip(chosen, found, strict=True) if wrong]
    await small.close()


async def test_every_token_is_scored_as_in_numpy() -> None:
    engine = prepare(str(FOLDER), device="cpu", threads=1)()
    ours, theirs = load(FOLDER)[1], engine._source._model
    ids = list(engine.tokenizer.encode("Explain 17 quantum mechanics, please! x=[1, 2]; 你好"))
    mine, other = ours.open(ids), theirs.open(ids)
    news = ids
    for _ in range(12):
        (a,), (b,) = ours.step([(mine, news)]), theirs.step([(other, news)])
        assert np.abs(a - b).max() < DIFFERENCE
        news = [int(a.argmax())]
    await engine.close()


async def test_schema_is_enforced(engine: TokenEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "count": {"enum": [1, 2]}},
        "required": ["city", "count"],
        "additionalProperties": False,
    }
    wanted = replace(asking("Tell me something."), format=JSONSchema("fact", schema, strict=True))
    answer = await answered(engine, wanted)
    assert json.loads(answer.text) in [
        {"city": city, "count": count} for city in ("Paris", "Rome") for count in (1, 2)
    ]
    assert answer.guarantee == "enforced"
