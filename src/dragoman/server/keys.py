"""Who may come in: the keys clients present.

A key comes as a Bearer token or as `x-api-key`. It is compared without telling by the time it
takes how much of it was right. No key is asked for where none is configured; whether that may be
is decided where the address to listen on is.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import sha256

from dragoman.core.error import Fault, FaultError
from dragoman.core.secret import Secret

from .exchange import Exchange

_MISSING = Fault(
    "authentication",
    "This server asks for a key: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
    "client",
)
_WRONG = Fault("authentication", "This key is not one of this server's.", "client")


class Keys:
    """The keys that clients may present; with none configured, anybody may call.

    `passed` says that clients bring keys of the upstream behind (`pass_client_key`): those are not
    checked here, but two clients with different ones must not read what the other stored.
    """

    def __init__(self, keys: Iterable[Secret], *, passed: bool = False) -> None:
        self._digests = tuple(_digest(key.reveal()) for key in keys)
        self._tells_apart = passed or bool(self._digests)

    def check(self, exchange: Exchange) -> Secret | None:
        """The key that was presented. Raises FaultError if it is wrong, or missing and needed."""
        presented = _presented(exchange)
        if not self._digests:
            return Secret(presented[0]) if presented else None
        if not presented:
            raise FaultError(_MISSING)
        for key in presented:
            given = _digest(key)
            # Every key is compared, so that the time does not tell which one was right.
            if sum(hmac.compare_digest(given, digest) for digest in self._digests):
                return Secret(key)
        raise FaultError(_WRONG)

    def tenant(self, key: Secret | None) -> str:
        """Whose data a presented key opens. Where keys mean nothing (none is configured and none
        goes upstream) all clients share one tenant: the SDKs send made-up keys there."""
        return "" if key is None or not self._tells_apart else tenant_of(key)


def tenant_of(key: Secret) -> str:
    """The tenant of a key: a hash, which does not show the key."""
    return _digest(f"tenant {key.reveal()}").hex()[:24]


def generate_key() -> Secret:
    """A new key that nobody can guess."""
    return Secret(f"dragoman-{secrets.token_urlsafe(24)}")


def _presented(exchange: Exchange) -> list[str]:
    keys: list[str] = []
    if b"authorization" in exchange.headers:
        scheme, _, token = exchange.header(b"authorization").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            keys.append(token.strip())
    if b"x-api-key" in exchange.headers and (key := exchange.header(b"x-api-key").strip()):
        keys.append(key)
    return keys


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
