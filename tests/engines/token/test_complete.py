"""Bare prompts: written on from where they end, echoed where asked, with exact probabilities."""

from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from dragoman.core.event import Failed
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.engines.base import Wrapper
from dragoman.engines.token import TokenEngine
from dragoman.engines.token.engine import RawParser, raw_ids
from tests.engines.token.asking import asked, serving
from tests.engines.token.models import Says
from tests.engines.token.plain import END, TOY


async def completed(engine: Any, prompt: Any, request: Request, **options: Any) -> Response:
    async with aclosing(engine.complete(prompt, request, **options)) as stream:
        events = [event async for event in stream]
    check(events)
    return fold(events)


async def test_a_text_is_written_on_and_its_control_tokens_are_read() -> None:
    model = Says("there")
    async with serving(model) as engine:
        response = await completed(engine, "hi<|end|>", asked())
        assert response.text == "there"
        assert response.usage.input_tokens == 3
        assert model.opened[0].prompt == (104, 105, END)
        again = await completed(engine, [104, 105, END], asked())
        assert (again.text, model.opened[1].prompt) == ("there", model.opened[0].prompt)


async def test_ids_that_are_none_are_refused() -> None:
    async with serving(Says("")) as engine:
        for prompt in ([1, TOY.size], [-1], [], ""):
            response = await completed(engine, prompt, asked())
            assert response.error.code == "invalid_request"


async def test_fields_that_are_not_carried_are_reported() -> None:
    extra = {"completions": {"ignore_eos": True, "guided_choice": ["a"]}}
    async with serving(Says("there")) as engine:
        response = await completed(engine, "hi", replace(asked(), extra=extra))
        assert [loss.field for loss in response.losses] == ["ignore_eos", "guided_choice"]


async def test_an_echo_comes_first_and_is_searched_for_no_stop() -> None:
    async with serving(Says("+more")) as engine:
        response = await completed(engine, "x.y<|end|>", asked(stop=(".", "re")), echo=True)
        assert response.text == "x.y<|end|>+mo"
        response = await completed(engine, [120, END], asked(), echo=True)
        assert response.text == "x<|end|>+more"
        response = await completed(engine, "xyz", asked(max_tokens=0), echo=True)
        assert (response.text, response.reasons) == ("xyz", ("length",))
        assert response.usage.output_tokens == 0
        refused = [e async for e in engine.complete("xyz", asked(max_tokens=0))]
        assert isinstance(refused[-1], Failed)


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
