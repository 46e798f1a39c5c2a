"""Tokens are those of their text, however much of what came before it was taken away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.item import Message, Reasoning, Text, Token
from dragoman.core.lifecycle import check
from dragoman.core.turn import Turn
from dragoman.engines.llamacpp import Aligner, fitted


def token(text: str | bytes) -> Token:
    octets = text if isinstance(text, bytes) else text.encode()
    return Token(octets.decode("utf-8", "replace"), -1.0, octets, id=7)


def aligned(turn: Turn) -> list[Event]:
    """What an aligner makes of an answer, seen to be legal."""
    turn.finish("stop")
    turn.end(complete=True)
    aligner = Aligner()
    fed = [fit for event in turn.take() if (fit := aligner.feed(event)) is not None]
    check(fed)
    return fed


def said(events: list[Event]) -> list[tuple[str, list[str]]]:
    """Every text of an answer, with its tokens."""
    messages = [item for item in fold(events).output if isinstance(item, Message)]
    parts = [part for message in messages for part in message.parts if isinstance(part, Text)]
    return [(part.text, [each.text for each in part.tokens]) for part in parts]


@given(
    st.text("a \n`{é😀", max_size=6), st.lists(st.text('{"é😀a', min_size=1), min_size=1), st.data()
)
def test_what_stands_before_a_text_is_cut_off(
    head: str, words: list[str], data: st.DataObject
) -> None:
    """Wherever the first token ends, inside a character too."""
    whole = (head + words[0]).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole)))) | {len(whole)})
    pieces = [whole[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    turn = Turn("1", 0, "m", think=None)
    turn.text("", 0, tuple(token(piece) for piece in pieces[:-1]))
    turn.text(words[0], 0, (token(pieces[-1]),))
    for each in words[1:]:
        turn.text(each, 0, (token(each),))
    (message,) = fold(aligned(turn)).output
    assert isinstance(message, Message)
    (part,) = message.parts
    assert isinstance(part, Text)
    assert b"".join(each.bytes or b"" for each in part.tokens) == "".join(words).encode()
    assert all(each.id == 7 and each.logprob == -1.0 for each in part.tokens)


@pytest.mark.parametrize(
    ("tokens", "text", "kept"),
    [
        (["a", "b"], "ab", ["a", "b"]),
        (["a", "b"], "xyz", ["a", "b"]),
        (["\n", ' {"'], '{"', ['{"']),
        (["aa"], "a", ["a"]),
        ([" ", "ab", "held back"], "ab", ["ab", "held back"]),
        (["", "a", ""], "a", ["", "a", ""]),
    ],
)
def test_a_text_is_looked_for_in_its_tokens(tokens: list[str], text: str, kept: list[str]) -> None:
    assert [each.text for each in fitted(list(map(token, tokens)), text)] == kept


def test_a_token_without_bytes_is_its_text() -> None:
    assert fitted([Token(" a")], "a") == (Token("a", bytes=b"a"),)


def test_tokens_without_any_text_are_none_of_it() -> None:
    turn = Turn("1", 0, "m", think=None)
    turn.text("", 0, (token("<"),))
    assert said(aligned(turn)) == [("", [])]


def test_what_is_no_text_is_left_alone() -> None:
    turn = Turn("1", 0, "m", think=None)
    turn.reasoning("Hm", 0, (token(" Hm"),))
    turn.text("a", 0, (token(" a"),))
    turn.finish("stop")
    turn.end(complete=True)
    events = turn.take()
    aligner = Aligner()
    fed = [fit for event in events if (fit := aligner.feed(event)) is not None]
    check(fed)
    (thought, _) = fold(fed).output
    assert isinstance(thought, Reasoning)
    assert thought == fold(events).output[0]
    assert said(fed) == [("a", ["a"])]
