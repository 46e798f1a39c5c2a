"""The one guard against server-side request forgery: judges the addresses of a URL given to us.

It resolves a name itself, judges every address, and has the client connect to the one it judged, so
that a second answer of the DNS cannot move the target. Redirects are not followed.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from .errors import BlockedAddressError, ConnectError
from .url import Url

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is assigned for the public IPv6
_TRANSITION = (ipaddress.IPv6Network("2001::/32"), ipaddress.IPv6Network("2002::/16"))
# Services of cloud hosts at addresses that look public or shared.
_METADATA = frozenset(
    ipaddress.IPv4Address(a) for a in ("168.63.129.16", "192.0.0.192", "100.100.100.200")
)


async def resolve(url: Url, allow: Sequence[str] = ()) -> str:
    """The address to connect to for `url`; `allow` are addresses and networks (`10.1.0.0/16`) that
    may be called though they are not public.

    Raises ConnectError for a name without an address, and BlockedAddressError where one of its
    addresses is neither public nor allowed.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectError(f"{url.host} does not resolve: {error.strerror}") from error
    addresses = [str(entry[4][0]) for entry in found]
    networks = [ipaddress.ip_network(each, strict=False) for each in allow]
    # One bad address condemns the name: an honest one does not mix the two.
    for text in addresses or [""]:
        address = _address(text)
        listed = any(address in network for network in networks)
        if address is None or not (listed or _is_public(address)):
            raise BlockedAddressError(f"{url.host} is at an address that may not be called")
    return addresses[0]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
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


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
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
