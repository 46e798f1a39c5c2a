"""What requests demand, and which demands are refused."""

from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    TextFormat,
    UnknownTool,
)
from dragoman.core.response import default_guarantee
from dragoman.formats.grammar.demand import Anything, Choice, JSONBody, Lark, Regex, demand, lark

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ROLL = FunctionTool("roll", parameters=SCHEMA)
STRICT = FunctionTool("read", parameters=SCHEMA, strict=True)
PATCH = CustomTool("patch", syntax="lark", grammar="start: /a+/")
SEARCH = UnknownTool("responses", "web_search", {})


def asked(**fields: Any) -> Request:
    return Request(model="m", **fields)


def chat(**fields: Any) -> Request:
    return asked(extra={"chat": fields})


@pytest.mark.parametrize(
    "request_",
    [
        asked(),
        asked(format=TextFormat()),
        asked(tools=(ROLL, SEARCH, CustomTool("note"))),
        asked(tools=(ROLL,), tool_choice="auto"),
        asked(tools=(STRICT,), tool_choice="none"),
        chat(priority=1),
    ],
)
def test_most_requests_demand_nothing(request_) -> None:
    assert demand(request_) is None
    assert not default_guarantee(request_)


def test_a_schema_binds_the_text() -> None:
    found = demand(asked(format=JSONSchema("x", SCHEMA, strict=True)))
    assert found.text.schema == {**SCHEMA, "additionalProperties": False}
    assert (found.tools, found.strict) == ((), True)


@pytest.mark.parametrize("format", [JSONObject(), JSONSchema("x", SCHEMA), JSONSchema("x")])
def test_without_strict_a_text_that_does_not_fit_is_still_an_answer(format) -> None:
    found = demand(asked(format=format))
    assert isinstance(found.text, JSONBody)
    assert not found.strict


def test_p35_a_schema_beside_tools_leaves_the_choice_to_the_model() -> None:
    found = demand(asked(format=JSONSchema("x", SCHEMA), tools=(ROLL,), tool_choice="auto"))
    assert isinstance(found.text, JSONBody)
    assert [tool.name for tool in found.tools] == ["roll"]
    assert found.several


@pytest.mark.parametrize(
    ("choice", "names", "must"),
    [
        ("required", ["roll", "read", "patch"], True),
        (NamedTool("read"), ["read"], True),
        (NamedTool("patch", "custom"), ["patch"], True),
        (AllowedTools("auto", (NamedTool("roll"),)), ["roll"], False),
        (AllowedTools("required", (NamedTool("roll"), NamedTool("read"))), ["roll", "read"], True),
    ],
)
def test_choice_selects_tools_and_whether_one_must_be_called(choice, names, must) -> None:
    request = asked(tools=(ROLL, STRICT, PATCH), tool_choice=choice, parallel_tool_calls=False)
    found = demand(request)
    assert default_guarantee(request)
    assert [tool.name for tool in found.tools] == names
    assert (found.text is None) is must
    assert not found.several


def test_strict_tools_bind_calls_and_leave_the_text_free() -> None:
    for tool in (STRICT, PATCH, Namespace("git", (STRICT,))):
        found = demand(asked(tools=(ROLL, tool)))
        assert default_guarantee(asked(tools=(ROLL, tool)))
        assert isinstance(found.text, Anything)
        assert [each.strict for each in found.tools] == [False, True]


def test_tools_of_a_namespace_count_and_hosted_ones_do_not() -> None:
    group = Namespace("git", (ROLL, SEARCH, STRICT))
    found = demand(asked(tools=(SEARCH, group)))
    assert [(tool.namespace, tool.name) for tool in found.tools] == [
        ("git", "roll"),
        ("git", "read"),
    ]


def test_custom_tools_bring_their_grammars() -> None:
    tools = (CustomTool("a", syntax="regex", grammar="x+"), PATCH, CustomTool("c"))
    found = demand(asked(tools=tools, tool_choice="required"))
    assert [tool.body for tool in found.tools] == [
        Regex("tools[0].grammar", "x+"),
        Lark("tools[1].grammar", "start: /a+/"),
        Anything(),
    ]


UNKNOWN = {"type": "object", "properties": {"a": {"not": {}}}}


def test_p34_a_strict_tool_with_a_keyword_that_cannot_be_enforced_is_refused() -> None:
    strict = FunctionTool("f", parameters=UNKNOWN, strict=True)
    with pytest.raises(FaultError) as raised:
        demand(asked(tools=(ROLL, Namespace("n", (ROLL, strict)))))
    assert raised.value.fault.param == "tools[1].tools[1].parameters.properties.a.not"


