"""Text that came in pieces: surrogates, base64, and think tags at its start."""

from base64 import b64decode, b64encode
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.open_item import Base64Buffer, TextBuffer, paired
from dragoman.core.turn import Piece, ThinkSplitter
from tests.cases import cases


def test_split_surrogate_pair_is_joined() -> None:
    pieces = TextBuffer()
    assert [pieces.add(p) for p in ("a\ud83d", "", "\ude00", "b")] == ["a", "", "😀", "b"]
    assert pieces.getvalue() == "a😀b"
    assert pieces.rest() == ""


def test_lone_surrogate_is_replaced() -> None:
    pieces = TextBuffer()
    assert pieces.add("\ude00x\ud83d") == "\ufffdx"
    assert pieces.add("y") == "\ufffdy"
    assert pieces.add("\ud83d") == ""
    assert pieces.rest() == "\ufffd"
    assert pieces.getvalue() == "\ufffdx\ufffdy\ufffd"


@given(st.text(st.sampled_from("a\ud800\udbff\udc00\udfff😀\n")))
def test_halves_are_paired_as_utf_16_does(text) -> None:
    assert paired(text) == text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def test_catch_up_adds_the_missing_text_once() -> None:
    pieces = TextBuffer()
    pieces.add("ab\ud83d")
    assert pieces.catch_up("ab😀c") == "😀c"
    assert pieces.catch_up("another") == ""
    assert pieces.getvalue() == "ab😀c"


@given(st.binary(max_size=40), st.lists(st.integers(0, 60), max_size=5), st.booleans())
def test_base64_cut_anywhere_is_one_base64(raw, cuts, padded) -> None:
    text = b64encode(raw).decode()
    text = text if padded else text.rstrip("=")
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = Base64Buffer()
    given_on = [pieces.add(text[a:b]) for a, b in pairwise(edges)]
    given_on.append(pieces.rest())
    assert b64decode("".join(given_on), validate=True) == raw
    assert b"".join(b64decode(piece, validate=True) for piece in given_on) == raw
    assert "".join(given_on) == pieces.getvalue()


def test_pieces_of_base64_that_are_each_padded_are_joined() -> None:
    pieces = Base64Buffer()
    for raw in (b"a", b"bc", b"def", b"g"):
        pieces.add(b64encode(raw).decode())
    pieces.add("aA==aQ==")
    pieces.rest()
    assert b64decode(pieces.getvalue()) == b"abcdefghi"


@pytest.mark.parametrize("noise", ["?", "=", "====", "A", "A===", "\u00e9", " QUJD\n", "_-"])
def test_characters_that_are_not_base64_are_ignored(noise) -> None:
    pieces = Base64Buffer()
    pieces.add(noise)
    pieces.add("")
    pieces.rest()
    assert b64decode(pieces.getvalue(), validate=True) in (b"", b"ABC")


def test_base64_catch_up_repeats_no_byte() -> None:
    pieces = Base64Buffer()
    pieces.add("QUJDRA")  # "ABCD", the last byte of it held back
    assert pieces.catch_up("QUJDREVG") == "REVG"
    assert pieces.catch_up("other") == ""
    assert pieces.rest() == ""
    assert b64decode(pieces.getvalue()) == b"ABCDEF"


def split(text: str, size: int) -> list[Piece]:
    """The pieces of a text fed so many characters at a time, neighbours of a kind joined."""
    splitter = ThinkSplitter()
    pieces: list[Piece] = []
    for start in range(0, len(text), size):
        pieces += splitter.feed(text[start : start + size])
    joined: list[Piece] = []
    for kind, piece in [*pieces, *splitter.flush()]:
        if joined and joined[-1][0] == kind:
            kind, piece = kind, joined.pop()[1] + piece
        joined.append((kind, piece))
    return joined


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *cases(__file__, "think"),
        (" " * 65 + "<think>", [("text", " " * 65 + "<think>")]),
        (
            "<think>" + "\n" * 66 + "a" + "\n" * 66 + "</think>" + " " * 66,
            [
                ("open", "<think>" + "\n" * 64),
                ("reasoning", "\n\na\n\n"),
                ("close", "\n" * 64 + "</think>" + " " * 64),
                ("text", "  "),
            ],
        ),
    ],
)
def test_p5_think_tags_are_split_the_same_in_any_pieces(text, expected, size) -> None:
    assert split(text, size) == [tuple(each) for each in expected]
    assert "".join(piece for _, piece in split(text, size)) == text


def test_a_splitter_is_settled_once_the_rest_is_text() -> None:
    splitter = ThinkSplitter()
    splitter.feed("<think>a</think>")
    assert not splitter.settled
    splitter.feed("Yes")
    assert splitter.settled
    assert splitter.feed(" <think>") == [("text", " <think>")]


def test_blanks_are_buffered_up_to_a_limit() -> None:
    splitter = ThinkSplitter()
    assert sum(len(splitter.feed(" ")) for _ in range(1000)) > 900


def test_long_texts_are_taken_in_steps() -> None:
    text = "a\ud83d\ude00\ud800" * 20_000 + "\ud83d"
    pieces = TextBuffer()
    assert pieces.add(text) + pieces.add("\ude00") + pieces.rest() == "a😀\ufffd" * 20_000 + "😀"
    assert pieces.getvalue() == "a😀\ufffd" * 20_000 + "😀"
    sound = Base64Buffer()
    assert b64decode(sound.add("AA=" * 50_000 + "AA") + sound.rest()) == bytes(50_001)
