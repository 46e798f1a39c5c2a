"""The control tokens of harmony, found among a model's ids or in its text.

A vocabulary is looked up once for each id; in text, what may still become a mark is held back.
What a mark leads to is not known here.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.formats.tokenizer import Tokenizer

START = "<|start|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
MESSAGE = "<|message|>"
END = "<|end|>"
RETURN = "<|return|>"
CALL = "<|call|>"
END_OF_TEXT = "<|endoftext|>"

ENDS = frozenset((END, RETURN, CALL, END_OF_TEXT))
_ALL = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS, "<|startoftext|>")
_LONGEST = max(map(len, _ALL))

IN_TEXT = re.compile("|".join(map(re.escape, _ALL)))


class Mark(Struct, frozen=True):
    """A control token, by its text."""

    text: str


class Vocabulary(dict[int, str | bytes | Mark]):
    """What each id stands for: text, bytes of a character that is torn apart, or a mark.

    `marked` is whether the marks are tokens of it; else they are looked for in the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__((id, Mark(text)) for text, id in tokenizer.controls.items())
        self.marked = MESSAGE in tokenizer.controls
        self._tokenizer = tokenizer

    def __missing__(self, id: int) -> str | bytes:
        piece = self._tokenizer.piece(id)
        known: str | bytes
        try:
            known = piece.decode()
        except UnicodeDecodeError:
            known = piece
        self[id] = known
        return known


def certain(text: str) -> int:
    """How much of the text cannot be the beginning of a mark that is still to come.

    >>> certain("one <|en"), certain("one <|end|>")
    (4, 11)
    """
    at = text.rfind("<", max(len(text) - _LONGEST + 1, 0))
    tail = text[at:]
    held = at >= 0 and any(mark.startswith(tail) and mark != tail for mark in _ALL)
    return at if held else len(text)
