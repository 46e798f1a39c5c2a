"""The client for code without `async`: one event loop in a thread drives everything behind it."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from dragoman.client import Client, Stream, SyncClient, SyncStream, connect_sync
from dragoman.client.client import LOOP, LoopThread
from dragoman.core.interfaces import ANYONE, Caller, Model
from dragoman.engines.script import Script


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


class Endless(Script):
    """An engine that never lists its models."""

    def __init__(self) -> None:
        super().__init__("Hi")
        self.closed = False
        self.started, self.cancelled = threading.Event(), threading.Event()

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        try:
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return ()

    async def close(self) -> None:
        assert threading.current_thread().name == "dragoman-sync"
        self.closed = True


def test_leaving_the_context_closes_the_engine() -> None:
    engine = Endless()
    with connect_sync(engine) as client:
        assert not engine.closed
        assert client.capabilities("m") is not None
    assert engine.closed


def test_streams_are_iterated_and_closed() -> None:
    with connect_sync("script", pace=0) as client, client.stream("Count to three.") as stream:
        assert isinstance(stream, SyncStream)
        first = next(stream)
        rest = list(stream)
        assert next(stream, None) is None
        assert (stream.answer.text, stream.response.text) == ("1, 2, 3.", "1, 2, 3.")
        assert first not in rest
    with connect_sync("script", pace=0) as client:
        stream = client.stream("Count to three.")
        next(stream)
        stream.close()
        assert stream.response.status == "cancelled"


def test_stream_is_finished_in_one_call() -> None:
    with connect_sync("script", pace=0) as client:
        assert client.stream("Count to two.").finish().text == "1, 2."


def test_errors_come_through() -> None:
    with connect_sync("script") as client, pytest.raises(TypeError, match="no setting"):
        client.respond("Hi", fly=True)


def test_sync_call_on_its_own_loop_is_refused() -> None:
    class Nested(Script):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            return connect_sync("script").models()

    with pytest.raises(RuntimeError, match="its own event loop"):
        connect_sync(Nested("Hi")).models()


def test_keyboard_interrupt_cancels_the_call(monkeypatch) -> None:
    engine = Endless()

    def interrupted(future: Future[None]) -> None:
        assert engine.started.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connect_sync(engine).models()
    assert engine.cancelled.wait(10)


def test_a_loop_that_is_stopped_is_closed() -> None:
    own = LoopThread()
    assert own.run(double, 1) == 2
    loop, thread = own._loop, own._thread
    assert thread is not None
    own._stop(loop, thread)
    assert loop.is_closed()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exception_that_ends_an_event_loop_is_its_callers_alone(kind) -> None:
    started = threading.Event()

    async def leave() -> None:
        raise kind("left")

    async def within() -> None:
        await asyncio.gather(asyncio.create_task(leave()), asyncio.sleep(10))

    async def wait() -> int:
        started.set()
        await asyncio.sleep(0.1)
        return await double(1)

    own = LoopThread()
    other: Future[int] = Future()
    thread = threading.Thread(target=lambda: other.set_result(own.run(wait)), daemon=True)
    thread.start()
    assert started.wait(10)
    loop = own._loop
    assert loop is not None
    for raising in (leave, within):
        with pytest.raises(kind, match="left"):
            asyncio.run_coroutine_threadsafe(raising(), loop).result(10)
    assert other.result(10) == 2
    assert own._thread is not None
    own._stop(loop, own._thread)
    assert loop.is_closed()


def test_program_with_a_sync_client_exits_silently() -> None:
    program = (
        "from dragoman.client import connect_sync\nprint(connect_sync('script').models()[0].id)"
    )
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "script\n", "")


# ---- its types ---------------------------------------------------------------------------------

OF_GENERATORS = {"asend", "athrow", "aclose", "prepare", "start", "sync"}
"""What an engine needs and no person calls, and the face itself."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def asked(method: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())


@pytest.mark.parametrize(("face", "behind"), [(SyncClient, Client), (SyncStream, Stream)])
def test_sync_client_has_the_attributes_of_the_client(face, behind) -> None:
    assert public(face) == public(behind) - OF_GENERATORS - {"acts_on"}
    for name in public(face):
        said, meant = inspect.getattr_static(face, name), inspect.getattr_static(behind, name)
        assert isinstance(said, property) == isinstance(meant, property), name
        if not isinstance(said, property):
            assert asked(said) == asked(meant), name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork_has_a_loop_of_its_own() -> None:
    assert LOOP.run(double, 3) == 6
    if (child := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            os._exit(LOOP.run(double, 4))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
