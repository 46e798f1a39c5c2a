"""Splits `<think>…</think>` at the start of an answer from the answer itself.

Works on pieces of any size and knows only text: whether the tags should be looked for at all is
a setting of whoever owns the turn. Tags anywhere but at the start are left alone.
"""

from __future__ import annotations

from typing import Literal

Piece = tuple[Literal["reasoning", "text", "open", "close"], str]

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Feeds on text and gives pieces of reasoning and text.

    The pieces `open` and `close` carry the tags with the blanks around them, word for word, so
    that all pieces joined are the text that came in.

    >>> splitter = ThinkSplitter()
    >>> splitter.feed("<think>hm") + splitter.feed("m</think>  Yes") + splitter.flush()
    [('open', '<think>'), ('reasoning', 'hm'), ('reasoning', 'm'), ('close', '</think>  '), ('text', 'Yes')]
    """  # noqa: E501 - the example's output is one line

    __slots__ = ("_held", "_step")

    def __init__(self) -> None:
        self._held = ""
        self._step = self._before

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now; the rest is held back."""
        self._held += text
        return self._step()

    def flush(self) -> list[Piece]:
        """What was held back, as what it turned out to be."""
        held, self._held = self._held, ""
        if not held:
            return []
        if self._step == self._inside:
            return [("reasoning", held)]
        return [("close", held)] if self._step == self._between else [("text", held)]

    @property
    def settled(self) -> bool:
        """True once all further text is plain text."""
        return self._step == self._after

    def _before(self) -> list[Piece]:
        bare = self._held.lstrip()
        if bare.startswith(_OPEN):
            rest = bare[len(_OPEN) :]
            inner = rest.lstrip("\r\n")
            tag = self._held[: len(self._held) - len(inner)]
            self._held, self._step = inner, self._inside
            return [("open", tag), *self._inside()]
        if _OPEN.startswith(bare):
            return []
        return self._plain()

    def _inside(self) -> list[Piece]:
        thought, tag, rest = self._held.partition(_CLOSE)
        if tag:
            words = thought.rstrip("\r\n")
            self._held, self._step = thought[len(words) :] + tag + rest, self._between
            pieces: list[Piece] = [("reasoning", words)] if words else []
            return pieces + self._between()
        # Hold back newlines and whatever may be the beginning of the closing tag.
        keep = _overlap(self._held, _CLOSE)
        sure = self._held[: len(self._held) - keep].rstrip("\r\n")
        self._held = self._held[len(sure) :]
        return [("reasoning", sure)] if sure else []

    def _between(self) -> list[Piece]:
        text = self._held.partition(_CLOSE)[2].lstrip()
        if not text:
            return []
        tag = self._held[: len(self._held) - len(text)]
        self._held = text
        return [("close", tag), *self._plain()]

    def _after(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [("text", held)] if held else []

    def _plain(self) -> list[Piece]:
        self._step = self._after
        return self._after()


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` could begin `mark`."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
