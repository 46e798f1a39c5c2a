"""What the tests of programs share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from dragoman.client.client import LoopThread
from dragoman.core.interfaces import Engine
from dragoman.engines.pocket import pocket as load_pocket
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import served


@pytest.fixture(scope="session")
def serve_engine() -> Callable[[Engine], AbstractContextManager[str]]:
    """Serves an engine on a free port, in a thread; gives the address."""
    loop = LoopThread()

    @contextmanager
    def serve(engine: Engine) -> Iterator[str]:
        manager = served(App(engine, Settings()))
        port = loop.run(manager.__aenter__)
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            loop.run(manager.__aexit__, None, None, None)

    return serve


@pytest.fixture(scope="session")
def pocket() -> Engine:
    """The pocket model, loaded once."""
    return load_pocket()
