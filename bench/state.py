"""What a Dragoman as installed pays to continue a conversation, and to hold streams open."""

from __future__ import annotations

import http.client
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from . import gateways, machine
from .works import Load

DEPTHS = {100: 4.0, 500: 15.0}
"""Turns of a chain, and the milliseconds of CPU that an answer at its end may take."""
ASKED = 20
STREAMS = (100, 500)
"""Streams that are open at once: what is measured is the difference."""
KILOBYTES = 15.0
"""What an open stream may take."""


def table(upstream: int, load_program: str) -> list[str]:
    """The figures, as lines of Markdown."""
    lines = ["| state, as installed | measured | gate | |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for depth, cost in _chain(upstream, folder).items():
            lines.append(
                _row(f"answer at the end of {depth} turns, CPU", cost, DEPTHS[depth], "ms")
            )
        memory = _streams(upstream, load_program, folder)
        lines.append(_row("open stream, memory", memory, KILOBYTES, "kB"))
    return lines


def _row(name: str, value: float, gate: float, unit: str) -> str:
    return f"| {name} | {value:.1f} {unit} | {gate:g} {unit} | {verdict(value, gate)} |"


def verdict(value: float, gate: float) -> str:
    """Whether a figure is within its gate."""
    return "held" if value <= gate else "**missed**"


def _chain(upstream: int, folder: Path) -> dict[int, float]:
    """Milliseconds of CPU to answer with `previous_response_id` at each depth."""
    port = machine.free_port()
    command, ready = gateways.dragoman(port, upstream, folder), f"http://127.0.0.1:{port}/healthz"
    costs = {}
    with machine.running(command, core=0, ready=ready) as process:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        last = None
        for turn in range(1, max(DEPTHS) + 1):
            last = _ask(connection, last)
            if turn in DEPTHS:
                time.sleep(0.5)
                before = machine.cpu(process.pid)
                for _ in range(ASKED):
                    _ask(connection, last)
                costs[turn] = (machine.cpu(process.pid) - before) / ASKED * 1e3
    return costs


def _ask(connection: http.client.HTTPConnection, previous: str | None) -> str:
    body: dict[str, Any] = {"model": "mock-n200-us0", "input": "And what comes after that?"}
    if previous:
        body["previous_response_id"] = previous
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/responses", json.dumps(body), headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(f"a turn was refused: {answer}")
    return str(answer["id"])


def _streams(upstream: int, load_program: str, folder: Path) -> float:
    """Kilobytes each stream adds to the server's memory while all are open."""
    port = machine.free_port()
    command, ready = gateways.dragoman(port, upstream, folder), f"http://127.0.0.1:{port}/healthz"
    body = folder / "slow.json"
    text = Load("small", "paced", "responses").text()
    body.write_bytes(text.replace(b"mock-n100-us20000", b"mock-n100-us200000"))
    resident = []
    with machine.running(command, core=0, ready=ready) as process:
        for count in STREAMS:
            load = [load_program, str(port), "/v1/responses", str(count), "7", str(body)]
            with subprocess.Popen(load, stdout=subprocess.DEVNULL):
                time.sleep(5)
                resident.append(machine.rss(process.pid))
    return (resident[1] - resident[0]) / (STREAMS[1] - STREAMS[0]) * 1e3
