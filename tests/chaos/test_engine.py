"""Every row of the table through the engine: the exact answer, in a legal order, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dragoman.engines.remote import Remote
from tests.chaos.cases import load
from tests.chaos.stage import Stage, perform, stage

DEADLINE = 10.0
"""Seconds for a row; the slowest takes a tenth of one."""


@pytest.fixture
async def upstream() -> AsyncIterator[Stage]:
    async with stage() as playing:
        yield playing


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("case", load(), ids=lambda case: case.name)
async def test_row_gives_the_expected_response(upstream: Stage, case, stream) -> None:
    engine = Remote(upstream.base_url, wire=case.wire, key="k")
    try:
        async with asyncio.timeout(DEADLINE):
            await perform(upstream, case, engine, stream=stream)
    finally:
        await engine.close()
