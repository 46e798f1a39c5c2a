"""What a person writes becomes a request, and nothing is added to it."""

from typing import Any

import pytest

from dragoman.client.client import Settings, build_request
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Text
from dragoman.core.request import FunctionTool, JSONSchema, ReasoningOptions, Request, Sampling

TOOL = FunctionTool("f")


def test_text_item_and_conversation_are_accepted() -> None:
    hello = Message("user", "Hello!")
    for said in ("Hello!", hello, [hello], (hello,)):
        assert build_request(said, {"model": "m"}, stream=True) == Request(
            model="m", items=(hello,), stream=True
        )


def test_r1_w14_only_given_settings_are_set() -> None:
    assert build_request("Hi", {}, stream=False) == Request(
        model="", items=(Message("user", "Hi"),)
    )


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
    assert build_request("Hi", settings, stream=True) == Request(
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


def test_whole_request_is_sent_unchanged() -> None:
    request = Request(model="m", sampling=Sampling(top_p=0.5))
    assert build_request(request, {}, stream=True) is request
    changed = build_request(
        request, {"temperature": 1.0, "stop": ["a", "b"], "model": "n"}, stream=True
    )
    assert changed == Request(
        model="n", sampling=Sampling(top_p=0.5, temperature=1.0, stop=("a", "b"))
    )


def test_unknown_setting_is_a_type_error() -> None:
    for name in ("temprature", "items", "sampling"):
        with pytest.raises(TypeError, match=name):
            build_request("Hi", {name: 1}, stream=True)


def test_dicts_are_items_as_the_official_sdk_has_them() -> None:
    said = [
        {"role": "user", "content": "Six times seven?"},
        {"type": "function_call", "call_id": "c1", "name": "times", "arguments": "{}"},
        FunctionCallOutput("c1", "42"),
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ]
    items = (
        Message("user", "Six times seven?"),
        FunctionCall("c1", "times", "{}"),
        FunctionCallOutput("c1", "42"),
        Message("user", (Text("And?"),)),
    )
    assert build_request(said, {}, stream=True).items == items
    assert build_request(tuple(said), {}, stream=True).items == items
    assert build_request({"role": "user", "content": "Hi"}, {}, stream=True).items == (
        Message("user", "Hi"),
    )


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (7, "^input: is of type int, and must be an item or a dict"),
        (None, "^input: is of type NoneType"),
        (FunctionTool("f"), "^input: is of type FunctionTool"),
        (["Hi"], r"^input\[0\]: is of type str"),
        ([Message("user", "Hi"), Text("Hi")], r"^input\[1\]: is of type Text"),
        ([{}], r"^input\[0\].role: is missing"),
        ([{"role": "tool", "content": "x"}], r"^input\[0\].role: is 'tool', and must be one of"),
        ([{"role": "user", "content": 7}], r"^input\[0\].content: is a number"),
        ({"role": "user"}, r"^input.content: is missing"),
    ],
)
def test_invalid_item_is_a_type_error_that_names_its_place(said: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        build_request(said, {}, stream=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("max_output_tokens", "9"),
        ("max_output_tokens", 9.5),
        ("seed", True),
        ("tools", [1]),
        ("tool_choice", "maybe"),
        ("format", "json"),
        ("reasoning", 3),
        ("stop", ["a", 1]),
        ("model", None),
        ("logit_bias", {"a": "b"}),
    ],
)
def test_a_setting_of_the_wrong_type_is_a_type_error_that_names_it(name: str, value: Any) -> None:
    settings: Any = {name: value}
    with pytest.raises(TypeError, match=f"^{name}: "):
        build_request("Hi", settings, stream=True)


def test_dicts_are_tools_as_the_official_sdk_has_them() -> None:
    said = {"type": "function", "name": "f", "parameters": {}, "strict": True, "vendor": 1}
    settings: Settings = {"tools": [said, TOOL]}
    tool = FunctionTool("f", parameters={}, strict=True, extra={"responses": {"vendor": 1}})
    assert build_request("Hi", settings, stream=True).tools == (tool, TOOL)
    with pytest.raises(TypeError, match=r"^tools\[0\].name: is missing"):
        build_request("Hi", {"tools": [{"type": "function"}]}, stream=True)
