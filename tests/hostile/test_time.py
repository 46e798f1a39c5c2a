"""Whoever is slow on purpose is let go, and whoever is merely slow is not.

A drip is a byte now and then: never silent, and never done. The times allowed are tenths of
seconds here; what is counted is whether the drip comes to an end at all.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed, Finished
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines.remote import Remote
from dragoman.net.connection import Timeouts
from dragoman.server.app import App
from dragoman.server.cancellation import InFlight
from dragoman.server.exchange import Exchange
from dragoman.server.host import Server
from dragoman.server.limits import Budget, Gate
from dragoman.server.responder import Service, Stream
from dragoman.server.settings import Settings
from dragoman.server.state.service import Plan
from dragoman.server.websocket import Connection
from dragoman.wire.registry import WIRES
from tests.mock import Reply, chunk, head, mock, stream
from tests.server.stubs import (
    OPENING,
    PATHS,
    Stub,
    asking,
    closing,
    hosted,
    post,
    served,
    word,
)

PACE = 0.03
"""Seconds between two bytes: much less than any silence that is allowed."""
QUICK = Settings(read_time=0.3, keep_alive=1, stall=0.3)
PATIENCE = 20.0
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"sec-websocket-version: 13\r\n"
)

DRIPS = {
    "2.17 head": (b"", GET + b"x: " + b"y" * 60_000, b"408"),
    "2.17 header names": (GET, b"x: y\r\n" * 10_000, b"408"),
    "2.18 body": (HEAD + b"content-length: 60000000\r\n\r\n", b" ", b"408"),
    "2.18 body in chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n", b"408"),
    "2.18 one chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\n2000000\r\n", b" ", b"408"),
    "2.18 chunk extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"x", b"408"),
    "2.18 body that nobody wants": (GET + b"content-length: 60000000\r\n\r\n", b" ", b"200"),
    "2.18 body of a refused request": (
        b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000000\r\n\r\n",
        b" ",
        b"404",
    ),
    "2.19 trailers": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ",
        b"y",
        b"408",
    ),
    "2.20 nothing": (b"", b"", b""),
    "2.21 blank lines": (b"", b"\r\n", b""),
    "5.t1 body of an upgrade": (UPGRADE + b"content-length: 60000000\r\n\r\n", b" ", b"400"),
    "5.t1 upgrade that is not understood": (UPGRADE + b"x: y\r\n" * 200 + b"\r\n", b"", b"400"),
    "5.t2 upgrade in a drip": (b"", UPGRADE + b"x: " + b"y" * 60_000, b"408"),
}


async def dripped(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: bytes, drops: bytes
) -> bytes:
    """Send a drip until the server has closed the connection; what it had to say."""
    writer.write(begin)
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(PATIENCE):
        for drop in cycle(drops or b"-"):
            if reading.done():
                break
            if drops:
                writer.write(bytes([drop]))
            await asyncio.wait((reading,), timeout=PACE)
    writer.close()
    try:
        return reading.result()
    except ConnectionError:  # we went on writing
        return b""


@pytest.mark.parametrize("name", DRIPS)
async def test_a_drip_comes_to_an_end(name) -> None:
    begin, drops, status = DRIPS[name]
    async with served(App(Stub(), QUICK), QUICK) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = await dripped(reader, writer, begin, drops)
    if answer:  # it may be torn out of our hands, as we go on writing
        assert status, answer
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert status != b"408" or b"\r\nconnection: close\r\n" in answer


async def test_a_slow_body_that_gets_on_is_waited_for() -> None:
    """2.18. Longer than `read_time` in all, at more than `min_rate`."""
    async with served(App(Stub(), QUICK), QUICK) as port:
        body = post(port, asking(messages=[{"role": "user", "content": "x" * 20_000}]))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(body), 1000):
            writer.write(body[at : at + 1000])
            await asyncio.sleep(PACE)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


# ---- answers that nobody reads ---------------------------------------------------------------

JSON = "content-type: application/json"
LARGE = "x" * 16_000_000  # more than the buffers of the system take


def unread(port: int, data: bytes) -> socket.socket:
    """A connection with a small window, on which something was asked."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(data)
    return client


async def torn(server: Server) -> None:
    """Wait until the server has let go of its one connection. Its client cannot see that: the
    system still has something for it to read."""
    async with asyncio.timeout(PATIENCE):
        while not server.server_state.connections:
            await asyncio.sleep(PACE)
        while server.server_state.connections:
            await asyncio.sleep(PACE)


UNREAD = {
    "whole": {},
    "whole, and the connection is to be closed": {"header": "connection: close"},
    "the last of a stream": {"stream": True, "header": "connection: close"},
    "whole, with others behind it": {"times": 3},
}


