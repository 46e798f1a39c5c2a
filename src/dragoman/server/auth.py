"""Who may ask: API keys, Host and Origin checks, and CORS."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from dragoman.core.error import Fault, FaultError
from dragoman.core.interfaces import Secret

from .exchange import ID_HEADERS, Exchange, Headers, safe
from .settings import Settings

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
        self.needed = bool(self._digests)
        self._tells_apart = passed or self.needed

    def check(self, exchange: Exchange) -> Secret | None:
        """The key that was presented. Raises FaultError if it is wrong, or missing and needed."""
        presented = _presented(exchange)
        if not self.needed:
            return Secret(presented[0]) if presented else None
        if not presented:
            raise FaultError(_MISSING)
        for key in presented:
            given = _digest(key)
            # Every key is compared, so that the time does not tell which one was right.
            if sum(hmac.compare_digest(given, digest) for digest in self._digests):
                return Secret(key)
        raise FaultError(_WRONG)

    def tenant(self, key: Secret) -> str:
        """Whose data a presented key opens. Where keys mean nothing (none is configured and none
        goes upstream) all clients share one tenant: the SDKs send made-up keys there."""
        return tenant_of(key) if self._tells_apart else ""


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


_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]*)(?::\d*)?", re.ASCII)

_MOST_HOSTS = 100
"""How many names of ours are remembered."""
PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
    (b"access-control-max-age", b"600"),
]
EXPOSED = (
    b"access-control-expose-headers",
    b", ".join(ID_HEADERS) + b", x-dragoman, x-dragoman-loss, x-dragoman-guarantee, retry-after",
)


class Browsers:
    """Lets in the pages that are listed, and while there is no key, no others."""

    def __init__(self, settings: Settings) -> None:
        self._guarded = not settings.keys
        self._hosts = frozenset(name.lower() for name in (settings.host, *settings.allowed_hosts))
        self._origins = frozenset(settings.cors_origins)
        # What `Host` may say where no page asks, as `check` has found: it need not look again.
        self.plain: set[bytes | None] = set()

    def check(self, exchange: Exchange) -> None:
        """Add CORS headers for a listed origin. Raises FaultError for an uninvited page."""
        origin = exchange.header(b"origin")
        listed = bool(origin) and ("*" in self._origins or origin in self._origins)
        if listed:
            exchange.marks += [(b"access-control-allow-origin", safe(origin)), EXPOSED]
        if self._origins:
            exchange.marks.append((b"vary", b"origin"))
        if not self._guarded:
            return
        host = exchange.header(b"host")
        name = host_name(host)
        # Without a Host header there is no name that could have been pointed at us.
        if name and not (is_loopback(name) or name in self._hosts or "*" in self._hosts):
            problem = "is not a name of this server; list it in allowed_hosts if it should be"
            raise FaultError(Fault("permission", f"The host {host!r} {problem}.", "client"))
        if not origin and not self._origins and len(self.plain) < _MOST_HOSTS:
            self.plain.add(exchange.headers.get(b"host"))
        if origin and not listed and not self._at_home(origin, exchange):
            problem = "may not use this server; list it in cors_origins if it should"
            raise FaultError(Fault("permission", f"The origin {origin!r} {problem}.", "client"))

    def preflight(self, exchange: Exchange) -> bool:
        """Answer OPTIONS from a browser that asks whether it may ask; False for any other."""
        asks = exchange.header(b"access-control-request-method")
        if not asks or not self._origins:
            return False
        wanted = exchange.header(b"access-control-request-headers")
        allowed = (b"access-control-allow-headers", safe(wanted or "*"))
        exchange.reply(204, b"", *PREFLIGHT, allowed)
        return True

    def _at_home(self, origin: str, exchange: Exchange) -> bool:
        """A page of this machine or of this very server, or an application that is no page."""
        scheme, _, rest = origin.partition("://")
        if scheme not in ("http", "https"):
            return bool(rest)  # "null" is what a sandboxed page of any site calls itself
        return is_loopback(host_name(rest)) or rest == exchange.header(b"host")


@lru_cache(1024)
def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets; as it is if it makes no sense.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    found = _HOST.fullmatch(host.strip().lower())
    return found["name"].strip("[]").removesuffix(".") if found else host


@lru_cache(1024)
def is_loopback(name: str) -> bool:
    """Whether a name or address always means this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("localhost.evil.example")
    (True, True, False)
    """
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
