"""Conversations as this wire speaks of them: how one is made, changed, added to, and shown.

The words for items are those of `items`; where conversations are kept is not known here.
"""

from __future__ import annotations

from typing import Any

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import JSON, Item
from dragoman.wire import body
from dragoman.wire.body import Fields

from . import items

PREFIX = "conv_"
"""What a conversation's id begins with on this wire."""

MOST = 20
"""Items that can be added in one request."""

KEYS = 16
"""Entries that metadata may have."""


def decode_items(data: bytes) -> tuple[Item, ...]:
    """The items to be added. Raises FaultError naming the field that is wrong."""
    return _items(body.parse(data), needed=True)


def decode_opening(data: bytes) -> tuple[tuple[Item, ...], dict[str, JSON]]:
    """The items and the metadata of a new conversation; neither need be given."""
    fields = body.parse(data or b"{}")
    return _items(fields, needed=False), _metadata(fields)


def decode_metadata(data: bytes) -> dict[str, JSON]:
    """The metadata that shall take the place of the old."""
    fields = body.parse(data)
    if "metadata" not in fields:
        raise FaultError(bad_request("is missing", "metadata"))
    return _metadata(fields)


def encode(id: str, created_at: int, metadata: dict[str, JSON] | None) -> bytes:
    """A conversation.

    >>> encode("1", 2, None)
    b'{"id":"conv_1","object":"conversation","created_at":2,"metadata":{}}'
    """
    said = {"id": PREFIX + id, "object": "conversation", "created_at": created_at}
    return body.dump({**said, "metadata": metadata or {}})


def encode_deleted(id: str) -> bytes:
    """What is said of a conversation that was deleted."""
    return body.dump({"id": PREFIX + id, "object": "conversation.deleted", "deleted": True})


def _items(fields: Fields, *, needed: bool) -> tuple[Item, ...]:
    match fields.any("items"):
        case None if not needed:
            return ()
        case list(values) if len(values) <= MOST:
            return items.decode_all(values, fields.at("items"))
        case list(values):
            raise fields.wrong("items", f"has {len(values)} entries; {MOST} are allowed at once")
        case _:
            raise fields.wrong("items", "must be an array")


def _metadata(fields: Fields) -> dict[str, Any]:
    metadata = fields.mapping("metadata") or {}
    if len(metadata) > KEYS:
        raise fields.wrong("metadata", f"has {len(metadata)} entries; {KEYS} are allowed")
    return metadata