@pytest.mark.parametrize("name", UNREAD)
async def test_who_never_reads_an_answer_is_let_go(name) -> None:
    """2d.07."""
    fields = dict(UNREAD[name])
    headers = [JSON, fields.pop("header", "x: y")]
    times = fields.pop("times", 1)
    stub = Stub(*OPENING, word(LARGE), *closing(LARGE))
    async with hosted(App(stub, QUICK), QUICK) as (server, port):
        client = unread(port, post(port, asking(**fields), headers=headers) * times)
        await torn(server)
        client.close()


async def test_who_reads_a_byte_now_and_then_is_let_go_too() -> None:
    """2d.07."""
    settings = Settings(read_time=1, keep_alive=1, stall=0.3, min_rate=100_000)
    stub = Stub(*OPENING, word(LARGE), *closing(LARGE))
    async with hosted(App(stub, settings), settings) as (server, port):
        client = unread(port, post(port, asking()))
        ending = asyncio.create_task(torn(server))
        while not ending.done():
            await asyncio.to_thread(client.recv, 1)
            await asyncio.sleep(PACE)
        await ending
        client.close()


async def test_who_reads_slowly_gets_all() -> None:
    """For longer than `stall` and `keep_alive` together, at more than `min_rate`."""
    settings, stub = Settings(keep_alive=1, stall=1), Stub(*OPENING, word(LARGE), *closing(LARGE))
    async with served(App(stub, settings), settings) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 18)
        writer.write(post(port, asking(), headers=[JSON, "connection: close"]))
        size = 0
        while data := await reader.read(1 << 17):
            size += len(data)
            await asyncio.sleep(PACE)
        writer.close()
    assert size > len(LARGE)


class Unread(Exchange):
    """A client that has taken all but so much of what was written."""

    unread = 0
    dropped = False

    @property
    def full(self) -> bool:
        return self.unread > 0

    def listen(self, peer: Any) -> None:
        return

    def start(self, status: int, headers: Any, body: bytes | None = None) -> None:
        return

    def write(self, body: bytes, *, more: bool) -> bool:
        self.unread += len(body)
        return self.full

    def drop(self) -> None:
        self.dropped = True


@pytest.mark.parametrize(("taken", "kept"), [(0, False), (9_000, False), (11_000, True)])
async def test_a_stream_is_ended_by_what_its_client_takes_not_by_its_size(taken, kept) -> None:
    """2d.06. At 1000 bytes a second and 10 seconds; the first look comes with a batch."""
    settings = Settings(stall=10, min_rate=1000)
    gate = Gate(8, 8, 1.0)
    service = Service(Stub(), settings, InFlight(), gate, gate, Budget(1 << 28))
    exchange = Unread("POST", PATHS["chat"], b"", [])
    request = Request(model="m", stream=True)
    stream = Stream(service, exchange, ANYONE, Plan(request, request), WIRES["chat"])
    stream.start(handle=Stopped())
    stream.receive([*OPENING, word("x" * 100_000)])
    for _ in range(3):
        exchange.unread -= taken
        stream.tick(stream.due())
    assert exchange.dropped is not kept
    stream.leave()


