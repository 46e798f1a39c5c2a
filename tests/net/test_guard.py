"""The guard: what it never fetches, what it lets through, and how an image is fetched by it."""

import asyncio
import gzip
import socket
import time

import pytest

from dragoman.net.client import Client
from dragoman.net.errors import (
    BlockedAddressError,
    ConnectError,
    InvalidUrlError,
    NetTimeoutError,
    StatusError,
    TooLargeError,
)
from dragoman.net.guard import Fetched, Guard
from dragoman.net.url import parse_url
from tests.net.peer import Line, Peer, answering, chunked, plain

pytestmark = pytest.mark.usefixtures("clean")
HERE = ("127.0.0.1",)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
async def names(monkeypatch):
    """Lets the test say what a name resolves to; returns the table and the names asked for."""
    loop = asyncio.get_running_loop()
    table: dict[str, list[str]] = {}
    asked: list[str] = []
    real = loop.getaddrinfo

    async def getaddrinfo(host, port, **options):
        asked.append(host)
        if host not in table:
            return await real(host, port, **options)
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in table[host]
        ]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return table, asked


async def fetch(url: str, allow: tuple[str, ...] = HERE, **options) -> Fetched:
    async with Client() as client:
        return await Guard(allow, **options).fetch(client, url)


async def test_p44_nothing_is_fetched_by_default(names) -> None:
    names[0]["public.example"] = ["93.184.216.34"]
    for url in ("http://public.example/", "http://93.184.216.34/", "http://127.0.0.1:1/"):
        with pytest.raises(BlockedAddressError, match="is not allowed"):
            await fetch(url, allow=())
    assert names[1] == []  # not even a name is looked up


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
async def test_p44_addresses_that_are_not_public_are_refused(host: str) -> None:
    with pytest.raises(BlockedAddressError, match="at an address that may not be fetched from"):
        await fetch(f"http://{host}/", allow=("*",))


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost"]
)
async def test_p44_other_spellings_are_judged_by_what_they_resolve_to(host: str) -> None:
    async with Peer(answering(plain(b"secret"))) as peer:
        with pytest.raises((BlockedAddressError, ConnectError)):
            await fetch(f"http://{host}:{peer.port}/", allow=("*",))
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
async def test_p44_a_name_is_judged_by_all_its_addresses(names, addresses: list[str]) -> None:
    names[0]["images.example"] = addresses
    with pytest.raises(BlockedAddressError) as caught:
        await fetch("http://images.example/", allow=("*",))
    # What is inside is not told outside.
    assert not any(address in str(caught.value) for address in addresses)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
async def test_p44_public_addresses_are_let_through(names, address: str) -> None:
    names[0]["images.example"] = [address]
    assert await Guard(("*",)).resolve(parse_url("http://images.example/")) == address


@pytest.mark.parametrize(
    ("allow", "host", "passes"),
    [
        (("images.example",), "images.example", True),
        (("Images.Example",), "images.example.", True),
        (("images.example",), "other.example", False),
        (("images.example",), "a.images.example", False),
        (("*.example",), "images.example", True),
        (("*.example",), "example", False),
        (("*.example",), "badexample", False),
        (("*",), "anything.test", True),
        (("93.184.0.0/16",), "93.184.216.34", True),
        (("93.184.0.0/16",), "93.185.216.34", False),
        (("93.184.0.0/16",), "images.example", False),
        (("2606:4700::/32",), "[2606:4700::1111]", True),
    ],
)
async def test_p44_the_list_names_hosts_and_networks(names, allow, host: str, passes: bool) -> None:
    for name in ("images.example", "images.example.", "anything.test"):
        names[0][name] = ["93.184.216.34"]
    url = parse_url(f"http://{host}/")
    if passes:
        await Guard(allow).resolve(url)
    else:
        with pytest.raises(BlockedAddressError):
            await Guard(allow).resolve(url)


async def test_p44_a_listed_host_still_needs_an_address_that_is_public_or_listed(names) -> None:
    async with Peer(answering(plain(b"hello"))) as peer:
        names[0]["store.internal"] = ["127.0.0.1"]
        url = f"http://store.internal:{peer.port}/"
        with pytest.raises(BlockedAddressError):
            await fetch(url, allow=("store.internal",))
        assert (await fetch(url, allow=("store.internal", "127.0.0.0/8"))).data == b"hello"


