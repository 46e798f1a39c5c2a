"""Token counts in the Responses protocol's spelling, read and written.

The protocol's types demand five numbers as soon as anything was counted; when nothing was, there
is no usage at all, and nobody makes zeros of it.
"""

from __future__ import annotations

from dragoman.core.item import JSON
from dragoman.core.response import Usage
from dragoman.wire import body

from .extras import dense, keep, kept, merge

_ALIASES = {
    "prompt_tokens": "input_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens": "output_tokens",
    "completion_tokens_details": "output_tokens_details",
}
"""Names of another wire that servers are known to use here."""


def decode(value: JSON) -> Usage | None:
    """Usage as an upstream reported it, or None where it reported no count.

    >>> decode({"input_tokens": 3, "output_tokens": 2}).total_tokens
    5
    """
    if not isinstance(value, dict):
        return None
    counted: dict[str, JSON] = value
    rest = {_ALIASES.get(name, name): said for name, said in counted.items()}
    into, out = _details(rest, "input"), _details(rest, "output")
    read, written = _count(rest, "input_tokens"), _count(rest, "output_tokens")
    total = _count(rest, "total_tokens")
    if read is None and written is None and total is None:
        return None
    if total is None and read is not None and written is not None:
        total = read + written
    counts = (_count(into, "cached_tokens"), _count(into, "cache_write_tokens"))
    reasoning = _count(out, "reasoning_tokens")
    rest |= dense({"input_tokens_details": into or None, "output_tokens_details": out or None})
    return Usage(read, written, total, *counts, reasoning, extra=keep(dense(rest)))


def _details(counts: dict[str, JSON], side: str) -> dict[str, JSON]:
    details = counts.pop(f"{side}_tokens_details", None)
    return dict(details) if isinstance(details, dict) else {}


def _count(counts: dict[str, JSON], name: str) -> int | None:
    return body.whole(counts.pop(name, None))


def encode(usage: Usage | None) -> dict[str, JSON] | None:
    """Usage with all the numbers its type demands, or None when nothing was counted."""
    if usage is None:
        return None
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    said: dict[str, JSON] = {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": read + written if usage.total_tokens is None else usage.total_tokens,
    }
    return merge(said, kept(usage.extra))
