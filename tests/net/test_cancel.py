"""Whoever goes away closes the connection at once, in every phase, and leaves nothing."""

import asyncio
import contextlib
import socket

import pytest

from dragoman.net.client import Client
from dragoman.net.connection import Limits
from dragoman.net.dial import Dialer
from dragoman.net.errors import ConnectError
from dragoman.net.url import Proxies, parse_url
from tests.net.peer import Line, Peer, plain

pytestmark = pytest.mark.usefixtures("clean")
SOON = 5.0  # seconds; the goal is a fiftieth of it, but a machine may stop for some


class Silent:
    """Plays a server up to some point, is silent from there on, and notes when it is left."""

    def __init__(self, *steps: bytes | None) -> None:
        self.steps = steps
        self.reached = asyncio.Event()
        self.left = asyncio.Event()

    async def serve(self, line: Line) -> None:
        for step in self.steps:
            await (line.request() if step is None else line.write(step))
        if not self.steps:
            await line.reader.readexactly(1)
        self.reached.set()
        with contextlib.suppress(ConnectionError):
            await line.wait_closed_by_client()
        self.left.set()


async def ask(client: Client, url: str) -> None:
    async with client.stream("POST", url, body=b"question") as response:
        await response.read()


async def cancel_and_see(task: asyncio.Task[None], silent: Silent) -> None:
    async with asyncio.timeout(5):
        await silent.reached.wait()
    await asyncio.sleep(0.01)  # what was written arrives
    assert not task.done()
    assert not silent.left.is_set()
    task.cancel()
    async with asyncio.timeout(SOON):
        with pytest.raises(asyncio.CancelledError):
            await task
        await silent.left.wait()


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "steps",
    [
        [None],
        [None, b"HTTP/1.1 100 Continue\r\n\r\n"],
        [None, b"HTTP/1.1 200 OK\r\nContent-"],
        [None, HEAD],
        [None, HEAD + b"5\r\nhello\r\n"],
        [None, plain(b"first"), None],
        [None, plain(b"first"), None, HEAD + b"5\r\nhel"],
    ],
    ids=["headers", "after 100", "inside headers", "body", "in body", "reused", "reused, in body"],
)
async def test_r1_w1_cancelling_closes_the_connection(steps) -> None:
    silent = Silent(*steps)
    async with Peer(silent.serve) as peer, Client() as client:
        if steps.count(None) == 2:
            await ask(client, peer.url)
        task = asyncio.create_task(ask(client, peer.url))
        await cancel_and_see(task, silent)


async def test_r1_w1_cancelling_inside_the_tls_handshake() -> None:
    silent = Silent()
    async with Peer(silent.serve) as peer, Client() as client:
        task = asyncio.create_task(ask(client, peer.url.replace("http", "https")))
        await cancel_and_see(task, silent)


@pytest.mark.parametrize(
    "steps", [[None], [None, b"HTTP/1.1 200 OK\r\n"], [None, HEAD[:17] + b"\r\n"]]
)
async def test_r1_w1_cancelling_inside_the_tunnel(steps) -> None:
    """The last: the tunnel stands, the TLS handshake inside it does not come."""
    silent = Silent(*steps)
    async with (
        Peer(silent.serve) as proxy,
        Client(proxies=Proxies(https=parse_url(proxy.url))) as client,
    ):
        task = asyncio.create_task(ask(client, "https://origin.example/"))
        await cancel_and_see(task, silent)


async def test_r1_w1_cancelling_while_connecting() -> None:
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)  # one connection waits to be accepted, the next gets no answer
        for filler in (first, second):
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(server.getsockname())
        async with Client() as client:
            task = asyncio.create_task(ask(client, f"http://127.0.0.1:{server.getsockname()[1]}/"))
            await asyncio.sleep(0.05)
            assert not task.done()
            task.cancel()
            async with asyncio.timeout(SOON):
                with pytest.raises(asyncio.CancelledError):
                    await task


async def test_r1_w1_cancelling_between_retries(monkeypatch) -> None:
    attempts = 0
    failed = asyncio.Event()

    async def refuse(self: Dialer, within: float | None) -> None:
        nonlocal attempts
        attempts += 1
        failed.set()
        raise ConnectError("refused")

    monkeypatch.setattr(Dialer, "dial", refuse)
    async with Client() as client:
        task = asyncio.create_task(ask(client, "http://127.0.0.1:1/"))
        await failed.wait()
        task.cancel()
        async with asyncio.timeout(SOON):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert attempts == 1
        assert client._pool(client._enter_loop(), parse_url("http://127.0.0.1:1/"), None).empty


async def test_r1_w1_cancelling_while_it_is_sent_again() -> None:
    silent = Silent(None)

    async def serve(line: Line) -> None:
        if line.number > 1:
            await silent.serve(line)
        else:
            await line.request()
            await line.write(plain(b"first"))
            await line.request()

    async with Peer(serve) as peer, Client() as client:
        await ask(client, peer.url)
        task = asyncio.create_task(ask(client, peer.url))
        await cancel_and_see(task, silent)
        assert len(peer.requests) == 3


async def test_r1_w1_cancelling_while_waiting_for_a_place() -> None:
    silent = Silent(None)
    async with Peer(silent.serve) as peer, Client(limits=Limits(connections=1)) as client:
        first = asyncio.create_task(ask(client, peer.url))
        await silent.reached.wait()
        waiting = asyncio.create_task(ask(client, peer.url))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await cancel_and_see(first, silent)
        assert peer.accepted == 1


@pytest.mark.parametrize("leave", ["break", "raise", "unread"])
async def test_r1_w1_leaving_the_block_closes_the_connection(leave) -> None:
    silent = Silent(None, HEAD + b"5\r\nhello\r\n")
    async with Peer(silent.serve) as peer, Client() as client:
        with contextlib.suppress(LookupError):
            async with client.stream("GET", peer.url) as response:
                if leave == "unread":
                    raise LookupError
                async for _ in response.chunks():
                    if leave == "raise":
                        raise LookupError
                    break
        async with asyncio.timeout(SOON):
            await silent.left.wait()
        assert client._pool(client._enter_loop(), parse_url(peer.url), None).empty


async def test_r1_w1_cancelling_a_large_upload() -> None:
    left = asyncio.Event()

    async def serve(line: Line) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        line.peer.asked.set()
        await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            while await line.reader.read(65536):
                pass
        left.set()

    async with Peer(serve) as peer, Client() as client:
        task = asyncio.create_task(upload(client, peer.url))
        await peer.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(SOON):
            await left.wait()


async def upload(client: Client, url: str) -> None:
    async with client.stream("POST", url, body=b"x" * 32_000_000):
        pass
