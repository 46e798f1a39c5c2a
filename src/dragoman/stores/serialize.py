"""Serialises stored values: compact, lossless, and readable by later versions.

A value begins with the name of its format: MessagePack, or JSON where a text holds half of a
surrogate pair or a number has more than 64 bits, which MessagePack cannot hold. What is large in a
record and often sent again (tools, instructions, the blocks of a long history) is not packed with
it but as parts, which the SQL stores keep once, by their digests. So are the pieces of long texts:
no other thread runs while one call packs, copies or decodes a text, however long it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import chain, count
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from dragoman.core.event import Delta, DeltaKind, Event
from dragoman.core.files import IndexedFile, VectorStore
from dragoman.core.item import Annotation, Item
from dragoman.core.request import Request, Tool
from dragoman.core.response import Response

from .base import (
    APART,
    Conversation,
    LogSegment,
    Record,
    Room,
    RunStatus,
    StoredAnswer,
    StoreError,
    input_id,
)

LARGE = 1_024
"""Bytes of a whole record, of its tools, or characters of its instructions: below it nothing is
worth to be a part."""
BLOCK_ITEMS, BLOCK_BYTES = 16, 4_096
"""A block of input items ends with the first item that brings it to one of these. Blocks are cut
from the start, so that a history that only grows has the same blocks in every request."""
DIGEST = 16
"""Bytes of the digest of a part."""
LONG = 256 * 1024
"""Characters of a text beyond which it is stored in pieces of so many."""
MANY = 4_096
"""Members of a list beyond which no long texts are looked for in it."""

_log = logging.getLogger("dragoman.stores")
_MSGPACK, _JSON, _RECORD, _APART = b"m", b"j", b"r", b"t"
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class _Body(Struct, array_like=True, omit_defaults=True):
    """What a record's row does not say in columns of its own; `request` is without its parts."""

    request: Request
    status: RunStatus = "in_progress"
    dialect: str = ""
    version: int = 1
    background: bool = False
    conversation: str | None = None
    tools: bytes | None = None
    instructions: bytes | None = None
    blocks: tuple[bytes, ...] = ()
    after: str | None = None
    place: int | None = None


class _Deltas(Struct, omit_defaults=True, tag="deltas"):
    """Deltas in a row that differ in their text alone."""

    index: int
    part_index: int
    kind: DeltaKind
    data: list[str]


class _Apart(Struct, array_like=True):
    """A packed value with a name in place of each of its long texts, which is `name` and its number
    in `texts`: the digests of its pieces."""

    name: str
    texts: tuple[tuple[bytes, ...], ...]
    value: bytes


# Made here, once: threads decode, and two of them must not be the first to look at a type together
# (msgspec 0.22 crashes when they are).
_decoders: dict[Any, tuple[msgspec.msgpack.Decoder[Any], msgspec.json.Decoder[Any]]] = {
    type: (msgspec.msgpack.Decoder(type), msgspec.json.Decoder(type))
    for type in (
        Any,
        Conversation,
        IndexedFile,
        Item,
        Record,
        Response,
        VectorStore,
        _Apart,
        _Body,
        str,
        tuple,
        tuple[Event | _Deltas, ...],
        tuple[Item, ...],
        tuple[Tool, ...],
    )
}


def pack(value: object) -> bytes:
    """A value as bytes."""
    try:
        return _MSGPACK + _encode(value)
    except (UnicodeEncodeError, OverflowError):
        with suppress(UnicodeEncodeError):  # it has halves of surrogate pairs, and takes long
            return _JSON + _encode_json(value)
        return _JSON + json.dumps(msgspec.to_builtins(value)).encode()


_TOLD = b"\xa6action\xa4told", b"\xa6action\xa7dropped"
_TOLD_JSON = b'"action": "told"', b'"action": "dropped"'
"""What the first version called a dropped field, and its name now, as they are packed."""


class _Long:
    """A long text in a value that is to be packed."""

    def __init__(self, text: str) -> None:
        self.text = text


def _in_pieces(long: _Long) -> msgspec.Raw:
    starts = range(0, len(long.text), LONG)
    data = b"".join([long.text[at : at + LONG].encode() for at in starts])
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)  # the head of a long text


_encode_in_pieces = msgspec.msgpack.Encoder(enc_hook=_in_pieces).encode


def pack_items(items: Sequence[Item]) -> list[tuple[Item, bytes]]:
    """Items, each with its bytes; long texts are packed in pieces."""

    def packed(item: Item) -> bytes:
        if is_long((item,)):
            marked = changed(item, lambda text: text if len(text) <= LONG else _Long(text))
            with suppress(UnicodeEncodeError, OverflowError):
                return _MSGPACK + _encode_in_pieces(marked)
        return pack(item)

    return [(item, packed(item)) for item in items]


