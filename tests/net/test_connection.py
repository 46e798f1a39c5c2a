"""Framing, deadlines and back-pressure of one connection, over a transport that records."""

import asyncio
import time
from itertools import pairwise

import pytest

from dragoman.net.connection import PIECE, Connection, Limits, Timeouts
from dragoman.net.errors import (
    DisconnectedError,
    NetTimeoutError,
    RemoteProtocolError,
    TooLargeError,
)
from tests.net.peer import chunked, plain


class Wire(asyncio.Transport):
    """A transport with nothing behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.aborted = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connected(limits: Limits | None = None) -> tuple[Connection, Wire]:
    connection, wire = Connection("peer:80", limits or Limits()), Wire()
    connection.connection_made(wire)
    return connection, wire


def asked(**times: float) -> tuple[Connection, Wire]:
    """A connection with its request written."""
    connection, wire = connected()
    connection.send(b"", timeouts=Timeouts(**times))
    return connection, wire


async def whole(connection: Connection) -> bytes:
    await connection.read_head()
    body = b""
    while data := await connection.read():
        body += data
    return body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWERS = {
    "length": (plain(b"hello", "X: y"), b"hello"),
    "empty": (plain(b""), b""),
    "chunked": (chunked(b"hel", b"lo"), b"hello"),
    "extensions and trailers": (
        CHUNKED + b'5;a=b;c="d"\r\nhello\r\n0;last\r\nT: 1\r\nU: 2\r\n\r\n',
        b"hello",
    ),
    "informational": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + plain(b"hello"),
        b"hello",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
    "empty header": (b"HTTP/1.1 200 OK\r\nA:\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "1.0 with keep-alive": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_the_same_in_any_two_pieces_and_byte_by_byte(name) -> None:
    answer, body = ANSWERS[name]
    halves = [(answer[:cut], answer[cut:]) for cut in range(len(answer) + 1)]
    for pieces in (*halves, [bytes([byte]) for byte in answer]):
        connection, wire = connected()
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        for piece in filter(None, pieces):
            connection.data_received(piece)
        assert await whole(connection) == body, pieces
        assert connection.release(15)
        assert connection.usable
        assert not wire.aborted
        connection.abort()


@pytest.mark.parametrize("name", ANSWERS)
async def test_answer_cut_anywhere_is_an_error_that_names_the_phase(name) -> None:
    answer, body = ANSWERS[name]
    for cut in range(len(answer)):
        connection, _ = connected()
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        if cut:
            connection.data_received(answer[:cut])
        connection.connection_lost(None)
        with pytest.raises(DisconnectedError) as caught:
            await whole(connection)
        assert caught.value.before_first_byte is (cut == 0)
        assert caught.value.reused is False
        assert "peer:80 closed the connection" in str(caught.value)
    assert body is not None


async def test_data_before_a_cut_is_returned_first() -> None:
    connection, _ = asked()
    connection.data_received(plain(b"hello")[:-2])
    connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    await connection.read_head()
    assert await connection.read() == b"hel"
    with pytest.raises(DisconnectedError, match=r"in the middle .*Connection reset by peer"):
        await connection.read()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: other\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    ],
)
@pytest.mark.parametrize("end", ["eof", "lost"])
async def test_a_body_without_framing_ends_with_the_connection(head, end) -> None:
    connection, _ = asked()
    connection.data_received(head + b"hel")
    reading = asyncio.ensure_future(whole(connection))
    await asyncio.sleep(0)
    connection.data_received(b"lo")
    connection.eof_received() if end == "eof" else connection.connection_lost(None)
    assert await reading == b"hello"
    assert not connection.release(15)
    assert connection.closed


async def test_a_body_without_framing_is_cut_by_a_reset() -> None:
    connection, _ = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nhello")
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(DisconnectedError):
        await whole(connection)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"hello", "Connection: close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        plain(b"hello") + b"more",
        plain(b"hello") + plain(b"a second answer"),
        plain(b"hello") + b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nz",
        plain(b"hello", "Connection: close") + b"more",
    ],
)
async def test_a_connection_that_must_not_be_used_again_is_closed(answer) -> None:
    connection, wire = asked()
    connection.data_received(answer)
    assert await whole(connection) == b"hello"
    assert not connection.release(15)
    assert wire.aborted


async def test_bytes_after_an_answer_spoil_the_connection_before_its_release() -> None:
    connection, wire = asked()
    connection.data_received(plain(b"hello"))
    connection.data_received(b"more")
    assert not connection.release(15)
    assert wire.aborted


@pytest.mark.parametrize("rest", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nx: "])
async def test_so_do_those_that_come_with_it_and_begin_another(rest) -> None:
    connection, wire = asked()
    connection.data_received(plain(b"hello") + rest)
    assert await whole(connection) == b"hello"
    assert not connection.release(15)
    assert wire.aborted


async def test_bytes_while_idle_close_the_connection() -> None:
    connection, wire = asked()
    connection.data_received(plain(b"hello"))
    assert connection.release(15)
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert wire.aborted
    assert not connection.usable


async def test_an_answer_before_the_request_is_written_spoils_the_connection() -> None:
    connection, wire = asked()
    wire.unsent = 100
    connection.data_received(plain(b"too much", status="413 Content Too Large"))
    assert await whole(connection) == b"too much"
    assert not connection.release(15)


async def test_a_large_request_is_written_in_pieces_at_the_pace_of_its_reader(monkeypatch) -> None:
    connection, wire = connected()
    body = bytes(range(256)) * (10 * PIECE // 256)
    written: list[int] = []
    write = wire.write

    def counted(data: bytes) -> None:
        write(data)
        written.append(len(data))
        if len(wire.written) > 4 * PIECE:
            connection.pause_writing()

    monkeypatch.setattr(wire, "write", counted)
    connection.send(b"head", body)
    assert written == [4, PIECE]  # others have their turn
    await asyncio.sleep(0.05)
    assert len(wire.written) == 4 + 4 * PIECE
    for _ in range(6):
        connection.resume_writing()
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(0)
    assert wire.written == b"head" + body
    assert max(written) == PIECE
    connection.resume_writing()  # there is no more
    await asyncio.sleep(0)
    assert len(written) == 11


async def test_a_large_request_is_not_held_once_it_is_written() -> None:
    connection, _ = connected()
    body = bytearray(2 * PIECE)
    connection.send(b"head", body)
    await asyncio.sleep(0)
    connection.data_received(plain(b"hello"))
    assert await whole(connection) == b"hello"
    assert connection.release(15)
    body.clear()  # BufferError where something views it


async def test_a_large_request_is_written_no_further_once_its_connection_is_closed() -> None:
    connection, wire = connected()
    connection.send(b"head", bytes(10 * PIECE))
    connection.abort()
    await asyncio.sleep(0)
    assert len(wire.written) == 4 + PIECE


async def test_an_answer_before_a_large_request_is_written_spoils_the_connection() -> None:
    connection, wire = connected()
    connection.send(b"head", bytes(10 * PIECE))
    connection.data_received(plain(b"no"))
    assert await whole(connection) == b"no"
    assert not connection.release(1)
    assert wire.aborted


async def test_an_answer_that_is_not_read_to_its_end_closes_the_connection() -> None:
    connection, wire = asked()
    connection.data_received(plain(b"hello")[:-1])
    assert not connection.release(15)
    assert wire.aborted


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"<html>hello</html>",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2xx OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header: 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nzz",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nzz",
    ],
)
async def test_bytes_that_are_no_http_answer_are_a_protocol_error(answer) -> None:
    connection, wire = asked()
    connection.data_received(answer)
    with pytest.raises(RemoteProtocolError, match="peer:80"):
        await whole(connection)
    assert wire.aborted
    assert connection.closed


@pytest.mark.parametrize("bad", [b"zz\r\nhello\r\n", b"3\r\nhello\r\n", b"-1\r\n"])
async def test_a_bad_chunk_is_a_protocol_error_after_what_came_before(bad) -> None:
    connection, _ = asked()
    connection.data_received(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n" + bad
    )
    await connection.read_head()
    assert connection.status == 200
    assert (await connection.read()).startswith(b"ab")
    with pytest.raises(RemoteProtocolError):
        await connection.read()


LONG = b"x" * 300


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nA: " + LONG + b"\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nA: " + LONG],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: " + LONG + b"\r\n\r\nhi"],
        [b"HTTP/1.1 200 " + LONG],
        [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20 + b"\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 20,
        [CHUNKED, b"2;" + LONG],
        [CHUNKED + b"0\r\n", *[b"A: b\r\n"] * 60],
    ],
)
async def test_all_that_is_not_body_is_bounded(pieces) -> None:
    connection, wire = connected(Limits(header_bytes=256, header_count=10))
    connection.send(b"")
    for piece in pieces:
        connection.data_received(piece)
    with pytest.raises(TooLargeError, match="256 bytes or 10 fields"):
        await whole(connection)
    assert wire.aborted


async def test_a_large_body_of_small_chunks_is_not_taken_for_headers() -> None:
    connection, _ = connected(Limits(header_bytes=256))
    connection.send(b"")
    for byte in chunked(*[b"x"] * 200):
        connection.data_received(bytes([byte]))
    assert await whole(connection) == b"x" * 200
    connection.abort()


async def test_all_that_arrived_is_one_piece() -> None:
    connection, _ = asked()
    connection.data_received(chunked(b"a", b"b")[:-5] + b"1\r\nc\r\n")
    connection.data_received(b"1\r\nd\r\n")
    assert await connection.read() == b"abcd"
    reading = asyncio.ensure_future(connection.read())
    await asyncio.sleep(0)
    connection.data_received(b"1\r\ne\r\n1\r\nf\r\n")
    assert await reading == b"ef"
    connection.abort()


async def test_a_slow_reader_stops_the_peer() -> None:
    connection, wire = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n")
    sent = 0
    while wire.reading:
        connection.data_received(b"x" * 65536)
        sent += 65536
    assert sent <= 512 * 1024
    assert len(await connection.read()) == sent
    assert wire.reading
    connection.abort()


async def test_after_a_large_read_others_have_their_turn() -> None:
    connection, wire = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.data_received(b"x" * 64 * 1024)
    assert wire.reading
    connection.data_received(b"x" * 100_000)
    assert not wire.reading  # uvloop would call it up to 32 times
    await asyncio.sleep(0)
    assert wire.reading
    connection.data_received(b"x" * 100_000)
    connection.pause()
    await asyncio.sleep(0)
    assert not wire.reading
    connection.resume()
    assert wire.reading


DENSE = b"1\r\nx\r\n" * 5000
"""Chunks of one byte, as they may come with one read."""


async def test_many_small_chunks_are_parsed_a_little_in_each_turn() -> None:
    connection, wire = asked()
    connection.data_received(CHUNKED)
    connection.data_received(DENSE)
    seen = list[int]()
    while not wire.reading:
        seen.append(len(connection.parts))
        await asyncio.sleep(0)
    assert seen[0] == 0
    assert max(b - a for a, b in pairwise(seen)) < 1000
    connection.data_received(b"0\r\n\r\n")
    assert await whole(connection) == b"x" * 5000
    assert connection.release(9)


async def test_many_small_chunks_wait_while_the_reader_is_paused() -> None:
    connection, wire = asked()
    connection.data_received(CHUNKED)
    connection.data_received(DENSE + b"0\r\n\r\n")
    await asyncio.sleep(0)
    for _ in range(3):
        connection.pause()
        before = len(connection.parts)
        await asyncio.sleep(0)
        assert len(connection.parts) == before
        assert not wire.reading
        connection.resume()
        connection.resume()
        await asyncio.sleep(0)
        assert 0 < len(connection.parts) - before < 1000
    assert await whole(connection) == b"x" * 5000


@pytest.mark.parametrize("broken", [None, ConnectionResetError()])
async def test_an_end_that_comes_with_many_small_chunks_waits_for_them(broken) -> None:
    # As over TLS, whose end is in the same read.
    connection, wire = asked()
    connection.data_received(CHUNKED)
    connection.data_received(DENSE + b"0\r\n\r\n")
    if broken is None:
        connection.eof_received()
    connection.connection_lost(broken)
    seen = list[int]()
    while not connection.closed:
        seen.append(len(connection.parts))
        await asyncio.sleep(0)
    assert max(b - a for a, b in pairwise(seen)) < 1000
    assert await whole(connection) == b"x" * 5000
    assert wire.aborted
    assert not connection.release(9)


@pytest.mark.parametrize("broken", [None, ConnectionResetError()])
async def test_a_body_of_many_lines_that_ends_with_the_connection_is_whole_or_broken(
    broken,
) -> None:
    connection, _ = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.data_received(b"x\r\n" * 3000)
    connection.connection_lost(broken)
    if broken is None:
        assert await whole(connection) == b"x\r\n" * 3000
    else:
        with pytest.raises(DisconnectedError):
            await whole(connection)


async def test_a_connection_that_is_over_is_not_used_again() -> None:
    connection, _ = asked()
    connection.data_received(CHUNKED)
    connection.on_readable = lambda: connection.over and connection.release(9)
    connection.data_received(DENSE + b"0\r\n\r\n")
    connection.eof_received()
    while not connection.over:
        await asyncio.sleep(0)
    assert not connection.usable


async def test_a_second_answer_behind_many_small_chunks_is_not_that_of_the_next_request() -> None:
    connection, wire = asked()
    connection.data_received(CHUNKED)
    connection.on_readable = lambda: connection.over and connection.release(9)
    connection.data_received(DENSE + b"0\r\n\r\n" + plain(b"x" * 9000))
    while not connection.over:
        await asyncio.sleep(0)
    assert not connection.usable
    assert wire.aborted


async def test_the_framing_of_many_small_chunks_is_bounded() -> None:
    connection, wire = connected(Limits(body_bytes=9000))
    connection.send(b"")
    connection.data_received(CHUNKED)
    connection.data_received(DENSE)
    while not (connection.over or wire.reading):
        await asyncio.sleep(0)
    with pytest.raises(TooLargeError):
        await whole(connection)


async def test_a_paused_connection_reads_again_when_it_is_released() -> None:
    connection, wire = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 300001\r\n\r\n" + b"x" * 300000)
    assert not wire.reading
    connection.data_received(b"x")  # was on its way already
    assert connection.release(15)
    assert wire.reading
    connection.abort()


async def test_an_answer_that_was_whole_while_paused_is_not_waited_for() -> None:
    connection, wire = asked(first_byte=0.02, idle=0.02)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 300001\r\n\r\n" + b"x" * 300000)
    connection.data_received(b"x")
    assert len(await connection.read()) == 300001
    await asyncio.sleep(0.06)
    assert connection.release(15)
    assert not wire.aborted
    connection.abort()


async def test_a_connection_lost_while_paused_reads_no_more_and_gives_what_came() -> None:
    connection, wire = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 300001\r\n\r\n" + b"x" * 300000)
    connection.connection_lost(ConnectionResetError())
    assert len(await connection.read()) == 300000
    assert not wire.reading
    with pytest.raises(DisconnectedError):
        await connection.read()


async def test_no_headers_in_time() -> None:
    connection, wire = asked(first_byte=0.02)
    connection.data_received(b"HTTP/1.1 200 OK\r\n")  # a start is not enough
    with pytest.raises(NetTimeoutError, match=r"no response headers in 0\.02 s") as caught:
        await connection.read_head()
    assert caught.value.phase == "first_byte"
    assert wire.aborted


async def test_an_upload_that_gets_on_is_no_silence(monkeypatch) -> None:
    connection, wire = connected()
    left = [90, 60, 30, 30]
    monkeypatch.setattr(wire, "get_write_buffer_size", lambda: left.pop(0))
    connection.send(b"", timeouts=Timeouts(first_byte=0.02))
    with pytest.raises(NetTimeoutError):
        await connection.read_head()
    assert left == []  # asked at each end of the time, until it stood still


async def test_silence_in_the_body() -> None:
    connection, wire = asked(first_byte=10, idle=0.03)
    connection.data_received(plain(b"hello")[:-3])
    assert await connection.read() == b"he"
    with pytest.raises(NetTimeoutError, match=r"fell silent for 0\.03 s") as caught:
        await connection.read()
    assert caught.value.phase == "idle"
    assert wire.aborted


async def test_a_trickle_is_no_silence() -> None:
    connection, _ = asked(idle=0.8)
    connection.data_received(plain(b"x" * 11)[:-11])
    longest = 0.0
    for _ in range(11):  # longer than the silence allowed, all in all
        began = time.monotonic()
        await asyncio.sleep(0.08)
        connection.data_received(b"x")
        longest = max(longest, time.monotonic() - began)
    if longest < 0.5:
        assert await whole(connection) == b"x" * 11
    connection.abort()
    if longest >= 0.5:  # the machine was silent itself: that was no trickle
        await test_a_trickle_is_no_silence()


async def test_a_trickle_has_an_end_where_the_body_has_a_total() -> None:
    """A byte now and then is never silent, and would go on for years."""
    connection, wire = asked(idle=100, total=0.05)
    connection.data_received(plain(b"x" * 10_000)[:-9_999])
    with pytest.raises(NetTimeoutError, match=r"did not complete its answer in 0\.05 s") as caught:
        while await connection.read():
            await asyncio.sleep(0.005)
            connection.data_received(b"x")
    assert caught.value.phase == "total"
    assert wire.aborted


async def test_a_head_has_a_total() -> None:
    connection, wire = asked(first_byte=0.05)
    reading = asyncio.create_task(connection.read_head())
    while not reading.done():
        connection.data_received(b"HTTP/1.1 200 OK\r\nx: " if connection._overhead == 0 else b"x")
        await asyncio.sleep(0.005)
    with pytest.raises(NetTimeoutError, match="no response headers"):
        await reading
    assert wire.aborted


async def test_an_upload_that_hardly_gets_on_is_given_up(monkeypatch) -> None:
    connection, wire = connected()
    left = [100_000, 99_999, 99_998]
    monkeypatch.setattr(wire, "get_write_buffer_size", lambda: left.pop(0))
    connection.send(b"", timeouts=Timeouts(first_byte=0.02))
    with pytest.raises(NetTimeoutError):
        await connection.read_head()
    assert left == [99_998]


async def test_slow_reader_is_no_silence_of_the_peer() -> None:
    connection, wire = asked(idle=0.02)
    connection.data_received(plain(b"hello")[:-3])
    await asyncio.sleep(0.1)
    assert not wire.aborted
    assert await connection.read() == b"he"
    with pytest.raises(NetTimeoutError):
        await connection.read()


async def test_an_idle_connection_expires() -> None:
    connection, wire = asked(first_byte=100, idle=100)
    connection.data_received(plain(b"hello"))
    assert connection.release(0.02)
    closed = asyncio.get_running_loop().create_future()
    connection.on_close = closed.set_result
    assert await closed is connection
    assert wire.aborted


async def test_close_callback_runs_once() -> None:
    connection, wire = connected()
    told: list[Connection] = []
    connection.on_close = told.append
    connection.abort()
    connection.abort()
    connection.connection_lost(None)
    assert told == [connection]
    assert wire.aborted


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_a9_a_body_shorter_than_its_content_length_was_cut(more) -> None:
    connection, _ = connected()
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    connection.data_received(b"HTTP/1.1 200 OK\r\n" + more + b"Content-Length: 9\r\n\r\nhello")
    connection.eof_received()
    await connection.read_head()
    assert await connection.read() == b"hello"
    with pytest.raises(DisconnectedError):
        await connection.read()
