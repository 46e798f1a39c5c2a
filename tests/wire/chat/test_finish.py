"""Finish reasons: what servers call them, and what a client of this wire is given."""

from typing import Any

import pytest

from dragoman.wire.chat.response import FINISH_WORDS, encode_finish
from dragoman.wire.choices import decode_finish


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("end_turn", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("max_output_tokens", "length"),
        ("model_length", "length"),
        ("MAX_TOKENS", "length"),
        ("tool_calls", "tool_calls"),
        ("tool-calls", "tool_calls"),
        ("tool_call", "tool_calls"),
        ("tool_use", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("safety", "content_filter"),
        ("SAFETY", "content_filter"),
        ("", None),
        (None, None),
        (7, "stop"),
    ],
)
def test_the_reason_of_any_server_is_one_of_the_protocol(given: Any, reason: str | None) -> None:
    assert decode_finish(given, FINISH_WORDS) == reason


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_a_reason_of_the_protocol_is_given_as_it_is_and_any_other_as_stop(reason: str) -> None:
    assert encode_finish(reason) == reason
    assert encode_finish("max_tool_calls") == "stop"


def test_a_client_of_functions_is_given_function_call() -> None:
    assert encode_finish("tool_calls", legacy=True) == "function_call"
    assert encode_finish("stop", legacy=True) == "stop"
