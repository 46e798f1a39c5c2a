"""How a conversation is laid out without a template, and how calls are written in it."""

from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import Request
from dragoman.formats.markup.format import Markup
from tests.formats.markup.hearing import TOOLS, asked, hear

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
    assert hear("qwen-xml", written).said == [(call.name, call.arguments)]


def test_calls_in_a_row_stand_in_their_frame() -> None:
    calls = (FunctionCall("a", "now", "{}"), FunctionCall("b", "now", '{"x": 1}'))
    text = Markup("llama4").render(Request(model="m", items=(USER, *calls))).text
    row = '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {"x": 1}}'
    assert f"<|python_start|>{row}<|python_end|><|eom|>" in text


def test_the_grammar_is_made_of_what_the_profile_says() -> None:
    format = Markup("hermes")
    assert format.grammar(asked()) is None
    grammar = format.grammar(asked(TOOLS, tool_choice="required"))
    assert grammar is not None
    assert "get_weather" in grammar.lark
    assert format.name == "hermes"
