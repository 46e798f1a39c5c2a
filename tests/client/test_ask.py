"""What a person writes becomes a request, and nothing is added to it."""

import pytest

from dragoman.client.ask import Settings, ask
from dragoman.core.item import Message
from dragoman.core.request import FunctionTool, JSONSchema, ReasoningOptions, Request, Sampling

TOOL = FunctionTool("f")


def test_a_text_an_item_or_a_conversation_may_be_asked() -> None:
    hello = Message("user", "Hello!")
    for said in ("Hello!", hello, [hello], (hello,)):
        assert ask(said, {"model": "m"}, stream=True) == Request(
            model="m", items=(hello,), stream=True
        )


def test_r1_w14_only_what_was_said_is_set() -> None:
    assert ask("Hi", {}, stream=False) == Request(model="", items=(Message("user", "Hi"),))


def test_r1_3_settings_go_where_the_core_has_them() -> None:
    settings: Settings = {
        "model": "m",
        "instructions": "be kind",
        "tools": [TOOL],
        "tool_choice": "auto",
        "format": JSONSchema("x", {"type": "object"}),
        "reasoning": "low",
        "max_output_tokens": 9,
        "temperature": 0.0,
        "stop": "END",
        "seed": 7,
    }
    assert ask("Hi", settings, stream=True) == Request(
        model="m",
        items=(Message("user", "Hi"),),
        instructions="be kind",
        tools=(TOOL,),
        tool_choice="auto",
        format=JSONSchema("x", {"type": "object"}),
        reasoning=ReasoningOptions("low"),
        max_output_tokens=9,
        sampling=Sampling(temperature=0.0, stop=("END",), seed=7),
        stream=True,
    )


def test_a_whole_request_is_asked_as_it_is() -> None:
    request = Request(model="m", sampling=Sampling(top_p=0.5))
    assert ask(request, {}, stream=True) is request
    changed = ask(request, {"temperature": 1.0, "stop": ["a", "b"], "model": "n"}, stream=True)
    assert changed == Request(
        model="n", sampling=Sampling(top_p=0.5, temperature=1.0, stop=("a", "b"))
    )


def test_a_setting_there_is_none_of_is_an_error() -> None:
    for name in ("temprature", "items", "sampling"):
        with pytest.raises(TypeError, match=name):
            ask("Hi", {name: 1}, stream=True)
