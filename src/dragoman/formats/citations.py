"""Finds citations of pages in a model's text, in whatever pieces it comes, and makes links of them.

A model that was trained with a browser cites what it was shown: `【3†L4-L7】` stands for lines 4 to
7 of what had the cursor 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.core.item import Annotation

_MARK = re.compile(r"【([0-9]{1,9})†[^†【】]{1,128}(?:†[^†【】]{1,256})?】")
_BEGUN = re.compile(r"【(?:[0-9]{1,9}(?:†(?:[^†【】]{1,128}(?:†[^†【】]{0,256})?)?)?)?")
_ESCAPED = str.maketrans({"(": "%28", ")": "%29"})
"""Parentheses of an address: in Markdown they would end the link."""

Cited = Callable[[int], tuple[str, str] | None]
"""The address and the title of the page with a cursor; None where there is none to be cited."""


def domain(url: str) -> str:
    """What stands for an address where there is little room.

    >>> domain("https://example.com:8000/a/b"), domain("example")
    ('example.com:8000', 'example')
    """
    parts = url.split("/", 3)
    return parts[2] if len(parts) > 2 else url


class Citations:
    """The citations of one text. What cannot be one is passed on at once: only the end of the text
    from its last `【` may have to wait.

    >>> citations = Citations({1: ("https://example.com/a", "A")}.get)
    >>> citations.feed("So it is【1†L"), citations.feed("3】.")[0]
    (['So it is'], ' ([example.com](https://example.com/a)) ')
    """

    def __init__(self, cited: Cited) -> None:
        self._cited = cited
        self._held = ""
        self._length = 0  # of what was passed on

    def feed(self, text: str) -> list[str | Annotation]:
        """The text that is known by now, and the annotations of it, each after its text."""
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
            if (page := self._cited(int(mark[1]))) is not None:
                url, title = page
                link = f" ([{domain(url)}]({url.translate(_ESCAPED)})) "
                start = self._length + place - done
                self._length = start + len(link)
                found.append(text[done:place] + link)
                end = self._length
                found.append(Annotation("url_citation", start, end, url, title or domain(url)))
                done = mark.end()
            place = text.find("【", mark.end())
        rest, self._held = (text[done:], "") if place < 0 else (text[done:place], text[place:])
        self._length += len(rest)
        return [*found, rest] if rest else found
