"""Finish reasons: a reader of this wire sees the words of the protocol, and no others."""

import pytest

from dragoman.wire.chat.fields import encode_finish


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("max_tool_calls", "stop"),  # another wire's word for an answer that stopped early
    ],
)
def test_a_reason_of_another_wire_is_said_as_a_stop(reason: str, said: str) -> None:
    assert encode_finish(reason) == said


def test_a_reader_of_functions_is_told_in_its_words() -> None:
    assert encode_finish("tool_calls", legacy=True) == "function_call"
    assert encode_finish("stop", legacy=True) == "stop"
