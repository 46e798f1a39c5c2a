"""Counts are read under every name servers give them, and said under the protocol's own."""

from typing import Any

import pytest
from hypothesis import given

from dragoman.core.response import Usage
from dragoman.wire.chat.fields import USAGE_NAMES, decode_usage, encode_usage
from tests.strategies import usages


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"prompt_tokens": 1, "completion_tokens": 2}, Usage(1, 2)),
        ({"input_tokens": 1, "output_tokens": 2}, Usage(1, 2)),
        ({"prompt_eval_count": 1, "eval_count": 2}, Usage(1, 2)),
        ({"prompt_tokens": 0, "input_tokens": 5}, Usage(5, extra={"chat": {"prompt_tokens": 0}})),
        ({"prompt_tokens": 0, "input_tokens": 0}, Usage(0)),
        ({"prompt_tokens": 5, "input_tokens": 5}, Usage(5)),
        ({"prompt_tokens": "7", "completion_tokens": 2.9}, Usage(7, 2)),
        ({"prompt_tokens": True, "completion_tokens": "many", "total_tokens": None}, None),
        ({"prompt_tokens": [1], "completion_tokens": {}, "total_tokens": 1e300}, None),
        ({"cache_creation_input_tokens": 3}, Usage(cache_write_tokens=3)),
        ({"cache_read_input_tokens": 4}, Usage(cached_tokens=4)),
        ({"prompt_tokens_details": {"cached_tokens": 4}}, Usage(cached_tokens=4)),
        ({"input_tokens_details": {"cached_tokens": 4}}, Usage(cached_tokens=4)),
        (
            {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6},
            Usage(cached_tokens=4, extra={"chat": {"prompt_cache_miss_tokens": 6}}),
        ),
        ({"reasoning_tokens": 5}, Usage(reasoning_tokens=5)),
        ({"completion_tokens_details": {"reasoning_tokens": 5}}, Usage(reasoning_tokens=5)),
        (
            {"prompt_tokens": 1, "prompt_tokens_details": {"odd": 2, "none": None}, "a.b": 3},
            Usage(1, extra={"chat": {"prompt_tokens_details": {"odd": 2}, "a.b": 3}}),
        ),
        ({"prompt_tokens_details": None, "x": {"y": 1}}, Usage(extra={"chat": {"x": {"y": 1}}})),
        ({"prompt_tokens": " " * 20 + "7"}, Usage(7)),
        ({}, None),
        (None, None),
        (7, None),
    ],
)
def test_r1_9_counts_are_read_under_all_their_names(said: Any, read: Usage | None) -> None:
    assert decode_usage(said) == read


def test_the_total_is_the_sum_of_what_was_reported_and_nothing_else_is_computed() -> None:
    assert encode_usage(Usage(1, 2)) == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
    }
    assert encode_usage(Usage(1)) == {"prompt_tokens": 1}
    assert encode_usage(Usage(1, 2, 9))["total_tokens"] == 9
    assert encode_usage(Usage()) == {}


@given(usages)
def test_p30_counts_said_are_read_again_zero_and_absent_apart(counts: Usage) -> None:
    again = decode_usage(encode_usage(counts))
    expected = {name: getattr(counts, name) for name in USAGE_NAMES}
    if expected["total_tokens"] is None and None not in (counts.input_tokens, counts.output_tokens):
        expected["total_tokens"] = (counts.input_tokens or 0) + (counts.output_tokens or 0)
    found = again or Usage()
    assert {name: getattr(found, name) for name in USAGE_NAMES} == expected
