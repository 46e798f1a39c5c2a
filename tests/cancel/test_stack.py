"""A client's socket closes, and the socket to the model's server closes: the whole way, by port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.cancel.client import ask, enter, leave
from tests.cancel.phases import AT_ONCE, PHASES, TRIALS, Phase, closed_after
from tests.engines.asking import remote
from tests.mock import Asked, Mock, Reply
from tests.server.stubs import PATHS, served

PAIRS = [
    ("chat", "chat", "reset"),
    ("responses", "responses", "close"),
    ("messages", "messages", "reset"),
    ("chat", "messages", "close"),
    ("responses", "chat", "reset"),
    ("messages", "chat", "close"),
]
"""The protocol in front, the one behind, and how the client leaves."""


@asynccontextmanager
async def serving(phase: Phase, wire: str) -> AsyncIterator[tuple[int, Mock]]:
    """The whole server before a mock of one phase, which speaks this wire."""

    def handler(asked: Asked) -> Reply:
        return phase.reply(wire)

    async with remote(handler, wire=wire, retries=phase.retries, header_hold=0.05) as (engine, up):
        settings = Settings(header_hold=0.05)
        async with served(App(engine, settings), settings) as port:
            yield port, up


@pytest.mark.parametrize(("protocol", "wire", "how"), PAIRS)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
async def test_p26_a_disconnect_closes_the_upstream(phase, protocol, wire, how) -> None:
    async with serving(phase, wire) as (port, up), asyncio.timeout(60):
        for _ in range(TRIALS):
            writer = await enter(port, protocol, phase, up)
            left = leave(writer, how)
            (asked,) = up.asked
            assert await closed_after(left, asked) < AT_ONCE
            assert len(up.asked) == 1


@pytest.mark.parametrize("protocol", PATHS)
async def test_p26_a_disconnect_after_heartbeats_closes_the_upstream(protocol) -> None:
    """The stream was begun while the model was silent, and heartbeats were sent."""
    settings = Settings(header_hold=0.02, heartbeat=0.1)
    async with (
        remote(Reply([], hang=True), header_hold=0.02) as (engine, up),
        served(App(engine, settings), settings) as port,
        asyncio.timeout(30),
    ):
        reader, writer = await ask(port, protocol, stream=True)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"\n\n")
        await up.arrived.wait()
        left = leave(writer, "close")
        assert await closed_after(left, up.asked[0]) < AT_ONCE