def is_long(values: Iterable[object]) -> bool:
    """Whether any text in values is long: few are, and only those are looked at one by one."""
    rest = [*values]
    for each in rest:  # it grows in the loop
        if type(each) is str:
            if len(each) > LONG:
                return True
        elif isinstance(each, Struct):
            rest += filter(None, astuple(each))
        elif isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, list | tuple) and len(each) <= MANY:
            rest += each
    return False


def pack_apart(value: object, tenant: str, parts: dict[bytes, bytes]) -> bytes:
    """A value as bytes, the pieces of its long texts added to the parts.

    >>> parts = {}
    >>> data = pack_apart(("a" * LONG + "b",), "", parts)
    >>> list(map(len, parts.values())), len(unpack(data, tuple, Parts(parts.items()))[0]) - LONG
    ([262144, 1], 1)
    """
    texts: list[tuple[bytes, ...]] = []
    name = ""

    def cut(text: str) -> str:
        if len(text) <= LONG:
            return text
        starts = range(0, len(text), LONG)
        pieces = (text[at : at + LONG].encode("utf-8", "surrogatepass") for at in starts)
        texts.append(tuple([_add(parts, tenant, piece) for piece in pieces]))
        return ""

    def named(text: str) -> str:
        return text if len(text) <= LONG else f"{name}{next(numbers)}"

    changed(value, cut)
    data, salt = b"", count()
    while texts and (not data or data.count(name.encode()) > len(texts)):  # the value has it, too
        name, numbers = f"text {texts[0][0].hex()} {next(salt)} ", count()
        data = pack(changed(value, named))
    return _APART + _encode(_Apart(name, tuple(texts), data)) if texts else pack(value)


def unpack(data: bytes, type: Any, parts: Parts | None = None) -> Any:
    """The value of one of the stored types that was packed; without the parts, with other texts in
    place of the long ones. Raises StoreError for bytes that are damaged, or of another type.

    >>> unpack(pack((1, "\\ud83d")), tuple)
    (1, '\\ud83d')
    """
    if data[:1] == _APART:
        apart: _Apart = unpack(_MSGPACK + data[1:], _Apart)
        value, name = unpack(apart.value, type), apart.name
        if parts is None:
            return value
        whole = [parts.text(digests) for digests in apart.texts]
        return changed(
            value, lambda text: whole[int(text[len(name) :])] if text.startswith(name) else text
        )
    packed, spelled = _decoders[type]
    try:
        if data[:1] != _JSON:
            return packed.decode(memoryview(data)[1:])
        with suppress(msgspec.DecodeError):  # the same
            return spelled.decode(memoryview(data)[1:])
        return msgspec.convert(json.loads(data[1:]), type)
    except (TypeError, ValueError) as error:  # those of msgspec, too
        if (now := data.replace(*(_TOLD_JSON if data[:1] == _JSON else _TOLD))) != data:
            return unpack(now, type, parts)
        _log.warning("A row of the store is damaged: %s.", error)
        raise StoreError("A row of the store is damaged.") from error


