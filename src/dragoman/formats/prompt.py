"""A rendered conversation: ordinary text and control tokens, kept apart until they become ids.

Keeping them apart is what makes injection impossible: text is encoded as text, whatever it looks
like. How a conversation becomes a prompt is each format's own business.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.core.loss import Loss

from .tokenizer import Tokenizer


class Control(Struct, frozen=True):
    """A control token, by its text."""

    text: str


Piece = str | Control


class Prompt(Struct, frozen=True):
    """What the model is to read, and what of the request could not be said in it.

    >>> from dragoman.formats.tokenizer import ByteTokenizer
    >>> prompt = Prompt((Control("<|go|>"), "<|go|>"))
    >>> prompt.ids(ByteTokenizer(["<|go|>"]))
    [256, 60, 124, 103, 111, 124, 62]
    """

    pieces: tuple[Piece, ...]
    losses: tuple[Loss, ...] = ()

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The prompt as token ids. A control token the vocabulary lacks is written as text."""
        ids: list[int] = []
        for piece in self.pieces:
            if isinstance(piece, str):
                ids.extend(tokenizer.encode(piece))
            elif (id := tokenizer.controls.get(piece.text)) is not None:
                ids.append(id)
            else:
                ids.extend(tokenizer.encode(piece.text))
        return ids

    @property
    def text(self) -> str:
        """The prompt as one text, for servers that read control tokens in it."""
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)
