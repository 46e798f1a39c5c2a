"""Ids as a database can hold them, whatever a client called its things.

Only texts are looked at; which of them are ids is known to those who ask.
"""

from __future__ import annotations

from collections.abc import Iterable


def clean(text: str) -> str:
    """An id without NUL and without halves of characters; any other stays as it is.

    >>> clean("a\\0b"), clean("\\ud83d")
    ('a\\\\x00b', '\\\\ud83d')
    """
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def cleaned(ids: Iterable[str | None]) -> list[str]:
    """Those that are ids, each as a database can hold it, and once."""
    return list(dict.fromkeys(clean(id) for id in ids if id))
