"""Answers measured and cut in words."""

import pytest

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
from dragoman.engines.script import Said, cut, in_words, length, pieces, shortened
from tests.engines.test_chaos import CALLS


def test_words_are_the_text_they_came_from() -> None:
    for text in ("", " ", "one", " one  two\n", "\n\n"):
        assert "".join(pieces(text)) == text


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
        (Message("assistant", (Refusal("no"),)), Message("assistant", (Refusal("no"),))),
        (Reasoning((Thought("one two"),)), Reasoning((Thought("one"),))),
        (FunctionCall("c", "f", '{"a": 1}'), FunctionCall("c", "f", '{"a":')),
        (CustomToolCall("c", "f", "ls -l"), CustomToolCall("c", "f", "ls")),
    ],
)
def test_an_item_that_is_cut_says_so(item: Said, left: Item) -> None:
    assert cut(item, 1) == type(left)(**{f: getattr(left, f) for f in left.__struct_fields__} | {
        "status": "incomplete"
    })  # fmt: skip


def test_a_limit_cuts_the_item_it_falls_into() -> None:
    one, two = Message("assistant", "one two"), Message("assistant", "three four")
    assert shortened([one, two], None) == ([one, two], False)
    assert shortened([one, two], 4) == ([one, two], False)
    assert shortened([one, two], 3) == ([one, cut(two, 1)], True)
    assert shortened([one, two], 1) == ([cut(one, 1)], True)
