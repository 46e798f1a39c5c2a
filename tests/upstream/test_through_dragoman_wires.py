"""How Dragoman asks llama.cpp: recognised by its answers, over Chat unless told otherwise.

Between the two stands a relay of bytes that notes every request line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from dragoman.engines.remote import Remote
from tests.engines.asking import ask, asking
from tests.product import dragoman
from tests.upstream.llamacpp import Llamacpp
from training.tiny.transcripts import HELLO

_LINE = re.compile(rb"(?:GET|POST) \S+(?= HTTP/1\.1\r\n)")
CHAT, RESPONSES = "POST /v1/chat/completions", "POST /v1/responses"


@asynccontextmanager
async def relay(server: Llamacpp) -> AsyncIterator[tuple[str, list[str]]]:
    """The base URL of a relay to a server, and the request lines that passed it."""
    lines: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, note: bool
    ) -> None:
        while data := await reader.read(1 << 20):
            if note:
                lines.extend(line.decode() for line in _LINE.findall(data))
            writer.write(data)
            await writer.drain()
        writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(server.host, server.port)
        with closing(back):
            await asyncio.gather(
                carry(reader, back, note=True),
                carry(there, writer, note=False),
                return_exceptions=True,
            )

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(lead(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # it may never have begun

    listener = await asyncio.start_server(accept, "127.0.0.1")
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/v1", lines
        finally:  # it may not have been seen yet that a side is gone
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("wire", "lines"),
    [
        ("auto", ["GET /v1/models", CHAT, CHAT]),
        ("chat", [CHAT, CHAT]),
        ("responses", [RESPONSES, RESPONSES]),
    ],
)
async def test_it_is_asked_over_chat_unless_told_otherwise(
    llamacpp: Llamacpp, wire: str, lines: list[str]
) -> None:
    async with relay(llamacpp) as (base_url, passed):
        engine = Remote(base_url, wire=wire)
        try:
            for stream in (False, True):
                request = asking("Hello!", stream=stream)
                assert (await ask(engine, request)).text == HELLO
            assert passed == lines
            assert engine.profile.name == "llama.cpp"
        finally:
            await engine.close()


def test_the_welcome_names_the_model_and_the_server(llamacpp: Llamacpp) -> None:
    with dragoman("--upstream", llamacpp.base_url) as product:
        assert product.process.stdout is not None
        rows = [product.process.stdout.readline().split() for _ in range(3)]
    assert rows[1:] == [
        ["MODEL", "ANSWERED", "BY"],
        [llamacpp.model, llamacpp.base_url, "(llama.cpp)"],
    ]
