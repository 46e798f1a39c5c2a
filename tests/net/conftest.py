"""Every test of this folder runs on both event loops: asyncio's own and uvloop."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from tests.steady import LOOPS

FDS = Path("/proc/self/fd")


def pytest_asyncio_loop_factories() -> dict[str, object]:
    return {"asyncio": LOOPS["steady"], "uvloop": uvloop.new_event_loop}


def standing() -> tuple[int, int]:
    """How many files and tasks there are."""
    return len(list(FDS.iterdir())), len(asyncio.all_tasks())


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fail unless as many files and tasks are left as there were, at most 30 s later."""
    loop = asyncio.get_running_loop()
    # What a loop opens for itself on first use (threads, a spare file) is no leak.
    await loop.run_in_executor(None, os.getpid)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()
    before = standing()
    yield
    async with asyncio.timeout(30):
        while standing() != before:
            await asyncio.sleep(0.005)


@pytest.fixture
async def clean() -> AsyncIterator[None]:
    """The test leaves no file and no task behind."""
    async with nothing_left():
        yield