def changed(value: Any, change: Callable[[str], object]) -> Any:
    """A value with its texts changed; the value itself where none is."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Struct):
        own = {name: getattr(value, name) for name in value.__struct_fields__}
        other = {name: new for name in own if (new := changed(own[name], change)) is not own[name]}
        return replace(value, **other) if other else value
    if isinstance(value, dict):
        texts = {name: changed(each, change) for name, each in value.items()}
        return texts if any(texts[name] is not value[name] for name in value) else value
    if isinstance(value, list | tuple) and len(value) <= MANY:
        each = [changed(one, change) for one in value]
        if any(new is not old for new, old in zip(each, value, strict=True)):
            return type(value)(each)
    return value


def texts_of(data: bytes | None) -> tuple[bytes, ...]:
    """The digests of the pieces of long texts in a packed value."""
    if data is None or data[:1] != _APART:
        return ()
    apart: _Apart = unpack(_MSGPACK + data[1:], _Apart)
    return tuple(digest for digests in apart.texts for digest in digests)


def size_of(value: object) -> int:
    """How many bytes a value takes, packed."""
    texts: list[str] = []

    def counted(text: str) -> str:
        if len(text) > LONG:
            texts.append(text)
            return ""
        return text

    size = len(pack(changed(value, counted) if is_long((value,)) else value))
    for text in texts:
        for start in range(0, 0 if text.isascii() else len(text), LONG):
            size += len(text[start : start + LONG].encode("utf-8", "surrogatepass"))
        size += len(text) if text.isascii() else 0
    return size


def pack_events(events: Iterable[Event], pack: Callable[[object], bytes] = pack) -> bytes:
    """Events as bytes: deltas of text in a row are packed as one, since each is a few letters."""
    packed: list[Event | _Deltas] = []
    run: _Deltas | None = None
    place = None
    for event in events:
        if type(event) is Delta and not event.tokens and event.kind != "annotation":
            if run is None or place != (event.index, event.part_index, event.kind):
                place = (event.index, event.part_index, event.kind)
                run = _Deltas(*place, [])
                packed.append(run)
            run.data.append(event.data)
        else:
            run = None
            packed.append(event)
    return pack(packed)


def unpack_events(data: bytes, parts: Parts | None = None) -> tuple[Event, ...]:
    """Events that were packed, by `pack_events` or, in earlier versions, each by itself."""
    events: list[Event] = []
    for event in unpack(data, tuple[Event | _Deltas, ...], parts):
        if isinstance(event, _Deltas):
            events += [Delta(event.index, event.part_index, event.kind, d) for d in event.data]
        elif isinstance(event, Delta) and isinstance(event.data, dict):
            # It may be anything, so decoding gives an annotation as a plain dict.
            events.append(replace(event, data=msgspec.convert(event.data, Annotation)))
        else:
            events.append(event)
    return tuple(events)


# ---- records -------------------------------------------------------------------------------


def pack_record(record: Record) -> tuple[bytes, bytes | None, dict[bytes, bytes]]:
    """A record as bytes, without what has a column of its own, and its response; and the parts they
    refer to, by their digests."""
    request = record.request
    parts: dict[bytes, bytes] = {}
    large = record.size > APART
    packed = pack
    if large and is_long((replace(request, items=()), record.response, *request.items)):
        packed = partial(pack_apart, tenant=record.tenant, parts=parts)
    body = _Body(
        request,
        record.status if record.response is None else "in_progress",
        record.dialect,
        record.version,
        record.background,
        record.conversation,
        after=record.after,
        place=record.place,
    )
    data = b"" if large else pack(body)
    if large or len(data) > LARGE:
        body.blocks, items = _blocks(parts, record.tenant, request.items, packed)
        body.request = replace(request, items=items)
        if request.instructions is not None and len(request.instructions) > LARGE:
            body.instructions = _add(parts, record.tenant, packed(request.instructions))
            body.request = replace(body.request, instructions=None)
        if request.tools and len(tools := packed(request.tools)) > LARGE:
            body.tools = _add(parts, record.tenant, tools)
            body.request = replace(body.request, tools=())
        data = packed(body)
    response = None if record.response is None else packed(record.response)
    return _RECORD + data, response, parts


def unpack_record(row: Sequence[Any], parts: Parts) -> Record:
    """The record of a row: its id, tenant, wire, time and predecessor, its bytes, its metadata,
    the digests of its parts, its response, and the owner, lease and wish for the end of its run."""
    id, tenant, wire, created_at, previous, data, metadata, _, packed = row[:9]
    owner, lease, cancelling = row[9:12]
    response = None if packed is None else unpack(packed, Response, parts)
    whole = data[:1] != _RECORD  # a version packed records whole, items with the ids we derive
    body: Any = unpack(data, Record) if whole else unpack(data[1:], _Body, parts)
    request: Request = body.request
    if whole:
        given = (
            replace(item, id=None) if item.id == input_id(item, id, place) else item
            for place, item in enumerate(request.items)
        )
        request = replace(request, items=tuple(given))
    elif body.instructions is not None or body.tools is not None or body.blocks:
        request = _whole(body, parts)
    return Record(
        id=id,
        tenant=tenant,
        wire=wire,
        created_at=created_at,
        request=request,
        status=body.status if response is None else response.status,
        response=response,
        previous=previous,
        conversation=body.conversation,
        after=body.after,
        place=body.place,
        background=body.background,
        cancelling=bool(cancelling),
        owner=owner or "",
        lease=lease or 0.0,
        dialect=body.dialect,
        version=body.version,
        metadata=None if metadata is None else unpack(metadata, Any),
    )


def _whole(body: _Body, parts: Parts) -> Request:
    """The request of a record with the parts that it refers to."""
    fields = dict[str, Any]()
    if body.instructions is not None:
        fields["instructions"] = parts.value(body.instructions, str)
    if body.tools is not None:
        fields["tools"] = parts.value(body.tools, tuple[Tool, ...])
    parts.take(body.blocks)
    blocks = [parts.value(block, tuple[Item, ...]) for block in body.blocks]
    fields["items"] = tuple(chain(*blocks, body.request.items))
    return replace(body.request, **fields)


def asked_of(data: bytes) -> tuple[str, int | None]:
    """The model and the place of a packed record, which no part is needed for."""
    whole = data[:1] != _RECORD
    body = unpack(data if whole else data[1:], Record if whole else _Body)
    return str(body.request.model), body.place


def digests(joined: bytes | None) -> Iterator[bytes]:
    """The digests that a row holds, one behind the other."""
    for start in range(0, len(joined or b""), DIGEST):
        yield (joined or b"")[start : start + DIGEST]


class Parts:
    """The parts that some records refer to; each is decoded once, for all of them, and takes its
    bytes of the room as often as it is referred to: `taken` in all."""

    def __init__(self, rows: Iterable[Sequence[Any]] = (), room: Room | None = None) -> None:
        self._packed = {bytes(digest): data for digest, data in rows}
        self._values: dict[bytes | tuple[bytes, ...], Any] = {}
        self._room = room or Room()
        self.size = sum([len(data) for data in self._packed.values()])
        self.taken = 0

    def have(self, digests: Iterable[bytes]) -> bool:
        """Whether all of these parts are there."""
        return all(digest in self._packed for digest in digests)

    def take(self, digests: Iterable[bytes]) -> None:
        """Take the bytes of these. Raises TooMuchError."""
        size = sum([len(self._packed[digest]) for digest in digests])
        self.taken += size
        self._room.take(size)

    def value(self, digest: bytes, type: Any) -> Any:
        """The value of a part."""
        if digest in self._values:
            self.take(texts_of(self._packed[digest]))  # they are referred to once more
        else:
            self._values[digest] = unpack(self._packed[digest], type, self)
        return self._values[digest]

    def text(self, digests: tuple[bytes, ...]) -> str:
        """A long text, by its pieces. Raises StoreError where it was deleted meanwhile."""
        if not self.have(digests):
            raise StoreError("What is stored was deleted while it was read.")
        self.take(digests)
        if digests not in self._values:
            texts = [str(self._packed[each], "utf-8", "surrogatepass") for each in digests]
            self._values[digests] = "".join(texts)
        return str(self._values[digests])


def _add(parts: dict[bytes, bytes], tenant: str, data: bytes) -> bytes:
    """Note a part. Its digest is the tenant's own, so that nothing is shared between tenants."""
    digest = sha256(tenant.encode(errors="surrogatepass") + b"\0" + data).digest()[:DIGEST]
    parts[digest] = data
    return digest


