"""The clock of the loop that tests run on."""

import asyncio
import time

from tests.steady import MOMENT, SteadyLoop


async def test_tests_run_on_it() -> None:
    assert isinstance(asyncio.get_running_loop(), SteadyLoop)


async def test_a_machine_that_stops_exceeds_no_time_limit() -> None:
    for _ in range(3):
        async with asyncio.timeout(10 * MOMENT):
            await asyncio.sleep(0)
            time.sleep(20 * MOMENT)  # as the machine does
            await asyncio.sleep(0)


async def test_what_is_waited_for_passes_in_full() -> None:
    loop = asyncio.get_running_loop()
    began, by_loop = time.monotonic(), loop.time()
    for _ in range(3):
        await asyncio.sleep(5 * MOMENT)
    assert loop.time() - by_loop >= 15 * MOMENT
    assert time.monotonic() - began >= 15 * MOMENT


async def test_silence_for_ever_is_waited_for_as_long_as_is_said() -> None:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    with_limit = asyncio.wait_for(asyncio.Event().wait(), 10 * MOMENT)
    (raised,) = await asyncio.gather(with_limit, return_exceptions=True)
    assert isinstance(raised, TimeoutError)
    assert time.monotonic() - began >= 10 * MOMENT
    assert loop.time() > 0
