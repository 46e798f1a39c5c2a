"""Opens one connection to an origin (TCP, proxy, TLS), and guards against server-side request
forgery.

Each step that fails raises the error of its own phase, and a caller cancelled in any of them
leaves no socket behind. Reuse is the pool's, retries are the client's.
"""

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from .connection import Connection, Limits
from .errors import (
    BlockedAddressError,
    ConnectError,
    NetError,
    NetTimeoutError,
    Phase,
    ProxyError,
    TLSError,
)
from .threads import BusyError, Threads
from .url import Url, endpoint, parse_address

_NUMBER = re.compile(r"\[Errno (\d+)\]")
_ASK_AFTER = 60  # seconds of silence until the kernel sends a keep-alive probe
_ASK_EVERY = 20


def tls_context() -> ssl.SSLContext:
    """A client's TLS settings, with the system's authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Dialer:
    """The way to one origin.

    `address` pins the IP address to connect to, whatever the host name resolves to; TLS and
    the Host header keep the name. `tls` makes the context when one is first needed.
    """

    def __init__(
        self,
        url: Url,
        *,
        address: str | None,
        proxy: Url | None,
        tls: Callable[[], ssl.SSLContext],
        limits: Limits,
        name: str | None = None,
    ) -> None:
        self._url = url
        self._name = name or url.endpoint  # in errors
        self._host = address or url.host
        self._proxy = proxy
        # A proxy must not resolve a pinned host again, so pinned hosts always use a tunnel.
        self._tunnel = proxy is not None and (url.scheme == "https" or address is not None)
        # A plain HTTP proxy needs the whole URL in the request line.
        self.forward_proxy = None if self._tunnel else proxy
        self._tls = tls
        self._limits = limits

    async def dial(self, within: float | None) -> Connection:
        """Open a connection within `within` seconds.

        Raises ConnectError, ProxyError, TLSError, or NetTimeoutError with the phase.
        """
        deadline = None if within is None else asyncio.get_running_loop().time() + within
        connection = await self._open(deadline)
        try:
            if self._proxy is not None and self._proxy.scheme == "https":
                async with _step("proxy", f"TLS with {connection.peer}", ProxyError, deadline):
                    await self._start_tls(connection, self._proxy)
            if self._tunnel:
                async with _step("proxy", f"a tunnel by {connection.peer}", ProxyError, deadline):
                    await self._open_tunnel(connection)
                connection.peer = self._name
            if self._url.scheme == "https":
                async with _step("tls", f"TLS with {connection.peer}", TLSError, deadline):
                    await self._start_tls(connection, self._url)
            if connection.closed:  # just as it was made: nobody was told
                raise ConnectError(f"{connection.peer} closed the connection before answering")
        except BaseException as error:
            connection.abort()
            if isinstance(error, TLSError) and self._name != self._url.endpoint:
                # OpenSSL names the host where a certificate does not match.
                raise TLSError(str(error).replace(f"'{self._url.host}'", self._name)) from error
            raise
        return connection

    async def _open(self, deadline: float | None) -> Connection:
        if self._proxy is None:
            peer, host, port = self._name, self._host, self._url.port
        else:
            own = self._name == self._url.endpoint
            peer = f"the proxy {self._proxy.endpoint if own else f'to {self._name}'}"
            host, port = self._proxy.host, self._proxy.port
        async with _step("connect", f"a connection to {peer}", ConnectError, deadline):
            named = parse_address(host) is None
            addresses = await _look_up(_own_names, host, port, host) if named else [host]
            loop = asyncio.get_running_loop()
            while True:
                address, share = addresses.pop(0), None
                if deadline is not None and addresses:  # it may be silent, as IPv6 often is
                    share = (deadline - loop.time()) / 2
                try:
                    async with asyncio.timeout(share):
                        transport, connection = await loop.create_connection(
                            lambda: Connection(peer, self._limits), address, port
                        )
                    break
                except OSError:
                    if not addresses:
                        raise
        sock = transport.get_extra_info("socket")
        # Have the kernel detect a peer that vanished during a long silence.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ASK_AFTER)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_EVERY)
        return connection

    async def _open_tunnel(self, connection: Connection) -> None:
        target = endpoint(self._host, self._url.port)
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}"]
        if self._proxy is not None and self._proxy.authorization is not None:
            lines.append(f"proxy-authorization: {self._proxy.authorization}")
        connection.send("\r\n".join([*lines, "", ""]).encode(), bodiless=True)
        try:
            await connection.read_head()
        except NetError as error:
            raise ProxyError(str(error)) from error
        if not 200 <= connection.status < 300:
            message = f"{connection.peer} refused the tunnel with status {connection.status}"
            raise ProxyError(message, connection.status)
        connection.upgraded(connection.transport)

    async def _start_tls(self, connection: Connection, url: Url) -> None:
        transport = await asyncio.get_running_loop().start_tls(
            connection.transport, connection, self._tls(), server_hostname=url.host.rstrip(".")
        )
        if transport is None:  # closed just as the handshake ended
            raise ConnectionResetError
        connection.upgraded(transport)


@contextlib.asynccontextmanager
async def _step(
    phase: Phase, what: str, failure: type[NetError], deadline: float | None
) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise NetTimeoutError(f"{what} took too long", phase) from None
    except OSError as error:
        raise failure(f"{what} failed: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Why there is no connection, without addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return error.reason or "the peer does not speak TLS"
    if (number := _NUMBER.search(str(error))) is not None:  # asyncio appends the address
        return os.strerror(int(number[1]))
    return error.strerror or str(error) or "the peer closed the connection"


# ---- the guard -----------------------------------------------------------------------------

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is assigned for the public IPv6
_TRANSITION = (ipaddress.IPv6Network("2001::/32"), ipaddress.IPv6Network("2002::/16"))
# Services of cloud hosts at addresses that look public or shared.
_METADATA = frozenset(
    ipaddress.IPv4Address(a) for a in ("168.63.129.16", "192.0.0.192", "100.100.100.200")
)


MOST_LOOKUPS = 64
"""Names that are looked up at a time: each of them may take half a minute."""
_names = Threads("dragoman-name")  # that others choose
_own_names = Threads("dragoman-name")  # of the configuration; the loop has but two threads for them


async def _look_up(lookups: Threads, host: str, port: int, who: str) -> list[str]:
    """The addresses of a host. Raises OSError where it has none, and where `who` has its share
    of the look-ups."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await lookups.run(look_up, MOST_LOOKUPS, who)
    except BusyError:
        problem = "too many names are being looked up; try again later"
        raise socket.gaierror(socket.EAI_AGAIN, problem) from None
    return [str(entry[4][0]) for entry in found]


async def resolve(url: Url, allow: Sequence[str] = (), tenant: str = "") -> str:
    """The address to connect to for `url`; `allow` are addresses and networks (`10.1.0.0/16`) that
    are allowed though they are not public. A `tenant` who chose it has a share of the look-ups.

    This is the one guard against server-side request forgery. It resolves a name itself, checks
    every address, and the client connects to the checked one, so that a second answer of the
    DNS cannot change the target (DNS rebinding). Redirects are not followed.

    Raises ConnectError for a name without an address, and BlockedAddressError where one of its
    addresses is neither public nor allowed.
    """
    try:
        addresses = await _look_up(_names, url.host, url.port, tenant)
    except OSError as error:
        raise ConnectError(f"{url.host} does not resolve: {error.strerror}") from error
    networks = [ipaddress.ip_network(each, strict=False) for each in allow]
    # One private address blocks the name: legitimate names do not mix the two.
    for text in addresses or [""]:
        address = _address(text)
        listed = any(address in network for network in networks)
        if address is None or not (listed or _is_public(address)):
            raise BlockedAddressError(f"{url.host} is at an address that may not be called")
    return addresses[0]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    address = parse_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:  # is routed to the IPv4 address inside it
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
