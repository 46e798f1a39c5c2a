"""Grammars in the envelopes of formats: what is an answer in them, and what is not."""

from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import Message, Reasoning
from dragoman.core.request import (
    CustomTool,
    FunctionTool,
    JSONSchema,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    UnknownTool,
)
from dragoman.formats.format import Grammar
from dragoman.formats.grammar.demand import Regex
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.harmony import HARMONY
from dragoman.formats.markup.families import PROFILES
from dragoman.formats.markup.format import Markup
from tests.formats.grammar.accepts import verdict

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ROLL = FunctionTool("roll", parameters=SCHEMA)
STRICT = FunctionTool("roll", parameters=SCHEMA, strict=True)
TEXT = JSONSchema(
    "x", {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}
)

CONTROLS = (
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>"),
    *("<|return|>", "<|call|>", "<|constrain|>"),
)


def asked(**fields: Any) -> Request:
    return Request(model="m", items=(Message("user", "hi"),), **fields)


def made(of: Any, /, **fields: Any) -> Grammar:
    found: Grammar | None = of.grammar(asked(**fields))
    assert found is not None
    return found


# ---- harmony -----------------------------------------------------------------------------

THOUGHT = "<|channel|>analysis<|message|>{hm}<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.roll <|constrain|>json<|message|>"


def harmony(text: str, **fields: Any) -> str:
    return verdict(made(HARMONY, **fields), text, *CONTROLS)


@pytest.mark.parametrize("lead", ["", THOUGHT, THOUGHT * 2])
def test_r4_w21_harmony_binds_only_what_stands_in_the_final_message(lead) -> None:
    assert harmony(f'{lead}{FINAL}{{"t": "x"}}<|return|>', format=TEXT) == "whole"
    assert harmony(f'{lead}{FINAL}{{"t":"x"}}<|return|>', format=TEXT) == "whole"
    said = f'{lead}<|channel|>final <|constrain|>json<|message|>{{"t":"x"}}'
    assert harmony(said, format=TEXT) == "begun"
    assert harmony(f"{lead}{FINAL}hello", format=TEXT).startswith("wrong after")
    assert harmony(f"{lead}{FINAL}{{ ", format=TEXT).startswith("wrong after")
    assert harmony(f"{lead}<|channel|>commentary<|message|>So", format=TEXT).startswith("wrong")


def test_p35_harmony_leaves_a_call_possible_beside_a_schema() -> None:
    both = {"format": TEXT, "tools": (ROLL,)}
    assert harmony(f'{THOUGHT}{CALL}{{"n": 6}}<|call|>', **both) == "whole"
    assert harmony(f'{FINAL}{{"t": "x"}}<|return|>', **both) == "whole"
    assert harmony(f'{CALL}{{"n": "six', **both).startswith("wrong after")
    assert harmony(f"{FINAL}six", **both).startswith("wrong after")


def test_r4_w21_harmony_must_call_where_a_call_is_required() -> None:
    required = {"tools": (ROLL, FunctionTool("stop")), "tool_choice": "required"}
    assert harmony(f'{CALL}{{"n": 6}}<|call|>', **required) == "whole"
    preamble = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    assert harmony(f'{preamble}{CALL}{{"n": 6}}<|call|>', **required) == "whole"
    assert harmony(FINAL, **required).startswith("wrong after")
    assert harmony("<|channel|>commentary to=functions.other", **required).startswith("wrong")


def test_harmony_begins_where_the_prompt_ends() -> None:
    named = {"tools": (ROLL, FunctionTool("stop")), "tool_choice": NamedTool("roll")}
    assert harmony('{"n": 6}<|call|>', **named) == "whole"
    assert harmony(CALL, **named).startswith("wrong")
    grouped = {"tools": (Namespace("dice", (ROLL,)),), "tool_choice": NamedTool("roll")}
    assert harmony('{"n": 6}<|call|>', **grouped) == "whole"  # chosen without its namespace
    thought = Request(
        model="m", items=(Message("user", "?"), Reasoning(status="incomplete")), format=TEXT
    )
    begun = HARMONY.grammar(thought)
    assert begun is not None
    text = f'hm<|end|><|start|>assistant{FINAL}{{"t": "x"}}<|return|>'
    assert verdict(begun, text, *CONTROLS) == "whole"


def test_an_answer_that_is_begun_cannot_be_bound_any_more() -> None:
    begun = (Message("user", "?"), Message("assistant", "We", status="incomplete"))
    with pytest.raises(FaultError) as raised:
        HARMONY.grammar(Request(model="m", items=begun, format=TEXT))
    assert raised.value.fault.param == "items"
    free = HARMONY.grammar(Request(model="m", items=begun, tools=(STRICT,)))
    assert free is not None
    assert verdict(free, " go on<|return|>", *CONTROLS) == "whole"


