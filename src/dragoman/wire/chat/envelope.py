"""A short cut through the commonest chunk: one that says a piece of text and nothing else.

Such chunks of one stream differ in their text alone, so the bytes around it are remembered and
only the text is decoded. A chunk that differs anywhere else takes the long way, and so does one
whose text is not exactly one JSON string: the short cut is never laxer than the long way.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dragoman.core.item import JSON
from dragoman.wire import body

_CONTENT = re.compile(rb'"content"[ \t]*:[ \t]*("(?:[^"\\]|\\.)*+")')
_NOTHING: tuple[JSON, ...] = (None, "", [])


class Envelope(NamedTuple):
    """The bytes before and after the text, and the choice that is speaking."""

    prefix: bytes
    suffix: bytes
    choice: int

    def text(self, data: bytes) -> str | None:
        """The text in this chunk; None, or empty, if it must take the long way."""
        prefix, suffix, _ = self
        if data.startswith(prefix) and data.endswith(suffix):
            return body.string(data[len(prefix) : len(data) - len(suffix)])
        return None


def learn(data: bytes, value: dict[str, JSON]) -> Envelope | None:
    """The envelope of a chunk that was read the long way; None if it says more than a text."""
    said = _plain(value)
    if said is None or data.count(b'"content"') != 1:
        return None
    choice, text = said
    found = _CONTENT.search(data)
    if found is None or body.string(found[1]) != text:
        return None
    prefix, suffix = data[: found.start(1)], data[found.end(1) :]
    if b"\\" in prefix or b"\\" in suffix:
        return None  # a name may be written in more ways than one
    return Envelope(prefix, suffix, choice)


def _plain(value: dict[str, JSON]) -> tuple[int, str] | None:
    """The choice and the text of a chunk with nothing in it that would not be there again."""
    match value:
        case {
            "choices": [{"index": int(index), "delta": {"content": str(text)} as delta} as choice]
        }:
            beside = (value.get("usage"), value.get("error"), *_others(choice), *_others(delta))
            return (index, text) if text and all(each in _NOTHING for each in beside) else None
        case _:
            return None


def _others(fields: dict[str, JSON]) -> list[JSON]:
    return [v for name, v in fields.items() if name not in ("index", "delta", "content", "role")]
