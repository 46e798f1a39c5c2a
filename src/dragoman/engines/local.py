"""Models of this machine by what a user writes: a name that comes with the package, or a kind and
a place, such as `gguf:model.gguf`.

A table of kinds and nothing else: how a model is loaded stands in the room of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dragoman.core.interfaces import Engine

from . import llamacpp, transformers
from .shipped import NOTES, SHIPPED


class Kind(Struct, frozen=True):
    """One kind of target: how a place becomes what loads its model, what its model is called, and
    what is said of it in a few words."""

    prepare: Callable[..., Callable[[], Engine]]
    name: Callable[[str], str]
    note: str


class Target(Struct, frozen=True):
    """A model that can be loaded: its name, a few words about it, and `load`, which does it."""

    name: str
    note: str
    load: Callable[[], Engine]


KINDS = {
    "hf": Kind(transformers.prepare, transformers.name_of, "a transformers model"),
    "gguf": Kind(llamacpp.prepare, llamacpp.name_of, "a GGUF file, run by llama.cpp"),
}
"""The kinds of targets that have a place, by what stands before the colon."""


def is_local(target: str) -> bool:
    """Whether this is what one writes for a model of this machine.

    >>> is_local("gguf:model.gguf"), is_local("pocket"), is_local("http://127.0.0.1:8000")
    (True, True, False)
    """
    return target in SHIPPED or target.partition(":")[0] in KINDS


def find_target(target: str, **options: Any) -> Target:
    """What a user wrote, checked as far as can be done without loading anything.

    `options` are those of the kind (see `transformers.prepare` and `llamacpp.prepare`); what comes
    with the package has none. Loading, like this, raises ValueError for what cannot be served and
    ImportError where something is not installed, both with a sentence for the user.

    >>> find_target("pocket").name
    'pocket'
    """
    if target in SHIPPED:
        if options:
            raise ValueError(f"{target} has no options, and {', '.join(options)} was given.")
        return Target(target, NOTES[target], SHIPPED[target])
    kind, colon, place = target.partition(":")
    if not colon or kind not in KINDS:
        names = ", ".join((*SHIPPED, *(f"{each}:…" for each in KINDS)))
        raise ValueError(f"There is no target {target!r}. There is: {names}")
    if not place:
        raise ValueError(f"{target} names no model; a folder or a file goes behind the colon.")
    found = KINDS[kind]
    name = found.name(place)
    return Target(name, found.note, found.prepare(place, **options))
