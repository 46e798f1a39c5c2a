"""Tools and the choice among them survive both ways; a choice of what is not there is refused."""

from typing import Any

import pytest

from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.wire.chat import tools as tools_module
from tests.wire.chat.asking import HELLO, hear, losses, tell

SCHEMA = {
    "type": "object",
    "properties": {
        "deep": {"type": "object", "properties": {"x": {"$ref": "#/$defs/t"}}},
        "flag": {"type": "boolean", "default": False},
        "n": {"type": "uint128", "default": 0},
        "s": {"type": "string", "default": "", "enum": []},
    },
    "required": [],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "f"}}
CUSTOM = {"type": "custom", "custom": {"name": "g"}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}


def choose(choice: Any, *tools: Any) -> Request:
    return hear(tools=list(tools) or [FUNCTION, CUSTOM], tool_choice=choice)


def test_r2_27_a_schema_is_carried_as_it_is_and_only_what_was_given_appears() -> None:
    full = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": SCHEMA,
            "strict": False,
            "z": 1,
        },
        "y": 2,
    }
    request = hear(tools=[full, FUNCTION, {"function": {"name": "h", "parameters": {}}}])
    extra = {"chat": {"y": 2, "function": {"z": 1}}}
    assert request.tools == (
        FunctionTool("f", "d", SCHEMA, False, extra),
        FunctionTool("f"),
        FunctionTool("h", parameters={}),
    )
    bare = {"type": "function", "function": {"name": "h", "parameters": {}}}
    assert tell(request)["tools"] == [full, FUNCTION, bare]


def test_v15_defaults_that_are_false_zero_or_empty_and_unknown_types_survive() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    said = tell(hear(tools=[tool]))["tools"][0]["function"]["parameters"]
    assert said == SCHEMA
    assert list(said["properties"]) == list(SCHEMA["properties"])


def test_p16_custom_tools_and_their_grammars_are_carried() -> None:
    grammar = {"type": "custom", "custom": {"name": "g", "description": "d", "format": GRAMMAR}}
    plain = {"type": "custom", "custom": {"name": "t", "format": {"type": "text"}, "z": 1}, "y": 2}
    request = hear(tools=[grammar, plain, CUSTOM])
    kept = {"chat": {"y": 2, "custom": {"z": 1, "format": {"type": "text"}}}}
    assert request.tools == (
        CustomTool("g", "d", "lark", "start: /x/"),
        CustomTool("t", extra=kept),
        CustomTool("g"),
    )
    assert tell(request)["tools"] == [grammar, plain, CUSTOM]
    odd = {"type": "custom", "custom": {"name": "g", "format": {**GRAMMAR, "z": 1}}}
    odd["custom"]["format"] = {
        "type": "grammar",
        "grammar": {**GRAMMAR["grammar"], "x": 1},
        "z": 1,
    }
    assert tell(hear(tools=[odd]))["tools"] == [odd]


def test_p16_namespaces_are_carried() -> None:
    space = {
        "type": "namespace",
        "name": "s",
        "description": "d",
        "z": 1,
        "tools": [FUNCTION, CUSTOM, {"type": "hosted", "a": 1}],
    }
    request = hear(tools=[space])
    inner = (FunctionTool("f"), CustomTool("g"), UnknownTool("chat", "hosted", {"a": 1}))
    assert request.tools == (Namespace("s", inner, "d", {"chat": {"z": 1}}),)
    assert tell(request)["tools"] == [space]
    named = {"type": "hosted", "name": "x"}
    flat = {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "f"}, named]}
    known = (FunctionTool("f"), UnknownTool("chat", "hosted", {"name": "x"}))
    assert hear(tools=[flat]).tools == (Namespace("s", known),)


def test_unknown_tools_are_kept_and_hosted_tools_of_another_wire_are_told() -> None:
    hosted = {"type": "live_search", "sources": [1]}
    assert tell(hear(tools=[hosted]))["tools"] == [hosted]
    foreign = UnknownTool("responses", "web_search", {"x": 1})
    request = Request(model="m", items=(HELLO,), tools=(foreign, FunctionTool("f")))
    assert tell(request)["tools"] == [FUNCTION]
    assert losses(request) == {"tools[0]": "dropped"}


# ---- choice ------------------------------------------------------------------------------

ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [FUNCTION, {"type": "hosted"}]},
}


