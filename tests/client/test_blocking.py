"""One driver for anything asynchronous, from code that is not."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any, Self

import pytest

from dragoman.client.client import Blocking, _Loop


class Thing:
    """Something asynchronous."""

    size = 3

    def __init__(self) -> None:
        self.log: list[str] = []

    async def double(self, number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    def plain(self) -> str:
        return threading.current_thread().name

    async def numbers(self) -> AsyncIterator[int]:
        for number in range(self.size):
            yield number

    async def __aenter__(self) -> Self:
        self.log.append("entered")
        return self

    async def __aexit__(self, *error: Any) -> bool:
        self.log.append("left")
        return error[0] is KeyError


def test_awaitables_iterators_and_contexts_become_plain() -> None:
    thing = Thing()
    with Blocking(thing) as face:
        assert face.double(21) == 42
        assert list(face.numbers()) == [0, 1, 2]
        assert face.size == 3
        assert face.plain() == "dragoman-sync"
        assert "Thing" in repr(face)
        raise KeyError("the exit may swallow an error, as ever")
    assert thing.log == ["entered", "left"]


def test_errors_come_through() -> None:
    with pytest.raises(TypeError):
        Blocking(Thing()).double("x", "y")
    with pytest.raises(AttributeError):
        Blocking(Thing()).fly


def test_sync_call_on_its_own_loop_is_refused() -> None:
    class Nested(Thing):
        def call(self) -> Any:
            return Blocking(self).double(1)

    with pytest.raises(RuntimeError, match="its own event loop"):
        Blocking(Nested()).call()


def test_keyboard_interrupt_cancels_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    started, cancelled = threading.Event(), threading.Event()

    class Endless(Thing):
        async def wait(self) -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    def interrupted(future: Future[None]) -> None:
        assert started.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Blocking(Endless()).wait()
    assert cancelled.wait(10)


def test_a_loop_that_is_stopped_is_closed() -> None:
    own = _Loop()
    assert own.run(Thing().double(1)) == 2
    loop, thread = own._loop, own._thread
    assert loop is not None
    assert thread is not None
    own._stop(loop, thread)
    assert loop.is_closed()


def test_program_with_a_sync_client_exits_silently() -> None:
    program = (
        "from dragoman.client import connect_sync\nprint(connect_sync('script').models()[0].id)"
    )
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "script\n", "")
