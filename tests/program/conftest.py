"""What the tests of programs share."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from dragoman.core.interfaces import Engine
from dragoman.engines.pocket import pocket as load_pocket
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import served


@pytest.fixture(scope="session")
def serve_engine():
    """Serves an engine on a free port, on an event loop of its own; gives the address."""
    return serve


@contextmanager
def serve(engine: Engine) -> Iterator[str]:
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        over = asyncio.Event()
        async with served(App(engine, Settings())) as port:
            ready.set_result((port, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    port, loop, over = ready.result()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


@pytest.fixture(scope="session")
def pocket() -> Engine:
    """The pocket model, loaded once."""
    return load_pocket()