def test_harmony_with_namespaces_and_custom_tools_and_without_built_ins() -> None:
    patch = CustomTool("patch", syntax="lark", grammar='start: "a"+ B\nB: /b{2}/\n%ignore " "')
    search = UnknownTool("responses", "web_search", {})
    tools = {"tools": (Namespace("git", (STRICT,)), patch, search)}
    header = "<|channel|>commentary to="
    assert (
        harmony(f'{header}git.roll <|constrain|>json<|message|>{{"n": 1}}<|call|>', **tools)
        == "whole"
    )
    assert harmony(f"{header}functions.patch<|message|>a aabb<|call|>", **tools) == "whole"
    assert harmony(f"{header}functions.patch<|message|>ab", **tools) == "begun"
    assert harmony(f"{header}functions.patch<|message|>c", **tools).startswith("wrong")
    built_in = "<|channel|>analysis to=browser.search code<|message|>{}<|call|>"
    assert harmony(built_in, **tools).startswith("wrong")  # nobody would run it
    assert harmony(f"{FINAL}anything<|return|>", **tools) == "whole"


# ---- markup --------------------------------------------------------------------------------

HERMES = Markup("hermes")
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
CALLED = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
VOCABULARIES = [(*HERMES.profile.controls, *TAGS), HERMES.profile.controls, ("<|im_end|>",)]


@pytest.fixture(params=VOCABULARIES, ids=["tags are tokens", "tags are text", "one end"])
def hermes(request) -> Any:
    def check(text: str, **fields: Any) -> str:
        return verdict(made(HERMES, **fields), text, *request.param)

    return check


def test_r4_w21_hermes_binds_the_text(hermes: Any) -> None:
    assert hermes('{"t": "x"}<|im_end|>', format=TEXT) == "whole"
    assert (
        hermes('<think>\nany {"thing"}\n</think>\n\n{"t": "x"}<|im_end|>', format=TEXT) == "whole"
    )
    assert hermes('{"t":', format=TEXT) == "begun"
    assert hermes('{"t":"', format=TEXT).startswith("wrong")  # as the model was trained: spaced
    assert hermes("Sure: {", format=TEXT).startswith("wrong")


def test_p35_hermes_leaves_calls_possible_beside_a_schema(hermes: Any) -> None:
    both = {"format": TEXT, "tools": (ROLL,)}
    call = CALLED.format("roll", '{"n": 1}')
    assert hermes(f"{call}\n{call}<|im_end|>", **both) == "whole"
    assert hermes('{"t": "x"}<|im_end|>', **both) == "whole"
    assert hermes(f"Well {call}", **both).startswith("wrong")
    assert hermes(f"{call}\n{call}", **both, parallel_tool_calls=False).startswith("wrong")


def test_strict_tools_bind_their_arguments_and_not_the_text(hermes: Any) -> None:
    strict = {"tools": (STRICT, FunctionTool("stop"))}
    for lead in ("", "I will. ", "2 < 3 <tool"):
        assert hermes(f"{lead}<|im_end|>", **strict) == "whole"
        called = CALLED.format("roll", '{"n": 1}')
        assert hermes(f"{lead}{called}<|im_end|>", **strict) == "whole"
        wrong = CALLED.format("roll", '{"n": "x"}')
        assert hermes(f"{lead}{wrong}", **strict).startswith("wrong")
        other = CALLED.format("stop", '{"any": [1]}')
        assert hermes(f"{lead}{called}\n{other}<|im_end|>", **strict) == "whole"
    assert hermes(CALLED.format("other", "{}"), **strict).startswith("wrong")


def test_r4_w21_hermes_must_call_where_a_call_is_required(hermes: Any) -> None:
    required = {"tools": (STRICT,), "tool_choice": "required"}
    assert hermes("Hello", **required).startswith("wrong")
    assert hermes("<|im_end|>", **required).startswith("wrong")
    assert hermes(CALLED.format("roll", '{"n": 1}') + "<|im_end|>", **required) == "whole"


def test_a_regex_or_a_choice_in_place_of_the_text(hermes: Any) -> None:
    def bound(**fields: Any) -> dict[str, Any]:
        return {"extra": {"chat": fields}}

    assert hermes("a/b\n<|im_end|>", **bound(guided_regex="^[ab/]+\n$")) == "whole"
    assert hermes("c", **bound(guided_regex="[ab]+")).startswith("wrong")
    assert hermes("no, never<|im_end|>", **bound(guided_choice=["no", "no, never"])) == "whole"
    assert hermes("1+2<|im_end|>", **bound(guided_grammar='start: /\\d/ ("+" /\\d/)*')) == "whole"
    assert hermes("$5<|im_end|>", **bound(guided_regex="\\$5")) == "whole"
    assert hermes("5$<|im_end|>", **bound(guided_regex="5\\$")) == "whole"
    assert hermes("a/1<|im_end|>", **bound(guided_regex="[^\\d\n]/\\d")) == "whole"
    assert hermes("٣", **bound(guided_regex="\\d")).startswith("wrong")


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_every_family_has_a_grammar_of_its_own_calls(profile) -> None:
    """A call as the family writes it is what its grammar takes, with text before it or not."""
    writing, end = profile.syntax, profile.ends[0]
    arguments = writing.template(False).replace("{}", "n", 1).replace("{}", "7") or '{"n": 7}'
    separator = writing.separator.replace("#", "12")
    one = f"{writing.opening}roll{separator}{arguments}{writing.closing}"
    several = f"{writing.first}{one}{writing.between}{one}{writing.last}{end}"
    single = f"{writing.first}{one}{writing.last}{end}"
    for controls in (profile.controls, (end,)):
        for choice in ("required", "auto"):
            found = made(Markup(profile), tools=(STRICT,), tool_choice=choice)
            assert verdict(found, several, *controls) == "whole"
            assert verdict(found, single, *controls) == "whole"
        assert verdict(found, f"Hello!{end}", *controls) == "whole"
        if not profile.bare:
            assert verdict(found, f"Hm. {single}", *controls) == "whole"
        schema = made(Markup(profile), format=TEXT)
        assert verdict(schema, f'{{"t": "x"}}{end}', *controls) == "whole"


