"""Sealed reasoning, which an answer that is stored shows only to those who asked to see it.

Whoever stores an answer keeps its seals too, and has them when it is gone on from; a client that
stores nothing has to be shown what it shall bring back. Nothing here looks into a seal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from dragoman.core.event import Event, ItemAdded, ItemDone
from dragoman.core.item import Item, Reasoning
from dragoman.core.request import Request

SEALED = "reasoning.encrypted_content"
"""The value of `include` that asks to see it."""


def hides(request: Request) -> bool:
    """Whether the answer to this request shows no seals.

    >>> hides(Request(model="m", store=True)), hides(Request(model="m", store=False))
    (True, False)
    """
    return request.store is True and SEALED not in request.include


def shown(items: Iterable[Item], include: Collection[str] = ()) -> tuple[Item, ...]:
    """The items as one sees them who asked to see this beside them."""
    return tuple(items) if SEALED in include else tuple(map(_bare, items))


def without(event: Event) -> Event:
    """An event, without the seal of the item in it."""
    if isinstance(event, ItemAdded | ItemDone):
        bare = _bare(event.item)
        return event if bare is event.item else replace(event, item=bare)
    return event


def _bare(item: Item) -> Item:
    sealed = isinstance(item, Reasoning) and item.encrypted is not None
    return replace(item, encrypted=None) if sealed else item
