"""Access control: API keys, Host and Origin checks, and CORS."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from dragoman.core.error import Fault, FaultError, bad_request, quoted
from dragoman.core.interfaces import Secret
from dragoman.stores.base import tenant_name
from dragoman.wire.realtime import KEY_SUBPROTOCOL

from .exchange import ID_HEADERS, Exchange, Headers, safe
from .settings import Settings

_MISSING = Fault(
    "authentication",
    "This server asks for a key: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
    "client",
)
_WRONG = Fault(
    "authentication",
    "This key is not one of this server's. One is sent as `Authorization: Bearer KEY` or as "
    "`x-api-key: KEY`.",
    "client",
)
_DIFFER = Fault(
    "authentication",
    "Authorization, x-api-key and sec-websocket-protocol hold different keys, so the client cannot "
    "be identified. Send one of them.",
    "client",
)
_GUESSING = Fault(
    "rate_limited", "Too many wrong keys came from this address.", "client", retry_after="1"
)
NO_KEY = "none"
"""A placeholder for SDKs that insist on a key; our docs use it. It counts as no key."""
SHORTEST = 8
"""Characters of a key, at the least."""
GUESSES = 20
"""Wrong keys that an address may send in a burst; the allowance refills by one a second."""
ADDRESSES = 1024
"""Addresses whose wrong keys are counted."""


class Keys:
    """Checks the keys that clients present; with none configured, every client may call.

    `secret` returns the secret for deriving tenant names and the signing key, that of the store
    where there is one.
    """

    def __init__(self, settings: Settings, secret: Callable[[], bytes]) -> None:
        self._digests = tuple(_digest(key.reveal()) for key in settings.keys)
        self.needed = bool(self._digests)
        self._settings = settings
        self._secret = secret
        self._names: dict[str, str] | None = None
        self._guesses: OrderedDict[str, float] = OrderedDict()  # when its allowance is full again

    def check(self, exchange: Exchange) -> tuple[str, Secret | None]:
        """The tenant of a request, and the credential it presents. Raises FaultError if that is
        wrong, missing and needed, or not one.

        A valid key is accepted whatever came from its address, which may be that of a proxy for
        many clients; keys are too long to be guessed by requests.
        """
        credential = presented(exchange)
        if not credential:
            if self.needed:
                raise FaultError(_MISSING)
            return "", None
        given = _digest(credential)
        # Every key is compared, so that the time does not reveal which one matched.
        if self.needed and not sum(hmac.compare_digest(given, known) for known in self._digests):
            raise FaultError(self._guess(exchange))
        key = Secret(credential)
        return tenant_of(key, self._secret()), key

    def signing(self) -> bytes:
        """The key for signing what every server of this store accepts. The clients' keys are in it,
        so that who can only read the store cannot sign."""
        return hmac.digest(self._secret(), b"".join(sorted(self._digests)), sha256)

    def name(self, tenant: str) -> str:
        """The name of a tenant's key in the log: its variable, or the tenant."""
        if not tenant:
            return ""
        if self._names is None:
            self._names = {
                tenant_of(key, self._secret()): name
                for name, key in zip(key_names(self._settings), self._settings.keys, strict=False)
            }
        return self._names.get(tenant, tenant[:8])

    def _guess(self, exchange: Exchange) -> Fault:
        """The fault for a wrong key. Too many of them close the connection, too."""
        address, now, guesses = exchange.address, time.monotonic(), self._guesses
        restored = max(guesses.pop(address, now), now) + 1
        guesses[address] = min(restored, now + GUESSES)
        if len(guesses) > ADDRESSES:
            guesses.popitem(last=False)
        if restored <= now + GUESSES:
            return _WRONG
        exchange.keep_alive = False
        return _GUESSING


_SUBPROTOCOLS = b"sec-websocket-protocol"


def presented(exchange: Exchange) -> str:
    """The credential of a request, in any of the headers; empty where there is none. Raises
    FaultError for two that differ."""
    found = []
    if b"authorization" in exchange.headers:
        scheme, _, token = exchange.header(b"authorization").strip().partition(" ")
        # A credential that is no key of ours still identifies a tenant.
        found.append(token.strip() if scheme.lower() == "bearer" else f"{scheme} {token}".lstrip())
    if b"x-api-key" in exchange.headers:
        found.append(exchange.header(b"x-api-key").strip())
    if _SUBPROTOCOLS in exchange.headers:  # all that a page can send with a WebSocket
        for offered in exchange.header(_SUBPROTOCOLS).split(","):
            if offered.strip().startswith(KEY_SUBPROTOCOL):
                found.append(offered.strip().removeprefix(KEY_SUBPROTOCOL))
    found = [each for each in found if each and each.strip().lower() != NO_KEY]
    if len(set(found)) > 1:
        raise FaultError(_DIFFER)
    return found[0] if found else ""


def tenant_of(key: Secret, secret: bytes) -> str:
    """The tenant of a credential: whose data it opens, wherever it was presented and whether or not
    it is a key of ours. The name does not show the key, and is another in each store."""
    return tenant_name(secret, _digest(f"tenant {key.reveal()}").hex()[:24])


def key_names(settings: Settings) -> list[str]:
    """The names of a server's keys for messages: their variables, or numbers.

    >>> key_names(Settings(keys=(Secret("k" * 8), Secret("l" * 8)), api_key_env=("TEAM_KEY",)))
    ['key-1', 'TEAM_KEY']
    """
    unnamed = len(settings.keys) - len(settings.api_key_env)  # keys from variables come last
    return [f"key-{number + 1}" for number in range(unnamed)] + [*settings.api_key_env]


