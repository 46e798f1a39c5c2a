"""A short cut through the commonest chunk: one that says a piece of text and nothing else.

Such chunks of one stream differ in their text alone (and some in a random padding), so the bytes
around it are remembered and only the text is decoded. A chunk that differs anywhere else takes
the long way, and so does one whose text is not exactly one JSON string: the short cut is never
laxer than the long way.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dragoman.core.item import JSON
from dragoman.wire import body

_CONTENT = re.compile(rb'"content"[ \t]*:[ \t]*("(?:[^"\\]|\\.)*+")')
_PADDING = re.compile(rb'"obfuscation"[ \t]*:[ \t]*("[^"\\]*+")')
_NOTHING: tuple[JSON, ...] = (None, "", [])


class Envelope(NamedTuple):
    """The bytes before and after the text, and the choice that is speaking.

    `padding` splits what comes after the text where a random padding stands, if there is one.
    """

    prefix: bytes
    suffix: bytes
    choice: int
    padding: tuple[bytes, bytes] | None = None

    def text(self, data: bytes) -> str | None:
        """The text in this chunk; None, or empty, if it must take the long way."""
        prefix, suffix, _, padding = self
        if not data.startswith(prefix):
            return None
        if data.endswith(suffix):
            return body.string(data[len(prefix) : len(data) - len(suffix)])
        if padding is None or not data.endswith(padding[1]):
            return None
        inner = data[len(prefix) : len(data) - len(padding[1])]
        text, found, padded = inner.rpartition(padding[0])
        return body.string(text) if found and body.string(padded) is not None else None


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
    return Envelope(prefix, suffix, choice, _padding(suffix))


def _padding(suffix: bytes) -> tuple[bytes, bytes] | None:
    found = _PADDING.search(suffix)
    if found is None or suffix.count(b'"obfuscation"') != 1:
        return None
    return suffix[: found.start(1)], suffix[found.end(1) :]


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
