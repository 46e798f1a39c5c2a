"""What the tests of programs share."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dragoman.core.interfaces import Engine
from dragoman.engines.token.constraints import byte_compiler
from dragoman.formats.format import Grammar
from dragoman.program import Model, assistant, search, select
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import served
from tests.upstream.llamacpp import llamacpp

__all__ = ["llamacpp"]


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


SHARED: set[int] = set()
"""The processes that compile grammars for the whole session."""


def compilers() -> set[int]:
    """The processes of this one that compile grammars."""
    found = set[int]()
    for listed in Path("/proc/self/task").glob("*/children"):
        for pid in listed.read_text().split():
            with suppress(OSError):  # it has ended
                if b"engines.child" in Path("/proc", pid, "cmdline").read_bytes():
                    found.add(int(pid))
    return found


@pytest.fixture(scope="session")
def pocket() -> Iterator[Engine]:
    """The pocket model, loaded once; what compiles its grammars has begun."""
    before = compilers()
    lm = Model("pocket")
    with assistant():
        lm + select(["a"], guarantee="enforced")
    SHARED.update(compilers() - before)
    yield lm.client.engine
    lm.close()
    assert not compilers() & (SHARED - before)


@pytest.fixture(scope="module", autouse=True)
def no_compiler_is_left() -> Iterator[None]:
    """A module closes the models that it loads."""
    byte_compiler().constrain(Grammar('start: "a"'))
    search.whole("a", "a")
    before = compilers()
    yield
    assert compilers() <= before | SHARED, "close the models that were loaded here"
