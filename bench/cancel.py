"""How soon the model's server learns that a client has left, through the whole gateway.

The moments to leave in, the client and the mock upstream are those of the tests; the gateway is a
process of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import sys

from tests.cancel.client import PATHS, enter, leave
from tests.cancel.phases import PHASES, Phase, closed_after
from tests.mock import mock

from . import machine

TRIALS = 20
"""Of each moment over each protocol."""


async def _trials(phase: Phase) -> list[float]:
    """Seconds from a client's leaving to the close that the upstream saw."""
    async with mock(lambda asked: phase.reply("chat")) as up:
        port = machine.free_port()
        words = ["--upstream", up.base_url, "--wire", "chat", "--retries", str(phase.retries)]
        command = [sys.executable, "-m", "dragoman", "serve", "--port", str(port), *words]
        ready = f"http://127.0.0.1:{port}/healthz"
        times = []
        with machine.running(command, core=0, ready=ready):
            for protocol in PATHS:
                for _ in range(TRIALS):
                    writer = await enter(port, protocol, phase, up)
                    left = leave(writer, "close")
                    times.append(await closed_after(left, up.asked[0]))
        return times


def p95() -> float:
    """Of all moments, over both protocols, in milliseconds."""
    times = [time for phase in PHASES for time in asyncio.run(_trials(phase))]
    return statistics.quantiles(times, n=20)[-1] * 1e3