async def test_p44_the_connection_goes_to_the_address_that_was_judged(names) -> None:
    """A name whose answer changes between the check and the connection gains nothing."""
    async with Peer(answering(plain(b"hello"))) as peer:
        names[0]["rebinding.example"] = ["127.0.0.1"]
        url = f"http://rebinding.example:{peer.port}/"
        assert (await fetch(url, allow=("rebinding.example", *HERE))).data == b"hello"
        assert names[1].count("rebinding.example") == 1
        assert f"host: rebinding.example:{peer.port}".encode() in peer.requests[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_p44_each_redirect_is_judged_again(status: int) -> None:
    async with Peer(answering(plain(b"secret"))) as inside:
        location = f"Location: http://localhost:{inside.port}/latest/meta-data"
        async with Peer(answering(plain(b"", location, status=f"{status} Go"))) as peer:
            with pytest.raises(BlockedAddressError, match="from localhost is not allowed"):
                await fetch(peer.url)
            assert len(peer.requests) == 1
        assert inside.accepted == 0


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "gopher://127.0.0.1/", "http://u:p@127.0.0.1/", "http://[::1", "/a b"],
)
async def test_p44_a_redirect_to_what_is_no_http_url_is_refused(location: str) -> None:
    async with Peer(answering(plain(b"", f"Location: {location}", status="302 Go"))) as peer:
        with pytest.raises(InvalidUrlError):
            await fetch(peer.url)


async def test_p44_redirects_are_followed_so_far() -> None:
    async def serve(line: Line) -> None:
        while True:
            left = int((await line.request()).split(b" ")[1][1:])
            if left:
                await line.write(plain(b"moved", f"Location: {left - 1}", status="302 Found"))
            else:
                await line.write(plain(PNG, "Content-Type: image/png"))

    async with Peer(serve) as peer:
        assert await fetch(peer.url + "3") == Fetched(PNG, "image/png")
        with pytest.raises(BlockedAddressError, match="more than 3 redirects"):
            await fetch(peer.url + "4")
        with pytest.raises(BlockedAddressError):
            await fetch(peer.url + "1", max_redirects=0)


async def test_p44_no_credentials_are_taken_or_sent() -> None:
    with pytest.raises(InvalidUrlError, match="credentials"):
        await fetch("http://user:secret@127.0.0.1/")
    async with Peer(answering(plain(b""))) as peer:
        await fetch(peer.url)
    head = peer.requests[0].lower()
    assert b"authorization" not in head
    assert b"cookie" not in head


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "/etc/passwd", ""]
)
async def test_v16_only_http_is_fetched(url: str) -> None:
    with pytest.raises(InvalidUrlError):
        await fetch(url, allow=("*", *HERE))


@pytest.mark.parametrize("status", [204, 206, 304, 401, 404, 500])
async def test_v16_a_status_other_than_200_is_an_error(status: int) -> None:
    async with Peer(answering(plain(b"", status=f"{status} No"))) as peer:
        with pytest.raises(StatusError, match=f"answered with status {status}") as caught:
            await fetch(peer.url)
        assert caught.value.status == status


async def test_v16_a_redirect_without_a_target_is_an_error() -> None:
    async with Peer(answering(plain(b"", status="302 Found"))) as peer:
        with pytest.raises(StatusError):
            await fetch(peer.url)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"x" * 1001),
        chunked(*[b"x" * 100] * 11),
        plain(gzip.compress(b"\0" * 10_000_000, mtime=0), "Content-Encoding: gzip"),
    ],
    ids=["length", "chunked", "bomb"],
)
async def test_v16_a_body_over_the_limit_is_refused(answer: bytes) -> None:
    async with Peer(answering(answer)) as peer:
        with pytest.raises(TooLargeError):
            await fetch(peer.url, max_bytes=1000)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_v16_the_whole_fetch_has_a_time_limit(start: bytes) -> None:
    async def trickle(line: Line) -> None:
        await line.request()
        await line.write(start)
        while True:
            await asyncio.sleep(0.005)
            await line.write(b"x" if start else b"")

    async with Peer(trickle) as peer:
        began = time.monotonic()
        with pytest.raises(NetTimeoutError, match=r"longer than 0\.1 s") as caught:
            await fetch(peer.url, seconds=0.1)
        assert caught.value.phase == "total"
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("header", "media_type"),
    [
        (["Content-Type: image/png"], "image/png"),
        (['Content-Type: Image/PNG; charset=binary; q="a;b"'], "image/png"),
        (["Content-Type: image/jpeg ;x"], "image/jpeg"),
        ([], "application/octet-stream"),
        (["Content-Type:"], "application/octet-stream"),
    ],
)
async def test_v16_the_media_type_comes_without_parameters(
    header: list[str], media_type: str
) -> None:
    async with Peer(answering(plain(PNG, *header))) as peer:
        assert await fetch(peer.url) == Fetched(PNG, media_type)


async def test_v16_a_name_that_does_not_resolve() -> None:
    with pytest.raises(ConnectError, match=r"no-such-host\.invalid does not resolve"):
        await fetch("http://no-such-host.invalid/", allow=("*",))
