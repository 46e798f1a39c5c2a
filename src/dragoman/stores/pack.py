"""Values as bytes, for backends that keep bytes: compact, exact, and readable by later versions.

The first byte says how the rest is written: MessagePack, or JSON where a text holds half a
character or a number has more than 64 bits, which MessagePack cannot say.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.event import Delta, Event
from dragoman.core.item import Annotation, Item
from dragoman.core.response import Response

from .record import Conversation, Record

_MSGPACK, _JSON = b"m", b"j"
_encode = msgspec.msgpack.Encoder().encode

# Made here, once: threads unpack, and two of them must not be the first to look at a type together
# (msgspec 0.22 crashes when they are).
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {
    type: msgspec.msgpack.Decoder(type)
    for type in (Any, Conversation, Item, Record, Response, tuple[Event, ...], tuple)
}


def pack(value: object) -> bytes:
    """A value of ours as bytes."""
    try:
        return _MSGPACK + _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _JSON + json.dumps(msgspec.to_builtins(value)).encode()


def unpack(data: bytes, type: Any) -> Any:
    """The value that was packed, of one of the types that are kept. Raises
    msgspec.ValidationError for bytes of another kind.

    >>> unpack(pack((1, "\\ud83d")), tuple)
    (1, '\\ud83d')
    """
    if data[:1] == _JSON:
        return msgspec.convert(json.loads(data[1:]), type)
    return _decoders[type].decode(memoryview(data)[1:])


def unpack_events(data: bytes) -> tuple[Event, ...]:
    """Events that were packed, with what their open fields held restored."""
    return tuple(map(_restored, unpack(data, tuple[Event, ...])))


def _restored(event: Event) -> Event:
    """An annotation stands in a field that may be anything, so its type was lost on the way."""
    if isinstance(event, Delta) and event.kind == "annotation" and isinstance(event.data, dict):
        return replace(event, data=msgspec.convert(event.data, Annotation))
    return event
