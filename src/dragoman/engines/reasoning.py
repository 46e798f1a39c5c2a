"""Carries reasoning from one request to the next where clients do: encrypted.

Two kinds of middleware: `EncryptingReasoning` for the clients, and `RetryingReasoning`, which asks
upstreams for encrypted reasoning and asks again without where one refuses. For clients that drop
it, see `reasoning_cache`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property, partial

import msgspec
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, ItemDone, Started
from dragoman.core.interfaces import Caller, Engine, Sink
from dragoman.core.item import (
    Item,
    Reasoning,
    Thought,
)
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.wire.registry import WIRES

from .base import LRU, Prepared, Relay, Wrapper, start, with_losses

ENCRYPTED = "reasoning.encrypted_content"
"""The `include` value that requests encrypted reasoning."""
ASKING = f"include[{ENCRYPTED}]"
"""Its name in losses."""
OURS = ("inline", "turn")
"""Keys of `extra` for our own notes, which are no fields of a wire."""
SIZE = 64 * 1024 * 1024
"""Bytes of reasoning held in memory, about."""


def is_opaque(item: Item) -> bool:
    """Whether an item is reasoning with encrypted content, or fields of a wire such as a signature.

    >>> is_opaque(Reasoning(encrypted="gAAA")), is_opaque(Reasoning(extra={"inline": {}}))
    (True, False)
    """
    if not isinstance(item, Reasoning):
        return False
    return item.encrypted is not None or bool(set(item.extra or {}) - set(OURS))


def readable(item: Reasoning) -> Reasoning | None:
    """An item's text alone, which any model can read; None where it has none."""
    if not (item.content or item.summary):
        return None
    extra = {name: note for name, note in (item.extra or {}).items() if name in OURS}
    return replace(item, encrypted=None, id=None, extra=extra or None)


def without_opaque(items: Iterable[Item]) -> list[Item]:
    """The items that any model can read, with the text alone of encrypted reasoning."""
    found = [readable(i) if isinstance(i, Reasoning) and is_opaque(i) else i for i in items]
    return [item for item in found if item is not None]


# ---- encryption ------------------------------------------------------------------------------

MARK = "dragoman.reasoning.1."
"""The prefix of our encrypted content."""
PIECE = 64 * 1024
"""Characters of encrypted content that are decoded in one step."""
_NAME, _NONCE, _ID = 8, 12, 16  # bytes: of a key's name, a nonce, and a reference


