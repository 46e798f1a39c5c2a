"""Connections kept, shared, counted and given up: the pool and the two retries."""

import asyncio
import socket
import threading
from contextlib import suppress
from functools import partial

import pytest

from dragoman.net.client import Client
from dragoman.net.connection import Limits, Timeouts
from dragoman.net.dial import Dialer
from dragoman.net.errors import ConnectError, DisconnectedError, NetTimeoutError
from dragoman.net.url import parse_url
from tests.net.peer import Line, Peer, answering, plain

pytestmark = pytest.mark.usefixtures("clean")


async def post(client: Client, url: str) -> bytes:
    async with client.stream("POST", url, body=b"question") as response:
        return await response.read()


async def serve_forever(line: Line) -> None:
    while True:
        await line.request()
        await line.write(plain(b"hello"))


class Gate:
    """A server that answers all its requests only once it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.most = 0

    async def serve(self, line: Line) -> None:
        while True:
            await line.request()
            self.most = max(self.most, line.peer.open)
            await self.opened.wait()
            await line.write(plain(b"hello"))


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_r1_w1_requests_share_a_connection() -> None:
    async with Peer(serve_forever) as peer, Client() as client:
        for _ in range(20):
            assert await post(client, peer.url) == b"hello"
        assert peer.accepted == 1


async def test_r1_w1_one_request_does_not_wait_for_another() -> None:
    gate = Gate()
    async with Peer(gate.serve) as peer, Client() as client:
        tasks = [asyncio.create_task(post(client, peer.url)) for _ in range(10)]
        await until(lambda: len(peer.requests) == 10)
        gate.opened.set()
        assert await asyncio.gather(*tasks) == [b"hello"] * 10
        for _ in range(10):
            await post(client, peer.url)
        assert peer.accepted == 10


async def test_r1_w1_a_request_on_a_stale_connection_is_sent_again_on_a_fresh_one() -> None:
    async with Peer(answering(plain(b"hello"), close=False)) as peer, Client() as client:
        assert await post(client, peer.url) == b"hello"
        assert await post(client, peer.url) == b"hello"
    assert peer.accepted == 2
    assert len(peer.requests) == 3
    assert peer.requests[1] == peer.requests[2]


async def test_r1_w1_a_stale_connection_is_not_replaced_by_another_idle_one() -> None:
    gate = Gate()

    async def serve(line: Line) -> None:
        await line.request()
        await gate.opened.wait()
        await line.write(plain(b"hello"))
        if line.number <= 3:
            await line.request()
        line.reset()

    async with Peer(serve) as peer, Client() as client:
        tasks = [asyncio.create_task(post(client, peer.url)) for _ in range(3)]
        await until(lambda: len(peer.requests) == 3)
        gate.opened.set()
        await asyncio.gather(*tasks)
        assert await post(client, peer.url) == b"hello"
    assert (peer.accepted, len(peer.requests)) == (4, 5)


async def test_r1_w1_a_stale_connection_is_replaced_though_all_places_are_taken() -> None:
    async with (
        Peer(answering(plain(b"hello"), close=False)) as peer,
        Client(limits=Limits(connections=1)) as client,
    ):
        assert await post(client, peer.url) == b"hello"
        assert await post(client, peer.url) == b"hello"


async def one_answer(line: Line) -> None:
    """Reads a second request on the first connection, and answers neither it nor any other."""
    await line.request()
    if line.number == 1:
        await line.write(plain(b"hello"))
        await line.request()


async def test_r1_w1_it_is_sent_again_only_once() -> None:
    async with Peer(one_answer) as peer, Client() as client:
        await post(client, peer.url)
        with pytest.raises(DisconnectedError) as caught:
            await post(client, peer.url)
        assert (caught.value.before_first_byte, caught.value.reused) == (True, False)
    assert (peer.accepted, len(peer.requests)) == (2, 3)


async def test_what_is_sent_once_has_a_connection_of_its_own_and_is_not_sent_again() -> None:
    async with Peer(one_answer) as peer, Client() as client:
        await post(client, peer.url)
        with pytest.raises(DisconnectedError):
            async with client.stream("POST", peer.url, body=b"question", once=True):
                pass
        assert (peer.accepted, len(peer.requests)) == (2, 2)


async def test_r1_w1_after_the_first_byte_nothing_is_sent_again() -> None:
    async with Peer(answering(plain(b"hello"), b"H")) as peer, Client() as client:
        await post(client, peer.url)
        with pytest.raises(DisconnectedError, match="inside the headers") as caught:
            await post(client, peer.url)
        assert (caught.value.before_first_byte, caught.value.reused) == (False, True)
    assert (peer.accepted, len(peer.requests)) == (1, 2)


async def test_r1_w1_a_fresh_connection_that_dies_is_not_replaced() -> None:
    async with Peer(answering(b"")) as peer, Client() as client:
        with pytest.raises(DisconnectedError, match="before answering") as caught:
            await post(client, peer.url)
        assert (caught.value.before_first_byte, caught.value.reused) == (True, False)
    assert len(peer.requests) == 1


async def test_an_idle_connection_the_peer_closed_is_not_used() -> None:
    async with Peer(answering(plain(b"hello"))) as peer, Client() as client:
        for round_ in (1, 2, 3):
            assert await post(client, peer.url) == b"hello"
            await until(lambda: client._pool(client._enter_loop(), parse_url(peer.url), None).empty)
            assert peer.accepted == len(peer.requests) == round_


@pytest.mark.parametrize(("retries", "works"), [(0, False), (1, True)])
async def test_r1_w1_a_connection_error_is_tried_again(monkeypatch, retries, works) -> None:
    attempts = 0
    dial = Dialer.dial

    async def flaky(self: Dialer, within: float | None):
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ConnectError("refused")
        return await dial(self, within)

    monkeypatch.setattr(Dialer, "dial", flaky)
    async with Peer(serve_forever) as peer, Client(connect_retries=retries) as client:
        if works:
            assert await post(client, peer.url) == b"hello"
        else:
            with pytest.raises(ConnectError):
                await post(client, peer.url)
    assert attempts == 1 + retries


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-x\r\n"])
async def test_connections_that_are_closed_as_soon_as_they_are_made_leave_their_places(
    greeting,
) -> None:
    """As by a proxy whose server is not there. uvloop reads the end before the dial returns."""

    def accept() -> None:
        while True:
            with suppress(OSError), listening.accept()[0] as accepted:
                accepted.sendall(greeting)
            if over.is_set():
                return

    listening, over = socket.create_server(("127.0.0.1", 0)), threading.Event()
    accepting = threading.Thread(target=accept)
    accepting.start()
    port = listening.getsockname()[1]
    async with Client(limits=Limits(connections=5), connect_retries=0) as client:
        for _ in range(50):
            posts = [post(client, f"http://127.0.0.1:{port}/") for _ in range(5)]
            ended = await asyncio.gather(*posts, return_exceptions=True)
            assert not {type(error) for error in ended} & {NetTimeoutError, bytes}
        await until(
            lambda: (
                client._pool(
                    client._enter_loop(), parse_url(f"http://127.0.0.1:{port}/"), None
                ).empty
            )
        )
    over.set()
    socket.create_connection(("127.0.0.1", port)).close()
    await asyncio.to_thread(accepting.join)
    listening.close()


async def test_refused_port_and_unknown_host_are_connect_errors() -> None:
    async with Peer(serve_forever) as peer:
        url = peer.url
    async with Client() as client:
        with pytest.raises(ConnectError, match=r"a connection to 127\.0\.0\.1:\d+ failed"):
            await post(client, url)
        with pytest.raises(ConnectError, match=r"a connection to no-such-host\.invalid:80 failed"):
            await post(client, "http://no-such-host.invalid/")


async def test_no_more_connections_than_allowed_and_all_are_served() -> None:
    gate = Gate()
    async with Peer(gate.serve) as peer, Client(limits=Limits(connections=2)) as client:
        tasks = [asyncio.create_task(post(client, peer.url)) for _ in range(7)]
        await until(lambda: len(peer.requests) == 2)
        gate.opened.set()
        assert await asyncio.gather(*tasks) == [b"hello"] * 7
        assert (gate.most, peer.accepted) == (2, 2)


async def test_a_place_is_waited_for_only_so_long() -> None:
    gate = Gate()
    limits, timeouts = Limits(connections=1), Timeouts(connect=0.5)
    async with Peer(gate.serve) as peer, Client(limits=limits, timeouts=timeouts) as client:
        first = asyncio.create_task(post(client, peer.url))
        await until(lambda: peer.requests)
        with pytest.raises(NetTimeoutError, match=r"all 1 connections were in use") as caught:
            await post(client, peer.url)
        assert caught.value.phase == "pool"
        gate.opened.set()
        assert await first == b"hello"
        assert await post(client, peer.url) == b"hello"


async def test_cancelled_waiter_takes_no_place() -> None:
    gate = Gate()
    async with Peer(gate.serve) as peer, Client(limits=Limits(connections=1)) as client:
        tasks = [asyncio.create_task(post(client, peer.url)) for _ in range(4)]
        await until(lambda: peer.requests)
        tasks[1].cancel()
        gate.opened.set()
        assert await tasks[0] == b"hello"
        tasks[2].cancel()  # it has been handed the connection by now, or will be next
        assert await tasks[3] == b"hello"
        assert await post(client, peer.url) == b"hello"


@pytest.mark.parametrize("handed", [True, False])
async def test_connection_handed_to_a_cancelled_waiter_goes_to_the_next(handed) -> None:
    async def serve(line: Line) -> None:
        await line.request()
        await line.write(plain(b"hello", *([] if handed else ["Connection: close"])))
        await serve(line)

    async with Peer(serve) as peer, Client(limits=Limits(connections=1)) as client:
        async with client.stream("GET", peer.url) as response:
            waiting = [asyncio.create_task(post(client, peer.url)) for _ in range(2)]
            await asyncio.sleep(0.01)
            await response.read()
        waiting[0].cancel()  # served by leaving the block, and cancelled before it runs
        assert await waiting[1] == b"hello"
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert await post(client, peer.url) == b"hello"


async def test_waiter_cancelled_just_now_is_passed_over() -> None:
    async with Peer(serve_forever) as peer, Client(limits=Limits(connections=1)) as client:
        async with client.stream("GET", peer.url) as response:
            waiting = [asyncio.create_task(post(client, peer.url)) for _ in range(2)]
            await asyncio.sleep(0.01)
            await response.read()
            waiting[0].cancel()
        assert await waiting[1] == b"hello"
        assert peer.accepted == 1


async def test_a_connection_that_dies_while_it_is_handed_over_is_replaced() -> None:
    async with Peer(serve_forever) as peer, Client(limits=Limits(connections=1)) as client:
        async with client.stream("GET", peer.url) as response:
            waiting = asyncio.create_task(post(client, peer.url))
            await asyncio.sleep(0.01)
            await response.read()
            connection = response._connection
        connection.abort()
        assert await waiting == b"hello"
        assert peer.accepted == 2


async def test_connection_lost_while_handed_to_a_cancelled_waiter_is_not_pooled() -> None:
    limits, timeouts = Limits(connections=1), Timeouts(first_byte=0.5)
    async with Peer(serve_forever) as peer, Client(limits=limits, timeouts=timeouts) as client:
        async with client.stream("GET", peer.url) as response:
            waiting = asyncio.create_task(post(client, peer.url))
            await asyncio.sleep(0.01)
            await response.read()
            connection = response._connection
        connection.abort()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await post(client, peer.url) == b"hello"
        assert client._pool(client._enter_loop(), parse_url(peer.url), None)._places == 0


async def test_only_so_many_connections_stay_idle() -> None:
    gate = Gate()
    async with Peer(gate.serve) as peer, Client(limits=Limits(idle_connections=2)) as client:
        tasks = [asyncio.create_task(post(client, peer.url)) for _ in range(5)]
        await until(lambda: len(peer.requests) == 5)
        gate.opened.set()
        await asyncio.gather(*tasks)
        await until(lambda: peer.open == 2)


async def test_an_idle_connection_is_closed_in_time() -> None:
    async with Peer(serve_forever) as peer, Client(limits=Limits(keep_alive=0.02)) as client:
        await post(client, peer.url)
        async with asyncio.timeout(5):
            await peer.gone.wait()
        await post(client, peer.url)
        assert peer.accepted == 2


async def test_closing_the_client_closes_what_is_in_use_and_what_is_not() -> None:
    async def serve(line: Line) -> None:
        await line.request()
        await line.wait_closed_by_client()

    async with Peer(serve) as peer:
        client = Client()
        busy = asyncio.create_task(post(client, peer.url))
        await until(lambda: peer.requests)
        pool = client._pool(client._enter_loop(), parse_url(peer.url), None)
        await client.aclose()
        with pytest.raises(DisconnectedError):
            await busy
        await until(lambda: peer.open == 0)
        assert pool.empty


async def test_pools_of_many_origins_are_forgotten() -> None:
    async with Peer(answering(plain(b"x", "Connection: close"))) as peer, Client() as client:
        for n in range(200):
            url = f"http://h{n}.example:{peer.port}/"
            async with client.stream("GET", url, address="127.0.0.1") as response:
                await response.read()
        assert len(client._last[1]) <= 64


async def test_each_of_several_event_loops_has_connections_of_its_own() -> None:
    """A request that was prepared in a thread was sent on those of another loop."""
    async with Peer(serve_forever) as peer, Client() as client:
        work = client.in_thread(lambda: client.stream("POST", peer.url, body=b"question"))
        other = asyncio.new_event_loop()
        in_other = partial(asyncio.to_thread, other.run_until_complete)
        try:
            assert await in_other(post(client, peer.url)) == b"hello"
            async with await asyncio.to_thread(work) as response:
                assert await response.read() == b"hello"
            for _ in range(3):
                assert await post(client, peer.url) == b"hello"
                assert await in_other(post(client, peer.url)) == b"hello"
            assert peer.accepted == 2
        finally:
            await in_other(client.aclose())
            other.close()
        assert await post(client, peer.url) == b"hello"
        assert len(client._pools) == 1
