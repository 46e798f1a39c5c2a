"""The clock of a stream: what it calls when, and that it stops for good."""

import asyncio

from dragoman.server.heartbeat import Clock
from dragoman.server.settings import Settings


class Bell:
    """Counts, and can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self.count += 1
        self._rung.set()

    async def next(self) -> None:
        self._rung.clear()
        await asyncio.wait_for(self._rung.wait(), 60)


async def test_silence_is_told_again_and_again_until_it_stops() -> None:
    silent, stalled = Bell(), Bell()
    clock = Clock(Settings(header_hold=0.01, heartbeat=0.1), silent.ring, stalled.ring)
    clock.start()
    await silent.next()
    clock.opened()
    await silent.next()
    clock.stop()
    clock.stop()
    assert (silent.count, stalled.count) == (2, 0)
    await asyncio.sleep(0.15)
    assert silent.count == 2


async def test_the_head_makes_another_silence_count() -> None:
    silent, stalled = Bell(), Bell()
    clock = Clock(Settings(header_hold=3600, heartbeat=0.1), silent.ring, stalled.ring)
    clock.start()
    clock.opened()
    await silent.next()
    clock.stop()


async def test_a_send_that_takes_too_long_is_no_silence() -> None:
    silent, stalled = Bell(), Bell()
    clock = Clock(Settings(heartbeat=0.1, stall=0.1), silent.ring, stalled.ring)
    clock.opened()
    clock.start()
    clock.sent(all=False)
    await stalled.next()
    clock.sent()
    await silent.next()
    clock.stop()
    assert stalled.count == 1


async def test_what_is_stopped_by_its_own_bell_rings_no_more() -> None:
    silent = Bell()

    def over() -> None:
        silent.ring()
        clock.stop()

    clock = Clock(Settings(header_hold=0.01), over, over)
    clock.start()
    await silent.next()
    await asyncio.sleep(0.05)
    assert silent.count == 1


async def test_a_clock_that_is_not_started_never_rings() -> None:
    silent = Bell()
    clock = Clock(Settings(header_hold=0), silent.ring, silent.ring)
    clock.opened()
    clock.stop()
    clock.start()
    clock.stop()
    await asyncio.sleep(0.01)
    assert silent.count == 0


async def test_a_bell_that_comes_late_is_nobodys() -> None:
    silent = Bell()
    clock = Clock(Settings(header_hold=0), silent.ring, silent.ring)
    clock.start()
    clock.stop()
    clock._tick()
    assert silent.count == 0
