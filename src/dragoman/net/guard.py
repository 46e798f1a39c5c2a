"""The one guard against server-side request forgery, for every URL that a client gives us.

A guard that allows nothing fetches nothing; that is the default. It resolves a name itself,
judges every address, and has the client connect to the address it judged, so that a second
answer of the DNS cannot move the target. Each redirect is a new URL and judged again.
"""

import asyncio
import ipaddress
import socket
import urllib.parse

import msgspec

from .client import Client
from .errors import BlockedAddressError, ConnectError, InvalidUrlError, NetTimeoutError, StatusError
from .url import Url, parse_url

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is assigned for the public IPv6
_TRANSITION = (ipaddress.IPv6Network("2001::/32"), ipaddress.IPv6Network("2002::/16"))
# Services of cloud hosts at addresses that look public or shared.
_METADATA = frozenset(
    ipaddress.IPv4Address(a) for a in ("168.63.129.16", "192.0.0.192", "100.100.100.200")
)


class Fetched(msgspec.Struct, frozen=True):
    """What a guarded fetch brought: the body and its media type without parameters."""

    data: bytes
    media_type: str


class Guard:
    """Decides which URLs may be fetched, and fetches them.

    `allow` lists hosts (`images.example`), domains with all their hosts (`*.example`), any
    host (`*`), and addresses or networks (`10.1.0.0/16`). A URL passes if its host is listed,
    or is itself a listed address, *and* every address it resolves to is public or listed.
    `max_bytes` bounds the decoded body, `seconds` the whole fetch with its redirects.
    """

    def __init__(
        self,
        allow: tuple[str, ...] = (),
        *,
        max_redirects: int = 3,
        max_bytes: int = 20 * 1024 * 1024,
        seconds: float = 30.0,
    ) -> None:
        self._networks = tuple(network for entry in allow if (network := _network(entry)))
        self._hosts = tuple(entry.lower() for entry in allow if _network(entry) is None)
        self._max_redirects = max_redirects
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def fetch(self, client: Client, url: str) -> Fetched:
        """GET a URL and follow its redirects.

        Raises BlockedAddressError, InvalidUrlError (also for schemes other than http and
        https, and for URLs with credentials), StatusError for a status other than 200,
        TooLargeError, NetTimeoutError, and what Client.stream raises.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(client, url)
        except TimeoutError:
            message = f"the fetch took longer than {self._seconds:g} s"
            raise NetTimeoutError(message, "total") from None

    async def resolve(self, url: Url) -> str:
        """The address to connect to for `url`; raises BlockedAddressError if there is none."""
        if not self._host_allowed(url.host):
            raise BlockedAddressError(f"fetching from {url.host} is not allowed")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectError(f"{url.host} does not resolve: {error.strerror}") from error
        addresses = [str(entry[4][0]) for entry in found]
        # One bad address condemns the name: an honest one does not mix the two.
        if not addresses or not all(self._address_allowed(address) for address in addresses):
            raise BlockedAddressError(f"{url.host} is at an address that may not be fetched from")
        return addresses[0]

    async def _follow(self, client: Client, text: str) -> Fetched:
        for _ in range(self._max_redirects + 1):
            url = parse_url(text)
            if url.credentials is not None:
                raise InvalidUrlError("a URL to fetch may not hold credentials")
            address = await self.resolve(url)
            async with client.stream("GET", url, address=address) as response:
                location = response.headers.get("location")
                if response.status in _REDIRECTS and location is not None:
                    text = _join(text, location)
                    continue
                if response.status != 200:
                    message = f"{url.host} answered with status {response.status}"
                    raise StatusError(message, response.status)
                content_type = response.headers.get("content-type") or ""
                media_type = content_type.partition(";")[0].strip().lower()
                data = await response.read(self._max_bytes)
                return Fetched(data, media_type or "application/octet-stream")
        raise BlockedAddressError(f"more than {self._max_redirects} redirects")

    def _host_allowed(self, host: str) -> bool:
        address = _address(host)
        if address is not None and self._listed(address):
            return True
        host = host.rstrip(".")
        return any(
            entry in ("*", host) or (entry.startswith("*.") and host.endswith(entry[1:]))
            for entry in self._hosts
        )

    def _address_allowed(self, text: str) -> bool:
        address = _address(text)
        return address is not None and (_is_public(address) or self._listed(address))

    def _listed(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


def _join(base: str, location: str) -> str:
    try:
        return urllib.parse.urljoin(base, location)
    except ValueError:
        raise InvalidUrlError("the redirect leads to no URL") from None


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:  # reaches what the IPv4 address inside it reaches
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _network(entry: str) -> _Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (
        address not in _UNICAST or any(address in network for network in _TRANSITION)
    ):
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and address not in _METADATA
    )
