"""A server under attack in a process of its own, and what that costs it and its other clients.

Times are CPU seconds of the server, which a busy machine does not stretch; memory is what the
system has given it.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mock import Asked, Mock, Reply, mock
from tests.product import Product, dragoman

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu(pid: int) -> float:
    """CPU seconds that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> float:
    """Resident memory of a process, in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


@dataclass
class Cost:
    """What others felt while something was done to the server.

    `pause` is the longest that `/healthz` was not answered: in wall-clock seconds, or those of the
    server's CPU where they are fewer. `grown` is the growth of its memory at the highest, in
    megabytes.
    """

    pause: float = 0.0
    grown: float = 0.0
    probes: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def watched(server: Product, every: float = 0.02) -> Iterator[Cost]:
    """Ask for `/healthz` again and again while the block runs."""
    pid, cost, done = server.process.pid, Cost(), threading.Event()
    before = memory(pid)

    def probe() -> None:
        while not done.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            started, used = time.monotonic(), cpu(pid)
            try:
                connection.request("GET", "/healthz")
                status = connection.getresponse().status
                if status != 200:
                    cost.problems.append(f"/healthz: {status}")
            except OSError as error:
                cost.problems.append(f"/healthz: {error!r}")
            finally:
                connection.close()
            cost.pause = max(cost.pause, min(time.monotonic() - started, cpu(pid) - used))
            cost.grown = max(cost.grown, memory(pid) - before)
            cost.probes += 1
            done.wait(every)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield cost
    finally:
        done.set()
        thread.join()
    assert cost.probes
    assert not cost.problems, cost.problems[:3]


@contextmanager
def upstream(reply: Callable[[Asked], Reply]) -> Iterator[Mock]:
    """A model's server on a thread of its own, which gives these replies."""
    made: list[Mock] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def run() -> None:
        async with mock(reply) as server:
            made.append(server)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield made[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@contextmanager
def gateway(
    reply: Callable[[Asked], Reply], *words: str, **environ: str
) -> Iterator[tuple[Product, Mock]]:
    """`dragoman serve` in front of a model's server that gives these replies over Chat."""
    with upstream(reply) as model:
        options = ("--upstream", model.base_url, "--profile", "generic", "--wire", "chat", *words)
        with dragoman(*options, **environ) as server:
            yield server, model