class AESCipher:
    """AES-GCM: any process with the key can decrypt. `bound` is authenticated with the data. Raises
    ImportError without `cryptography`, which the extra `encryption` installs."""

    kind = "c"

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)
        self._errors = InvalidTag, ValueError

    def encrypt(self, data: bytes, bound: bytes) -> bytes:
        """A random nonce and the ciphertext."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, data, bound)

    def decrypt(self, encrypted: bytes, bound: bytes) -> bytes | None:
        """None if it was changed or bound to something else."""
        try:
            return self._cipher.decrypt(encrypted[:_NONCE], encrypted[_NONCE:], bound)
        except self._errors:
            return None


class MemoryCipher:
    """Replaces encryption: the data stays in bounded memory, and a signed reference to it is
    sent. References end with the process."""

    kind = "r"

    def __init__(self, key: bytes, size: int = SIZE) -> None:
        self._key = key
        self._held: LRU[bytes, bytes] = LRU(size)
        self._lock = threading.Lock()

    def encrypt(self, data: bytes, bound: bytes) -> bytes:
        """A reference and its signature."""
        id = secrets.token_bytes(_ID)
        with self._lock:
            self._held.put(id, data, len(data) + 2 * _ID, bound)
        return id + hmac.digest(self._key, id + bound, "sha256")

    def decrypt(self, encrypted: bytes, bound: bytes) -> bytes | None:
        """The data of a reference, if it is still stored."""
        id, signature = encrypted[:_ID], encrypted[_ID:]
        if not hmac.compare_digest(signature, hmac.digest(self._key, id + bound, "sha256")):
            return None
        with self._lock:
            return self._held.get(id)


Cipher = AESCipher | MemoryCipher


def best_cipher(key: bytes) -> Cipher:
    """AES-GCM, where the package for it is installed."""
    try:
        return AESCipher(key)
    except ImportError:
        return MemoryCipher(key)


class ReasoningCipher:
    """Encrypts reasoning for one tenant and model, and decrypts what it has encrypted.

    `key` gives 32 secret bytes or more; it is called once, when first needed.

    >>> cipher = ReasoningCipher(lambda: bytes(32))
    >>> encrypted = cipher.encrypt(Reasoning((Thought("Hm."),)), "alice", "m")
    >>> cipher.decrypt(encrypted, "alice", "m").text
    'Hm.'
    >>> cipher.decrypt(encrypted, "bob", "m") is cipher.decrypt(encrypted, "alice", "n") is None
    True
    """

    def __init__(
        self, key: Callable[[], bytes], cipher: Callable[[bytes], Cipher] = best_cipher
    ) -> None:
        self._key = key
        self._make = cipher

    def encrypt(self, item: Reasoning, tenant: str, model: str) -> str:
        """The encrypted content of an item: its text, and its fields."""
        cipher, prefix = self._ready
        content = tuple(
            replace(part, tokens=()) if isinstance(part, Thought) else part for part in item.content
        )
        bare = msgspec.to_builtins(Reasoning(content, item.summary, extra=item.extra))
        data = json.dumps(bare, ensure_ascii=False).encode("utf-8", "surrogatepass")
        encrypted = cipher.encrypt(data, json.dumps([tenant, model]).encode())
        return prefix + base64.urlsafe_b64encode(encrypted).decode()

    def is_ours(self, encrypted: str) -> bool:
        """Whether this content was encrypted with this key."""
        return encrypted.startswith(MARK) and encrypted.startswith(self._ready[1])

    def decrypt(self, encrypted: str, tenant: str, model: str) -> Reasoning | None:
        """Decrypt our content; None for another tenant or model, or where it is lost."""
        cipher, prefix = self._ready
        try:
            data = b"".join(
                # In pieces, yielding to the loop between them.
                base64.b64decode(encrypted[at : at + PIECE], b"-_", validate=True)
                for at in range(len(prefix), len(encrypted), PIECE)
            )
        except ValueError:
            return None
        plain = cipher.decrypt(data, json.dumps([tenant, model]).encode())
        if plain is None:
            return None
        return msgspec.convert(json.loads(plain.decode("utf-8", "surrogatepass")), Reasoning)

    @cached_property
    def _ready(self) -> tuple[Cipher, str]:
        """The cipher, and the prefix of its encrypted content."""
        key = hashlib.sha256(self._key()).digest()
        cipher = self._make(hmac.digest(key, b"dragoman encryption 1", "sha256"))
        name = hmac.digest(key, b"dragoman name 1", "sha256")[:_NAME]
        return cipher, f"{MARK}{cipher.kind}.{base64.urlsafe_b64encode(name).decode().rstrip('=')}."


NOT_DECRYPTED = Loss(
    ENCRYPTED,
    "dropped",
    "this server encrypted it and cannot decrypt it: it is too old, or of another key's or "
    "model's conversation",
)


class EncryptingReasoning(Wrapper):
    """Middleware that encrypts reasoning in answers where a request includes it, and decrypts what
    it has encrypted in requests."""

    acts_on = frozenset(("include", Reasoning))

    def __init__(self, engine: Engine, cipher: ReasoningCipher) -> None:
        super().__init__(engine)
        self._cipher = cipher

    def prepare(
        self, request: Request, caller: Caller
    ) -> Prepared | Awaitable[Prepared | None] | None:
        """None where no encrypted reasoning is requested or sent back. A large request is
        decrypted in a thread."""
        if caller.size and any(
            isinstance(item, Reasoning) and self._cipher.is_ours(item.encrypted or "")
            for item in request.items
        ):
            return self._apart(request, caller)
        return self._prepared(request, caller, *self._decrypted(request, caller))

    async def _apart(self, request: Request, caller: Caller) -> Prepared | None:
        decrypted = await asyncio.to_thread(self._decrypted, request, caller)
        return self._prepared(request, caller, *decrypted)

    def _prepared(
        self, request: Request, caller: Caller, items: list[Item], losses: tuple[Loss, ...]
    ) -> Prepared | None:
        encrypts = ENCRYPTED in request.include
        plain = request if items == list(request.items) else replace(request, items=tuple(items))
        if not (encrypts or losses):
            return None if plain is request else Prepared(plain)

        def encrypted(events: list[Event]) -> list[Event]:
            # The request is fulfilled here, whatever the upstream's wire carries.
            events = with_losses(events, losses, without=ASKING if encrypts else "")
            if encrypts and ItemDone in map(type, events):
                events = [self._encrypted(event, request, caller) for event in events]
            return events

        return Prepared(plain, encrypted)

    def _encrypted(self, event: Event, request: Request, caller: Caller) -> Event:
        """An event, with encrypted content added to finished reasoning that has none."""
        if type(event) is not ItemDone or not isinstance(item := event.item, Reasoning):
            return event
        if item.encrypted is not None or not (item.content or item.summary or item.extra):
            return event
        content = self._cipher.encrypt(item, caller.tenant, request.model)
        return replace(event, item=replace(item, encrypted=content))

    def _decrypted(self, request: Request, caller: Caller) -> tuple[list[Item], tuple[Loss, ...]]:
        """The items with our content decrypted, and the losses."""
        items: list[Item | None] = []
        losses: tuple[Loss, ...] = ()
        for item in request.items:
            known: Item | None = item
            if isinstance(item, Reasoning) and self._cipher.is_ours(item.encrypted or ""):
                held = self._cipher.decrypt(item.encrypted or "", caller.tenant, request.model)
                losses = losses if held else (NOT_DECRYPTED,)
                known = replace(held, id=item.id, status=item.status) if held else readable(item)
            items.append(known)
        return [item for item in items if item is not None], losses


# ---- requests to upstreams, with a retry -------------------------------------------------------

MODELS = 1_000
"""The most models without encrypted reasoning that are cached."""
CODE = "invalid_encrypted_content"
RETRIED = Loss(
    ENCRYPTED, "dropped", "the model's server could not decrypt it; it was asked again without"
)
_REFUSED = re.compile(r"encrypted.content|signature.{0,20}thinking", re.IGNORECASE)
_UNKNOWN = re.compile(r"""["'`]include(\[\d+\])?["'`]""")  # in errors of servers without it
_CARRYING = {
    name
    for name, wire in WIRES.items()
    if wire.losses.request.action("Request.include") == "carried"
}
"""The wires whose clients can request encrypted reasoning and carry it."""


class RetryingReasoning(Wrapper):
    """Middleware that retries once without encrypted reasoning where a server cannot decrypt it,
    and without requesting it where a server does not support it. With `again` false, a refusal to
    decrypt is final."""

    acts_on = frozenset(("stored", "tools", Reasoning))

    def __init__(self, engine: Engine, *, again: bool = True) -> None:
        super().__init__(engine)
        self.again = again
        self._without: set[str] = set()  # models that have none

    def prepare(self, request: Request, caller: Caller) -> Prepared | None:
        """Request encrypted reasoning for clients whose wire cannot, and where the answer is stored
        here. Whether to retry is decided at the first events of the engine
        inside."""
        asking = (
            bool(caller.stored or (request.tools and caller.wire not in _CARRYING))
            and ENCRYPTED not in request.include
            and request.model not in self._without
        )
        if asking:
            request = replace(request, include=(*request.include, ENCRYPTED))
        elif not (
            self.again
            and Reasoning in map(type, request.items)
            and any(map(is_opaque, request.items))
        ):
            return None
        return Prepared(request, start=partial(_Attempts, self, request, asking))

    def give_up(self, model: str) -> None:
        """Stop requesting encrypted reasoning of this model."""
        if len(self._without) >= MODELS:
            self._without.clear()
        self._without.add(model)


class _Attempts(Relay):
    """The sink of up to two attempts, and the handle of their answer."""

    def __init__(
        self,
        wrapper: RetryingReasoning,
        request: Request,
        asking: bool,
        caller: Caller,
        sink: Sink,
    ) -> None:
        self._wrapper = wrapper
        self._request = request
        self._asking = asking  # for encrypted reasoning that the client did not request
        self._losses: tuple[Loss, ...] = ()
        self._caller = caller
        self._sink = sink
        self._begun = self._again = self._answered = False
        self._handle = start(wrapper.engine, request, caller, self)

    def receive(self, events: list[Event]) -> None:
        """Pass events on, or ask once more."""
        if not self._answered:
            events = self._second(events) if self._again else self._first(events)
        if events:
            if isinstance(events[-1], Finished | Failed):
                self._handle = None  # a reference cycle
            self._sink.receive(events)

    def _first(self, events: list[Event]) -> list[Event]:
        begin, end = events[0], events[-1]
        if isinstance(end, Failed) and len(events) <= 2 and self._changed(end.fault):
            self._again = True
            self.control(start(self._wrapper.engine, self._request, self._caller, self))
            return []
        self._answered = end is not begin or not isinstance(begin, Started)  # no retry
        self._begun = True
        return self._with_losses(events)

    def _second(self, events: list[Event]) -> list[Event]:
        begin, end, losses = events[0], events[-1], self._losses
        if not self._begun:
            return self._with_losses(events)
        # `Started` was sent already, so the end reports the losses.
        if losses and isinstance(end, Finished):
            events = [*events[:-1], replace(end, losses=(*end.losses, *losses))]
        return events[1:] if isinstance(begin, Started) else events

    def _with_losses(self, events: list[Event]) -> list[Event]:
        """A batch whose `Started` has the losses of the attempt, without that of a field which the
        client did not request."""
        begin = events[0]
        if not isinstance(begin, Started) or not (begin.losses or self._losses):
            return events
        if self._asking and ASKING in [loss.field for loss in begin.losses]:
            self._wrapper.give_up(self._request.model)  # its wire does not support it
        return with_losses(events, self._losses, without=ASKING if self._asking else "")

    def _changed(self, fault: Fault) -> bool:
        """Change the request after a refusal; false where it is not about encrypted reasoning."""
        request, undecrypted = self._request, fault.upstream_code == CODE
        if not undecrypted:
            refused = fault.code == "upstream_refused" and fault.blame == "client"
            unknown = self._asking and _UNKNOWN.search(fault.message)
            if not (refused and (unknown or _REFUSED.search(fault.message))):
                return False
        if self._asking and not undecrypted:
            self._wrapper.give_up(request.model)
            include = tuple(value for value in request.include if value != ENCRYPTED)
            self._request, self._asking = replace(request, include=include), False
        if self._wrapper.again and any(map(is_opaque, request.items)):
            items = tuple(without_opaque(request.items))
            self._request, self._losses = replace(self._request, items=items), (RETRIED,)
        return self._request is not request
