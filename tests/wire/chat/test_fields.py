"""Small values in Chat answers: usage, finish reasons, annotations and reasoning details."""

import pytest
from hypothesis import given

from dragoman.core.item import Annotation
from dragoman.core.response import Usage
from dragoman.wire.chat.messages import decode_annotation
from dragoman.wire.chat.response import FINISH_REASONS, LEGACY_REASONS
from dragoman.wire.chat.stream import join_details, readable
from dragoman.wire.usage import USAGE_NAMES, decode_usage, encode_usage
from tests.cases import cases
from tests.strategies import usages


def test_finish_reason_is_encoded_in_the_words_of_the_protocol() -> None:
    assert [*FINISH_REASONS.items()] == [
        (reason, reason) for reason in ("stop", "length", "tool_calls", "content_filter")
    ]
    assert LEGACY_REASONS == FINISH_REASONS | {"tool_calls": "function_call"}


@pytest.mark.parametrize(("said", "counts"), cases(__file__, "usage"))
def test_r1_9_usage_is_decoded_under_the_names_of_every_server(said, counts) -> None:
    assert decode_usage(said, "chat") == (None if counts is None else Usage(**counts))


def test_total_is_computed_from_both_counts_and_nothing_else_is() -> None:
    assert encode_usage(Usage(1, 2), "chat") == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
    }
    assert encode_usage(Usage(1), "chat") == {"prompt_tokens": 1}
    assert encode_usage(Usage(1, 2, 9), "chat")["total_tokens"] == 9
    assert encode_usage(Usage(), "chat") == {}


@given(usages)
def test_p30_encoded_usage_decodes_to_the_same_with_zero_and_absent_apart(counts) -> None:
    again = decode_usage(encode_usage(counts, "chat"), "chat")
    expected = {name: getattr(counts, name) for name in USAGE_NAMES}
    if expected["total_tokens"] is None and None not in (counts.input_tokens, counts.output_tokens):
        expected["total_tokens"] = (counts.input_tokens or 0) + (counts.output_tokens or 0)
    found = again or Usage()
    assert {name: getattr(found, name) for name in USAGE_NAMES} == expected


@pytest.mark.parametrize(
    ("wire", "read"),
    [
        ({"type": "url_citation", "url": "http://x"}, Annotation("url_citation", url="http://x")),
        (
            {"type": "url_citation", "url_citation": {"start_index": "1", "title": None, "z": 2}},
            Annotation(
                "url_citation",
                extra={"chat": {"url_citation": {"start_index": "1", "z": 2}}},
            ),
        ),
        (
            {"type": "url_citation", "start_index": True, "end_index": 2},  # a boolean is an int
            Annotation(
                "url_citation", end=2, extra={"chat": {"url_citation": {"start_index": True}}}
            ),
        ),
        ({"type": "other", "a": 1, "b": None}, Annotation("other", extra={"chat": {"a": 1}})),
        ({"type": 7}, None),
        ({}, None),
        ("x", None),
    ],
)
def test_annotations_are_decoded_in_every_shape(wire, read) -> None:
    assert decode_annotation(wire) == read


def test_reasoning_details_of_one_index_and_type_are_merged() -> None:
    pieces = [
        *({"index": 0, "type": "a", "text": "x", "id": None}, "odd", {"type": "a"}),
        {"index": 0, "type": "a", "text": "y", "id": "i", "data": 7},
        {"index": 0, "type": "a", "text": None, "id": None, "data": "z"},
        *({"index": 1, "type": "a", "text": "w"}, {"index": 0, "type": "b", "text": "v"}),
    ]
    assert join_details(pieces) == [
        {"index": 0, "type": "a", "text": "xy", "id": "i", "data": "z"},
        "odd",
        {"type": "a"},
        {"index": 1, "type": "a", "text": "w"},
        {"index": 0, "type": "b", "text": "v"},
    ]
    assert join_details([]) == []


def test_readable_text_of_reasoning_details() -> None:
    pieces = [{"text": "a"}, {"summary": "b"}, {"text": ""}, {"data": "c"}, {"text": 7}, None]
    assert readable(pieces) == ["a", "b"]
