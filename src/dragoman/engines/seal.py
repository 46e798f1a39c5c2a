"""Blobs of our own, that carry reasoning through a client which may not read or change it.

A blob begins with a mark and with the name of the key that made it, so that those of others, and
of other Dragomans, are told apart and left alone. It belongs to one tenant and one model, and opens
for no other. What seals is chosen by what is installed; who asked for it is not known here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from dragoman.core.item import Reasoning, Thought

from .bounded import Bounded

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
        self._held: Bounded[bytes, bytes] = Bounded(size)

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
