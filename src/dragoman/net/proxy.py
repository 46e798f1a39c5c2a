"""Which proxy, if any, a request goes through.

A value, decided once from a mapping the caller hands in; this module reads no environment
and opens nothing.
"""

import ipaddress
from collections.abc import Mapping

import msgspec

from dragoman.net.error import InvalidUrlError
from dragoman.net.url import Url, parse_url


class Proxies(msgspec.Struct, frozen=True):
    """The proxy for each scheme and the hosts that are reached without one.

    A bypass entry is a host name (its subdomains included), `host:port`, an address, a
    network such as `10.0.0.0/8`, or `*`. Loopback is always reached directly.
    """

    http: Url | None = None
    https: Url | None = None
    bypass: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Proxies":
        """Read HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; lower case wins.

        Raises InvalidUrlError naming the variable if its value is no http(s) proxy.
        """

        def value(name: str) -> str:
            return environ.get(name.lower(), environ.get(name, "")).strip()

        def proxy(name: str) -> Url | None:
            name = name if value(name) else "ALL_PROXY"
            return _proxy_url(name, value(name)) if value(name) else None

        entries = value("NO_PROXY").lower().replace(",", " ").split()
        return cls(proxy("HTTP_PROXY"), proxy("HTTPS_PROXY"), tuple(entries))

    def choose(self, url: Url) -> Url | None:
        """The proxy to reach `url` through, or None to go there directly."""
        proxy = self.https if url.scheme == "https" else self.http
        return None if proxy is None or self._bypassed(url) else proxy

    def _bypassed(self, url: Url) -> bool:
        address = _address(url.host)
        if url.host == "localhost" or (address is not None and address.is_loopback):
            return True
        return any(_matches(entry, url, address) for entry in self.bypass)


def _proxy_url(name: str, text: str) -> Url:
    try:
        return parse_url(text if "://" in text else f"http://{text}")
    except InvalidUrlError as error:
        raise InvalidUrlError(f"{name} names no http or https proxy: {error}") from None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _matches(
    entry: str, url: Url, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    if entry == "*" or entry == url.endpoint:
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
