"""WebSocket upstreams that send many small frames, or read nothing."""

import asyncio
import gc
import ssl
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection, serve
from websockets.client import ClientProtocol
from websockets.frames import Frame

from dragoman.core.error import Fault
from dragoman.engines import remote_session
from dragoman.net import websocket
from dragoman.net.errors import RemoteProtocolError


@pytest.mark.parametrize("frames", [b"\x8a\x00" * 20_000, b"\x89\x00" * 20_000])
async def test_r1_small_frames_of_an_upstream_are_parsed_a_little_at_a_time(
    frames, monkeypatch
) -> None:
    parsed: list[int] = []
    answered: list[int] = []
    feed, receive = ClientConnection.data_received, ClientProtocol.recv_frame

    def counted(self: ClientConnection, data: bytes) -> None:
        parsed.append(len(data))
        answered.append(0)
        feed(self, data)

    def received(self: ClientProtocol, frame: Frame) -> None:
        answered[-1] += 1
        receive(self, frame)

    async def flood(socket: ServerConnection) -> None:
        await socket.send("first")
        socket.transport.write(frames)
        for text in ("x" * 100_000, *map(str, range(50))):
            await socket.send(text)
        await socket.wait_closed()

    monkeypatch.setattr(ClientConnection, "data_received", counted)
    monkeypatch.setattr(ClientProtocol, "recv_frame", received)
    async with serve(flood, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await websocket.open_websocket(
            f"ws://127.0.0.1:{port}", {}, within=10, max_size=1_000_000
        )
        assert await socket.receive() == b"first"
        assert await socket.receive() == b"x" * 100_000
        assert [int(await socket.receive()) for _ in range(50)] == [*range(50)]
        await socket.close()
    assert max(parsed) <= websocket.STEP
    assert max(answered) <= websocket.READS // 2 + 1
    assert sum(parsed) > len(frames) + 100_000


async def test_r1_frames_that_wait_are_dropped_when_the_connection_is_closed(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "STEP", 10)

    async def flood(socket: ServerConnection) -> None:
        await socket.send("first")
        socket.transport.write(b"\x81\x01x" * 20_000)
        await socket.wait_closed()

    async with serve(flood, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await websocket.open_websocket(
            f"ws://127.0.0.1:{port}", {}, within=10, max_size=1_000_000
        )
        assert await socket.receive() == b"first"
        assert await socket.receive() == b"x"
        socket.transport.abort()
        with pytest.raises(websocket.CLOSED):
            while True:
                await socket.receive()


async def test_messages_that_come_with_the_end_are_received(monkeypatch, tmp_path) -> None:
    # Over TLS the end may be in the same read.
    authority, frames = trustme.CA(), b"\x81\x02ok" * 20_000 + b"\x89\x00" * 9 + b"\x88\x02\x03\xea"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: problems.append(about))

    async def leave(socket: ServerConnection) -> None:
        socket.transport.write(frames)
        socket.transport.close()

    async with serve(leave, "127.0.0.1", 0, compression=None, ssl=context) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await websocket.open_websocket(
            f"wss://127.0.0.1:{port}", {}, within=10, max_size=1_000_000
        )
        for _ in range(20_000):
            assert await socket.receive() == b"ok"
        with pytest.raises(websocket.CLOSED) as caught:
            await socket.receive()
        await socket.close()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1002
    assert not problems


@pytest.mark.parametrize("fragment", [b"\x00\x00", b"\x00\x01x"], ids=["empty", "one byte"])
async def test_r10_fragments_of_a_message_take_no_more_than_they_weigh(fragment) -> None:
    kept: list[int] = []

    async def fragments(socket: ServerConnection) -> None:
        socket.transport.write(b"\x01\x01x" + fragment * 10_000)
        await (await socket.ping())  # all of them were received
        kept.append(sum(type(each) is Frame for each in gc.get_objects()))
        socket.transport.write(b"\x80\x01x")
        await socket.wait_closed()

    async with serve(fragments, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await websocket.open_websocket(
            f"ws://127.0.0.1:{port}", {}, within=10, max_size=1_000_000
        )
        assert await socket.receive() == b"x" + fragment[2:] * 10_000 + b"x"
        await socket.close()
    assert kept[0] < 2_000


async def unread(handler: Any, handled: Any) -> None:
    """Connect to a server that reads nothing at first, with little room in between."""
    async with serve(handler, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        listening = next(iter(server.sockets))
        listening.setsockopt(SOL_SOCKET, SO_RCVBUF, 65_536)
        port = listening.getsockname()[1]
        connected: Any = await websocket.open_websocket(
            f"ws://127.0.0.1:{port}", {}, within=10, max_size=1_000_000
        )
        connected.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, 65_536)
        await handled(connected)
        await connected.close()


async def test_a_server_that_reads_nothing_before_it_is_read_is_read() -> None:
    full = asyncio.Event()

    async def stubborn(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await full.wait()
        for number in range(100):
            await socket.send(str(number) * websocket.STEP)
        socket.transport.resume_reading()
        async for _ in socket:
            pass

    async def handled(socket: Any) -> None:
        async def talk() -> None:
            while True:
                await socket.send_text(b"x" * 50_000)

        talking = asyncio.create_task(talk())
        while not socket.paused:
            await asyncio.sleep(0.01)
        full.set()
        async with asyncio.timeout(30):
            for number in range(100):
                assert await socket.receive() == b"%d" % number * websocket.STEP
        talking.cancel()

    await unread(stubborn, handled)


async def test_of_many_pings_of_a_server_that_reads_nothing_the_latest_is_answered() -> None:
    """Each answer that waits takes memory."""
    stuck = asyncio.Event()

    async def flood(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        answered = await socket.ping(b"last" * 20)
        socket.transport.write((b"\x89\x7d" + bytes(125)) * 30_000)
        latest = await socket.ping(b"latest")
        await socket.send("behind them")
        await stuck.wait()
        socket.transport.resume_reading()
        await asyncio.gather(answered, latest)
        await socket.send("all")
        await socket.wait_closed()

    async def handled(socket: Any) -> None:
        assert await socket.receive() == b"behind them"
        assert socket.transport.get_write_buffer_size() < 200_000
        stuck.set()
        async with asyncio.timeout(30):
            assert await socket.receive() == b"all"

    await unread(flood, handled)


async def test_a_server_that_reads_nothing_is_left_in_time(monkeypatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT", 0.1)
    over = asyncio.Event()

    async def read_nothing(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await over.wait()
        socket.transport.abort()

    async def left(socket: Any) -> None:
        sending = asyncio.create_task(socket.send_text(bytes(32_000_000)))
        while not socket.paused:
            await asyncio.sleep(0.01)
        sending.cancel()
        try:
            async with asyncio.timeout(5):
                await asyncio.gather(sending, return_exceptions=True)
                await socket.close()
                await socket.wait_closed()
        finally:
            over.set()

    await unread(read_nothing, left)


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-server\r\n", b"HTTP/1.1 101 X\r\n" + b"a: b\r\n" * 1000, b"x" * 100_000],
    ids=["another protocol", "many headers", "a long line"],
)
async def test_a_server_that_answers_in_no_http_is_left_at_once(answer: bytes) -> None:
    over = asyncio.Event()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await over.wait()  # it does not close its side, as others do
        writer.close()

    async with await asyncio.start_server(answering, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(5):
            with pytest.raises(RemoteProtocolError, match="the handshake failed"):
                await websocket.open_websocket(url, {}, within=20, max_size=1000)
        over.set()


async def test_a_session_whose_server_takes_nothing_ends(monkeypatch) -> None:
    monkeypatch.setattr(remote_session, "STALL", 0.1)
    faults: list[Fault] = []
    sink: Any = SimpleNamespace(ended=faults.append)
    session = remote_session.RemoteSession("ws://localhost", "m", sink)
    session.send_raw(bytes(2 << 20))
    async with asyncio.timeout(5):
        await session.drain()
    assert faults == [remote_session.STUCK]
