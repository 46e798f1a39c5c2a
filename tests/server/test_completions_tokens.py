"""Bare prompts asked of a model in this process: text, ids, echoes, and how likely a token was."""

from __future__ import annotations

import math
from typing import Any

import httpx2
import openai
import pytest

from dragoman.engines.token.engine import TokenEngine
from dragoman.engines.token.next_token import from_next_token
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.testing import transport
from tests.engines.token.models import Says, Table
from tests.engines.token.plain import END, TOY, Plain
from tests.server.stubs import Call


def engine(model: Any) -> TokenEngine:
    return TokenEngine(Plain(), model, TOY, name="toy")


async def asked(model: Any, **fields: Any) -> Any:
    """What is answered to a prompt; the engine is closed again."""
    app = App(engine(model), Settings())
    call = await Call(app, "/v1/completions", {"model": "toy", "prompt": "Once", **fields})()
    await app.close()
    return call


@pytest.mark.parametrize("prompt", ["Once", list(b"Once")])
@pytest.mark.parametrize("echo", [False, True])
async def test_the_model_goes_on_and_the_prompt_is_said_where_asked(
    prompt: Any, echo: bool
) -> None:
    answer = (await asked(Says(" upon a time"), prompt=prompt, echo=echo)).json
    (choice,) = answer["choices"]
    assert choice["text"] == ("Once upon a time" if echo else " upon a time")
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 4


async def test_a_limit_and_a_stop_string_end_it() -> None:
    (choice,) = (await asked(Says(" upon a time"), max_tokens=5)).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" upon", "length")
    (choice,) = (await asked(Says(" upon a time"), stop=" a")).json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" upon", "stop")


async def test_a_prompt_alone_is_scored_token_by_token() -> None:
    """What evaluations of base models ask: nothing written, everything weighed."""
    call = await asked(Table(), echo=True, max_tokens=0, logprobs=2)
    (choice,) = call.json["choices"]
    assert choice["text"] == "Once"
    scores = choice["logprobs"]
    assert scores["tokens"] == list("Once")
    assert scores["text_offset"] == [0, 1, 2, 3]
    assert scores["token_logprobs"][0] is None
    table = Table().table
    for place in range(1, 4):
        row = table[sum(b"Once"[max(0, place - 3) : place]) % len(table)]
        expected = row[b"Once"[place]] - math.log(sum(math.exp(score) for score in row))
        assert scores["token_logprobs"][place] == pytest.approx(expected, abs=1e-4)
    assert call.json["usage"]["completion_tokens"] == 0


async def test_choices_and_prompts_are_told_apart() -> None:
    answer = (await asked(Table(), prompt=["a", "bb"], n=2, seed=1, max_tokens=4, echo=True)).json
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [text[0] for text in texts] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [99_999]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "."}, "suffix"),
    ],
)
async def test_what_cannot_be_asked_is_a_400(fields: Any, param: str) -> None:
    call = await asked(Says("x"), **fields)
    assert (call.status, call.json["error"]["param"]) == (400, param)


async def test_the_sdk_streams_from_a_model_in_this_process() -> None:
    inside = engine(Says(" upon a time"))
    client = httpx2.AsyncClient(transport=transport(inside))
    async with openai.AsyncOpenAI(
        base_url="http://dragoman/v1", api_key="none", http_client=client
    ) as sdk:
        stream = await sdk.completions.create(model="toy", prompt="Once", echo=True, stream=True)
        chunks = [chunk async for chunk in stream]
        (model,) = (await sdk.models.list()).data
    await inside.close()
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == "Once upon a time"
    assert choices[-1].finish_reason == "stop"
    shown = model.to_dict()
    assert (shown["format"], shown["guarantees"]) == ("plain", ["enforced"])


async def test_a_model_that_only_names_tokens_says_that_it_is_looked_at() -> None:
    inside = TokenEngine(Plain(), from_next_token(lambda ids, sampling: END), TOY, name="toy")
    (model,) = await inside.models()
    await inside.close()
    assert (model.extra or {})["models"]["guarantees"] == ["verified", "best-effort"]
