"""Turns stored values into bytes and back: compact, exact, and readable by later versions.

The first byte names the format: MessagePack, or JSON where a text holds half of a surrogate pair or
a number has more than 64 bits, which MessagePack cannot hold.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.event import Delta, Event
from dragoman.core.item import Annotation, Item
from dragoman.core.response import Response

from .base import Conversation, Record

_MSGPACK, _JSON = b"m", b"j"
_encode = msgspec.msgpack.Encoder().encode

# Made here, once: threads decode, and two of them must not be the first to look at a type together
# (msgspec 0.22 crashes when they are).
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {
    type: msgspec.msgpack.Decoder(type)
    for type in (Any, Conversation, Item, Record, Response, tuple[Event, ...], tuple)
}


def pack(value: object) -> bytes:
    """A value as bytes."""
    try:
        return _MSGPACK + _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return _JSON + json.dumps(msgspec.to_builtins(value)).encode()


def unpack(data: bytes, type: Any) -> Any:
    """The value of one of the stored types that was packed. Raises msgspec.ValidationError for
    bytes of another type.

    >>> unpack(pack((1, "\\ud83d")), tuple)
    (1, '\\ud83d')
    """
    if data[:1] == _JSON:
        return msgspec.convert(json.loads(data[1:]), type)
    return _decoders[type].decode(memoryview(data)[1:])


def unpack_events(data: bytes) -> tuple[Event, ...]:
    """Events that were packed."""
    return tuple(map(_restored, unpack(data, tuple[Event, ...])))


def _restored(event: Event) -> Event:
    """`Delta.data` may be anything, so decoding gives an annotation as a plain dict."""
    if isinstance(event, Delta) and event.kind == "annotation" and isinstance(event.data, dict):
        return replace(event, data=msgspec.convert(event.data, Annotation))
    return event
