"""Tool calls in an upstream's text: found, and calls that the server gave as such win."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import Fault
from dragoman.core.event import Delta, Failed, Finished, ItemAdded, Started
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Token
from dragoman.core.lifecycle import check
from dragoman.core.request import FunctionTool, JSONSchema, Request
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.formats.markup.format import Markup, TextToolCallTurn
from dragoman.formats.prompt import ByteTokenizer
from tests.formats.markup.parsing import TOOLS, asked, parse, pieces, show

CITY = ("get_weather", '{"city": "Rome"}')
SEARCH = FunctionTool("brave_search")
CODE = FunctionTool("code_interpreter")


def native(*fragments: CallFragment) -> list[tuple[str, str]]:
    """What a turn makes of calls that a server gave as such."""
    turn = TextToolCallTurn("1", 0, "m", markup="llama", request=asked())
    for fragment in fragments:
        turn.call(fragment)
    turn.finish("tool_calls")
    turn.end(complete=True)
    return [show(item) for item in fold(turn.take()).output]


def test_r2_8_a_call_that_cannot_be_read_leaves_the_others_alone() -> None:
    good = CallFragment(0, "a", "get_weather", '{"city": "Rome"}')
    bad = CallFragment(1, "b", "now", "{oops")
    assert native(good, bad) == [CITY, ("now", "{oops")]
    text = '{"name": "now", "parameters": {oops}}; {"name": "get_weather", "parameters": '
    assert parse("llama", text + '{"city": "Rome"}}').said == [("now", "{oops}"), CITY]


def test_r2_11_log_probabilities_stay_with_their_text() -> None:
    text = "<think>a</think>Hi you"
    ids = list(text.encode())
    tokenizer = ByteTokenizer()
    turn = Turn("1", 0, "m", think=None)
    parser = Markup("hermes").parser(asked(), turn, tokenizer)
    parser.feed(ids, [Token(chr(id), -0.5, id=id) for id in ids])
    parser.close("stop")
    thought, message = fold(turn.take()).output
    assert [token.text for token in thought.content[0].tokens] == ["a"]
    assert "".join(token.text for token in message.content[0].tokens) == "Hi you"


def test_reasoning_in_the_text_is_reasoning() -> None:
    turn = TextToolCallTurn("1", 0, "m", markup="hermes", request=asked())
    turn.text("<think>a</think>Hi")
    turn.finish("stop")
    turn.end(complete=True)
    assert [show(item) for item in fold(turn.take()).output] == [("thought", "a"), ("text", "Hi")]


def test_r2_12_an_answer_starts_once_and_ends_once() -> None:
    events = parse("llama", "Hi<|eot_id|>", 1).events
    assert isinstance(events[0], Started)
    assert [type(event) for event in events].count(Started) == 1
    assert events[-1].reasons == ("stop",)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_r2_13_text_that_comes_with_the_end_is_emitted(reason) -> None:
    turn = TextToolCallTurn("1", 0, "m", markup="llama", request=asked())
    turn.text("Hel")
    turn.text("lo <")
    turn.finish(reason)
    turn.end(complete=True)
    assert fold(turn.take()).output[0].text == "Hello <"


def test_r2_14_arguments_are_streamed() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = Markup("llama").parser(asked(), turn)
    parser.write('<|python_tag|>{"name": "get_weather"')
    parser.write(', "parameters": {"city": ')
    opened = turn.take()
    assert any(isinstance(event, ItemAdded) for event in opened)
    assert [event.data for event in opened if isinstance(event, Delta)] == ['{"city": ']
    parser.write('"Rome"}')
    assert [event.data for event in turn.take() if isinstance(event, Delta)] == ['"Rome"}']


def test_r2_19_call_ids_are_the_same_every_time() -> None:
    text = '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'
    once, again = (fold(parse("llama", text, size).events).output for size in (1, 9))
    assert [call.call_id for call in once] == [call.call_id for call in again]
    assert len({call.call_id for call in once}) == 2


@pytest.mark.parametrize(
    ("call", "written"),
    [
        (
            FunctionCall("c", "brave_search", '{"query": "a \\"b\\""}'),
            '<|python_tag|>brave_search.call(query="a \\"b\\"")',
        ),
        (FunctionCall("c", "code_interpreter", '{"code": "print(1)"}'), "<|python_tag|>print(1)"),
        (FunctionCall("c", "now", '{"a":1}'), '{"name": "now", "parameters": {"a":1}}'),
    ],
)
def test_r2_20_calls_are_written_as_they_are_read(call, written) -> None:
    tools = (*TOOLS, SEARCH, CODE)
    items = (Message("user", "hi"), call)
    prompt = Markup("llama").render(Request(model="m", items=items))
    assert f"<|end_header_id|>\n\n{written}<|eom_id|>" in prompt.text
    assert parse("llama", written, tools=tools).said == [(call.name, call.arguments)]


CONVERSATION = (
    Message("system", "Be kind."),
    Message("user", "hi"),
    FunctionCall("c", "now", "{}"),
    FunctionCallOutput("c", "noon"),
)


def test_r2_21_each_family_has_its_own_names() -> None:
    third = Markup("llama").render(Request(model="m", items=CONVERSATION)).text
    assert third == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "now", "parameters": {}}<|eom_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\nnoon<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    fourth = Markup("llama4").render(Request(model="m", items=CONVERSATION)).text
    assert fourth == (
        "<|begin_of_text|><|header_start|>system<|header_end|>\n\nBe kind.<|eot|>"
        "<|header_start|>user<|header_end|>\n\nhi<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\n"
        '<|python_start|>{"name": "now", "parameters": {}}<|python_end|><|eom|>'
        "<|header_start|>ipython<|header_end|>\n\nnoon<|eom|>"
        "<|header_start|>assistant<|header_end|>\n\n"
    )


def test_r2_22_tools_and_schemas_are_in_the_system_message() -> None:
    shape = JSONSchema("answer", {"type": "object"})
    request = asked(items=CONVERSATION, format=shape)
    system = Markup("llama").render(request).text.partition("<|eot_id|>")[0]
    assert "Be kind.\n\nAnswer with JSON that matches this schema" in system
    assert '{"type": "object"}' in system
    assert "Environment: ipython" in system
    assert '"name": "get_weather"' in system


CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'


def marked() -> TextToolCallTurn:
    return TextToolCallTurn("1", 0, "m", markup="hermes", request=asked())


def said(turn: TextToolCallTurn) -> list[tuple[str, str]]:
    events = turn.take()
    check(events)
    return [show(item) for item in fold(events).output]


@given(st.lists(st.integers(0, 1000), max_size=8))
def test_p5_calls_in_the_text_are_found_however_it_is_cut(cuts) -> None:
    turn = marked()
    for piece in pieces(f"<think>hm</think>\n\nLook. {CALL} Done", cuts):
        turn.text(piece)
    turn.finish("stop")
    turn.end(complete=True)
    events = turn.take()
    check(events)
    assert [show(item) for item in fold(events).output] == [
        ("thought", "hm"),
        ("text", "Look.Done"),
        CITY,
    ]
    assert events[-1].reasons == ("tool_calls",)


def test_call_given_in_text_and_natively_is_emitted_once() -> None:
    turn = marked()
    turn.text(CALL)
    turn.call(CallFragment(0, "c1", "get_weather", '{"city":'))
    turn.call(CallFragment(0, arguments=' "Rome"}'))
    turn.finish("tool_calls")
    turn.end(complete=True)
    assert said(turn) == [CITY]


def test_beside_calls_of_the_server_markup_is_only_text() -> None:
    turn = marked()
    turn.text('<tool_call>{"name": "now", "arguments": {oops}}</tool_call>')
    turn.call(CallFragment(None, "c1", "get_weather", '{"city": "Rome"}'))
    turn.call(CallFragment(None, None, "now", ""))
    turn.end(complete=True)
    assert said(turn) == [
        CITY,
        ("now", "{}"),
        ("text", '{"name": "now", "arguments": {oops}}'),
    ]


def test_each_choice_is_parsed_by_itself() -> None:
    turn = marked()
    turn.text("<tool_", 0)
    turn.text("<tool_", 1)
    turn.text('call>{"name": "now"}', 0)
    turn.text("box", 1)
    turn.end(complete=True)
    events = turn.take()
    assert events[-1].reasons == ("tool_calls", "stop")
    assert [show(item) for item in fold(events).output] == [("text", "<tool_box"), ("now", "{}")]


def test_failed_answer_has_the_output_so_far() -> None:
    turn = marked()
    turn.text(f"{CALL}Hi <")
    turn.fail(Fault("upstream_cut", "cut"))
    events = turn.take()
    assert isinstance(events[-1], Failed)
    assert [show(item) for item in fold(events).output] == [("text", "Hi <"), CITY]


@pytest.mark.parametrize("end", [True, False])
def test_a_stream_that_only_stops(end) -> None:
    turn = marked()
    turn.text(CALL)
    turn.end(complete=end)
    events = turn.take()
    assert isinstance(events[-1], Finished if end else Failed)
    assert [show(item) for item in fold(events).output] == [CITY]


def test_log_probabilities_pass() -> None:
    turn = marked()
    turn.text("Hi", tokens=(Token("Hi", -1.0),))
    turn.text("", tokens=(Token("", -2.0),))
    turn.end(complete=True)
    (message,) = fold(turn.take()).output
    assert [token.logprob for token in message.content[0].tokens] == [-1.0, -2.0]


def test_a_long_call_cut_short_is_incomplete() -> None:
    turn = marked()
    turn.text(CALL[:-20])
    turn.finish("length")
    turn.end(complete=True)
    (call,) = fold(turn.take()).output
    assert call.status == "incomplete"
