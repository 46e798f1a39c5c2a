"""Lists of items as this wire shows them, and what is said of something that was deleted.

Pages are cut elsewhere; here is only what they look like.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.item import JSON, Item
from dragoman.core.response import Usage
from dragoman.wire import body

from . import items, usage
from .snapshot import PREFIX


def encode_item(item: Item) -> dict[str, JSON] | None:
    """A stored item, in full; None for one that belongs to another wire."""
    return items.encode_output(item, item.id or "")


def encode_list(found: Sequence[Item], more: bool) -> bytes:
    """A page of items.

    >>> encode_list([], more=False)
    b'{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'
    """
    said = [one for one in map(encode_item, found) if one is not None]
    page = {
        "object": "list",
        "data": said,
        "first_id": said[0]["id"] if said else None,
        "last_id": said[-1]["id"] if said else None,
        "has_more": more,
    }
    return body.dump(page)


def encode_compaction(id: str, created_at: int, item: Item, used: Usage | None) -> bytes:
    """A conversation that was made short: one item that stands for it."""
    said = {
        "id": PREFIX + id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": [encode_item(item)],
        "usage": usage.encode(used or Usage(input_tokens=0, output_tokens=0)),
    }
    return body.dump(said)


def encode_deleted(id: str) -> bytes:
    """What is said of a response that was deleted."""
    return body.dump({"id": PREFIX + id, "object": "response", "deleted": True})
