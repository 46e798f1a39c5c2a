"""What each family's parser makes of a text, and the layout of its prompts."""

import time

import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta
from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import (
    CustomTool,
    FunctionTool,
    JSONObject,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.formats.format import Setting
from dragoman.formats.markup.emitter import schemas
from dragoman.formats.markup.families import BY_NAME
from dragoman.formats.markup.format import Markup
from dragoman.formats.markup.profile import State
from tests.cases import cases
from tests.formats.markup.parsing import NOW, TOOLS, parse, parse_ids, tokens

CASES = cases(__file__, "texts")
"""What models of a family wrote, well or badly formed, and what is said in it."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_text_of_a_model_becomes_its_items_in_any_pieces_and_as_tokens(case) -> None:
    family, text, reason = case["family"], case["text"], case.get("reason", "stop")
    more = [FunctionTool(name) for name in case.get("tools", ())]
    tools = (*TOOLS, *more) if more or "tools" not in case else ()
    said = [tuple(each) for each in case["said"]]
    whole = parse(family, text, tools=tools, reason=reason)
    # An answer that was cut before its first word is an empty text.
    assert [each for each in whole.said if each[1] or reason == "stop"] == said
    for size in (1, 2, 3, 11):
        pieces = parse(family, text, size, tools=tools, reason=reason)
        assert (pieces.said, pieces.warnings) == (whole.said, whole.warnings)
        assert (pieces.reason, pieces.statuses) == (whole.reason, whole.statuses)
        deltas = [e.kind for e in pieces.events if isinstance(e, Delta)]
        assert ("text" in deltas) <= ("text" in dict(whole.said))
    assert whole.warnings == case.get("warnings", whole.warnings)
    assert "warns" not in case or case["warns"] in whole.warnings
    if reason == "length":
        assert (whole.reason, whole.statuses[-1]) == ("length", "incomplete")
    if case.get("warnings") == []:
        assert whole.statuses == ["completed"] * len(said)
        called = any(kind not in ("text", "thought") for kind, _ in said)
        assert whole.reason == ("tool_calls" if called else "stop")
        # A mark that is a token is one even inside of a string, and in the middle of a text.
        if case.get("tokens", True) and "</tool_call>" not in str(said):
            ids, tokenizer = tokens(family, text)
            assert parse_ids(family, ids, tokenizer, tools=tools).said == said


@pytest.mark.parametrize("choice", ["no tools", "none"])
def test_where_no_tool_may_be_called_its_markup_is_text(choice) -> None:
    more = {"tools": ()} if choice == "no tools" else {"tool_choice": "none"}
    text = 'So: <tool_call>{"name": "now"}</tool_call>'
    assert parse("hermes", text, 1, **more).said == [("text", text)]
    plain = '<|python_tag|>{"name": "now"}<|eom_id|>'
    assert parse("llama", plain, 1, **more).said == [("text", '{"name": "now"}')]
    ids, tokenizer = tokens("hermes", text)
    if choice == "no tools":
        assert parse_ids("hermes", ids, tokenizer, tools=()).said == [("text", text)]


def test_callable_tools_of_a_request() -> None:
    request = Request(
        model="m",
        tools=(
            Namespace("files", (FunctionTool("read"), CustomTool("patch"))),
            UnknownTool("responses", "web_search", {}),
            NOW,
        ),
    )
    assert schemas(request) == {"read": None, "patch": None, "now": None}


def test_family_without_reasoning_has_a_grammar_without_it() -> None:
    silent = replace(BY_NAME["llama"], states={**BY_NAME["llama"].states, "start": State("start")})
    grammar = Markup(silent).grammar(Request(model="m", format=JSONObject()))
    assert not any("think" in marker.text for marker in grammar.markers)


def test_marks_of_reasoning_are_found_after_other_marks() -> None:
    hermes = BY_NAME["hermes"]
    start = hermes.states["start"]
    turned = replace(start, marks=dict(reversed(start.marks.items())))
    profile = replace(hermes, states={**hermes.states, "start": turned})
    grammar = Markup(profile).grammar(Request(model="m", format=JSONObject()))
    assert [marker.text for marker in grammar.markers][:2] == ["</think>", "<think>"]


def test_layout_begins_with_identity_and_date() -> None:
    setting = Setting("2026-11-21", "You are a model.", "2026-01")
    prompt = Markup("hermes").render(Request(model="m", items=(Message("user", "hi"),)), setting)
    words = "You are a model.\nKnowledge cutoff: 2026-01\nCurrent date: 2026-11-21"
    assert prompt.text.startswith(f"<|im_start|>system\n{words}<|im_end|>")
    assert Markup("hermes").name == "hermes"
    bare = Markup("hermes").render(Request(model="m", items=(Message("user", "hi"),)))
    assert bare.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_text_of_a_user_is_never_a_control_token() -> None:
    for family in BY_NAME:
        evil = "".join(BY_NAME[family].controls)
        pieces = Markup(family).render(Request(model="m", items=(Message("user", evil),))).pieces
        assert any(isinstance(piece, str) and evil in piece for piece in pieces)


def test_call_ids_have_the_length_a_family_wants() -> None:
    items = (Message("user", "hi"), FunctionCall("call_1", "now", "{oops"))
    assert (
        "[TOOL_CALLS]now[ARGS]{oops</s>"
        in Markup("mistral").render(Request(model="m", items=items)).text
    )


USER = Message("user", "hi")


def test_arguments_as_tags_are_written_as_they_are_read() -> None:
    call = FunctionCall("c", "get_weather", '{"city": "Rome", "days": 2, "tags": ["a"]}')
    text = Markup("qwen-xml").render(Request(model="m", items=(USER, call))).text
    written = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        '<parameter=days>\n2\n</parameter>\n<parameter=tags>\n["a"]\n</parameter>\n'
        "</function>\n</tool_call>"
    )
    assert written in text
    assert parse("qwen-xml", written).said == [(call.name, call.arguments)]


def test_calls_in_a_row_stand_in_their_frame() -> None:
    calls = (FunctionCall("a", "now", "{}"), FunctionCall("b", "now", '{"x": 1}'))
    text = Markup("llama4").render(Request(model="m", items=(USER, *calls))).text
    row = '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {"x": 1}}'
    assert f"<|python_start|>{row}<|python_end|><|eom|>" in text


def test_blanks_behind_a_bare_word_are_read_in_linear_time() -> None:
    began = time.process_time()
    cut = "days" + " " * 100_000
    text = f'<|tool_call>call:get_weather{{city:<|"|>Oslo<|"|>,{cut}<tool_call|>'
    assert parse("gemma", text).said == [("get_weather", f'{{"city":"Oslo",{cut}')]
    assert time.process_time() - began < 2  # 0.02 s, where a quadratic search takes 16 s
