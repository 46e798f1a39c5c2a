"""Finds a token format by what a user wrote: its name, or the folder of a model that brings one.

It reads the files of a folder, the one thing that formats themselves must not do. What is in them
is the business of `formats.template`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dragoman.formats.format import Format
from dragoman.formats.registry import NAMES, by_name
from dragoman.formats.template import from_config

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
HARMONY = frozenset({"<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"})
"""The control tokens that only models of harmony have."""


def find_format(named: str) -> Format:
    """The format of this name, or the one a model's folder has in its chat template.

    Raises ValueError for what is neither, or is a folder without a template, and ImportError where
    the template cannot be rendered here.

    >>> find_format("hermes").name
    'hermes'
    """
    folder = Path(named)
    if named in NAMES or not folder.is_dir():
        return by_name(named)
    return format_of(folder)


def format_of(folder: Path, controls: Iterable[str] | None = None) -> Format:
    """The format of the model in a folder: harmony where the vocabulary is made for it, else its
    chat template. `controls` are the control tokens of its vocabulary, where they are known.

    Raises as `find_format` does.
    """
    known = None if controls is None else frozenset(controls)
    if known is not None and known >= HARMONY:
        return by_name("harmony")
    template = folder / TEMPLATE
    try:
        config = (folder / CONFIG).read_text(encoding="utf-8")
        own = template.read_text(encoding="utf-8") if template.exists() else None
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
    try:
        return from_config(config, own, known)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def is_format(named: str) -> bool:
    """Whether this is the name of a format, or a folder there is."""
    return named in NAMES or Path(named).is_dir()
