"""Opening a connection: TLS, certificates, tunnels, TLS inside TLS, and what can refuse."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import trustme

from dragoman.net.client import Client
from dragoman.net.connection import Timeouts
from dragoman.net.dial import tls_context
from dragoman.net.errors import ConnectError, NetTimeoutError, ProxyError, TLSError
from dragoman.net.url import Proxies, parse_url
from tests.net.peer import Line, Peer, answering, plain, tunnelling

pytestmark = pytest.mark.usefixtures("clean")
NAME = "origin.example"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = tls_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> Callable[..., ssl.SSLContext]:
    def make(*names: str) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(*names).configure_cert(context)
        return context

    return make


async def get(client: Client, url: str, address: str | None = None) -> bytes:
    async with client.stream("GET", url, address=address) as response:
        return await response.read()


def through(peer: Peer, credentials: str = "") -> Proxies:
    proxy = parse_url(peer.url.replace("//", f"//{credentials}"))
    return Proxies(http=proxy, https=proxy)


async def test_https_connection_is_reused(server_tls, trusting) -> None:
    serve = answering(plain(b"hello"), plain(b"again"))
    async with Peer(serve, server_tls("127.0.0.1")) as peer, Client(tls=trusting) as client:
        assert await get(client, peer.url) == b"hello"
        assert await get(client, peer.url) == b"again"
        assert peer.accepted == 1


async def test_a_pinned_address_keeps_the_name_for_tls_and_host(server_tls, trusting) -> None:
    named: list[str | None] = []
    context = server_tls(NAME)
    context.sni_callback = lambda _, name, __: named.append(name)
    async with Peer(answering(plain(b"hello")), context) as peer, Client(tls=trusting) as client:
        url = f"https://{NAME}.:{peer.port}/"
        assert await get(client, url, address="127.0.0.1") == b"hello"
    assert named == [NAME]
    assert f"host: {NAME}.:{peer.port}\r\n".encode() in peer.requests[0]


async def test_an_unknown_authority_is_refused_by_default(server_tls) -> None:
    async with Peer(answering(plain(b"x")), server_tls("127.0.0.1")) as peer, Client() as client:
        with pytest.raises(TLSError, match=r"TLS with 127\.0\.0\.1:\d+ failed: unable to get"):
            await get(client, peer.url)
    assert peer.requests == []


@pytest.mark.parametrize(
    ("name", "shown"), [(None, r"'127\.0\.0\.1'"), ("the upstream", "the upstream")]
)
async def test_another_name_is_refused(server_tls, trusting, name, shown) -> None:
    serve = answering(plain(b"x"))
    async with (
        Peer(serve, server_tls("other.example")) as peer,
        Client(tls=trusting, name=name) as client,
    ):
        with pytest.raises(TLSError, match=f"certificate is not valid for {shown}") as raised:
            await get(client, peer.url)
        assert ("127.0.0.1" in str(raised.value)) is (name is None)


async def test_a_peer_without_tls() -> None:
    async def serve(line: Line) -> None:
        await line.reader.read(1)
        await line.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await line.wait_closed_by_client()

    async with Peer(serve) as peer, Client() as client:
        with pytest.raises(TLSError):
            await get(client, peer.url.replace("http", "https"))


async def test_a_peer_that_closes_inside_the_handshake() -> None:
    async def serve(line: Line) -> None:
        await line.reader.read(1)

    async with Peer(serve) as peer, Client() as client:
        with pytest.raises(TLSError):
            await get(client, peer.url.replace("http", "https"))


async def test_a_silent_handshake_times_out() -> None:
    async def serve(line: Line) -> None:
        await line.wait_closed_by_client()

    async with Peer(serve) as peer, Client(timeouts=Timeouts(connect=0.5)) as client:
        with pytest.raises(NetTimeoutError, match=r"TLS with .* took too long") as caught:
            await get(client, peer.url.replace("http", "https"))
        assert caught.value.phase == "tls"


async def test_http_through_a_proxy() -> None:
    serve = answering(plain(b"hello"), plain(b"again"))
    async with Peer(serve) as proxy, Client(proxies=through(proxy, "u:p@")) as client:
        assert await get(client, f"http://{NAME}/v1?a=b") == b"hello"
        assert await get(client, f"http://{NAME}/v1?a=b") == b"again"
        assert proxy.accepted == 1
    lines = proxy.requests[0].split(b"\r\n")
    assert lines[0] == b"GET http://origin.example/v1?a=b HTTP/1.1"
    assert lines[1] == b"host: origin.example"
    assert b"proxy-authorization: Basic dTpw" in lines


async def test_a_proxy_without_credentials_gets_none() -> None:
    async with Peer(answering(plain(b"x"))) as proxy, Client(proxies=through(proxy)) as client:
        await get(client, f"http://{NAME}/")
    assert b"authorization" not in proxy.requests[0]


async def test_https_through_a_tunnel(server_tls, trusting) -> None:
    serve = answering(plain(b"hello"), plain(b"again"))
    async with (
        Peer(serve, server_tls(NAME)) as origin,
        Peer(tunnelling(origin.port)) as proxy,
        Client(tls=trusting, proxies=through(proxy, "u:p@")) as client,
    ):
        assert await get(client, f"https://{NAME}/") == b"hello"
        assert await get(client, f"https://{NAME}/") == b"again"
        assert (proxy.accepted, origin.accepted) == (1, 1)
    connect = f"CONNECT {NAME}:443 HTTP/1.1\r\nhost: {NAME}:443\r\n"
    assert proxy.requests == [f"{connect}proxy-authorization: Basic dTpw\r\n\r\n".encode()]
    assert b"proxy-authorization" not in origin.requests[0]
    assert origin.requests[0].startswith(b"GET / HTTP/1.1\r\n")


async def test_tunnel_through_a_tls_proxy(server_tls, trusting) -> None:
    async with (
        Peer(answering(plain(b"hello" * 50_000)), server_tls(NAME)) as origin,
        Peer(tunnelling(origin.port), server_tls("127.0.0.1")) as proxy,
        Client(tls=trusting, proxies=through(proxy)) as client,
    ):
        assert await get(client, f"https://{NAME}/") == b"hello" * 50_000


async def test_a_pinned_address_always_gets_a_tunnel_to_that_address() -> None:
    async with (
        Peer(answering(plain(b"hello"))) as origin,
        Peer(tunnelling(origin.port)) as proxy,
        Client(proxies=through(proxy)) as client,
    ):
        assert await get(client, f"http://{NAME}/", address="2001:db8::1") == b"hello"
        assert proxy.requests == [
            b"CONNECT [2001:db8::1]:80 HTTP/1.1\r\nhost: [2001:db8::1]:80\r\n\r\n"
        ]
        assert b"host: origin.example\r\n" in origin.requests[0]


@pytest.mark.parametrize("status", [407, 403, 502])
async def test_a_tunnel_refused(status) -> None:
    answer = plain(b"no", status=f"{status} No")
    async with Peer(answering(answer)) as proxy, Client(proxies=through(proxy, "u:p@")) as client:
        with pytest.raises(ProxyError, match=f"refused the tunnel with status {status}") as caught:
            await get(client, f"https://{NAME}/")
        assert caught.value.status == status
        assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200"])
async def test_a_proxy_that_does_not_answer_in_http(answer) -> None:
    async with Peer(answering(answer)) as proxy, Client(proxies=through(proxy)) as client:
        with pytest.raises(ProxyError, match="the proxy 127") as caught:
            await get(client, f"https://{NAME}/")
        assert caught.value.status is None
        assert len(proxy.requests) == 1


async def test_a_proxy_that_is_not_there_or_not_trusted(server_tls) -> None:
    serve = answering(b"")
    async with (
        Peer(serve, server_tls("127.0.0.1")) as proxy,
        Client(proxies=through(proxy)) as client,
    ):
        with pytest.raises(ProxyError, match="TLS with the proxy"):
            await get(client, f"https://{NAME}/")
    async with Client(proxies=through(proxy)) as client:
        with pytest.raises(ConnectError, match="the proxy"):
            await get(client, f"https://{NAME}/")


async def test_a_silent_proxy_times_out() -> None:
    async def serve(line: Line) -> None:
        await line.request()
        await line.wait_closed_by_client()

    timeouts = Timeouts(connect=0.5)
    async with Peer(serve) as proxy, Client(proxies=through(proxy), timeouts=timeouts) as client:
        with pytest.raises(NetTimeoutError) as caught:
            await get(client, f"https://{NAME}/")
        assert caught.value.phase == "proxy"


class Loop:
    """The running loop, which says of every handshake that its connection is gone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def start_tls(self, *_: Any, **__: Any) -> None:
        """Gives no transport."""


async def test_peer_that_closes_as_the_handshake_ends_is_an_error(monkeypatch) -> None:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    async with Peer(answering(plain(b"hello"))) as peer, Client(connect_retries=0) as client:
        with pytest.raises(TLSError, match="the peer closed the connection"):
            async with client.stream("GET", peer.url.replace("http:", "https:")):
                pass


async def test_a_system_without_settings_for_keepalive_will_do(monkeypatch) -> None:
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    async with (
        Peer(answering(plain(b"hello"))) as peer,
        Client() as client,
        client.stream("GET", peer.url) as response,
    ):
        assert await response.read() == b"hello"