def _blocks(
    parts: dict[bytes, bytes],
    tenant: str,
    items: tuple[Item, ...],
    pack: Callable[[object], bytes],
) -> tuple[tuple[bytes, ...], tuple[Item, ...]]:
    """Note the blocks of a list of items; gives their digests and the items behind the last."""
    blocks: list[bytes] = []
    packed: list[bytes] = []
    start = size = 0
    for place, item in enumerate(items, 1):
        packed.append(pack(item))
        size += len(packed[-1])
        apart = packed[-1][:1] == _APART
        if apart or size >= BLOCK_BYTES or len(packed) == BLOCK_ITEMS:
            blocks.append(_add(parts, tenant, _joined(packed) or pack(items[start:place])))
            start, size = place, 0
            packed.clear()
    return tuple(blocks), items[start:]


def _joined(packed: Sequence[bytes]) -> bytes | None:
    """Packed values as the array of them, if MessagePack can hold all of them."""
    if any(data[:1] != _MSGPACK for data in packed):
        return None
    header = b"\xdc" + len(packed).to_bytes(2, "big")
    return _MSGPACK + header + b"".join(data[1:] for data in packed)


# ---- rows ----------------------------------------------------------------------------------


PARTS = 7
"""The column of a response's row that holds the digests of its parts."""


def unpack_records(rows: Sequence[Sequence[Any]], parts: Parts) -> list[Record]:
    """The records of rows, but for those whose parts are gone."""
    return [
        unpack_record(row, parts)
        for row in rows
        if not row[PARTS] or parts.have(digests(row[PARTS]))
    ]


def unpack_answers(rows: Sequence[Sequence[Any]], parts: Parts) -> dict[str, StoredAnswer]:
    """The answers of rows, by their ids."""
    found = dict[str, StoredAnswer]()
    for id, record, response, *_ in rows:
        model, place = asked_of(record)
        found[id] = StoredAnswer(model, unpack(response, Response, parts), place)
    return found


def clean(text: str) -> str:
    """A text without NUL and halves of surrogate pairs, which databases refuse; others unchanged.

    >>> clean("a\\0b"), clean("\\ud83d")
    ('a\\\\x00b', '\\\\ud83d')
    """
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def unpack_items(rows: Sequence[Sequence[Any]]) -> tuple[Item, ...]:
    """The items of rows, with the ids that they have there: they may have come with others."""
    items = [(unpack(data, Item), id) for data, id in rows]
    return tuple(
        [item if clean(item.id or "") == id else replace(item, id=id) for item, id in items]
    )


def unpack_segments(rows: Sequence[Sequence[Any]], parts: Parts) -> tuple[LogSegment, ...]:
    """The segments of rows: the place of each, and its events."""
    return tuple([LogSegment(place, unpack_events(data, parts)) for place, data in rows])
