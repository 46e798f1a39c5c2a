"""A rendered prompt: text and control tokens, and the tokenizers that turn them into ids."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from msgspec import Struct

from dragoman.core.loss import Loss


class Tokenizer(Protocol):
    """A model's vocabulary."""

    @property
    def size(self) -> int:
        """The number of ids; every id is below."""
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
        self.controls = {text: 256 + place for place, text in enumerate(controls)}
        pieces = [bytes([value]) for value in range(256)]
        self._pieces = pieces + [text.encode() for text in self.controls]
        self.size = len(self._pieces)

    def encode(self, text: str) -> Sequence[int]:
        """The UTF-8 bytes; lone surrogates become question marks."""
        return list(text.encode("utf-8", "replace"))

    def piece(self, id: int) -> bytes:
        return self._pieces[id] if 0 <= id < self.size else b""


class Control(Struct, frozen=True):
    """A control token, by its text."""

    text: str


Piece = str | Control


MAX_PATTERN = 500_000
"""The longest pattern of marks, which takes about 1 s to compile. The 65,000 control tokens
of a speech model have 400,000 characters, as they share prefixes."""
_DEEPEST = 50
STEP = 256 * 1024
"""Characters of a long text that are searched at once, and not to hold the GIL."""


class Marks:
    """Finds fixed texts in streamed text. Raises ValueError for
    too many of them.

    >>> marks = Marks(["<|end|>"])
    >>> marks.find("a<|end|>", 0), marks.held("one <|en"), marks.held("one <|end|>")
    ((1, 8), 4, 11)
    """

    def __init__(self, marks: Iterable[str]) -> None:
        self._sorted = sorted({*marks})
        pattern = _alternatives(self._sorted) or "(?!)"
        if len(pattern) > MAX_PATTERN:
            count = len(self._sorted)
            raise ValueError(f"the {count} control tokens are too long or too many to look for")
        self.pattern = re.compile(pattern)
        self._first = frozenset(mark[0] for mark in self._sorted)
        self.longest = max(map(len, self._sorted), default=1) - 1

    def find(self, text: str, at: int) -> tuple[int, int]:
        """The span of the next mark; beyond the text if there is none."""
        found = self.pattern.search(text, at)
        return found.span() if found else (len(text), len(text))

    def search(self, text: str, at: int) -> re.Match[str] | None:
        """The next mark in a text that may be long: other threads run in between."""
        while True:
            end = at + STEP + self.longest
            found = self.pattern.search(text, at, end)
            if end >= len(text) or (found is not None and found.start() < at + STEP):
                return found
            at += STEP

    def split(self, text: str) -> Iterator[Piece]:
        """The text in pieces, each mark in it as a control token."""
        at = 0
        while (found := self.search(text, at)) is not None:
            if at < found.start():
                yield text[at : found.start()]
            yield Control(found[0])
            at = found.end()
        if at < len(text):
            yield text[at:]

    def touches(self, text: str) -> bool:
        """Whether the text has a character that a mark begins with."""
        return not self._first.isdisjoint(text)

    def held(self, text: str, at: int = 0) -> int:
        """The start of a possible incomplete mark at the end of the text."""
        for start in range(max(at, len(text) - self.longest), len(text)):
            if text[start] in self._first and self.begin_with(text[start:]):
                return start
        return len(text)

    def begin_with(self, text: str) -> bool:
        """Whether some mark begins with this text, and has more."""
        at = bisect_right(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


def _alternatives(marks: Sequence[str], at: int = 0, depth: int = 0) -> str:
    """The pattern of these texts, longest first, which are sorted and equal before `at`. It is a
    prefix tree: common prefixes are written, and compared, once."""
    if depth == _DEEPEST:  # the compiler of patterns is recursive
        return "|".join(re.escape(mark[at:]) for mark in reversed(marks))
    branches = []
    for _, alike in groupby(marks, itemgetter(at)):
        first, *more = alike
        last = more[-1] if more else first  # a common prefix of the first and last is one of all
        size = next(
            (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
        )
        branch = re.escape(first[at:size])
        if more:
            rest, optional = (more, "?") if len(first) == size else ([first, *more], "")
            branch += f"(?:{_alternatives(rest, size, depth + 1)}){optional}"
        branches.append(branch)
    return "|".join(branches)


def shown_controls(tokenizer: Tokenizer, known: Container[str] = ()) -> frozenset[str]:
    """The control tokens that are text in an answer, unless its format knows them."""
    shown: frozenset[str] = getattr(tokenizer, "shown", frozenset())
    return frozenset(text for text in shown if text not in known)


class TokenTable(dict[int, str | bytes | Control]):
    """The meaning of each id: text, bytes of an incomplete character, or a control token. Filled in
    as the ids occur. Control tokens that a vocabulary has as `shown` are text, unless `known`."""

    def __init__(self, tokenizer: Tokenizer, known: Container[str] = ()) -> None:
        self.controls = tokenizer.controls
        shown = shown_controls(tokenizer, known)
        controls = self.controls.items()
        super().__init__((id, Control(text)) for text, id in controls if text not in shown)
        self._piece = tokenizer.piece

    def __missing__(self, id: int) -> str | bytes:
        piece = self._piece(id)
        known: str | bytes = piece
        with suppress(UnicodeDecodeError):
            known = piece.decode()
        self[id] = known
        return known


class Prompt(Struct, frozen=True):
    """A prompt, and its losses.

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
            text = piece if isinstance(piece, str) else piece.text
            id = None if isinstance(piece, str) else tokenizer.controls.get(text)
            ids.extend(tokenizer.encode(text) if id is None else (id,))
        return ids

    @property
    def text(self) -> str:
        """One text, control tokens and all."""
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)

    def text_for(self, controls: Iterable[str]) -> str:
        """One text, for servers that find these control tokens in it: those that were text are
        broken by a zero-width space, so that a text cannot forge a turn of another role.

        >>> Prompt((Control("<|go|>"), "<|go|>")).text_for(["<|go|>"])
        '<|go|><\\u200b|go|>'
        """
        pattern = Marks(controls).pattern
        return "".join(
            pattern.sub(lambda found: f"{found[0][0]}\u200b{found[0][1:]}", piece)
            if isinstance(piece, str)
            else piece.text
            for piece in self.pieces
        )
