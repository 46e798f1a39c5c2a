"""Think tags at the start of a text, and everything that only looks like them."""

import pytest

from dragoman.core.turn import Piece, ThinkSplitter


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
        ("", []),
        ("Yes", [("text", "Yes")]),
        ("<th", [("text", "<th")]),
        ("<think", [("text", "<think")]),
        ("  <b>", [("text", "  <b>")]),
        ("Yes <think>no</think>", [("text", "Yes <think>no</think>")]),
        ("<think>", [("open", "<think>")]),
        ("<think>\n", [("open", "<think>\n")]),
        ("<think>hm", [("open", "<think>"), ("reasoning", "hm")]),
        ("<think>hm</th", [("open", "<think>"), ("reasoning", "hm</th")]),
        ("<think>a\n\n", [("open", "<think>"), ("reasoning", "a\n\n")]),
        (
            " \n<think>\na</b>\n</think>\n\n Yes </think>",
            [
                ("open", " \n<think>\n"),
                ("reasoning", "a</b>"),
                ("close", "\n</think>\n\n "),
                ("text", "Yes </think>"),
            ],
        ),
        ("<think></think>", [("open", "<think>"), ("close", "</think>")]),
        (
            "<think>a</think> ",
            [("open", "<think>"), ("reasoning", "a"), ("close", "</think> ")],
        ),
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
def test_p5_think_tags_are_split_the_same_in_any_pieces(
    text: str, expected: list[Piece], size: int
) -> None:
    assert split(text, size) == expected
    assert "".join(piece for _, piece in split(text, size)) == text


def test_a_splitter_is_settled_once_the_rest_is_text() -> None:
    splitter = ThinkSplitter()
    splitter.feed("<think>a</think>")
    assert not splitter.settled
    splitter.feed("Yes")
    assert splitter.settled
    assert splitter.feed(" <think>") == [("text", " <think>")]


def test_blanks_are_held_back_up_to_a_limit() -> None:
    splitter = ThinkSplitter()
    assert sum(len(splitter.feed(" ")) for _ in range(1000)) > 900
