"""Finish reasons of this wire: many servers' words, and the few the protocol has.

Servers of raw models name the token that ended the text; a conversation's reasons (`tool_calls`)
mean nothing here. An unknown word counts as a stop, an empty one is none.
"""

from __future__ import annotations

from dragoman.core.item import JSON

_WORDS: dict[str, str] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "out_of_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
"""What servers say that does not mean stop; `stop`, `eos`, `eos_token`, `eom` and others do."""

_SAID = frozenset({"stop", *_WORDS.values()})
_BROKEN = ("error", "abort")


def decode(value: JSON) -> str | None:
    """The reason in the protocol's words; None where there is none yet.

    >>> [decode(value) for value in ("eos_token", "eom", "content-filter", "", None)]
    ['stop', 'stop', 'content_filter', None, None]
    """
    if value is None or value == "":
        return None
    word = value.lower().replace("-", "_") if isinstance(value, str) else ""
    return _WORDS.get(word, "stop")


def broken(value: JSON) -> bool:
    """Whether the reason is that the text could not be finished."""
    return value in _BROKEN


def encode(reason: str) -> str:
    """The reason for the reader."""
    return reason if reason in _SAID else "stop"