class Stopped:
    """An engine that was told to stop, pause or go on."""

    def cancel(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


# ---- WebSocket -------------------------------------------------------------------------------


@asynccontextmanager
async def socket_to(stub: Stub, settings: Settings, **options: Any) -> AsyncIterator[Any]:
    """An open WebSocket, as its reader and writer."""
    async with served(App(stub, settings), settings) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
        writer.write(UPGRADE + b"\r\n")
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
        writer.close()


def frame(data: bytes, *, final: bool = True, kind: int = 1) -> bytes:
    """A frame as clients mask it, with zeros."""
    head = bytes([kind | 0x80 * final, 0xFF]) + len(data).to_bytes(8, "big")
    return head + bytes(4) + data


LENGTHY = 200_000
TURN = b'{"type":"response.create","model":"stub","input":"Hi"}'
FRAMES = {
    "5.t3 a frame in a drip": (b"", frame(b" " * 60_000)),
    "5.t3 a large frame in a drip": (frame(b" " * 60_000)[:20_000], b" " * 40_000),
    "5.t4 a message in small frames": (
        frame(b" ", final=False),
        frame(b" ", final=False, kind=0) * 60_000,
    ),
    "5.t5 half a frame and silence": (frame(b" " * 60_000)[:30_000], b""),
    "5.t5 half a frame after a turn": (frame(TURN) + frame(TURN)[:5], b""),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_a_message_that_does_not_come_to_an_end_closes_the_socket(name) -> None:
    begin, drops = FRAMES[name]
    settings = Settings(read_time=0.3, min_rate=100_000)
    async with socket_to(Stub(), settings) as (reader, writer):
        assert b"read_time" in await dripped(reader, writer, begin, drops)  # why it was closed


async def test_a_slow_message_and_a_silent_socket_are_waited_for() -> None:
    settings = Settings(read_time=0.3)
    async with socket_to(Stub(), settings) as (reader, writer):
        await asyncio.sleep(0.7)
        data = frame(TURN[:-1] + b" " * 20_000 + b"}")
        for at in range(0, len(data), 1000):
            writer.write(data[at : at + 1000])
            await asyncio.sleep(PACE)
        assert await reader.readuntil(b"response.completed")


async def test_who_never_reads_frames_is_let_go() -> None:
    stub = Stub(*OPENING, word(LARGE), *closing(LARGE))
    async with hosted(App(stub, QUICK), QUICK) as (server, port):
        client = unread(port, UPGRADE + b"\r\n")
        assert b" 101 " in await asyncio.to_thread(client.recv, 1000)
        client.sendall(frame(TURN))
        await torn(server)
        client.close()


async def test_who_never_reads_answers_to_pings_is_let_go_amid_a_message() -> None:
    """What came of the message is held as long."""
    pings = (b"\x89\xfd" + bytes(4 + 125)) * 100_000
    async with served(App(Stub(), QUICK), QUICK) as port:
        client = unread(port, UPGRADE + b"\r\n")
        client.settimeout(PATIENCE)
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(client.sendall, frame(b" ", final=False) + pings)
        client.close()


async def test_what_comes_behind_the_end_of_a_connection_is_held_as_long_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may go on sending when we have closed, and leave then."""
    monkeypatch.setattr(Connection.serve, "__defaults__", (0.05,))
    app = App(Stub(), Settings())
    async with served(app) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(UPGRADE + b"\r\n")
        await reader.readuntil(b"websocket_connection_limit_reached")
        while app.budget.held < LENGTHY:
            writer.write(frame(b" " * LENGTHY, final=False))
            await asyncio.sleep(PACE)
        writer.close()
        while app.budget.held:
            await asyncio.sleep(PACE)


# ---- the model's server ----------------------------------------------------------------------

REQUEST = Request(model="m", items=(Message("user", "Hi"),))


async def ending(remote: Remote, request: Request) -> Event:
    """How an answer ends."""
    events = [event async for event in remote.stream(request)]
    await remote.close()
    return events[-1]


async def test_a_whole_answer_in_a_drip_is_given_up() -> None:
    """5.t6. Its head is quick, and a byte of its body comes now and then."""
    pieces = [head(type="application/json"), *[b" "] * 2000]
    async with mock(Reply(pieces, pause=PACE)) as server:
        timeouts = Timeouts(total=0.3)
        remote = Remote(server.base_url, wire="chat", profile="generic", timeouts=timeouts)
        async with asyncio.timeout(PATIENCE):
            end = await ending(remote, REQUEST)
    assert isinstance(end, Failed)
    assert end.fault.code == "upstream_timeout"


async def test_a_head_in_a_drip_is_given_up() -> None:
    pieces = [bytes([byte]) for byte in head(200, "x: " + "y" * 2000)]
    async with mock(Reply(pieces, pause=PACE)) as server:
        timeouts = Timeouts(first_byte=0.3)
        remote = Remote(server.base_url, wire="chat", profile="generic", timeouts=timeouts)
        async with asyncio.timeout(PATIENCE):
            end = await ending(remote, REQUEST)
    assert isinstance(end, Failed)
    assert end.fault.code == "upstream_timeout"


async def test_a_stream_may_last() -> None:
    words = [chunk({"content": "a"}) for _ in range(20)]
    reply = stream(*words, chunk(finish="stop"), pause=PACE)
    async with mock(reply) as server:
        timeouts = Timeouts(total=0.3)
        remote = Remote(server.base_url, wire="chat", profile="generic", timeouts=timeouts)
        end = await ending(remote, Request(model="m", items=REQUEST.items, stream=True))
    assert isinstance(end, Finished)


async def test_vectors_in_a_drip_are_given_up() -> None:
    pieces = [head(type="application/json"), *[b" "] * 2000]
    async with mock(Reply(pieces, pause=PACE)) as server:
        timeouts = Timeouts(total=0.3)
        remote = Remote(server.base_url, wire="chat", profile="generic", timeouts=timeouts)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(FaultError):
                await remote.embed({"model": "m", "input": "Hi"})
        await remote.close()
