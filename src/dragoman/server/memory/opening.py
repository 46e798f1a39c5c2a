"""Makes the memory that the settings describe.

What a word for a store means is known to `stores.factory`; here settings become its arguments.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence

from dragoman.net.error import InvalidUrlError
from dragoman.net.url import parse_url
from dragoman.server.configuration import ConfigurationError, Webhook
from dragoman.server.settings import Settings
from dragoman.stores.base import Retention
from dragoman.stores.factory import open_store

from .memory import Memory
from .seal_key import open_seal
from .webhooks import Receiver, Webhooks

MARK = "whsec_"
"""What a secret begins with that messages are signed with; the rest is base64."""


def open_memory(
    settings: Settings, environ: Mapping[str, str], webhooks: Sequence[Webhook] = ()
) -> Memory | None:
    """The memory, or None where nothing shall be remembered. Raises StoreError, and
    ConfigurationError for webhooks that cannot be signed or sent,
    and for a key that is not there."""
    receivers = Webhooks([_receiver(webhook, environ) for webhook in webhooks])
    keeping = Retention(
        max_age=settings.retention,
        max_log_age=settings.log_retention,
        max_responses=settings.max_responses,
    )
    seal = open_seal(settings, environ)
    store = open_store(settings.store, keeping, environ, settings.news)
    if store is None:
        return None
    return Memory(
        store,
        dialect=settings.dialect,
        inherit=settings.inherit_instructions,
        lease=settings.lease,
        requeue=settings.requeue,
        webhooks=receivers,
        seal=seal,
    )


async def check_memory(
    settings: Settings, environ: Mapping[str, str], webhooks: Sequence[Webhook] = ()
) -> None:
    """Open the memory and let go of it, before anything is served: raises what `open_memory` does,
    and StoreError for a database that cannot be used, within a bounded time. Whoever names a store
    means it, so that a server does not start without."""
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
