"""Resolves the state a request references and decides whether its response is stored."""

from __future__ import annotations

import binascii
import os
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request
from dragoman.core.interfaces import Caller
from dragoman.core.item import Unknown, place_behind
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.base import new_id
from dragoman.engines.reasoning import ENCRYPTED, ReasoningCipher
from dragoman.net.errors import InvalidUrlError
from dragoman.net.url import parse_url
from dragoman.server.config import ConfigurationError, Webhook, check_name
from dragoman.server.limits import SMALL
from dragoman.server.settings import Settings
from dragoman.stores.base import Record, Room, StoreError, named
from dragoman.stores.factory import data_directory, open_store
from dragoman.stores.retention import Retention
from dragoman.stores.sql import Store
from dragoman.wire.registry import WIRES
from dragoman.wire.tools import without_keys, without_secrets

from .resolve import (
    NOT_ENCRYPTED,
    RECALLING,
    REFERRING,
    Asked,
    Recent,
    bare,
    decided,
    inlined,
    recalled,
    room_of,
    understand,
    without_store,
)
from .run import Run, Runs
from .webhooks import Receiver, Sender, Webhooks

ENCODER_VERSION = 2
"""Raised when the same events are encoded to other bytes, so that no reader gets a mixture."""


class Plan(Struct, frozen=True):
    """How to answer a request: `request` is for the engine, `echoed` is repeated in the response.

    `run` stores the answer, if it is stored; a `background` run does not need its client. `size`
    counts the bytes of stored items in the request.
    """

    request: Request
    echoed: Request
    losses: tuple[Loss, ...] = ()
    run: Run | None = None
    background: bool = False
    size: int = 0


def unstarted(record: Record) -> Response:
    """The response of a run without events."""
    return Response(
        id=record.id,
        created_at=record.created_at,
        model=record.request.model,
        status="queued" if record.status == "queued" else "in_progress",
    )


def unstored(request: Request) -> Plan:
    """The plan without a store. Raises FaultError for a request that needs one."""
    request, losses = without_store(request)
    return Plan(request, replace(request, store=False), losses)


