"""Splits streamed text into sentences, and removes markup for speech."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 300
"""Characters after which an unfinished sentence is spoken."""
_STEP = 100
"""Characters that are looked at together: what is found does not depend on how text arrives."""
_ABBREVIATED = 12
"""Characters before a full stop, more than any abbreviation has."""

_END = re.compile(r"""(?:(?<![.!?…])[.!?…]+["'”’)\]]*(?=\s)|[。！？]+["'”’」』）]*|\n)\s*(?=\S)""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Za-z]|Mrs?|Ms|Drs?|Prof|St|Sr|Jr|vs|etc|e\.g|i\.e|No|Nos|Fig|approx|ca|"
    r"Inc|Ltd|Co|Gen|Col|Lt|Capt|Rev|Hon|Mt|z\.B|bzw|Nr|Hr|Fr|\d{1,2})\.$"
)
_BREAK = re.compile(r"[,;:—–]\s+|\s+")


class Sentences:
    """Yields complete sentences; joined, they are exactly the text.

    A sentence includes the space after it, and ends where the next one begins: only then it is
    clear whether a full stop was its end.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> Iterator[str]:
        """The sentences that this text completes, each found when it is asked for."""
        for place in range(0, len(text), _STEP):
            self._held += text[place : place + _STEP]
            yield from self._completed()

    def _completed(self) -> list[str]:
        found, start = [], 0
        for match in _END.finditer(self._held, 0, len(self._held.rstrip())):
            end = match.end()
            stop = self._held[max(start, match.start() - _ABBREVIATED) : match.start() + 1]
            newline = "\n" in match[0]
            if not self._held[start:end].strip() or (not newline and _ABBREVIATION.search(stop)):
                continue
            found.append(self._held[start:end])
            start = end
        self._held = self._held[start:]
        if len(self._held) > LONGEST:
            breaks = [match.end() for match in _BREAK.finditer(self._held, LONGEST // 3, LONGEST)]
            end = breaks[-1] if breaks else LONGEST
            found.append(self._held[:end])
            self._held = self._held[end:]
        return found

    def close(self) -> str:
        """The rest, which may be empty."""
        rest, self._held = self._held, ""
        return rest


# ---- speakable text --------------------------------------------------------------------------

_FENCE = re.compile(
    r"^[ \t]*+(?:```.*|~~~.*|[-*_]{3,}[ \t]*|(?:(?<= )|[-:| ])[-: ]*\|[-:| ]*)$", re.M
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*(?:\s+\"[^\"]*\")?\)")
_URL = re.compile(r"\bhttps?://([^\s/?#]+)[^\s]*", re.I)
_BULLET = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+•][ \t]+)", re.M)
_MARKS = re.compile(r"(\*\*|__|~~|`+|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w))")
_UNSPOKEN = re.compile(
    "[\u200b-\u200f\u2060\ufe0e\ufe0f\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\x00-\x08\x0e-\x1f]"
)


def speakable(text: str) -> str:
    """The text without Markdown, the paths of links, and pictograms.

    >>> speakable("**Sunny** in [Paris](https://example.org/p), `20` degrees ☀️ _today_.")
    'Sunny in Paris, 20 degrees today.'
    """
    text = _FENCE.sub(" ", text)
    text = _LINK.sub(r"\1", text)
    text = _URL.sub(r"\1", text)
    text = _BULLET.sub("", text)
    text = _MARKS.sub("", text)
    text = _UNSPOKEN.sub("", text).replace("|", " ")
    return " ".join(text.split())


def words_in(text: str) -> bool:
    """Whether there is anything to speak."""
    return any(letter.isalnum() for letter in text)
