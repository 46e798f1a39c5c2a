"""Reasoning that only its maker can read: blobs, signatures, and ids that mean something elsewhere.

Here is what of a reasoning item is opaque, and what is left of it without. Nothing opaque is ever
looked into, and nothing here knows who made it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.core.item import Item, Reasoning

ENCRYPTED = "reasoning.encrypted_content"
"""What a request includes that asks for reasoning in a form it can bring back."""
ASKING = f"include[{ENCRYPTED}]"
"""The name that asking for it has where it is told."""
OURS = ("inline", "turn")
"""Keys of `extra` that are notes of our own, and no words of a wire."""


def is_opaque(item: Reasoning) -> bool:
    """Whether there is more to an item than its words.

    >>> is_opaque(Reasoning(encrypted="gAAA")), is_opaque(Reasoning(extra={"inline": {}}))
    (True, False)
    """
    return item.encrypted is not None or bool(set(item.extra or {}) - set(OURS))


def in_words(item: Reasoning) -> Reasoning | None:
    """An item as anybody may read it: its words without blobs, signatures and id; None where no
    words are left."""
    if not (item.content or item.summary):
        return None
    extra = {name: note for name, note in (item.extra or {}).items() if name in OURS}
    return replace(item, encrypted=None, id=None, extra=extra or None)


def all_in_words(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items, with every opaque reasoning item as `in_words` leaves it."""
    plain = (in_words(i) if isinstance(i, Reasoning) and is_opaque(i) else i for i in items)
    return tuple(item for item in plain if item is not None)
