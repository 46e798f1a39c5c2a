"""What a WebSocket's client sends, has waiting or remembered, or leaves unread is bounded."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.hostile.stage import gateway, watched
from tests.mock import Asked, Reply, chunk, completion, plain, stream
from tests.product import Product, configured

ROOM = "[server]\nmemory = 8_000_000\nbody_limit = 4_000_000\nstore = 'none'\n"
TEXT, PING = 1, 9


def reply(asked: Asked) -> Reply:
    if b'"long"' in asked.body[:100]:
        return stream(chunk({"content": "x" * 1_000_000}), chunk(finish="stop"))
    if b'"never"' in asked.body[:100]:
        return Reply([], hang=True)
    return plain(200, completion({"content": "ok"}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("sockets")
    with gateway(reply, *configured(folder, ROOM)) as (running, _):
        yield running


class Socket:
    """A client that says what it is told to, and reads when it is told to."""

    def __init__(self, server: Product, *, buffer: int | None = None) -> None:
        self.connection = socket.socket()
        if buffer is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.connection.settimeout(30)
        self.connection.connect(("127.0.0.1", server.port))
        self.connection.sendall(
            f"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
            f"sec-websocket-key: {b64encode(os.urandom(16)).decode()}\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.connection.recv(1)
        assert b" 101 " in head, head

    def ask(self, size: int = 0, **fields: Any) -> None:
        asked = {"type": "response.create", "model": "m", "input": "x" * size or "Hi", **fields}
        self.connection.sendall(frame(json.dumps(asked).encode()))

    def next(self) -> tuple[int, bytes]:
        """The kind and the content of the next frame."""
        first, second = self._exactly(2)
        size = second & 127
        if size == 126:
            (size,) = struct.unpack("!H", self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._exactly(8))
        return first & 15, self._exactly(size)

    def end(self) -> dict[str, Any]:
        """The event that ends a turn, or refuses it."""
        while True:
            kind, data = self.next()
            if kind == TEXT:
                event: dict[str, Any] = json.loads(data)
                if event["type"] in ("response.completed", "response.failed", "error"):
                    return event
            elif kind == 8:
                raise EOFError(data)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.connection.recv(min(size - len(data), 1 << 18))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


@contextmanager
def connected(server: Product, count: int = 1, **options: int) -> Iterator[list[Socket]]:
    sockets = [Socket(server, **options) for _ in range(count)]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.connection.close()


def frame(data: bytes, kind: int = TEXT, length: int | None = None) -> bytes:
    """A frame, masked with zeros; with a length, the beginning of a longer one."""
    size = len(data) if length is None else length
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
    return head + bytes(4) + data


def free(server: Product) -> None:
    """Return once what others held is given back: two turns find nearly all the room there is. They
    give it back too, for smaller ones: to close a connection is to wait for nothing."""
    for _ in range(100):
        with connected(server, 2) as several, suppress(EOFError, ConnectionError):
            ends = set()
            for size in (3_900_000, 200_000):
                for one in several:
                    one.ask(size, generate=False, store=False)
                    ends.add(one.end()["type"])
            if ends == {"response.completed"}:
                return
        time.sleep(0.1)
    raise AssertionError("nothing was given back")


def test_2e_01_pings_of_a_client_that_reads_nothing_are_not_taken(server: Product) -> None:
    with watched(server) as cost, connected(server, buffer=4096) as (one,):
        one.connection.settimeout(1)
        pings, sent = frame(bytes(125), PING) * 5_000, 0
        with pytest.raises(TimeoutError):
            while sent < 60_000_000:
                sent += one.connection.send(pings)
        # What the system holds, and a little.
        assert sent < 30_000_000
    assert cost.grown < 30
    assert cost.pause < 1


def test_2e_01_pings_are_answered_as_they_are_read(server: Product) -> None:
    with connected(server) as (one,):
        one.connection.sendall(b"".join([frame(b"%d" % n, PING) for n in range(5000)]))
        one.ask()
        pongs = [data for kind, data in (one.next() for _ in range(5000)) if kind == 10]
        assert pongs == [b"%d" % n for n in range(5000)]
        assert one.end()["type"] == "response.completed"


def test_2e_02_waiting_turns_are_bounded_by_bytes(server: Product) -> None:
    with connected(server, 2) as (one, other), watched(server) as cost:
        one.connection.settimeout(1)
        with pytest.raises(OSError):  # the third waits for room, and not for long
            for lane in range(12):
                one.ask(3_000_000, model="never", stream_id=f"lane{lane}")
        other.ask()
        assert other.end()["type"] == "response.completed"
    assert cost.grown < 80
    free(server)


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        (40, {"input": "x" * 60_000, "x": [[]] * 1_000}),
        (40, {"input": [{"role": "user", "content": "a"}] * 1_500}),
        (15, {"x": [[]] * 15_000}),
        (6, {"x": [[]] * 149_000}),
    ],
    ids=["bytes", "4.12 messages", "4.11 values", "4.11 many values"],
)
def test_2e_02_turns_that_wait_are_bounded_by_what_they_weigh(
    server: Product, count: int, fields: dict[str, Any]
) -> None:
    with connected(server) as (one,), watched(server) as cost:
        for number in range(count):
            one.ask(model="never", stream_id=f"lane{number % 3}", **fields)
        refused = one.end()
        assert refused["status"] in (429, 503, 413)
        assert (
            "(memory)" in refused["error"]["message"] or "(max_json" in refused["error"]["message"]
        )
    assert cost.grown < 60
    free(server)


def test_2e_03_what_a_connection_remembers_is_bounded_by_bytes(server: Product) -> None:
    with connected(server) as (one,), watched(server) as cost:
        ids = []
        for _ in range(12):
            one.ask(1_500_000, generate=False, store=False)
            end = one.end()
            assert end["type"] == "response.completed", end
            ids.append(end["response"]["id"])
        one.ask(previous_response_id=ids[0], store=False)
        assert one.end()["error"]["code"] == "previous_response_not_found"
        one.ask(previous_response_id=ids[-1], store=False)
        assert one.end()["type"] == "response.completed"
    assert cost.grown < 80
    free(server)


def test_2e_03_a_chain_on_a_connection_is_no_longer_than_a_body(server: Product) -> None:
    with connected(server) as (one,):
        one.ask(2_500_000, generate=False, store=False)
        before = one.end()["response"]["id"]
        one.ask(2_500_000, previous_response_id=before, store=False)
        refused = one.end()
        assert (refused["status"], refused["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("fragments", [False, True], ids=["a frame", "fragments"])
def test_2e_02_unfinished_messages_are_counted_while_they_come(
    server: Product, fragments: bool
) -> None:
    start = frame(b"", length=3_900_000)
    if fragments:
        start = bytes((start[0] & 0x7F,)) + start[1:]
    with connected(server, 9) as (*several, other), watched(server) as cost:
        for one in several:
            one.connection.settimeout(1)
            with suppress(TimeoutError):
                one.connection.sendall(start + b"x" * 3_700_000)
        other.ask()
        assert other.end()["type"] == "response.completed"
        ends = []
        for one in several:
            one.connection.settimeout(1)
            with suppress(TimeoutError, ConnectionError):
                kind, data = one.next()
                assert kind == 8
                ends.append(struct.unpack("!H", data[:2])[0])
        assert ends
        assert set(ends) == {1013}
    assert cost.grown < 60
    free(server)


def test_2e_10_readers_that_never_read_hold_no_more_than_there_is_room_for(
    server: Product,
) -> None:
    with connected(server, 12, buffer=4096) as several, watched(server) as cost:
        for one in several:
            one.ask(model="long")
        time.sleep(1)  # some are refused, others dropped
    assert cost.grown < 150
    free(server)


def test_2e_10_a_client_that_reads_gets_all_of_a_long_answer(server: Product) -> None:
    with connected(server) as (one,):
        one.ask(model="long")
        end = one.end()
        assert end["response"]["output"][0]["content"][0]["text"] == "x" * 1_000_000


def test_frames_that_come_in_bytes_are_read(server: Product) -> None:
    with connected(server) as (one,):
        data = json.dumps({"type": "response.create", "model": "m", "input": "Hi"}).encode()
        for byte in frame(data):
            one.connection.sendall(bytes((byte,)))
        assert one.end()["type"] == "response.completed"
        one.connection.sendall(frame(data) * 3)
        assert [one.end()["type"] for _ in range(3)] == ["response.completed"] * 3


def test_2f_04_a_large_frame_of_many_values_is_refused_by_its_field(server: Product) -> None:
    item = '{"role":"user","content":"a"}'
    body = f'{{"type":"response.create","model":"m","input":[{",".join([item] * 120_000)}]}}'
    with connected(server) as (one,), watched(server) as cost:
        one.connection.sendall(frame(body.encode()))
        refused = one.end()
        assert refused["error"]["param"] == "input"
        one.ask()
        assert one.end()["type"] == "response.completed"
    assert cost.pause < 1


def test_a_long_stream_id_is_refused_and_not_repeated_by_each_event(server: Product) -> None:
    with connected(server) as (one,):
        one.ask(stream_id="x" * 257)
        assert one.end()["error"]["param"] == "stream_id"
        one.ask(stream_id="x" * 256)
        assert one.end()["type"] == "response.completed"
