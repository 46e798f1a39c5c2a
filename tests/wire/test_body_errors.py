"""What the error of a body holds: nothing once it was sent, however large the body was."""

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Finished, Started
from dragoman.engines.base import enforce_contract
from dragoman.net.threads import Turns
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


async def test_error_of_work_in_turns_is_no_reference_cycle(uncollected) -> None:
    class Large:
        """What the work is about."""

    def fail(about: Large) -> None:
        raise ValueError

    turns, about = Turns(), [Large()]
    try:
        await turns.take(fail, about[0])
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
