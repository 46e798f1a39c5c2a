"""Finds local models by name or by kind and place, such as `gguf:model.gguf`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from msgspec import Struct

from dragoman.core.error import hint
from dragoman.core.interfaces import Engine

from .pocket import available, pocket
from .script import demo

POCKET, SCRIPT = "pocket", "script"
SHIPPED: Mapping[str, Callable[..., Engine]] = {POCKET: pocket, SCRIPT: demo}
"""Engines in the package, by name. They raise ImportError where an extra is missing."""
NOTES = {POCKET: "a demonstration model", SCRIPT: "a demo, not a model"}
"""A short description of each."""


def stand_in() -> str:
    """The engine to use when none is named: a model, if it can be run."""
    return POCKET if available() else SCRIPT


class Target(Struct, frozen=True):
    """A model that can be loaded: its name, a short description, and `load`."""

    name: str
    note: str
    load: Callable[[], Engine]


KINDS = {"hf": "a transformers model", "gguf": "a GGUF file, run by llama.cpp"}
"""The kinds of targets with a place, by the prefix before the colon, and a short description."""


def is_local(target: str) -> bool:
    """Whether a target is a local model.

    >>> is_local("gguf:model.gguf"), is_local("pocket"), is_local("http://127.0.0.1:8000")
    (True, True, False)
    """
    return target in SHIPPED or target.partition(":")[0] in KINDS


def find_target(target: str, **options: Any) -> Target:
    """A target, checked as far as possible without loading it.

    `options` are those of the kind (see `transformers.prepare` and `llamacpp.prepare`). This and
    loading raise ValueError for what cannot be served and ImportError where something is not
    installed, both with a message for the user.

    >>> find_target("pocket").name
    'pocket'
    """
    if target in SHIPPED:
        make = SHIPPED[target]
        if foreign := options.keys() - signature(make).parameters.keys():
            raise ValueError(f"{target} has no option {', '.join(sorted(foreign))}.")
        return Target(target, NOTES[target], partial(make, **options))
    kind, colon, place = target.partition(":")
    if not colon or kind not in KINDS:
        names = ", ".join((*SHIPPED, *(f"{each}:…" for each in KINDS)))
        meant = f" Did you mean gguf:{target}?" if target.endswith(".gguf") else ""
        near = hint(target, SHIPPED) or "."
        raise ValueError(f"There is no target {target!r}{near}{meant} There is: {names}")
    if not place:
        raise ValueError(f"{target} names no model: give a folder or a file after the colon.")
    from . import llamacpp, transformers  # imported only where needed: they take 2 MB

    module = llamacpp if kind == "gguf" else transformers
    prepare: Callable[..., Callable[[], Engine]] = module.prepare
    if foreign := options.keys() - signature(prepare).parameters.keys():
        raise ValueError(f"{kind}: models have no option {', '.join(sorted(foreign))}.")
    return Target(module.name_of(place), KINDS[kind], prepare(place, **options))
