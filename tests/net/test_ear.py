"""Exchanges that nobody waits for: what comes is heard, held back and given back."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.net.client import Client, Exchange
from dragoman.net.connection import Connection
from dragoman.net.errors import ConnectError, DisconnectedError, NetTimeoutError
from tests.net.peer import Line, Peer, answering, plain
from tests.net.test_connection import Wire, connected

PART = plain(b"hello")[:-3]


class Ear:
    """Notes each time it is called, and what there was."""

    def __init__(self, connection: Connection | None = None) -> None:
        self.heard: list[tuple[int, bytes, bool]] = []
        self.connection = connection
        self._news = asyncio.Event()

    def __call__(self) -> None:
        assert self.connection is not None
        there = self.connection
        self.heard.append((there.status, there.take(), there.over))
        self._news.set()

    async def over(self) -> bytes:
        """All that was heard, once it is over."""
        async with asyncio.timeout(5):
            while not (self.heard and self.heard[-1][2]):
                self._news.clear()
                await self._news.wait()
        return b"".join(data for _, data, _ in self.heard)


def listening(**options: float) -> tuple[Connection, Wire, Ear]:
    connection, wire = connected()
    connection.on_readable = ear = Ear(connection)
    connection.send(b"", **options)
    return connection, wire, ear


# ---- a connection ----------------------------------------------------------------------------


async def test_it_is_called_for_all_that_a_wait_would_end_for() -> None:
    connection, _, ear = listening()
    for piece in (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 5\r\n\r\n", b"he", b"llo"):
        connection.data_received(piece)
    assert ear.heard == [(200, b"", False), (200, b"he", False), (200, b"llo", True)]
    assert connection.take() == b""
    assert connection.release(15)
    assert connection.on_readable is None
    connection.data_received(b"unasked")
    assert len(ear.heard) == 3


async def test_it_hears_of_the_end_that_came_with_the_head() -> None:
    connection, _, ear = listening()
    connection.data_received(plain(b""))
    assert ear.heard == [(200, b"", True)]
    assert connection.error is None
    connection.abort()


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 2", PART])
async def test_it_hears_of_a_cut_once(came: bytes) -> None:
    connection, _, ear = listening()
    if came:
        connection.data_received(came)
    connection.eof_received()
    connection.connection_lost(None)
    assert ear.heard[-1] == (200 if came == PART else 0, b"", True)
    assert [over for _, _, over in ear.heard].count(True) == 1
    assert isinstance(connection.error, DisconnectedError)
    assert connection.error.before_first_byte is (came == b"")


async def test_it_hears_of_silence() -> None:
    connection, _, ear = listening(first_byte=0.02)
    await ear.over()
    assert isinstance(connection.error, NetTimeoutError)


# ---- held ------------------------------------------------------------------------------------


async def test_who_holds_reads_no_more_until_it_goes_on() -> None:
    connection, wire, ear = listening()
    connection.data_received(PART)
    connection.pause()
    connection.pause()
    assert not wire.reading
    connection.data_received(b"l")  # was on its way already
    assert not wire.reading
    connection.resume()
    assert wire.reading
    connection.data_received(b"lo")
    assert await ear.over() == b"hello"
    connection.abort()


async def test_to_go_on_loses_nothing_that_was_not_taken() -> None:
    connection, wire = connected()
    connection.send(b"")
    connection.data_received(PART)
    connection.resume()
    connection.pause()
    connection.resume()
    assert wire.reading
    async with asyncio.timeout(5):
        assert await connection.read() == b"he"
    connection.abort()


async def test_a_long_piece_does_not_end_the_hold() -> None:
    connection, wire, _ = listening()
    connection.pause()
    connection.data_received(plain(b"x" * 300_000)[:-1])
    assert not wire.reading
    connection.resume()
    assert wire.reading
    connection.abort()


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\n", PART])
async def test_the_peer_is_not_to_blame_for_a_hold_and_has_its_time_after_it(came: bytes) -> None:
    connection, wire, ear = listening(first_byte=0.05, idle=0.05)
    if came:
        connection.data_received(came)
    connection.pause()
    await asyncio.sleep(0.15)
    assert not wire.aborted
    began = asyncio.get_running_loop().time()
    connection.resume()
    await ear.over()
    assert asyncio.get_running_loop().time() - began > 0.04
    assert isinstance(connection.error, NetTimeoutError)
    assert wire.aborted


async def test_a_held_connection_that_is_lost_is_not_touched_again() -> None:
    connection, wire, ear = listening()
    connection.data_received(PART)
    connection.pause()
    connection.connection_lost(ConnectionResetError())
    connection.resume()
    connection.pause()
    assert not wire.reading
    assert ear.heard[-1] == (200, b"", True)
    assert connection._timer is None


async def test_the_next_exchange_is_not_held() -> None:
    connection, wire, _ = listening()
    connection.data_received(PART)
    connection.pause()
    connection.data_received(b"llo")
    assert connection.release(15)
    assert wire.reading
    connection.send(b"", first_byte=0.02)
    with pytest.raises(NetTimeoutError):
        await connection.read_head()


# ---- an exchange -----------------------------------------------------------------------------


def asking(client: Client, peer: Peer) -> tuple[Exchange, Ear]:
    return client.stream("POST", peer.url, body=b"question"), Ear()


async def connect(exchange: Exchange, ear: Ear) -> None:
    await exchange.connect(ear, fresh=False)
    ear.connection = exchange.connection


@pytest.mark.usefixtures("clean")
async def test_it_begins_at_once_where_a_connection_stands_idle() -> None:
    async with (
        Peer(answering(plain(b"one"), plain(b"two"), close=False)) as peer,
        Client() as client,
    ):
        exchange, ear = asking(client, peer)
        assert not exchange.idle
        await connect(exchange, ear)
        assert await ear.over() == b"one"
        exchange.close()

        exchange, ear = asking(client, peer)
        exchange.send(exchange.idle.pop(), ear)
        ear.connection = exchange.connection
        assert await ear.over() == b"two"
        exchange.close()
        assert peer.accepted == 1


@pytest.mark.usefixtures("clean")
async def test_what_was_begun_can_be_waited_for_from_its_head_on() -> None:
    async with Peer(answering(plain(b"hello"))) as peer, Client() as client:
        exchange, _ = asking(client, peer)
        come = asyncio.Event()
        await exchange.connect(come.set, fresh=False)
        await come.wait()
        response = exchange.adopt()
        assert exchange.connection.on_readable is None
        assert await exchange.open() is response
        assert (response.status, await response.read()) == (200, b"hello")
        exchange.close()


@pytest.mark.usefixtures("clean")
async def test_nobody_there_raises_and_there_is_nothing_to_close() -> None:
    async with Peer(answering()) as peer:
        pass
    async with Client(connect_retries=0) as client:
        exchange, ear = asking(client, peer)
        with pytest.raises(ConnectError):
            await exchange.connect(ear, fresh=False)
        exchange.close()


@pytest.mark.usefixtures("clean")
async def test_to_close_twice_takes_no_connection_from_the_next() -> None:
    gate = asyncio.Event()

    async def serve(line: Line) -> None:
        await line.request()
        await line.write(plain(b"one"))
        await line.request()
        await gate.wait()
        await line.write(plain(b"two"))

    async with Peer(serve) as peer, Client() as client:
        first, ear = asking(client, peer)
        await connect(first, ear)
        await ear.over()
        first.close()
        second, then = asking(client, peer)
        second.send(second.idle.pop(), then)
        then.connection = second.connection
        first.close()
        gate.set()
        assert await then.over() == b"two"
        second.close()


@pytest.mark.usefixtures("clean")
async def test_who_gave_it_up_hears_no_more_though_all_is_closed() -> None:
    async def silent(line: Line) -> None:
        await line.request()
        await line.wait_closed_by_client()

    async with Peer(silent) as peer:
        client = Client()
        exchange, ear = asking(client, peer)
        await connect(exchange, ear)
        await peer.asked.wait()
        closing = asyncio.ensure_future(client.aclose())
        await asyncio.sleep(0)
        exchange.close()
        await closing
        await asyncio.sleep(0.01)
        assert ear.heard == []


@pytest.mark.usefixtures("clean")
async def test_a_connection_that_came_after_the_end_is_not_kept_for_the_next() -> None:
    async with Peer(answering(plain(b"hello"), close=False)) as peer:
        client = Client()
        exchange, ear = asking(client, peer)
        await client.aclose()
        await connect(exchange, ear)
        assert await ear.over() == b"hello"
        exchange.close()
        assert exchange.connection.closed
