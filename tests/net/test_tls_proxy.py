"""Opening a connection: TLS, certificates, tunnels, TLS inside TLS, and what can refuse."""

import asyncio
import base64
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from websockets.asyncio.server import ServerConnection, serve

from dragoman.net import dial
from dragoman.net.client import Client
from dragoman.net.connection import Timeouts
from dragoman.net.dial import tls_context
from dragoman.net.errors import (
    ConnectError,
    InvalidUrlError,
    NetError,
    NetTimeoutError,
    ProxyError,
    TLSError,
)
from dragoman.net.url import Proxies, parse_url
from dragoman.net.websocket import open_websocket
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


async def test_a_silent_address_leaves_time_for_the_others(monkeypatch) -> None:
    async with Peer(answering(plain(b"hello"))) as peer, Client() as client:
        with socket.socket() as silent, socket.socket() as waits, socket.socket() as waits_too:
            silent.bind(("127.0.0.2", peer.port))
            silent.listen(0)  # it accepts nobody, and one may wait
            for each in (waits, waits_too):
                each.setblocking(False)
                each.connect_ex(silent.getsockname())

            async def look_up(*_: object) -> list[str]:
                return ["127.0.0.2", "127.0.0.1"]

            monkeypatch.setattr(dial, "_look_up", look_up)
            timeouts = Timeouts(connect=1.0)
            url = f"http://{NAME}:{peer.port}/"
            async with client.stream("GET", url, timeouts=timeouts) as response:
                assert await response.read() == b"hello"


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


async def test_websockets_use_the_proxies_that_requests_do(monkeypatch) -> None:
    async def echo(client: ServerConnection) -> None:
        async for message in client:
            await client.send(message)

    async with (
        serve(echo, "127.0.0.1", 0) as origin,
        Peer(tunnelling(origin.sockets[0].getsockname()[1])) as proxy,
    ):
        port = origin.sockets[0].getsockname()[1]
        monkeypatch.setenv("ALL_PROXY", f"http://u:p%40%3As@127.0.0.1:{proxy.port}")
        for url in (f"ws://{NAME}/v1", f"ws://127.0.0.1:{port}/v1"):  # this machine is never asked
            opened = await open_websocket(url, {}, within=5, max_size=1000)
            await opened.send_text(b"x")
            assert await opened.receive() == b"x"
            await opened.close()
        [asked] = proxy.requests
        assert asked.startswith(f"CONNECT {NAME}:80 ".encode())
        assert f"Basic {base64.b64encode(b'u:p@:s').decode()}".encode() in asked
        monkeypatch.setenv("NO_PROXY", "192.0.2.0/24")  # where nobody is
        with pytest.raises(NetError):
            await open_websocket("ws://192.0.2.1/v1", {}, within=0.1, max_size=1000)
        assert proxy.accepted == 1
        monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
        with pytest.raises(InvalidUrlError, match="ALL_PROXY names no http or https proxy"):
            await open_websocket(f"ws://{NAME}/v1", {}, within=5, max_size=1000)


async def test_a_websocket_whose_tls_fails_behind_a_proxy_raises_that_alone(monkeypatch) -> None:
    found: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    async with Peer(answering()) as origin, Peer(tunnelling(origin.port)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectError, match="cannot connect"):
            await open_websocket(f"wss://{NAME}/v1", {}, within=5, max_size=1000)
        await asyncio.sleep(0)
    assert found == []
