"""Exchanges that nothing awaits: the callback, pause and resume, and who gets the connection."""

import asyncio
import gc
import weakref

import pytest

from dragoman.net.client import Client, Exchange
from dragoman.net.connection import Connection, Timeouts
from dragoman.net.errors import ConnectError, NetError, NetTimeoutError
from tests.net.peer import Line, Peer, answering, plain
from tests.net.test_connection import Wire, connected

PART = plain(b"hello")[:-3]


class Callback:
    """Records each call, with the status, the data and whether it is over."""

    def __init__(self, connection: Connection | None = None) -> None:
        self.calls: list[tuple[int, bytes, bool]] = []
        self.connection = connection
        self._news = asyncio.Event()

    def __call__(self) -> None:
        assert self.connection is not None
        there = self.connection
        self.calls.append((there.status, b"".join(there.parts), there.over))
        there.parts.clear()
        self._news.set()

    async def over(self) -> bytes:
        """All data, once the exchange is over."""
        async with asyncio.timeout(5):
            while not (self.calls and self.calls[-1][2]):
                self._news.clear()
                await self._news.wait()
        return b"".join(data for _, data, _ in self.calls)


def exchanging(**options: float) -> tuple[Connection, Wire, Callback]:
    connection, wire = connected()
    connection.on_readable = callback = Callback(connection)
    connection.send(b"", timeouts=Timeouts(**options))
    return connection, wire, callback


# ---- a connection ----------------------------------------------------------------------------


