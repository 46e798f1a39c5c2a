"""Bare prompts: written on from where they end, echoed where asked, with exact probabilities."""

import math
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from dragoman.core.event import Failed
from dragoman.core.fold import fold
from dragoman.core.item import Message, Text, Token
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.engines.base import Wrapper
from dragoman.engines.token import TokenEngine
from dragoman.engines.token.engine import RawParser, raw_ids
from tests.engines.token.asking import asked, serving
from tests.engines.token.models import Says, Table
from tests.engines.token.plain import END, TOY


async def completed(engine: Any, prompt: Any, request: Request, **options: Any) -> Response:
    async with aclosing(engine.complete(prompt, request, **options)) as stream:
        events = [event async for event in stream]
    check(events)
    return fold(events)


def tokens(response: Response) -> tuple[Token, ...]:
    (message,) = response.output
    assert isinstance(message, Message)
    (part,) = message.parts
    assert isinstance(part, Text)
    return part.tokens


async def test_a_text_is_written_on_and_its_control_tokens_are_read() -> None:
    model = Says("there")
    async with serving(model) as engine:
        response = await completed(engine, "hi<|end|>", asked())
        assert response.text == "there"
        assert response.usage is not None
        assert response.usage.input_tokens == 3
        assert model.opened[0].prompt == (104, 105, END)
        again = await completed(engine, [104, 105, END], asked())
        assert (again.text, model.opened[1].prompt) == ("there", model.opened[0].prompt)


async def test_stops_limits_and_alternatives_hold_here_too() -> None:
    async with serving(Says("one two three")) as engine:
        response = await completed(engine, "x", asked(stop=(" t",), n=2))
        assert [response.choice(n)[0].text for n in (0, 1)] == ["one", "one"]
        response = await completed(engine, "x", asked(max_tokens=5))
        assert (response.text, response.reasons) == ("one t", ("length",))


async def test_ids_that_are_none_are_refused() -> None:
    async with serving(Says("")) as engine:
        for prompt in ([1, TOY.size], [-1], [], ""):
            response = await completed(engine, prompt, asked())
            assert response.error is not None
            assert response.error.code == "invalid_request"


async def test_an_echo_comes_first_and_is_searched_for_no_stop() -> None:
    async with serving(Says("+more")) as engine:
        response = await completed(engine, "x.y<|end|>", asked(stop=(".", "re")), echo=True)
        assert response.text == "x.y<|end|>+mo"
        response = await completed(engine, [120, END], asked(), echo=True)
        assert response.text == "x<|end|>+more"
        response = await completed(engine, "xyz", asked(max_tokens=0), echo=True)
        assert (response.text, response.reasons) == ("xyz", ("length",))
        assert response.usage is not None
        assert response.usage.output_tokens == 0
        refused = [e async for e in engine.complete("xyz", asked(max_tokens=0))]
        assert isinstance(refused[-1], Failed)


@pytest.mark.parametrize("limit", [0, 3])
async def test_an_echo_with_probabilities_scores_the_prompt(limit: int) -> None:
    model = Table(reuse=True)
    prompt = b"some prompt"
    async with serving(model) as engine:
        for _ in range(2):  # the second time it is in the cache, and read again all the same
            request = asked(logprobs=True, top_logprobs=1, max_tokens=limit, seed=5)
            response = await completed(engine, prompt.decode(), request, echo=True)
            told = tokens(response)
            assert len(told) == len(prompt) + limit
            assert (told[0].text, told[0].logprob) == ("s", None)
            ids = [prompt[0]]
            for token in told[1:]:
                scores = model.scores(ids)
                assert token.id is not None
                expected = scores[token.id] - math.log(np.exp(scores).sum())
                assert token.logprob == pytest.approx(expected)
                ids.append(token.id)
            assert response.text.startswith("some prompt")


async def test_a_wrapper_passes_counting_and_completing_on() -> None:
    async with serving(Says("there")) as engine:
        wrapper = Wrapper(engine)
        assert (await completed(wrapper, "hi", asked())).text == "there"
        assert await wrapper.count(asked("abc")) == 4


async def test_text_that_comes_without_ids() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = RawParser(turn, TOY)
    parser.write("as it is")
    parser.feed([0xC3])
    parser.close("stop")
    assert fold(turn.take()).text == "as it is\ufffd"


def test_the_longest_control_token_is_read_and_ids_are_left_alone() -> None:
    assert raw_ids([1, 2], TOY) == [1, 2]
    assert raw_ids("<|end|>a<|end", TOY) == [END, 97, *b"<|end"]
    assert TokenEngine.complete.__doc__
