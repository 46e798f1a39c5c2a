"""A rendered prompt: text and control tokens, and the tokenizers that turn them into ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.core.loss import Loss


class Tokenizer(Protocol):
    """A model's vocabulary."""

    @property
    def size(self) -> int:
        """How many ids there are; every id is below."""
        ...

    @property
    def controls(self) -> Mapping[str, int]:
        """The ids of the control tokens, by their text."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The ids of ordinary text; text that looks like a control token stays text."""
        ...

    def piece(self, id: int) -> bytes:
        """The bytes of a token; of a control token its text, of an unknown id none."""
        ...


class ByteTokenizer:
    """One token per byte, and control tokens after them: for tests and examples.

    >>> toy = ByteTokenizer(["<|end|>"])
    >>> toy.encode("hé"), toy.controls["<|end|>"], toy.piece(256)
    ([104, 195, 169], 256, b'<|end|>')
    """

    def __init__(self, controls: Iterable[str] = ()) -> None:
        self._controls = {text: 256 + place for place, text in enumerate(controls)}
        pieces = [bytes([value]) for value in range(256)]
        self._pieces = pieces + [text.encode() for text in self._controls]

    @property
    def size(self) -> int:
        return len(self._pieces)

    @property
    def controls(self) -> Mapping[str, int]:
        return self._controls

    def encode(self, text: str) -> Sequence[int]:
        """The UTF-8 bytes; lone surrogates become question marks."""
        return list(text.encode("utf-8", "replace"))

    def piece(self, id: int) -> bytes:
        return self._pieces[id] if 0 <= id < len(self._pieces) else b""


class Control(Struct, frozen=True):
    """A control token, by its text."""

    text: str


Piece = str | Control


class Prompt(Struct, frozen=True):
    """A prompt, and what of the request it could not express.

    >>> from dragoman.formats.prompt import ByteTokenizer
    >>> prompt = Prompt((Control("<|go|>"), "<|go|>"))
    >>> prompt.ids(ByteTokenizer(["<|go|>"]))
    [256, 60, 124, 103, 111, 124, 62]
    """

    pieces: tuple[Piece, ...]
    losses: tuple[Loss, ...] = ()

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids. A control token that the vocabulary lacks is encoded as text."""
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
        """One text, for servers that find control tokens in it."""
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)