class Memory:
    """A store and the runs of this server; without `upkeep`, the store is not shared
    and never swept."""

    def __init__(
        self,
        store: Store,
        settings: Settings | None = None,
        *,
        upkeep: bool = True,
        webhooks: Webhooks | None = None,
        cipher: ReasoningCipher | None = None,
    ) -> None:
        settings, webhooks = settings or Settings(), webhooks or Webhooks()
        self.store = store
        webhooks.clock = self._now
        self.cipher = cipher
        self.runs = Runs(
            store,
            lease=settings.lease,
            upkeep=upkeep,
            announce=webhooks.messages,
        )
        self._sender = Sender(store, webhooks)
        self.settings = settings

    def _now(self) -> float:
        return self.store.now()  # another function, once a database has given the time

    def begin(self) -> None:
        """Start the upkeep of runs, and the outbox."""
        self.runs.begin()
        self._sender.begin()

    def plan(
        self,
        wire: str,
        request: Request,
        caller: Caller,
        recent: Recent | None = None,
        count: Callable[[int], None] | None = None,
    ) -> Plan | Awaitable[Plan]:
        """How to answer a request; a coroutine only where something must be looked up: in
        `recent`, or else in the store. `count` is called with the bytes before they are read.

        Raises FaultError for a request that cannot be answered, or that refers to something that
        does not exist."""
        stored = WIRES[wire].stored_by_default if request.store is None else request.store
        if request.background and not stored:
            raise FaultError(bad_request("needs store to be true", "background"))
        losses: tuple[Loss, ...] = ()
        if self.cipher is None and ENCRYPTED in request.include:
            losses = (NOT_ENCRYPTED,)
        if (
            request.previous_response_id is not None
            or request.conversation is not None
            or not (RECALLING if stored else REFERRING).isdisjoint(map(type, request.items))
        ):
            return self._look_up(wire, request, caller, stored, recent or {}, count, losses)
        # It is complete: nothing is looked up. An upstream must not store it.
        extra = request.extra and decided(request.extra)
        whole = replace(request, extra=extra, background=None, store=False)
        if not stored:
            return Plan(whole, replace(request, store=False), losses)
        return self._recorded(wire, caller, request, whole, losses)

    async def _look_up(
        self,
        wire: str,
        request: Request,
        caller: Caller,
        stored: bool,
        recent: Recent,
        count: Callable[[int], None] | None,
        losses: tuple[Loss, ...],
    ) -> Plan:
        previous = request.previous_response_id
        near = previous is not None and bare(previous) in recent  # it may be evicted meanwhile
        room = room_of(self.settings, count)
        asked = await understand(
            request,
            self.store,
            caller.tenant,
            room,
            inherit=self.settings.inherit_instructions,
            recent=recent,
        )
        if stored and asked.conversation is not None:
            # It could be read, and the answer says that it is not stored.
            with suppress(StoreError):
                await self.store.begin_turn(caller.tenant, bare(asked.conversation))
        room = room_of(self.settings, count)
        whole, found = await recalled(asked, self.store, caller.tenant, room)
        losses += found
        own = request.items
        if previous and near and not await self._has(caller.tenant, bare(previous)):
            # Only the connection has the earlier items, so that the record must hold them.
            request, previous = replace(request, items=asked.whole.items), None
        elif not REFERRING.isdisjoint(map(type, own)):
            request = replace(request, items=inlined(own, asked.whole.items))
        if request.items is not own and asked.size > SMALL:
            caller = replace(caller, size=caller.size + asked.size)  # it is packed in a thread
        if not stored:
            return Plan(whole, replace(request, store=False), losses, size=asked.size)
        plan = self._recorded(wire, caller, request, whole, losses, previous, asked)
        return replace(plan, size=asked.size)

    async def _has(self, tenant: str, id: str) -> bool:
        with suppress(StoreError):  # the connection has it in its cache
            return await self.store.get(tenant, id) is not None
        return False

    def _recorded(
        self,
        wire: str,
        caller: Caller,
        own: Request,
        whole: Request,
        losses: tuple[Loss, ...],
        previous: str | None = None,
        asked: Asked | None = None,
    ) -> Plan:
        """The plan of a request: the engine gets `whole`, and `own` is stored with the answer."""
        background = bool(own.background)
        conversation = None if asked is None else asked.conversation
        items = own.items
        if Unknown in map(type, items):
            items = without_keys(items)
        tools = own.tools and without_secrets(own.tools)
        record = Record(
            id=new_id(),
            tenant=caller.tenant,
            wire=wire,
            created_at=int(self.store.now()),
            request=replace(own, store=True, tools=tools, items=items),
            status="queued" if background else "in_progress",
            previous=None if previous is None else bare(previous),
            conversation=None if conversation is None else bare(conversation),
            after=None if asked is None else asked.after,
            background=background,
            owner=self.runs.owner,
            lease=self.store.now() + self.runs.lease,
            dialect=self.settings.dialect,
            version=ENCODER_VERSION,
            metadata=own.metadata,
            place=place_behind(0, whole.items) if whole.tools else None,
            size=caller.size,
        )
        turn = () if conversation is None else named(own.items, record.id)
        turn = tuple({id(item): item for item in turn}.values())  # what is named twice, once
        followed = background or own.stream  # or at its end one write stores it
        run = self.runs.open(record, turn, None if followed else self.store.put)
        run.losses = losses
        return Plan(whole, record.request, losses, run, background)

    async def reread(self, record: Record, count: Callable[[int], None]) -> Request:
        """The request of a record, with its references resolved. Raises FaultError when one
        does not exist any more."""
        inherit = self.settings.inherit_instructions
        room = Room(count=count)
        asked = await understand(record.request, self.store, record.tenant, room, inherit=inherit)
        room = room_of(self.settings, count)
        whole, _ = await recalled(asked, self.store, record.tenant, room)
        return whole

    async def close(self) -> None:
        """End the runs and close the store."""
        await self.runs.close()
        await self._sender.close()
        await self.store.close()


