"""Encrypts reasoning for clients that carry it themselves, and decrypts it when it returns."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from dragoman.core.event import Event, ItemDone, Started
from dragoman.core.interfaces import Caller, Engine
from dragoman.core.item import Item, Reasoning, Thought
from dragoman.core.loss import Loss
from dragoman.core.request import Request

from .base import LRU, Prepared, Wrapper

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


MARK = "dragoman.reasoning.1."
SIZE = 64 * 1024 * 1024
"""Bytes of reasoning that references may point to, about."""
_NAME = 8  # bytes of a key's name
_ID = 16


class Way(Protocol):
    """A way to seal. `bound` is what a blob belongs to, and must be the same when it is opened."""

    kind: str

    def close(self, said: bytes, bound: bytes) -> bytes:
        """The bytes of a blob."""
        ...

    def open(self, blob: bytes, bound: bytes) -> bytes | None:
        """What was sealed; None for what cannot be opened, or no longer."""
        ...


class Seal:
    """Seals reasoning and opens what it has sealed.

    `key` gives 32 bytes or more that nobody else knows; it is asked once, when first needed.

    >>> seal = Seal(lambda: bytes(32))
    >>> blob = seal.close(Reasoning((Thought("Hm."),)), "alice", "m")
    >>> seal.open(blob, "alice", "m").text
    'Hm.'
    >>> seal.open(blob, "bob", "m") is seal.open(blob, "alice", "other") is None
    True
    """

    def __init__(self, key: Callable[[], bytes], way: Callable[[bytes], Way] | None = None) -> None:
        self._key = key
        self._make = way or find_way()
        self._way: Way | None = None
        self._opening = ""

    def close(self, item: Reasoning, tenant: str, model: str) -> str:
        """The blob for an item: its words, and what belongs to them."""
        way = self._ready()
        blob = way.close(_pack(item), _bound(tenant, model))
        return self._opening + base64.urlsafe_b64encode(blob).decode()

    def is_ours(self, blob: str) -> bool:
        """Whether this seal made a blob, or somebody with the same key."""
        if not blob.startswith(MARK):
            return False
        self._ready()
        return blob.startswith(self._opening)

    def open(self, blob: str, tenant: str, model: str) -> Reasoning | None:
        """What a blob of ours holds; None where it cannot be opened for these, or no longer."""
        way = self._ready()
        try:
            sealed = base64.b64decode(blob[len(self._opening) :], b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        said = way.open(sealed, _bound(tenant, model))
        return None if said is None else _unpack(said)

    def _ready(self) -> Way:
        if self._way is None:
            key = self._key()
            self._way = self._make(_derived(key, "seal"))
            name = base64.urlsafe_b64encode(_derived(key, "name")[:_NAME]).decode().rstrip("=")
            self._opening = f"{MARK}{self._way.kind}.{name}."
        return self._way


class Referring:
    """Seals without a cipher: what is sealed stays here, in bounded memory, and a signed reference
    to it goes out. It ends with the process."""

    kind = "r"

    def __init__(self, key: bytes, size: int = SIZE) -> None:
        self._key = key
        self._held: LRU[bytes, bytes] = LRU(size)

    def close(self, said: bytes, bound: bytes) -> bytes:
        """A reference, and the signature that it belongs to these."""
        id = secrets.token_bytes(_ID)
        self._held.put(id, said, len(said) + 2 * _ID)
        return id + self._signed(id, bound)

    def open(self, blob: bytes, bound: bytes) -> bytes | None:
        """What is referred to, if it is still here."""
        id, signature = blob[:_ID], blob[_ID:]
        if not hmac.compare_digest(signature, self._signed(id, bound)):
            return None
        return self._held.get(id)

    def _signed(self, id: bytes, bound: bytes) -> bytes:
        return hmac.digest(self._key, id + bound, "sha256")


def find_way() -> Callable[[bytes], Way]:
    """The best way there is: a cipher, where the package for it is installed."""
    try:
        from .cipher import Cipher
    except ImportError:
        return Referring
    return Cipher


def _derived(key: bytes, use: str) -> bytes:
    return hmac.digest(hashlib.sha256(key).digest(), f"dragoman {use} 1".encode(), "sha256")


def _bound(tenant: str, model: str) -> bytes:
    return json.dumps([tenant, model]).encode()


def _pack(item: Reasoning) -> bytes:
    """An item without what is its client's business; half characters survive."""
    content = tuple(replace(p, tokens=()) if isinstance(p, Thought) else p for p in item.content)
    bare = Reasoning(content, item.summary, extra=item.extra)
    return json.dumps(msgspec.to_builtins(bare), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def _unpack(said: bytes) -> Reasoning:
    return msgspec.convert(json.loads(said.decode("utf-8", "surrogatepass")), Reasoning)


GONE = Loss(
    ENCRYPTED,
    "dropped",
    "a blob of this server could not be opened: it is too old, or of another key's or model's "
    "conversation",
)


class EncryptingReasoning(Wrapper):
    """Middleware that encrypts reasoning in answers where a request includes it, and decrypts what
    it has encrypted in requests."""

    acts_on = frozenset(("include", Reasoning))

    def __init__(self, engine: Engine, seal: Seal) -> None:
        super().__init__(engine)
        self._seal = seal

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Nothing to do where no encrypted reasoning is asked for or brought."""
        encrypts = ENCRYPTED in request.include
        brought = Reasoning in map(type, request.items)
        opened, losses = self._opened(request, caller) if brought else (request, ())
        if not (encrypts or losses):
            return None if opened is request else Prepared(opened)

        def encrypted(events: list[Event]) -> list[Event]:
            if isinstance(started := events[0], Started):
                events = [_begun(started, losses, sealing=encrypts), *events[1:]]
            if encrypts and ItemDone in map(type, events):
                events = [self._closed(event, request, caller) for event in events]
            return events

        return Prepared(opened, encrypted)

    def _closed(self, event: Event, request: Request, caller: Caller) -> Event:
        """An event, with the blob in it where it is the last of reasoning that has none."""
        if type(event) is not ItemDone or not isinstance(item := event.item, Reasoning):
            return event
        if item.encrypted is not None or not (item.content or item.summary or item.extra):
            return event
        blob = self._seal.close(item, caller.tenant, request.model)
        return replace(event, item=replace(item, encrypted=blob))

    def _opened(self, request: Request, caller: Caller) -> tuple[Request, tuple[Loss, ...]]:
        """The request with our blobs in words; the same one, where it has none."""
        items: list[Item] = []
        changed = gone = False
        for item in request.items:
            if not isinstance(item, Reasoning) or not self._seal.is_ours(item.encrypted or ""):
                items.append(item)
                continue
            changed = True
            held = self._seal.open(item.encrypted or "", caller.tenant, request.model)
            gone = gone or held is None
            known = replace(held, id=item.id, status=item.status) if held else in_words(item)
            items += [] if known is None else [known]
        if not changed:
            return request, ()
        return replace(request, items=tuple(items)), (GONE,) if gone else ()


def _begun(event: Started, losses: tuple[Loss, ...], *, sealing: bool) -> Started:
    told = event.losses
    if sealing:  # what is asked for is done, whatever the wire behind us can say
        told = tuple(loss for loss in told if loss.field != ASKING)
    return replace(event, losses=(*told, *losses))
