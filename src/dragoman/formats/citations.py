"""Finds citations in streamed text of a model, and turns them into annotations.

A model cites by number: `【3†L4-L7】` stands for lines 4 to 7 of the page with the
cursor 3, and `【101†notes.md】` for a chunk of a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dragoman.core.item import Annotation

_MARK = re.compile(r"【([0-9]{1,9})(?:†([^【】]{0,385}))?】")
_BEGUN = re.compile(r"【(?:[0-9]{1,9}(?:†[^【】]{0,385})?)?")
_ESCAPED = str.maketrans({"(": "%28", ")": "%29"})
"""Parentheses in a URL, which would end the link in Markdown."""
LINES = re.compile("[^†]{1,128}(?:†[^†]{1,256})?")
"""The text after the number of a page: its lines, and perhaps its domain."""

Cited = Callable[[int, str], Annotation | None]
"""Returns the annotation for a mark, by its number and the text after it; None for an
invalid mark."""


def domain(url: str) -> str:
    """The short form of a URL.

    >>> domain("https://example.com:8000/a/b"), domain("example")
    ('example.com:8000', 'example')
    """
    parts = url.split("/", 3)
    return parts[2] if len(parts) > 2 else url


class Citations:
    """Replaces the marks of one text; the first of `cited` that resolves a mark is used. A
    `url_citation` becomes a link in place of its mark, any other mark is removed. Other text
    is passed on at once: only the end of the text from its last `【` may be held back.

    >>> page = Annotation("url_citation", url="https://example.com/a", title="A")
    >>> citations = Citations([lambda number, rest: page])
    >>> citations.feed("So it is【1†L"), citations.feed("3】.")[0]
    (['So it is'], ' ([example.com](https://example.com/a)) ')
    """

    def __init__(self, cited: Sequence[Cited]) -> None:
        self._cited = cited
        self._held = ""
        self._length = 0  # of the text that was passed on

    def feed(self, text: str) -> list[str | Annotation]:
        """The text so far, without a possible mark, and its annotations, each after its text."""
        return self._scan(self._held + text, ended=False)

    def end(self) -> list[str | Annotation]:
        """The rest."""
        return self._scan(self._held, ended=True)

    def _scan(self, text: str, ended: bool) -> list[str | Annotation]:
        found: list[str | Annotation] = []
        done, place = 0, text.find("【")
        while place >= 0:
            mark = _MARK.match(text, place)
            if mark is None:
                if not ended and _BEGUN.fullmatch(text, place):
                    break
                place = text.find("【", place + 1)
                continue
            number, rest = int(mark[1]), mark[2] or ""
            notes = (cited(number, rest) for cited in self._cited)
            if (note := next(filter(None, notes), None)) is not None:
                url = note.url or ""
                link = f" ([{domain(url)}]({url.translate(_ESCAPED)})) " if url else ""
                start = self._length + place - done
                self._length = end = start + len(link)
                found += filter(None, (text[done:place] + link,))
                at = replace(note, start=start, end=end) if url else replace(note, index=start)
                found.append(at)
                done = mark.end()
            place = text.find("【", mark.end())
        rest, self._held = (text[done:], "") if place < 0 else (text[done:place], text[place:])
        self._length += len(rest)
        return [*found, rest] if rest else found