FILE = "encryption.key"
LENGTH = 32
SHORTEST = 16
"""Characters of a key in the environment, at the least."""


def open_cipher(settings: Settings, environ: Mapping[str, str]) -> ReasoningCipher:
    """The cipher that the settings describe. Raises ConfigurationError for a variable that holds no
    key."""
    if settings.encryption_key_env is not None:
        check_name(environ, settings.encryption_key_env, "the key that encrypts reasoning")
        value = environ.get(settings.encryption_key_env, "").strip().encode()
        if len(value) < SHORTEST:
            raise ConfigurationError(
                f"The environment variable {settings.encryption_key_env} should hold the key that "
                f"encrypts reasoning, at least {SHORTEST} characters of it."
            )
        return ReasoningCipher(lambda: value)
    if settings.store == "memory":
        return ReasoningCipher(_fresh)
    try:
        folder = data_directory(environ)
    except StoreError:  # a user without a home, which is no reason to have no cipher
        return ReasoningCipher(_fresh)
    return ReasoningCipher(file_key(folder / FILE))


def file_key(path: Path) -> Callable[[], bytes]:
    """Read the key from a file, and create both where they are missing. Where the file can be
    neither read nor created, the key lives as long as the process."""

    def key() -> bytes:
        with suppress(OSError):
            if not path.exists():
                _make(path)
            if len(held := path.read_bytes()) >= LENGTH:
                return held
        return _fresh()

    return key


def _make(path: Path) -> None:
    """Create the file atomically, for its owner alone: another server may be creating it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(_fresh())
    try:
        with suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink()


def _fresh() -> bytes:
    return secrets.token_bytes(LENGTH)


MARK = "whsec_"
"""The prefix of a signing secret; the rest is base64."""


def open_memory(
    settings: Settings, environ: Mapping[str, str], webhooks: Sequence[Webhook] = ()
) -> Memory | None:
    """The service, or None where nothing is stored. Raises StoreError, and
    ConfigurationError for webhooks that cannot be signed or sent,
    and for a key that is not there."""
    receivers = Webhooks([_receiver(webhook, environ) for webhook in webhooks])
    keeping = Retention(
        max_age=settings.retention,
        max_log_age=settings.log_retention,
        max_responses=settings.max_responses,
        max_responses_per_key=settings.max_responses_per_key,
        max_conversations=settings.max_conversations,
        max_items=settings.conversation_items,
        max_bytes=settings.conversation_bytes,
    )
    cipher = open_cipher(settings, environ)
    store = open_store(settings.store, keeping, environ, settings.pubsub, settings.store_time)
    if store is None:
        return None
    return Memory(store, settings, webhooks=receivers, cipher=cipher)


async def check_memory(
    settings: Settings, environ: Mapping[str, str], webhooks: Sequence[Webhook] = ()
) -> None:
    """Check the store before the server starts: raises what `open_memory` does, and StoreError for
    a database that cannot be used, within a bounded time. A server whose configured store does not
    work does not start."""
    memory = open_memory(settings, environ, webhooks)
    if memory is None:
        return
    try:
        await memory.store.ready()
    finally:
        await memory.close()


def _receiver(webhook: Webhook, environ: Mapping[str, str]) -> Receiver:
    try:
        parse_url(webhook.url)
    except InvalidUrlError as error:
        raise ConfigurationError(f"A webhook's url cannot be used: {error}.") from None
    check_name(environ, webhook.secret_env, "the secret of a webhook")
    secret = environ.get(webhook.secret_env, "").strip()
    try:
        key = b64decode(secret.removeprefix(MARK), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not (secret.startswith(MARK) and key):
        raise ConfigurationError(
            f"The environment variable {webhook.secret_env} should hold a secret to sign webhooks "
            f"with: {MARK} and then base64."
        )
    return Receiver(url=webhook.url, key=key, events=webhook.events, allow=webhook.allow)
