"""Sentences of text in pieces, and what of them is spoken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.voice.sentences import LONGEST, Sentences, speakable, words_in
from tests.cost import is_square

TEXT = (
    'Hello there. Dr. Smith paid 3.50 dollars! Really? "Yes." e.g. this one. See J. R. Tolkien.'
    "\n\n1. First\n2. Second thing.\nDone… ok。好的。 End"
)
SENTENCES = [
    "Hello there. ",
    "Dr. Smith paid 3.50 dollars! ",
    "Really? ",
    '"Yes." ',
    "e.g. this one. ",
    "See J. R. Tolkien.\n\n",
    "1. First\n",
    "2. Second thing.\n",
    "Done… ",
    "ok。",
    "好的。 ",
    "End",
]


def split(text: str, sizes: list[int]) -> list[str]:
    splitter, found, place = Sentences(), [], 0
    for size in sizes:
        found += splitter.feed(text[place : place + size])
        place += size
    found += splitter.feed(text[place:])
    return [*found, rest] if (rest := splitter.close()) else found


def test_sentences_end_where_the_next_begins() -> None:
    assert split(TEXT, []) == SENTENCES


@given(st.lists(st.integers(0, 20), max_size=60))
def test_text_in_any_pieces_gives_the_same_sentences(sizes) -> None:
    assert split(TEXT, sizes) == SENTENCES


@given(st.text(alphabet="aB1. ,!?\n。\"'…", max_size=700), st.lists(st.integers(0, 90), max_size=9))
def test_sentences_joined_are_the_text(text, sizes) -> None:
    assert "".join(split(text, sizes)) == text


def test_a_sentence_without_end_is_cut_at_a_comma_or_a_space() -> None:
    (first, *rest) = split("and so on, " * 40, [])
    assert 0 < len(first) <= LONGEST
    assert first.endswith(", ")
    assert rest
    assert len(split("x" * 700, [])[0]) == LONGEST


def test_nothing_gives_no_sentence() -> None:
    splitter = Sentences()
    assert ([*splitter.feed("")], splitter.close()) == ([], "")


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("**Sunny** in [Paris](https://x.org/p), `20` degrees ☀️.", "Sunny in Paris, 20 degrees ."),
        ("## Title\n- one *two* 3*4*5 snake_case __x__", "Title one two 3*4*5 snake_case x"),
        ("| a | b |\n|---|---|\n```py\ncode\n```", "a b code"),
        ("See https://example.org/a/b?c=d now", "See example.org now"),
        ("> quoted", "quoted"),
        ("---", ""),
    ],
)
def test_what_is_for_the_eye_is_not_spoken(text, spoken) -> None:
    assert speakable(text) == spoken


def test_punctuation_alone_is_nothing_to_say() -> None:
    assert words_in("a")
    assert not words_in("… — !")


@pytest.mark.uncounted
def test_a_line_of_bars_takes_linear_time() -> None:
    assert not is_square(lambda count: speakable(" " * count + "|" * count + "x"), 100)


def test_the_line_below_the_head_of_a_table_is_not_spoken() -> None:
    assert speakable("|a|b|\n|:--|--:|\n --- | ---\n|1|2|") == "a b 1 2"
