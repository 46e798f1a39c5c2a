"""The small rooms: parts said in readable, notes, and reasoning details put together."""

from typing import Any

import pytest

from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    File,
    Image,
    ItemReference,
    Message,
    Part,
    Refusal,
    Summary,
    Text,
    Thought,
    UnknownPart,
)
from dragoman.core.loss import LossList
from dragoman.wire.chat.fields import decode_annotation
from dragoman.wire.chat.messages import describe, encode_content, encode_messages
from dragoman.wire.chat.stream import Details, readable
from dragoman.wire.protocol import STANDARD
from tests.wire.chat.answering import answer, body


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Text("a"), "a"),
        (Refusal("a"), "a"),
        (Thought("a"), "a"),
        (Summary("a"), "a"),
        (Image(file_id="f1"), "[image f1]"),
        (Image("http://x"), "[image]"),
        (Audio("QQ=="), "[audio]"),
        (Audio(id="a1", transcript="Hi."), "Hi."),
        (File(url="http://x/a.pdf"), "[file http://x/a.pdf]"),
        (File("f1", filename="a.pdf"), "[file a.pdf]"),
        (File(), "[file]"),
        (UnknownPart("responses", {"type": "input_video"}), "[input_video]"),
        (UnknownPart("responses", {}), "[part]"),
    ],
)
def test_every_part_can_be_said_in_words(part: Part, words: str) -> None:
    assert describe(part) == words


@pytest.mark.parametrize(
    "part",
    [
        Image(file_id="f1"),
        Audio(id="a1"),
        File(url="http://x"),
        Thought("a"),
        UnknownPart("responses", {"type": "input_video"}),
    ],
)
def test_a_part_this_wire_has_no_form_for_is_a_text(part: Part) -> None:
    assert encode_content((part,)) == [{"type": "text", "text": describe(part)}]


def test_items_that_are_refused_before_say_nothing() -> None:
    items = (ItemReference("i"), Message("user", "hello"), Compaction("blob"))
    assert encode_messages(items, STANDARD, LossList()) == [{"role": "user", "content": "hello"}]


def test_parts_of_an_answer_from_elsewhere_are_not_in_the_message() -> None:
    said = answer(Message("assistant", (UnknownPart("responses", {}), Text("Hi"))))
    assert body(said)["choices"][0]["message"]["content"] == "Hi"


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
        ({"type": "other", "a": 1, "b": None}, Annotation("other", extra={"chat": {"a": 1}})),
        ({"type": 7}, None),
        ({}, None),
        ("x", None),
    ],
)
def test_notes_are_read_in_every_shape(wire: Any, read: Annotation | None) -> None:
    assert decode_annotation(wire) == read


def test_details_of_one_index_and_type_are_one_entry_and_the_rest_is_as_given() -> None:
    details = Details()
    details.add([{"index": 0, "type": "a", "text": "x", "id": None}, "odd", {"type": "a"}])
    details.add([{"index": 0, "type": "a", "text": "y", "id": "i", "data": 7}])
    details.add([{"index": 0, "type": "a", "text": None, "id": None, "data": "z"}])
    details.add([{"index": 1, "type": "a", "text": "w"}, {"index": 0, "type": "b", "text": "v"}])
    assert details.take() == [
        {"index": 0, "type": "a", "text": "xy", "id": "i", "data": "z"},
        "odd",
        {"type": "a"},
        {"index": 1, "type": "a", "text": "w"},
        {"index": 0, "type": "b", "text": "v"},
    ]
    assert details.take() == []


def test_what_can_be_read_in_details() -> None:
    pieces = [{"text": "a"}, {"summary": "b"}, {"text": ""}, {"data": "c"}, {"text": 7}, None]
    assert readable(pieces) == ["a", "b"]
