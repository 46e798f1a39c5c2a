"""What this wire says and the house has no field for: put aside on the way in, said on the way out.

Knows the wire's key and nothing else: which fields are unknown is found out by whoever took the
known ones out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dragoman.core.item import JSON, Extra

WIRE: Final = "responses"
"""The key of this wire in every `extra`."""


def keep(fields: dict[str, JSON]) -> Extra | None:
    """Fields to remember, or None where there are none."""
    return {WIRE: fields} if fields else None


def kept(extra: Extra | None) -> dict[str, JSON]:
    """The fields remembered for this wire."""
    return extra.get(WIRE, {}) if extra else {}


def dense(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Only the fields that were set.

    >>> dense({"id": None, "role": "user", "n": 0})
    {'role': 'user', 'n': 0}
    """
    return {name: value for name, value in fields.items() if value is not None}


def merge(base: dict[str, JSON], more: dict[str, JSON]) -> dict[str, JSON]:
    """Both; where both have an object under a name, the objects are merged.

    >>> merge({"text": {"verbosity": "low"}}, {"text": {"vendor": 1}, "vendor": 2})
    {'text': {'verbosity': 'low', 'vendor': 1}, 'vendor': 2}
    """
    merged = dict(base)
    for name, value in more.items():
        known = merged.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            merged[name] = merge(known, value)
        else:
            merged[name] = value
    return merged