def test_where_a_message_may_be_a_call_by_itself_free_text_does_not_begin_as_one() -> None:
    llama = made(Markup("llama"), tools=(STRICT,))
    controls = Markup("llama").profile.controls
    assert verdict(llama, "<|eot_id|>", *controls) == "whole"
    assert verdict(llama, "well {", *controls) == "begun"
    assert verdict(llama, '{"name": "roll", "parameters": {"n": 1', *controls) == "begun"
    assert verdict(llama, '{"n', *controls) == "begun"
    assert verdict(llama, '{"x', *controls).startswith("wrong")
    assert verdict(llama, "[roll", *controls).startswith("wrong")


XML: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "short": {"type": "string", "maxLength": 2},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
    },
    "required": ["city"],
    "$defs": {"day": {"type": "integer"}},
}


def test_arguments_as_tags() -> None:
    qwen = Markup("qwen-xml")
    found = made(
        qwen, tools=(FunctionTool("w", parameters=XML, strict=True),), tool_choice="required"
    )
    head = "<tool_call>\n<function=w>\n<parameter=city>\nParis\n</parameter>\n"
    tail = "</function>\n</tool_call><|im_end|>"
    for middle in (
        "",
        "<parameter=unit>\nF\n</parameter>\n",
        "<parameter=short>\néé\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n",
    ):
        assert verdict(found, f"{head}{middle}{tail}", *qwen.profile.controls) == "whole"
    for middle in ("unit>\nK", "short>\nééé", "days>\n[x", "city>\n"):
        said = f"{head}<parameter={middle}"
        assert verdict(found, said, *qwen.profile.controls).startswith("wrong")


@pytest.mark.parametrize(
    "property",
    [True, {}, {"type": ["string", "null"]}, {"type": "string", "pattern": "a"}],
)
def test_property_that_tags_cannot_express_is_refused(property) -> None:
    tool = FunctionTool(
        "f", parameters={"type": "object", "properties": {"a": property}}, strict=True
    )
    with pytest.raises(FaultError) as raised:
        Markup("qwen-xml").grammar(Request(model="m", tools=(tool,)))
    assert raised.value.fault.param == "tools[0].parameters.properties.a"


def test_a_tool_without_arguments_as_tags() -> None:
    qwen = Markup("qwen-xml")
    found = made(qwen, tools=(FunctionTool("now"),), tool_choice="required")
    said = "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>"
    assert verdict(found, said, *qwen.profile.controls) == "whole"


def test_prompt_that_ends_inside_the_reasoning_is_constrained_after_it() -> None:
    class Opened(Markup):
        def starts_thinking(self, request: Request) -> bool:
            return True

    inside = Opened("hermes").grammar(asked(format=TEXT))
    assert inside is not None
    assert verdict(inside, 'hm</think>{"t": "x"}') == "whole"
    assert verdict(inside, '{"t": "x"}') == "begun"
    assert Opened("hermes").grammar(asked()) is None


def test_effort_none_leaves_the_reasoning_out() -> None:
    thought, plain = '<think>hm</think>{"t": "x"}', '{"t": "x"}'
    for effort, found in (("low", "whole"), ("none", "wrong after ''")):
        grammar = made(HERMES, format=TEXT, reasoning=ReasoningOptions(effort))
        assert verdict(grammar, plain) == "whole"
        assert verdict(grammar, thought) == found


def test_where_nothing_is_demanded_there_is_no_grammar() -> None:
    for format in (HARMONY, HERMES):
        assert format.grammar(asked(tools=(ROLL,))) is None


def test_equal_bodies_are_one_rule() -> None:
    body = Regex("guided_regex", "a+")
    writer = Writer()
    assert writer.body(body) == writer.body(body)
    assert writer.any_of(["a", "a"]) == "a"
    assert writer.end(()) == '""'
    assert verdict(writer.grammar(f"{writer.body(body)} {writer.end(())}"), "aa") == "whole"