async def test_reader_is_called_for_headers_each_piece_and_the_end() -> None:
    connection, _, callback = exchanging()
    for piece in (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 5\r\n\r\n", b"he", b"llo"):
        connection.data_received(piece)
    assert callback.calls == [(200, b"", False), (200, b"he", False), (200, b"llo", True)]
    assert not connection.parts
    assert connection.release(15)
    assert connection.on_readable is None
    connection.data_received(b"unasked")
    assert len(callback.calls) == 3


async def test_reader_is_called_for_an_end_that_came_with_the_headers() -> None:
    connection, _, callback = exchanging()
    connection.data_received(plain(b""))
    assert callback.calls == [(200, b"", True)]
    assert connection.error is None
    connection.abort()


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 2", PART])
async def test_reader_is_called_once_for_a_cut(came) -> None:
    connection, _, callback = exchanging()
    if came:
        connection.data_received(came)
    connection.eof_received()
    connection.connection_lost(None)
    assert callback.calls[-1] == (200 if came == PART else 0, b"", True)
    assert [over for _, _, over in callback.calls].count(True) == 1
    assert connection.error.before_first_byte is (came == b"")


async def test_reader_is_called_on_a_timeout() -> None:
    connection, _, callback = exchanging(first_byte=0.02)
    await callback.over()
    assert isinstance(connection.error, NetTimeoutError)


# ---- paused ----------------------------------------------------------------------------------


async def test_paused_connection_reads_nothing_until_resumed() -> None:
    connection, wire, callback = exchanging()
    connection.data_received(PART)
    connection.pause()
    connection.pause()
    assert not wire.reading
    connection.data_received(b"l")  # was on its way already
    assert not wire.reading
    connection.resume()
    assert wire.reading
    connection.data_received(b"lo")
    assert await callback.over() == b"hello"
    connection.abort()


async def test_resume_loses_nothing_that_was_not_read() -> None:
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


async def test_long_piece_does_not_end_the_pause() -> None:
    connection, wire, _ = exchanging()
    connection.pause()
    connection.data_received(plain(b"x" * 300_000)[:-1])
    assert not wire.reading
    connection.resume()
    assert wire.reading
    connection.abort()


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\n", PART])
async def test_pause_does_not_count_as_silence_of_the_peer(came) -> None:
    connection, wire, callback = exchanging(first_byte=0.05, idle=0.05)
    if came:
        connection.data_received(came)
    connection.pause()
    await asyncio.sleep(0.15)
    assert not wire.aborted
    began = asyncio.get_running_loop().time()
    connection.resume()
    await callback.over()
    assert asyncio.get_running_loop().time() - began > 0.04
    assert isinstance(connection.error, NetTimeoutError)
    assert wire.aborted


async def test_paused_connection_that_is_lost_is_not_resumed() -> None:
    connection, wire, callback = exchanging()
    connection.data_received(PART)
    connection.pause()
    connection.connection_lost(ConnectionResetError())
    connection.resume()
    connection.pause()
    assert not wire.reading
    assert callback.calls[-1] == (200, b"", True)
    assert connection._timer is None


async def test_next_exchange_is_not_paused() -> None:
    connection, wire, _ = exchanging()
    connection.data_received(PART)
    connection.pause()
    connection.data_received(b"llo")
    assert connection.release(15)
    assert wire.reading
    connection.send(b"", timeouts=Timeouts(first_byte=0.02))
    with pytest.raises(NetTimeoutError):
        await connection.read_head()


# ---- an exchange -----------------------------------------------------------------------------


def asking(client: Client, peer: Peer) -> tuple[Exchange, Callback]:
    return client.stream("POST", peer.url, body=b"question"), Callback()


async def connect(exchange: Exchange, callback: Callback) -> None:
    await exchange.connect(callback, fresh=False)
    callback.connection = exchange.connection


@pytest.mark.usefixtures("clean")
async def test_exchange_begins_at_once_on_an_idle_connection() -> None:
    async with (
        Peer(answering(plain(b"one"), plain(b"two"), close=False)) as peer,
        Client() as client,
    ):
        exchange, callback = asking(client, peer)
        assert not exchange.idle
        await connect(exchange, callback)
        assert await callback.over() == b"one"
        exchange.close()

        exchange, callback = asking(client, peer)
        exchange.send(exchange.idle.pop(), callback)
        callback.connection = exchange.connection
        assert await callback.over() == b"two"
        exchange.close()
        assert peer.accepted == 1


@pytest.mark.usefixtures("clean")
async def test_begun_exchange_can_be_adopted_and_awaited() -> None:
    async with Peer(answering(plain(b"hello"))) as peer, Client() as client:
        exchange, _ = asking(client, peer)
        come = asyncio.Event()
        await exchange.connect(come.set, fresh=False)
        await come.wait()
        response = exchange.adopt()
        assert exchange.connection.on_readable is None
        assert (response.status, await response.read()) == (200, b"hello")
        exchange.close()


@pytest.mark.usefixtures("clean")
async def test_refused_connection_raises_and_close_does_nothing() -> None:
    async with Peer(answering()) as peer:
        pass
    async with Client(connect_retries=0) as client:
        exchange, callback = asking(client, peer)
        with pytest.raises(ConnectError):
            await exchange.connect(callback, fresh=False)
        exchange.close()


@pytest.mark.usefixtures("clean")
async def test_second_close_does_not_affect_the_next_exchange() -> None:
    gate = asyncio.Event()

    async def serve(line: Line) -> None:
        await line.request()
        await line.write(plain(b"one"))
        await line.request()
        await gate.wait()
        await line.write(plain(b"two"))

    async with Peer(serve) as peer, Client() as client:
        first, callback = asking(client, peer)
        await connect(first, callback)
        await callback.over()
        first.close()
        second, then = asking(client, peer)
        second.send(second.idle.pop(), then)
        then.connection = second.connection
        first.close()
        gate.set()
        assert await then.over() == b"two"
        second.close()


@pytest.mark.usefixtures("clean")
async def test_closed_exchange_is_not_called_when_the_client_closes() -> None:
    async def silent(line: Line) -> None:
        await line.request()
        await line.wait_closed_by_client()

    async with Peer(silent) as peer:
        client = Client()
        exchange, callback = asking(client, peer)
        await connect(exchange, callback)
        await peer.asked.wait()
        closing = asyncio.ensure_future(client.aclose())
        await asyncio.sleep(0)
        exchange.close()
        await closing
        await asyncio.sleep(0.01)
        assert callback.calls == []


@pytest.mark.usefixtures("clean")
async def test_connection_made_after_the_client_closed_is_not_pooled() -> None:
    async with Peer(answering(plain(b"hello"), close=False)) as peer:
        client = Client()
        exchange, callback = asking(client, peer)
        await client.aclose()
        await connect(exchange, callback)
        assert await callback.over() == b"hello"
        exchange.close()
        assert exchange.connection.closed


class Body(bytearray):
    """One that can be referred to weakly."""


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "answer",
    [b"", b"NOPE\r\n\r\n", PART, plain(b"", "X: " + "y" * 70_000)],
    ids=["none", "no HTTP", "cut", "long headers"],
)
async def test_request_that_failed_is_freed_without_a_collection(answer) -> None:
    async def ask() -> weakref.ref[Body]:
        body = Body(b"x")
        with pytest.raises(NetError):
            async with client.stream("POST", peer.url, (), body) as response:
                await response.read()
        return weakref.ref(body)

    async with Peer(answering(answer)) as peer, Client() as client:
        gc.disable()
        try:
            freed = await ask()
            assert freed() is None
        finally:
            gc.enable()
