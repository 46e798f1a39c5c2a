"""Makes and checks client secrets: keys for pages, each for one session with a configuration.

A secret holds its configuration, signed by a key that the workers of a server share, and the
servers of one store: any of them accepts it. Each worker stores the ids of those that it accepted.
"""

from __future__ import annotations

import hmac
import secrets
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import JSON
from dragoman.core.session_values import Changes, SessionConfig
from dragoman.engines.base import new_id, now
from dragoman.wire import json
from dragoman.wire.json import Fields, Limits
from dragoman.wire.realtime.config import decode_config, encode_session
from dragoman.wire.tools import without_secrets

from .exchange import Exchange
from .responder import Service

PREFIX = "ek_"
"""What client secrets begin with."""
MOST = 10_000
"""Used secrets that a worker stores, and client keys that it stores for secrets."""
MAX_SESSION = 256 * 1024
"""Bytes of the configuration in a secret, before they are compressed."""
SECONDS, MIN_SECONDS, MAX_SECONDS = 600, 10, 7200
"""The default lifetime of a client secret, and its bounds."""
_SIGNATURE = 32

SHARED = Fault(
    "unsupported",
    "This server passes its clients' keys on to the model's server, and one of its processes does "
    "not know the keys that another one was given: run it with workers = 1, or with a key of its "
    "own for the model's server.",
    "server",
)
SPENT = Fault(
    "authentication",
    "This client secret has expired, was used, or is none of this server's: each opens one "
    "session. Make another one (POST /v1/realtime/client_secrets).",
    "client",
)
CROWDED = Fault(
    "overloaded", "Too many client secrets are in use on this server.", "server", retry_after="10"
)


class ClientSecret(Struct, frozen=True):
    """The session that a client secret opens: with these changes, on behalf of its creator."""

    changes: Changes
    caller: Caller


class ClientSecrets:
    """The client secrets of a server; `key` returns what signs them, once its store is open.

    Its clients' own keys are never in them. Where those are passed on, the process that made a
    secret remembers the key.
    """

    def __init__(self, service: Service, key: Callable[[], bytes]) -> None:
        self._service = service
        self._key = key
        self._used: dict[str, tuple[str, float]] = {}  # tenant, and Unix seconds of its expiry
        self._counts: Counter[str] = Counter()  # of those, by tenant
        self._passed: OrderedDict[str, tuple[str, Secret | None]] = OrderedDict()  # with the tenant

    async def make(self, exchange: Exchange, caller: Caller) -> None:
        """Make a key that opens one session with this configuration, once and soon: for pages."""
        passes = getattr(self._service.engine, "passes_client_key", False)
        if passes and self._service.settings.workers > 1:
            raise FaultError(SHARED)
        seconds, session, config = await self._service.read(exchange, caller, _decode)
        await self._check_model(config.model, caller)
        expires, id = now() + seconds, secrets.token_urlsafe(12)
        content = json.dump(
            {"id": id, "expires": expires, "tenant": caller.tenant, "session": session}
        )
        value = PREFIX + self._signed(zlib.compress(content))
        if len(value) > (most := self._service.settings.header_limit // 2):
            message = (
                f"The configuration is too long for a client secret, which has {len(value)} "
                f"characters with it; {most} fit into headers (header_limit). Let the page "
                "configure its session itself (session.update)."
            )
            raise FaultError(Fault("too_large", message, "client", "session"))
        if passes:
            self._passed[id] = caller.tenant, caller.key
            if len(self._passed) > MOST:  # drop the oldest of the tenant with the most
                tenants = [each for each, _ in self._passed.values()]
                ((crowd, _),) = Counter(tenants).most_common(1)
                del self._passed[[*self._passed][tenants.index(crowd)]]
        shown = encode_session(f"sess_{new_id()}", config, 0)
        answer: dict[str, JSON] = {"value": value, "expires_at": expires, "session": shown}
        exchange.reply(200, json.dump(answer))

    async def _check_model(self, name: str, caller: Caller) -> None:
        """Raise FaultError for a model that is known not to be here: a page would learn it late."""
        route = getattr(self._service.engine, "route", None)
        if name and route is not None:
            try:
                await route(name, caller)
            except FaultError as error:
                raise FaultError(replace(error.fault, param="session.model")) from None

    def redeem(self, value: str) -> ClientSecret | None:
        """The session that a secret opens, which uses it up; None for a key of
        another kind. Raises FaultError for one that is expired or used."""
        if not value.startswith(PREFIX):
            return None
        content = self._content(value.removeprefix(PREFIX))
        id, expires, tenant = content["id"], content["expires"], content["tenant"]
        passes = getattr(self._service.engine, "passes_client_key", False)
        if expires < time.time() or id in self._used or (passes and id not in self._passed):
            raise FaultError(SPENT)
        if self._crowded(tenant):
            now = time.time()
            self._used = {id: each for id, each in self._used.items() if each[1] >= now}
            self._counts = Counter(each for each, _ in self._used.values())
            if self._crowded(tenant):
                raise FaultError(CROWDED)
        self._used[id] = tenant, expires
        self._counts[tenant] += 1
        changes = decode_config(Fields(content["session"]))
        _, key = self._passed.pop(id, (tenant, None))
        return ClientSecret(changes, Caller(tenant=tenant, key=key))

    def _crowded(self, tenant: str) -> bool:
        """Whether a tenant has used up its share of secrets: half of what others leave."""
        mine = self._counts[tenant]
        return 2 * mine > MOST - (len(self._used) - mine)

    def _signed(self, content: bytes) -> str:
        return urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def _signature(self, content: bytes) -> bytes:
        key = hmac.digest(self._key(), b"dragoman client secrets 1", sha256)
        return hmac.digest(key, content, sha256)

    def _content(self, text: str) -> dict[str, JSON]:
        """The content of a secret. Raises FaultError without a valid signature."""
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            raise FaultError(SPENT) from None
        signature, content = data[:_SIGNATURE], data[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise FaultError(SPENT)
        found: dict[str, JSON] = json.load(zlib.decompress(content))
        return found


def _decode(body: bytes, limits: Limits) -> tuple[int, dict[str, JSON], SessionConfig]:
    """The seconds that a secret is good for, and the session that it is for."""
    fields = json.parse(body)
    after, session = fields.object("expires_after"), fields.object("session")
    seconds = None
    if after is not None:
        after.one_of("anchor", ("created_at",))
        seconds = after.integer("seconds", MIN_SECONDS, MAX_SECONDS)
    given = {} if session is None else session.left()
    if (size := len(json.dump(given))) > MAX_SESSION:
        message = (
            f"session: has {size} bytes, and at most {MAX_SESSION} go into a client secret: let "
            "the page configure its session itself (session.update)"
        )
        raise FaultError(Fault("too_large", message, "client", "session"))
    changes = {} if session is None else decode_config(session)
    config = SessionConfig(**changes)
    if without_secrets(config.tools) is not config.tools:
        problem = "pages can read a client secret: it cannot hold credentials for MCP servers"
        raise FaultError(unsupported(problem, "session.tools"))
    return seconds or SECONDS, given, config
