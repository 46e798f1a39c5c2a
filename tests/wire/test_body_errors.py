"""What the error of a body holds: nothing once it was sent, however large the body was."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable
from functools import partial

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Finished, Started
from dragoman.engines.base import enforce_contract
from dragoman.net.threads import Threads, Turns
from dragoman.tools.search import Fetcher
from dragoman.wire.registry import WIRES

BODY = (
    b'{"model": "m", "n": "x", "max_tokens": "x", "temperature": "x", "messages": [], "input": []}'
)


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", WIRES)
def test_error_of_a_body_is_no_reference_cycle(name, uncollected) -> None:
    with pytest.raises(FaultError):
        WIRES[name].decode_request(BODY)
    assert gc.collect() == 0


async def _called(work: Callable[[], object]) -> None:
    try:
        await Threads("failing").run(work, 1)
    finally:
        for thread in threading.enumerate():
            if thread.name == "failing":
                thread.join()


async def _read(work: Callable[[], object]) -> None:
    await Fetcher().in_turn(work, "")


@pytest.mark.parametrize("run", [Turns().take, _called, _read])
async def test_error_of_work_in_a_thread_is_no_reference_cycle(run, uncollected) -> None:
    class Large:
        """What the work is about."""

    def fail(about: Large) -> None:
        raise ValueError

    about = [Large()]
    try:
        await run(partial(fail, about[0]))
    except ValueError:
        about.clear()
    await asyncio.sleep(0)
    assert not any(isinstance(each, Large) for each in gc.get_objects())


async def test_answer_that_is_closed_is_no_reference_cycle(uncollected) -> None:
    async def source() -> AsyncGenerator[Event, None]:
        yield Started("r", 0, "m")
        yield Finished("completed")

    events = enforce_contract(source(), "m")
    await anext(events)
    await events.aclose()
    del events
    assert gc.collect() == 0
