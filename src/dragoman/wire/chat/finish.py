"""Finish reasons: one table for the words of servers and the words of the protocol.

A hyphen is mended, an empty word is none, and an unknown one counts as a stop, since readers of
the protocol know no others.
"""

from __future__ import annotations

from dragoman.core.item import JSON

WORDS: dict[str, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "safety": "content_filter",
}
"""What servers say, and what is meant."""

_SAID = frozenset(WORDS.values())

BROKEN = ("error", "abort")
"""Words with which servers end an answer that they could not finish."""


def decode(value: JSON) -> str | None:
    """The reason in the protocol's words; None where there is none yet.

    >>> [decode(value) for value in ("tool-calls", "eos", "", None)]
    ['tool_calls', 'stop', None, None]
    """
    if value is None or value == "":
        return None
    word = value.lower().replace("-", "_") if isinstance(value, str) else ""
    return WORDS.get(word, "stop")


def broken(value: JSON) -> bool:
    """Whether the reason is that the answer could not be finished."""
    return value in BROKEN


def encode(reason: str, *, legacy: bool = False) -> str:
    """The reason for the reader; `legacy` for one that knows functions and not tools.

    >>> encode("tool_calls", legacy=True), encode("max_tool_calls")
    ('function_call', 'stop')
    """
    if legacy and reason == "tool_calls":
        return "function_call"
    return reason if reason in _SAID else "stop"