@pytest.mark.parametrize(
    ("wire", "read"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        (FUNCTION, NamedTool("f")),
        (CUSTOM, NamedTool("g", "custom")),
        (
            {"type": "function", "function": {"name": "f", "namespace": "s"}},
            NamedTool("f", namespace="s"),
        ),
        (ALLOWED, AllowedTools("required", (NamedTool("f"), UnknownTool("chat", "hosted", {})))),
        ({"type": "hosted", "x": 1}, UnknownTool("chat", "hosted", {"x": 1})),
    ],
)
def test_a_choice_is_read_and_said_again(wire: Any, read: Any) -> None:
    space = {"type": "namespace", "name": "s", "tools": [FUNCTION]}
    request = choose(wire, FUNCTION, CUSTOM, space, {"type": "hosted"})
    assert request.tool_choice == read
    assert tell(request)["tool_choice"] == wire


@pytest.mark.parametrize(
    "wire",
    [
        {"type": "function", "function": {"name": "f", "odd": 1}, "vendor": {"a": 2}},
        {"type": "custom", "custom": {"name": "g", "odd": 1}, "vendor": 2},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "f", "odd": 1}, "odd": 2}],
                "odd": 3,
            },
            "odd": 4,
        },
    ],
    ids=["function", "custom", "allowed tools"],
)
def test_what_a_choice_says_besides_is_said_again(wire: Any) -> None:
    assert tell(choose(wire, FUNCTION, CUSTOM))["tool_choice"] == wire


def test_allowed_tools_without_a_mode_are_a_choice_of_the_model() -> None:
    request = choose({"type": "allowed_tools", "allowed_tools": {"tools": [FUNCTION]}})
    assert request.tool_choice == AllowedTools("auto", (NamedTool("f"),))


def test_r1_w13_without_tools_neither_tools_nor_a_choice_is_said() -> None:
    request = hear(tools=[], tool_choice="auto", parallel_tool_calls=False)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & tell(request).keys()
    assert losses(request) == {"tool_choice": "dropped", "parallel_tool_calls": "dropped"}


def test_r1_w15_the_choice_and_the_parallel_flag_reach_the_upstream() -> None:
    said = tell(hear(tools=[FUNCTION], tool_choice=FUNCTION, parallel_tool_calls=False))
    assert said["tool_choice"] == FUNCTION
    assert said["parallel_tool_calls"] is False


def test_a_hosted_choice_of_another_wire_is_left_out_of_several() -> None:
    several = AllowedTools("auto", (NamedTool("f"), UnknownTool("responses", "web_search", {})))
    request = Request(model="m", items=(HELLO,), tools=(FunctionTool("f"),), tool_choice=several)
    assert tell(request)["tool_choice"]["allowed_tools"]["tools"] == [FUNCTION]


# ---- the deprecated form -----------------------------------------------------------------


def test_functions_are_tools_and_the_request_remembers_how_it_asked() -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA, "z": 1}
    request = hear(functions=[function], function_call={"name": "f", "z": 1})
    extra = {"chat": {"function": {"z": 1}}}
    assert request.tools == (FunctionTool("f", "d", SCHEMA, extra=extra),)
    assert request.tool_choice == NamedTool("f", extra=extra)
    assert request.extra == {"legacy": {"functions": True}}
    said = tell(request)
    assert said["tools"] == [{"type": "function", "function": function}]
    assert said["tool_choice"] == {"type": "function", "function": {"name": "f", "z": 1}}
    assert "functions" not in said


def test_functions_beside_tools_are_only_more_tools() -> None:
    request = hear(tools=[CUSTOM], functions=[{"name": "f"}], function_call="auto")
    assert request.tools == (CustomTool("g"), FunctionTool("f"))
    assert (request.tool_choice, request.extra) == ("auto", None)
    assert hear(functions=[{"name": "f"}], function_call="none").tool_choice == "none"


def test_tools_are_decoded_and_encoded_once() -> None:
    tools = [{"type": "function", "function": {"name": "once", "parameters": {"type": "object"}}}]
    first, second = hear(tools=tools), hear(tools=tools)
    assert first.tools is second.tools
    encode = tools_module.encode
    assert encode(first.tools) is encode(second.tools)
    assert encode((FunctionTool("once"),)) is not encode((FunctionTool("once"),))
