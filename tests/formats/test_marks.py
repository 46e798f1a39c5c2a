"""Marks: found as the longest of them, in whatever pieces, and at a cost that does not explode."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.formats.prompt import Marks

texts = st.text("ab.(", min_size=1, max_size=6)


@given(st.sets(texts, max_size=8), st.text("ab.(c", max_size=30))
def test_the_longest_mark_is_found_at_the_first_place(marks, text) -> None:
    longest_first = sorted(marks, key=len, reverse=True)
    plain = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    found = Marks(marks)
    spans = [match.span() for match in found.pattern.finditer(text)]
    assert spans == [match.span() for match in plain.finditer(text)]
    for at in range(len(text)):
        begun = any(mark.startswith(text[at:]) and mark != text[at:] for mark in marks)
        assert found.begin_with(text[at:]) == begun


def test_many_marks_that_begin_alike_share_their_beginning() -> None:
    marks = [f"<|reserved_special_token_{number}|>" for number in range(3_000)]
    found = Marks(marks)
    assert len(found.pattern.pattern) < 20_000  # the marks have 85,000 characters
    assert [mark for mark in marks if not found.pattern.fullmatch(mark)] == []


def test_marks_in_marks_are_found_at_any_depth() -> None:
    found = Marks("a" * size for size in range(1, 200))
    assert found.find("b" + "a" * 300, 0) == (1, 200)
    assert found.find("b" + "a" * 120 + "b", 0) == (1, 121)


def test_marks_that_would_take_long_to_look_for_are_refused() -> None:
    with pytest.raises(ValueError, match="the 3000 control tokens are too long or too many"):
        Marks("a" * size for size in range(1, 3_001))