def generate_key() -> Secret:
    """A new random key."""
    return Secret(f"dragoman-{secrets.token_urlsafe(24)}")


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]]*)(?::\d*)?", re.ASCII)

_NO_HOST = re.compile(r"[\s,/?#@\\]")
"""What no host has (RFC 3986, 3.2.2) but a comma, by which some proxies join two headers."""
_MOST_HOSTS = 100
"""How many names of ours are remembered."""
LONGEST_HOST = 300
"""Characters of a Host header; a name has 253 at the most."""
_ORIGIN = re.compile(
    r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\s/?#@:\[\]]+)(?::(\d{1,5}))?", re.ASCII
)
_PORTS = {"http": "80", "https": "443"}
APPLICATIONS = frozenset(("app", "capacitor", "ionic", "tauri", "vscode-file", "vscode-webview"))
"""Schemes of programs that are installed here, which no page on the web has as its origin."""
PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-max-age", b"600"),
]
EXPOSED = (
    b"access-control-expose-headers",
    b", ".join(ID_HEADERS)
    + b", location, x-dragoman, x-dragoman-loss, x-dragoman-guarantee, retry-after, x-should-retry",
)


class Browsers:
    """Lets in the pages that are listed, and while there is no key, no others."""

    def __init__(self, settings: Settings) -> None:
        self._guarded = not settings.keys
        self._hosts = frozenset(name.lower() for name in (settings.host, *settings.allowed_hosts))
        self._any = "*" in settings.cors_origins
        self._origins = frozenset(map(origin_of, settings.cors_origins))
        # What `Host` may say where no page asks, as `check` has found: it need not look again.
        self.plain: set[bytes | None] = set()

    def check(self, exchange: Exchange) -> None:
        """Add CORS headers for a listed origin. Raises FaultError for an uninvited page."""
        origin = exchange.header(b"origin")
        listed = bool(origin) and (self._any or origin_of(origin) in self._origins)
        if listed:
            exchange.marks += [(b"access-control-allow-origin", safe(origin)), EXPOSED]
        if self._origins:
            exchange.marks.append((b"vary", b"origin"))
        host = exchange.header(b"host")
        if len(host) > LONGEST_HOST:
            raise FaultError(bad_request(f"has more than {LONGEST_HOST} characters", "Host"))
        if _NO_HOST.search(host):
            raise FaultError(bad_request("is not one host, with its port", "Host"))
        name = host_name(host) if self._guarded else ""
        # Without a Host header there is no name that could have been pointed at us.
        if name and not (is_loopback(name) or name in self._hosts or "*" in self._hosts):
            problem = "is not a name of this server; list it in allowed_hosts if it should be"
            raise FaultError(Fault("permission", f"The host {quoted(host)} {problem}.", "client"))
        if not origin and not self._origins and len(self.plain) < _MOST_HOSTS:
            self.plain.add(exchange.headers.get(b"host"))
        if self._guarded and origin and not listed and not self._at_home(origin, exchange):
            problem = "may not use this server; list it in cors_origins if it should"
            raise FaultError(
                Fault("permission", f"The origin {quoted(origin)} {problem}.", "client")
            )

    def preflight(self, exchange: Exchange) -> bool:
        """Answer OPTIONS from a browser that asks whether it may ask; False for any other. Raises
        FaultError for a page, where none is listed."""
        asks = exchange.header(b"access-control-request-method")
        if asks and not self._origins and (origin := exchange.header(b"origin")):
            problem = "asks whether it may use this server; list it in cors_origins if it may"
            raise FaultError(
                Fault("permission", f"The origin {quoted(origin)} {problem}.", "client")
            )
        if not asks or not self._origins:
            return False
        wanted = exchange.header(b"access-control-request-headers")
        allowed = (b"access-control-allow-headers", safe(wanted or "*"))
        exchange.reply(204, b"", *PREFLIGHT, allowed)
        return True

    def _at_home(self, origin: str, exchange: Exchange) -> bool:
        """A page of this machine or of this very server, or an application that is no page."""
        scheme, name, port = origin_of(origin)
        if scheme not in _PORTS:  # "null" is what a sandboxed page of any site calls itself
            return scheme in APPLICATIONS
        own = origin_of(f"{scheme}://{exchange.header(b'host')}")
        return is_loopback(name.strip("[]").removesuffix(".")) or (scheme, name, port) == own


def origin_of(text: str) -> tuple[str, str, str]:
    """The scheme, host and port of an origin (RFC 6454, 4); what is none has the scheme "".

    >>> origin_of("HTTPS://App.Example/"), origin_of("http://[::1]:8000")
    (('https', 'app.example', '443'), ('http', '[::1]', '8000'))
    >>> origin_of("blob:http://evil.example/x")
    ('', 'blob:http://evil.example/x', '')
    """
    found = _ORIGIN.fullmatch(text.lower().removesuffix("/"))
    if found is None:
        return "", text, ""
    scheme, host, port = found.groups()
    return scheme, host, port or _PORTS.get(scheme, "")


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets; as it is if it makes no sense.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    found = _HOST.fullmatch(host.strip().lower())
    return found["name"].strip("[]").removesuffix(".") if found else host


def is_host(name: str) -> bool:
    """Whether this may be the name in a Host header.

    >>> is_host("Box.example"), is_host("fe80::1"), is_host("box:8000"), is_host("*.example")
    (True, True, False, False)
    """
    bare = bool(name) and "*" not in name and not _NO_HOST.search(name)
    return bare and host_name(name) == name.lower()


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
