"""Running to the end: one process or a worker, each stops when it is told to and only then."""

import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from dragoman.server import host
from dragoman.server.app import App
from dragoman.server.host import bind, run
from dragoman.server.settings import Settings
from tests.server.stubs import Stub


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """The signals that ended a server, which it raises again once it has stopped."""
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda sig, frame: signals.append(sig))
    yield signals
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind(Settings(port=0), exact=True) as listener:
        yield listener


def test_it_is_ready_once_and_ends_by_the_signal(listener: socket.socket, ended: list[int]) -> None:
    stub = Stub()
    announced: list[int] = []

    def ready() -> None:
        announced.append(1)
        signal.raise_signal(signal.SIGTERM)

    run(lambda: App(stub, Settings()), Settings(), listener, ready)
    assert announced == [1]
    assert ended == [signal.SIGTERM]
    assert stub.closed


@pytest.mark.parametrize("number", [0, 1])
def test_worker_ends_with_its_supervisor(
    number: int, listener: socket.socket, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one says when it is ready."""
    lifeline, far_end = os.pipe()
    stub = Stub()
    announced: list[int] = []

    def ready() -> None:
        announced.append(number)
        os.close(far_end)

    def run_workers(work: Callable[[int, int], None], count: int) -> None:
        assert count == 2
        if number:
            os.close(far_end)
        work(number, lifeline)

    monkeypatch.setattr(host, "run_workers", run_workers)
    run(lambda: App(stub, Settings()), Settings(workers=2), listener, ready)
    os.close(lifeline)
    assert announced == [0][number:]
    assert ended == [signal.SIGTERM]
    assert stub.closed