def test_a_tool_that_is_not_strict_takes_any_object_then() -> None:
    found = demand(asked(tools=(FunctionTool("f", parameters=UNKNOWN),), tool_choice="required"))
    assert found.tools[0].body == JSONBody("tools[0].parameters", {"type": "object"})


REFUSED = [
    (asked(tool_choice="required"), "tool_choice"),
    (asked(tools=(ROLL,), tool_choice=NamedTool("other")), "tool_choice"),
    (asked(tools=(SEARCH,), tool_choice=SEARCH), "tool_choice"),
    (asked(tools=(CustomTool("a", syntax="ebnf", grammar="x"),)), "tools[0].syntax"),
    (asked(format=JSONSchema("x", UNKNOWN)), "format.schema.properties.a.not"),
    (chat(guided_regex="a", guided_choice=["a"]), "guided_choice"),
    (asked(format=JSONObject(), extra={"chat": {"guided_regex": "a"}}), "guided_regex"),
    (chat(guided_choice=[]), "guided_choice"),
    (chat(guided_choice=[1]), "guided_choice"),
    (chat(guided_regex=1), "guided_regex"),
    (chat(guided_json={"not": {}}), "guided_json.not"),
    (chat(structured_outputs="x"), "structured_outputs"),
    (chat(structured_outputs={"structural_tag": "x"}), "structured_outputs.structural_tag"),
    (chat(response_format={"type": "ebnf", "ebnf": "x"}), "response_format.type"),
]


@pytest.mark.parametrize(("request_", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_p34_constraint_that_cannot_be_enforced_is_refused(request_, param) -> None:
    with pytest.raises(FaultError) as raised:
        demand(request_)
    assert raised.value.fault.param == param
    assert raised.value.fault.blame == "client"
    assert default_guarantee(request_)


WHOLE = [
    (chat(guided_regex="a+"), Regex("guided_regex", "a+")),
    (chat(guided_choice=["a", "b"]), Choice("guided_choice", ("a", "b"))),
    (chat(guided_grammar="start: /a/"), Lark("guided_grammar", "start: /a/")),
    (chat(grammar='root ::= "a"'), Lark("grammar", 'R0: "a"\nstart: R0')),
    (chat(guided_json={"type": "null"}), JSONBody("guided_json", {"type": "null"})),
    (
        chat(structured_outputs={"regex": "a", "disable_any_whitespace": True, "choice": None}),
        Regex("structured_outputs.regex", "a"),
    ),
    (
        chat(response_format={"type": "regex", "pattern": "a"}),
        Regex("response_format.pattern", "a"),
    ),
    (
        asked(extra={"responses": {"structured_outputs": {"choice": ["a"]}}}),
        Choice("structured_outputs.choice", ("a",)),
    ),
]


@pytest.mark.parametrize(
    ("request_", "body"), WHOLE, ids=[type(body).__name__ for _, body in WHOLE]
)
def test_the_fields_that_other_servers_know_bind_the_whole_answer(request_, body) -> None:
    found = demand(request_)
    assert (found.text, found.strict) == (body, True)
    assert default_guarantee(request_)


@pytest.mark.parametrize(
    ("grammar", "taken"),
    [
        ('start: "a & b ~"', True),
        ("start: /a&b~/", True),
        ('start: "a" // & ~', True),
        ('start: "a\\"&"', True),
        ("start: A\nA: /a/ & /b/", False),
        ("start: A\nA: ~/a/", False),
    ],
)
def test_operators_that_cost_without_bound_are_not_taken(grammar, taken) -> None:
    if taken:
        assert lark("grammar", grammar).lark == grammar
        return
    with pytest.raises(FaultError, match="& and ~") as refused:
        lark("grammar", grammar)
    assert refused.value.fault.param == "grammar"


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"guided_regex": "a" * 16_385}, 16_384),
        ({"guided_choice": ["a" * 131_072, "b" * 131_072]}, 262_144),
        ({"guided_grammar": "start: " + " " * 65_536}, 65_536),
        ({"guided_grammar": "\n".join(f'r{n}: "a:b"' for n in range(1_001))}, 1_000),
        ({"guided_grammar": f'start: {"(" * 101}"a"{")" * 101}'}, 100),
    ],
)
def test_what_is_too_large_is_refused_by_its_field(fields, most) -> None:
    with pytest.raises(FaultError) as raised:
        demand(chat(**fields))
    fault = raised.value.fault
    assert (fault.code, fault.param) == ("invalid_request", next(iter(fields)))
    assert f"and {most} are the most here" in fault.message


def test_brackets_in_texts_and_expressions_do_not_count() -> None:
    text = f'start: "{"(" * 200}" /[(]{{200}}/ // {"(" * 200}'
    assert lark("grammar", text).lark == text
