"""Rounds over all rows leave nothing behind: no descriptor, no task, no memory.

A round takes the next few rows of the table, so that some rounds later each was played. The sizes
are those of the session; the rule is the same for all of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.chaos import test_stack as through_the_server
from tests.chaos.cases import WIRES, Case, load
from tests.chaos.stage import Stage, perform, stage
from tests.samples import samples

FIRST, LAST = samples(8, 200), samples(20, 1_000)
"""The rounds after which is measured."""
ROWS = 20
"""How many rows a round plays."""
GROWTH = 2 * 1024 * 1024
"""Bytes the process may have grown by between the two."""
WINDOWS = 3
"""A leak grows in each; what is freed later, and caches of the interpreter, do not."""
CALM = "a stream with a length"
"""A row that leaves exactly one idle connection, played before each measurement."""

if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
    mallopt(-8, 1)  # M_ARENA_MAX: what each thread keeps of what was freed is no leak

Play = Callable[[Case], Awaitable[None]]


def through_engines(stage: Stage) -> tuple[Play, list[Remote]]:
    """Rows through one engine for each wire."""
    engines = {wire: Remote(stage.base_url, wire=wire, key="k") for wire in WIRES}

    async def play(case: Case) -> None:
        await perform(stage, case, engines[case.wire], stream=True)

    return play, list(engines.values())


def through_servers(stage: Stage) -> tuple[Play, list[App]]:
    """Rows through the whole server; its clients speak every protocol, streamed and plain."""
    apps = {wire: App(Remote(stage.base_url, wire=wire, key="k"), Settings()) for wire in WIRES}
    ways = cycle([(protocol, stream) for protocol in apps for stream in (True, False)])

    async def play(case: Case) -> None:
        protocol, stream = next(ways)
        app = apps[case.wire]
        await through_the_server.perform(stage, case, app, protocol, stream=stream)

    return play, list(apps.values())


@pytest.mark.parametrize("through", [through_engines, through_servers])
async def test_many_rounds_leak_nothing(through) -> None:
    cases = load()
    calm = next(case for case in cases if case.name == CALM)
    async with stage() as playing:
        play, made = through(playing)
        rows = cycle(cases)
        await rounds(FIRST, play, rows)
        await play(calm)
        before = await measured()
        for _ in range(WINDOWS):
            await rounds(LAST - FIRST, play, rows)
            await play(calm)
            after = await measured()
            grown = after[2] - before[2]
            if after[:2] != before[:2] or grown <= GROWTH:
                break
            before = after
        for each in made:
            await each.close()
    assert after[:2] == before[:2]
    assert grown <= GROWTH


async def rounds(count: int, play: Play, rows: Iterator[Case]) -> None:
    for _ in range(count * ROWS):
        async with asyncio.timeout(10):
            await play(next(rows))


async def measured() -> tuple[int, int, int]:
    """Descriptors, tasks, and bytes held, once all that was let go of is gone."""
    gc.collect()  # of earlier tests too: their files are not to go in between
    previous = None
    while (counted := (descriptors(), len(asyncio.all_tasks()))) != previous:
        previous = counted
        await asyncio.sleep(0.05)
    gc.collect()
    return (*counted, resident())


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def resident() -> int:
    """Bytes held in memory; where the system does not say, the most that ever was."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # what the allocator merely keeps is no leak
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
