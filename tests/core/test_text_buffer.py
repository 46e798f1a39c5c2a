"""Text and base64 that were cut anywhere."""

from base64 import b64decode, b64encode
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.open_item import Base64Buffer, TextBuffer


def test_split_surrogate_pair_is_joined() -> None:
    pieces = TextBuffer()
    assert [pieces.add(p) for p in ("a\ud83d", "", "\ude00", "b")] == ["a", "", "😀", "b"]
    assert str(pieces) == "a😀b"
    assert pieces.rest() == ""


def test_lone_surrogate_is_replaced() -> None:
    pieces = TextBuffer()
    assert pieces.add("\ude00x\ud83d") == "\ufffdx"
    assert pieces.add("y") == "\ufffdy"
    assert pieces.add("\ud83d") == ""
    assert pieces.rest() == "\ufffd"
    assert str(pieces) == "\ufffdx\ufffdy\ufffd"


def test_catch_up_adds_the_missing_text_once() -> None:
    pieces = TextBuffer()
    pieces.add("ab\ud83d")
    assert pieces.catch_up("ab😀c") == "😀c"
    assert pieces.catch_up("another") == ""
    assert str(pieces) == "ab😀c"


@given(st.binary(max_size=40), st.lists(st.integers(0, 60), max_size=5), st.booleans())
def test_base64_cut_anywhere_is_one_base64(raw: bytes, cuts: list[int], padded: bool) -> None:
    text = b64encode(raw).decode()
    text = text if padded else text.rstrip("=")
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = Base64Buffer()
    given_on = [pieces.add(text[a:b]) for a, b in pairwise(edges)]
    given_on.append(pieces.rest())
    assert b64decode("".join(given_on), validate=True) == raw
    assert b"".join(b64decode(piece, validate=True) for piece in given_on) == raw
    assert "".join(given_on) == str(pieces)


def test_pieces_of_base64_that_are_each_padded_are_joined() -> None:
    pieces = Base64Buffer()
    for raw in (b"a", b"bc", b"def", b"g"):
        pieces.add(b64encode(raw).decode())
    pieces.add("aA==aQ==")
    pieces.rest()
    assert b64decode(str(pieces)) == b"abcdefghi"


@pytest.mark.parametrize("noise", ["?", "=", "====", "A", "A===", "\u00e9", " QUJD\n", "_-"])
def test_characters_that_are_not_base64_are_ignored(noise: str) -> None:
    pieces = Base64Buffer()
    pieces.add(noise)
    pieces.add("")
    pieces.rest()
    assert b64decode(str(pieces), validate=True) in (b"", b"ABC")


def test_base64_catch_up_repeats_no_byte() -> None:
    pieces = Base64Buffer()
    pieces.add("QUJDRA")  # "ABCD", the last byte of it held back
    assert pieces.catch_up("QUJDREVG") == "REVG"
    assert pieces.catch_up("other") == ""
    assert pieces.rest() == ""
    assert b64decode(str(pieces)) == b"ABCDEF"
