"""The guard: the addresses it never lets through, and those it does."""

import socket

import pytest

from dragoman.net.client import Client
from dragoman.net.dial import resolve
from dragoman.net.errors import BlockedAddressError, ConnectError
from dragoman.net.url import parse_url
from tests.net.peer import Peer, answering, plain

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
async def names(monkeypatch):
    """Lets the test say what a name resolves to; returns the table and the names asked for."""
    table: dict[str, list[str]] = {}
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *more, **options):
        asked.append(host)
        if host not in table:
            return real(host, port, *more, **options)
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in table[host]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return table, asked


async def fetch(url: str, *allow: str) -> bytes:
    address = await resolve(parse_url(url), allow)
    async with Client() as client, client.stream("GET", url, address=address) as response:
        return await response.read()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.8.9.10", "0.0.0.0", "10.1.2.3", "172.16.5.4", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
        *("198.18.0.1", "203.0.113.7", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("[::]", "[::1]", "[fe80::1]", "[fec0::1]", "[fd00:ec2::254]", "[ff02::1]"),
        *("[::ffff:127.0.0.1]", "[::ffff:a00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]"),
        *("[64:ff9b:1::1]", "[2002:7f00:1::]", "[2001:0:1::1]", "[2001:db8::1]", "[100::1]"),
    ],
)
async def test_p44_addresses_that_are_not_public_are_refused(host) -> None:
    with pytest.raises(BlockedAddressError, match="at an address that may not be called"):
        await resolve(parse_url(f"http://{host}/"))


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost"]
)
async def test_p44_other_spellings_are_judged_by_what_they_resolve_to(host) -> None:
    async with Peer(answering(plain(b"secret"))) as peer:
        with pytest.raises((BlockedAddressError, ConnectError)):
            await fetch(f"http://{host}:{peer.port}/")
        assert peer.accepted == 0


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::a9fe:a9fe"],
        ["fe80::1%eth0"],
        ["nonsense"],
        [],
    ],
)
async def test_p44_a_name_is_judged_by_all_its_addresses(names, addresses) -> None:
    names[0]["images.example"] = addresses
    with pytest.raises(BlockedAddressError) as caught:
        await resolve(parse_url("http://images.example/"))
    # What is inside is not told outside.
    assert not any(address in str(caught.value) for address in addresses)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
async def test_p44_public_addresses_are_let_through(names, address) -> None:
    names[0]["images.example"] = [address]
    assert await resolve(parse_url("http://images.example/")) == address


@pytest.mark.parametrize(
    ("allow", "host", "passes"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.1/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("10.0.0.0/8", "192.168.1.1", False),
        ("10.0.0.0/8", "[::1]", False),
        ("::1", "[::1]", True),
        ("127.0.0.1", "[::ffff:127.0.0.1]", True),
    ],
)
async def test_allowed_networks_need_not_be_public(allow, host, passes) -> None:
    url = parse_url(f"http://{host}/")
    if passes:
        assert await resolve(url, [allow])
    else:
        with pytest.raises(BlockedAddressError):
            await resolve(url, [allow])


async def test_p44_the_connection_goes_to_the_address_that_was_judged(names) -> None:
    """A name whose answer changes between the check and the connection gains nothing."""
    async with Peer(answering(plain(b"hello"))) as peer:
        names[0]["rebinding.example"] = ["127.0.0.1"]
        url = f"http://rebinding.example:{peer.port}/"
        with pytest.raises(BlockedAddressError):
            await fetch(url)
        assert await fetch(url, "127.0.0.0/8") == b"hello"
        assert names[1].count("rebinding.example") == 2  # asked once a call
        assert f"host: rebinding.example:{peer.port}".encode() in peer.requests[0]


async def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(ConnectError, match=r"no-such-host\.invalid does not resolve"):
        await resolve(parse_url("http://no-such-host.invalid/"))
