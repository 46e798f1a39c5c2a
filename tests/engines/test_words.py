"""Answers measured and cut in words."""

import pytest
from msgspec.structs import replace

from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    Compaction,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
)
from dragoman.engines.script import in_words, length, shortened, words
from tests.engines.test_chaos import CALLS


def test_words_are_the_text_they_came_from() -> None:
    for text in ("", " ", "one", " one  two\n", "\n\n"):
        assert "".join(words(text)) == text


def test_events_in_words_are_the_same_answer() -> None:
    events = list(in_words(unfold(CALLS)))
    assert len(events) > len(list(unfold(CALLS)))
    assert fold(events) == CALLS


def test_what_holds_no_words_has_no_length() -> None:
    assert length(Compaction("blob")) == 0


@pytest.mark.parametrize(
    ("item", "left"),
    [
        (Message("assistant", "one two"), Message("assistant", (Text("one"),))),
        (
            Message("assistant", (Refusal("no"), Text("one two"))),
            Message("assistant", (Refusal("no"), Text(""))),
        ),
        (Reasoning((Thought("one two"),)), Reasoning((Thought("one"),))),
        (FunctionCall("c", "f", '{"a": 1}'), FunctionCall("c", "f", '{"a":')),
        (CustomToolCall("c", "f", "ls -l"), CustomToolCall("c", "f", "ls")),
    ],
)
def test_an_item_cut_at_the_limit_is_incomplete(item: Item, left: Item) -> None:
    assert shortened([item], 1) == ((replace(left, status="incomplete"),), True)


def test_a_limit_cuts_the_item_it_falls_into() -> None:
    one, two = Message("assistant", "one two"), Message("assistant", "three four")
    assert shortened([one, two], None) == ((one, two), False)
    assert shortened([one, two], 4) == ((one, two), False)
    for limit, texts in ((3, ["one two", "three"]), (2, ["one two", ""]), (1, ["one"])):
        items, short = shortened([one, two], limit)
        assert [item.text for item in items if isinstance(item, Message)] == texts
        assert short
        assert isinstance(items[-1], Message)
        assert items[-1].status == "incomplete"
