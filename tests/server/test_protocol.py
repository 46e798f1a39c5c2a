"""The HTTP side of a connection: what is asked, and how an answer is framed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.server.app import App
from dragoman.server.http import HTTPExchange
from dragoman.server.settings import Settings
from tests.server.stubs import Stub, served
from tests.server.stubs import exchange as said


async def test_an_answer_without_a_body_is_written_at_once() -> None:
    async with served(App(Stub(), Settings())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):  # the connection is kept, so nothing more is on its way
            writer.write(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\ncontent-length: 15\r\n" in head
        writer.close()


@pytest.mark.parametrize(
    "target", ["/%68ealthz", "http://localhost/healthz", "/healthz?a=%20b", "/healthz#there"]
)
async def test_an_address_may_be_written_in_many_ways(target) -> None:
    async with served(App(Stub(), Settings())) as port:
        head = f"GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        assert (await said(port, head.encode())).startswith(b"HTTP/1.1 200 ")


async def test_an_old_client_gets_an_end_by_the_end_of_the_connection() -> None:
    async with served(App(Stub(), Settings())) as port:
        answer = await said(port, b"GET /healthz HTTP/1.0\r\nhost: localhost\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.endswith(b'{"status":"ok"}')


# ---- what the application may not do, and may fail to do -----------------------------------


class Wire:
    """A transport that notes what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


def exchange(wire: Any) -> HTTPExchange:
    made = HTTPExchange("POST", "/", b"", [])
    host = SimpleNamespace(defaults=b"", transport=wire, complete=lambda exchange: None)
    host.flow, host.stop_timer = SimpleNamespace(write_paused=False), lambda: None
    made.connection = cast(Any, host)
    made.body, made.keep_alive = bytearray(), True
    return made


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\r"])
async def test_no_header_can_end_its_line(value) -> None:
    with pytest.raises(RuntimeError, match="ended its line"):
        exchange(Wire()).start(200, [(b"x", value)])


async def test_a_whole_body_has_its_length() -> None:
    wire = Wire()
    exchange(wire).start(200, [], b"whole")
    assert wire.written.endswith(b"content-length: 5\r\n\r\nwhole")


async def test_head_and_first_piece_are_one_write_and_the_rest_is_framed() -> None:
    wire = Wire()
    answer = exchange(wire)
    answer.start(200, [])
    assert wire.written == b""
    answer.write(b"ab", more=True)
    answer.write(b"", more=False)
    assert wire.written.endswith(b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n")


async def test_nothing_is_written_after_a_disconnect() -> None:
    wire = Wire()
    answer = exchange(wire)
    answer.hang_up()
    answer.start(200, [])
    answer.write(b"x", more=False)
    assert wire.written == b""
