"""Calls that a server left in its text are found, and those it gave as calls win."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.fold import fold
from dragoman.core.item import Token
from dragoman.core.lifecycle import check
from dragoman.core.tool_calls import CallFragment
from dragoman.formats.markup.text_tool_calls import TextToolCallTurn
from tests.formats.markup.hearing import asked, pieces, show

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
CITY = ("get_weather", '{"city": "Rome"}')


def marked() -> TextToolCallTurn:
    return TextToolCallTurn("1", 0, "m", markup="hermes", request=asked())


def said(turn: TextToolCallTurn) -> list[tuple[str, str]]:
    events = turn.take()
    check(events)
    return [show(item) for item in fold(events).output]


@given(st.lists(st.integers(0, 1000), max_size=8))
def test_p5_calls_in_the_text_are_found_however_it_is_cut(cuts: list[int]) -> None:
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
    assert isinstance(events[-1], Finished)
    assert events[-1].reasons == ("tool_calls",)


def test_a_call_given_twice_is_said_once() -> None:
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


def test_each_choice_is_heard_by_itself() -> None:
    turn = marked()
    turn.text("<tool_", 0)
    turn.text("<tool_", 1)
    turn.text('call>{"name": "now"}', 0)
    turn.text("box", 1)
    turn.end(complete=True)
    events = turn.take()
    assert events[-1].reasons == ("tool_calls", "stop")
    assert [show(item) for item in fold(events).output] == [("text", "<tool_box"), ("now", "{}")]


def test_an_answer_that_breaks_keeps_what_it_said() -> None:
    turn = marked()
    turn.text(f"{CALL}Hi <")
    turn.fail(Fault("upstream_cut", "cut"))
    events = turn.take()
    assert isinstance(events[-1], Failed)
    assert [show(item) for item in fold(events).output] == [("text", "Hi <"), CITY]


@pytest.mark.parametrize("end", [True, False])
def test_a_stream_that_only_stops(end: bool) -> None:
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
