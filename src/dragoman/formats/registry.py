"""Registry of token formats by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .format import Format
from .harmony import Harmony
from .markup.families import PROFILES
from .markup.format import Markup

NAMES: dict[str, Callable[[], Format]] = {"harmony": Harmony} | {
    profile.name: partial(Markup, profile) for profile in PROFILES
}
"""Constructors of the formats, by name."""


def by_name(name: str) -> Format:
    """The format of this name. Raises ValueError listing the known names.

    >>> by_name("hermes").name
    'hermes'
    """
    make = NAMES.get(name)
    if make is None:
        known = ", ".join(sorted(NAMES))
        raise ValueError(f"There is no format {name!r}. Formats: {known}.")
    return make()
