"""Raw prompts and raw text: the format of a model that is given no conversation.

The prompt is what the caller wrote, control tokens included, and what the model writes is text as
it stands. For whoever prompts a model by hand; it knows no roles and no tools.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence

from dragoman.core.item import Token
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.tokenizer import Tokenizer

_utf8 = getincrementaldecoder("utf-8")


def raw_ids(prompt: str | Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt that the caller wrote: the texts of control tokens in it are those.

    >>> from dragoman.formats.tokenizer import ByteTokenizer
    >>> raw_ids("hi<|end|>", ByteTokenizer(["<|end|>"]))
    [104, 105, 256]
    """
    if not isinstance(prompt, str):
        return list(prompt)
    controls = tokenizer.controls
    longest_first = sorted(controls, key=len, reverse=True)
    marks = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    ids: list[int] = []
    at = 0
    for mark in marks.finditer(prompt):
        ids += tokenizer.encode(prompt[at : mark.start()])
        ids.append(controls[mark[0]])
        at = mark.end()
    return [*ids, *tokenizer.encode(prompt[at:])]


class RawParser:
    """Says what the model writes, as text; of control tokens nothing."""

    def __init__(self, request: Request, turn: Turn, tokenizer: Tokenizer) -> None:
        self._turn = turn
        self._piece = tokenizer.piece
        self._controls = frozenset(tokenizer.controls.values())
        self._decoder = _utf8("replace")
        self.reasoning_tokens = 0
        self.warnings: tuple[str, ...] = ()

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        """More tokens."""
        decode, piece, controls = self._decoder.decode, self._piece, self._controls
        said = [decode(piece(id)) if id not in controls else "" for id in ids]
        if not tokens:
            self._turn.texts([text for text in said if text])
            return
        for text, token in zip(said, tokens, strict=True):
            self._turn.text(text, 0, (token,))

    def write(self, text: str) -> None:
        """More text."""
        self._turn.text(text)

    def close(self, reason: str) -> None:
        """The model stopped."""
        self._turn.text(self._decoder.decode(b"", True))
        self._turn.finish(reason)
        self._turn.end(said=True)
