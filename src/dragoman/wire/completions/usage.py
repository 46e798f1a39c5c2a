"""Token counts of this wire, in both directions.

A number that was reported is kept, zero included; what was not reported stays absent. The only
sum made here is the total of two counts that were both reported.
"""

from __future__ import annotations

from dragoman.core.item import JSON
from dragoman.core.response import Usage
from dragoman.wire.body import whole

from .extras import join, keep, kept

_COUNTS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "total_tokens": "total_tokens",
}
_DETAILS = {
    "prompt_tokens_details": {
        "cached_tokens": "cached_tokens",
        "cache_write_tokens": "cache_write_tokens",
    },
    "completion_tokens_details": {"reasoning_tokens": "reasoning_tokens"},
}


def decode(value: JSON) -> Usage | None:
    """The counts that were reported; None where nothing was.

    >>> usage = decode({"prompt_tokens": 7, "completion_tokens": 2.0, "total_tokens": None})
    >>> usage.input_tokens, usage.output_tokens, usage.total_tokens
    (7, 2, None)
    """
    if not isinstance(value, dict):
        return None
    left = dict(value)
    counts = _taken(left, _COUNTS)
    for outer, names in _DETAILS.items():
        inner = left.pop(outer, None)
        if isinstance(inner, dict):
            inner = dict(inner)
            counts |= _taken(inner, names)
            if rest := _said(inner):
                left[outer] = rest
    extra = keep(_said(left))
    return Usage(**counts, extra=extra) if counts or extra else None


def encode(usage: Usage) -> dict[str, JSON]:
    """The counts under the protocol's names; those never reported are not there."""
    said: dict[str, JSON] = _given(usage, _COUNTS)
    both = (usage.input_tokens, usage.output_tokens)
    if usage.total_tokens is None and None not in both:
        said["total_tokens"] = sum(count for count in both if count is not None)
    more = dict(kept(usage.extra))
    for outer, names in _DETAILS.items():
        if inner := join(_given(usage, names), more.pop(outer, {})):
            said[outer] = inner
    return join(said, more)


def _taken(left: dict[str, JSON], names: dict[str, str]) -> dict[str, JSON]:
    """The counts under these names, taken out of what is left."""
    counts = {field: whole(left.get(name)) for name, field in names.items()}
    for name, field in names.items():
        if counts[field] is not None:
            del left[name]
    return {field: count for field, count in counts.items() if count is not None}


def _said(fields: dict[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in fields.items() if value is not None}


def _given(usage: Usage, names: dict[str, str]) -> dict[str, JSON]:
    counts = ((name, getattr(usage, field)) for name, field in names.items())
    return {name: count for name, count in counts if count is not None}
