"""Splits `<think>…</think>` at the start of an answer from the answer itself.

Works on pieces of any size and knows only text: whether the tags should be looked for at all is
a setting of whoever owns the turn. Tags anywhere but at the start are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Kind = Literal["reasoning", "text", "open", "close"]
Piece = tuple[Kind, str]
Step = Callable[["ThinkSplitter", bool], list[Piece]]

_OPEN, _CLOSE = "<think>", "</think>"
_BLANKS = 64
"""How many blanks around a tag belong to it; what is beyond is text, and nothing is held longer."""


class ThinkSplitter:
    """Feeds on text and gives pieces of reasoning and text, the same for every split of the text.

    The pieces `open` and `close` carry the tags with the blanks around them, word for word, so
    that all pieces joined are the text that came in.

    >>> splitter = ThinkSplitter()
    >>> splitter.feed("<think>hm") + splitter.feed("m</think>") + splitter.feed("  Yes")
    [('open', '<think>'), ('reasoning', 'hm'), ('reasoning', 'm'), ('close', '</think>  '), ('text', 'Yes')]
    """  # noqa: E501 - the example's output is one line

    __slots__ = ("_held", "_step")

    def __init__(self) -> None:
        self._held = ""
        self._step: Step = ThinkSplitter._before  # bound to nothing: it would be a cycle

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now; the rest is held back."""
        self._held += text
        return self._step(self, False)

    def passes(self, text: str) -> bool:
        """Whether this text, coming first, shows at once that no tag leads the answer."""
        if not text or text[0] == "<" or text[0].isspace():
            return False
        return not self._held and self._step is ThinkSplitter._before

    def flush(self) -> list[Piece]:
        """What was held back, as what it turned out to be."""
        return self._step(self, True)

    @property
    def settled(self) -> bool:
        """True once all further text is plain text."""
        return self._step is ThinkSplitter._after

    def _before(self, last: bool) -> list[Piece]:
        """Nothing but blanks and, perhaps, a part of the opening tag."""
        bare = self._held.lstrip()
        blanks = len(self._held) - len(bare)
        if blanks > _BLANKS or not (bare.startswith(_OPEN) or _OPEN.startswith(bare)):
            return self._enter(ThinkSplitter._after, last)
        start = blanks + len(_OPEN)
        if len(self._held) < start:
            return self._enter(ThinkSplitter._after, last) if last else []
        end = start + _leading(self._held[start:], "\r\n")
        if end == len(self._held) < start + _BLANKS and not last:
            return []  # more newlines may follow
        return self._give("open", end) + self._enter(ThinkSplitter._inside, last)

    def _inside(self, last: bool) -> list[Piece]:
        """In the reasoning, up to the closing tag and the newlines before it."""
        at = self._held.find(_CLOSE)
        if at >= 0:
            pieces = self._give("reasoning", at - _newlines_before(self._held[:at]))
            return pieces + self._enter(ThinkSplitter._between, last)
        if last:
            return self._give("reasoning", len(self._held))
        sure = len(self._held) - _overlap(self._held, _CLOSE)
        return self._give("reasoning", sure - _newlines_before(self._held[:sure]))

    def _between(self, last: bool) -> list[Piece]:
        """The closing tag is there; blanks after it belong to it."""
        start = self._held.find(_CLOSE) + len(_CLOSE)
        end = start + _leading(self._held[start:], None)
        if end == len(self._held) < start + _BLANKS and not last:
            return []
        return self._give("close", end) + self._enter(ThinkSplitter._after, last)

    def _after(self, last: bool) -> list[Piece]:
        return self._give("text", len(self._held))

    def _enter(self, step: Step, last: bool) -> list[Piece]:
        self._step = step
        return step(self, last)

    def _give(self, kind: Kind, size: int) -> list[Piece]:
        piece, self._held = self._held[:size], self._held[size:]
        return [(kind, piece)] if piece else []


def _leading(text: str, blanks: str | None) -> int:
    """How many of these characters `text` begins with, up to the limit (None: any blank)."""
    head = text[:_BLANKS]
    return len(head) - len(head.lstrip(blanks))


def _newlines_before(text: str) -> int:
    """How many newlines `text` ends with, up to the limit."""
    tail = text[-_BLANKS:]
    return len(tail) - len(tail.rstrip("\r\n"))


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` could begin `mark`."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
