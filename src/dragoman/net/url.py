"""Parses URLs, and finds the proxy a URL goes through."""

from __future__ import annotations

import base64
import functools
import ipaddress
import re
import urllib.parse
from collections.abc import Mapping

import msgspec

from .errors import InvalidUrlError

_MAX_LENGTH = 8192
MAX_HOST = 254
"""Characters of the name of a host, with the dot at its end."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_LONG_AUTHORITY = re.compile(rf"[^/?#]*+/[\t\r\n]*+/[^/?#]{{{MAX_HOST + 1}}}")
_SAFE = "/%:@!$&'()*+,;=~[]?"
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_HOST_NAME = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?")


class Url(msgspec.Struct, frozen=True, cache_hash=True):
    """A parsed URL. Printing it shows neither its credentials nor its query."""

    scheme: str
    host: str  # lower case, IDNA-encoded, IPv6 without brackets
    port: int
    authority: str  # host and port as in a Host header: no port that the scheme implies
    target: str  # path and query as in a request line
    credentials: str | None = None  # user:password, decoded

    @property
    def endpoint(self) -> str:
        """Host and port, always both, as in a CONNECT line or an error message."""
        return endpoint(self.host, self.port)

    @property
    def authorization(self) -> str | None:
        """The credentials as the value of an Authorization header, or None."""
        if self.credentials is None:
            return None
        return "Basic " + base64.b64encode(self.credentials.encode()).decode()

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}"

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"


@functools.lru_cache(maxsize=256)
def parse_url(text: str) -> Url:
    """Parse an absolute http(s) URL; a fragment is dropped.

    Raises InvalidUrlError, whose message never quotes the text.

    >>> parse_url("http://[::1]:8080/v1?q=1")
    Url('http://[::1]:8080/v1')
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidUrlError(f"the URL is longer than {_MAX_LENGTH} characters")
    if _FORBIDDEN.search(text):
        raise InvalidUrlError("the URL contains a space or another character no URL may hold")
    if not text.lower().startswith(("http://", "https://")):
        raise InvalidUrlError("the URL must begin with http:// or https://")
    try:
        check_authority(text)
        split = urllib.parse.urlsplit(text)
        host, port = _host(split.hostname or ""), split.port
    except ValueError:
        raise InvalidUrlError("the URL has a malformed host or port") from None
    credentials = None
    if split.username is not None:
        credentials = urllib.parse.unquote(f"{split.username}:{split.password or ''}")
    target = f"{split.path or '/'}?{split.query}" if split.query else split.path or "/"
    default_port = _DEFAULT_PORTS[split.scheme]
    port = default_port if port is None else port
    return Url(
        scheme=split.scheme,
        host=host,
        port=port,
        authority=endpoint(host, port).removesuffix(f":{default_port}"),
        target=urllib.parse.quote(target, safe=_SAFE),
        credentials=credentials,
    )


def split_base(url: str) -> tuple[str, str]:
    """Split a base URL into the parts before and after an added path; the latter is its query.

    >>> "/models".join(split_base("http://127.0.0.1:9000/v1/?api-version=1#x"))
    'http://127.0.0.1:9000/v1/models?api-version=1'
    """
    base, mark, query = url.partition("#")[0].partition("?")
    return base.rstrip("/"), mark + query


def endpoint(host: str, port: int) -> str:
    """`host:port`, with the brackets an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_authority(text: str) -> None:
    """Raise ValueError for an address that `urllib` would take quadratic time to split: what stands
    before its path is normalised where it is not ASCII."""
    if not text.isascii() and _LONG_AUTHORITY.match(text):
        raise ValueError("the address has too long a host")


def ascii_name(name: str) -> str:
    """The name of a host as it is looked up. Raises ValueError.

    >>> ascii_name("bücher.test")
    'xn--bcher-kva.test'
    """
    if len(name) > MAX_HOST or max(map(len, name.split("."))) > 63:
        raise ValueError  # to encode it takes quadratic time
    return name if name.isascii() else name.encode("idna").decode()


def _host(name: str) -> str:
    if ":" in name:
        address = ipaddress.IPv6Address(name)
        if address.scope_id is not None:
            raise ValueError
        return address.compressed
    name = ascii_name(name)
    if not _HOST_NAME.fullmatch(name):
        raise ValueError
    return name


class Proxies(msgspec.Struct, frozen=True):
    """The proxy for each scheme and the hosts that are reached without one.

    A bypass entry is a host name (its subdomains included), `host:port`, an address, a
    network such as `10.0.0.0/8`, or `*`. Loopback is always reached directly. A proxy of another
    kind is the text of its error, for those who need it.
    """

    http: Url | str | None = None
    https: Url | str | None = None
    bypass: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Proxies:
        """Read HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; lower case wins."""

        def value(name: str) -> str:
            return environ.get(name.lower(), environ.get(name, "")).strip()

        def proxy(name: str) -> Url | str | None:
            name = name if value(name) else "ALL_PROXY"
            text = value(name)
            try:
                return parse_url(text if "://" in text else f"http://{text}") if text else None
            except InvalidUrlError as error:
                return f"{name} names no http or https proxy: {error}"

        entries = value("NO_PROXY").lower().replace(",", " ").split()
        return cls(proxy("HTTP_PROXY"), proxy("HTTPS_PROXY"), tuple(entries))

    def choose(self, url: Url) -> Url | None:
        """The proxy for `url`, or None for a direct connection.

        Raises InvalidUrlError naming the variable if its value is no http(s) proxy.
        """
        address = parse_address(url.host)
        if url.host == "localhost" or (address is not None and address.is_loopback):
            return None
        if any(_matches(entry, url, address) for entry in self.bypass):
            return None
        proxy = self.https if url.scheme == "https" else self.http
        if isinstance(proxy, str):
            raise InvalidUrlError(proxy)
        return proxy


def parse_address(host: str) -> _Address | None:
    """Parse an IP address; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _matches(entry: str, url: Url, address: _Address | None) -> bool:
    if entry in ("*", url.endpoint):
        return True
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            return False
    name, _, port = entry.removeprefix("*").removeprefix(".").partition(":")
    if port and port != str(url.port):
        return False
    return url.host == name or url.host.endswith("." + name)
