"""The HTTP side of a connection, where an answer has a head and nothing else."""

import asyncio

from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import Stub, served


async def test_an_answer_without_a_body_is_written_at_once() -> None:
    async with served(App(Stub(), Settings())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):  # the connection is kept, so nothing more is on its way
            writer.write(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\ncontent-length: 15\r\n" in head
        writer.close()
