"""What we do not know of this wire: kept under its name, and said again on it.

Nothing here knows which fields are known.
"""

from __future__ import annotations

from dragoman.core.item import JSON, Extra

NAME = "completions"
"""The key of this wire in every `extra`."""

CHOICES = "choices"
"""The key, in the extra of an answer, of the unknown fields of each choice."""


def keep(rest: dict[str, JSON]) -> Extra | None:
    """The extra that holds unknown fields; None if there are none."""
    return {NAME: rest} if rest else None


def kept(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(NAME, {}) if extra else {}


def join(said: dict[str, JSON], more: dict[str, JSON]) -> dict[str, JSON]:
    """What is said, and the unknown fields with it; what is said stands.

    >>> join({"text": "a", "stop_reason": None}, {"text": "b", "stop_reason": 7})
    {'text': 'a', 'stop_reason': 7}
    """
    return said | {name: value for name, value in more.items() if said.get(name) is None}
