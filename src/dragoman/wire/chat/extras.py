"""What we do not know of this wire: kept under its name, and said again on it.

Unknown fields inside a known object are kept under that object's name, so that `restore` puts
every one back at its own depth. Nothing here knows which fields are known.
"""

from __future__ import annotations

from dragoman.core.item import JSON, Extra

NAME = "chat"
"""The key of this wire in every `extra`."""


def keep(rest: dict[str, JSON], **nested: dict[str, JSON]) -> Extra | None:
    """The extra that holds unknown fields, and those of objects inside; None if there are none.

    >>> keep({"a": 1}, function={"b": 2}), keep({}, function={})
    ({'chat': {'a': 1, 'function': {'b': 2}}}, None)
    """
    kept = rest | {name: fields for name, fields in nested.items() if fields}
    return {NAME: kept} if kept else None


def kept(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(NAME, {}) if extra else {}


def restore(said: dict[str, JSON], extra: Extra | None) -> dict[str, JSON]:
    """What is said, and the unknown fields with it; what is said stands.

    >>> restore({"id": "1", "function": {"name": "f"}}, keep({"id": "2"}, function={"b": 2}))
    {'id': '1', 'function': {'name': 'f', 'b': 2}}
    """
    return join(said, kept(extra))


def join(said: dict[str, JSON], more: dict[str, JSON]) -> dict[str, JSON]:
    """`said`, with what `more` has besides, object by object; a null says nothing."""
    for name, value in more.items():
        have = said.get(name)
        if isinstance(have, dict) and isinstance(value, dict):
            said[name] = join(dict(have), value)
        elif have is None:
            said[name] = value
    return said
