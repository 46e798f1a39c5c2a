"""Runs the measurements and writes the table: `python -m bench [realtime] [--seconds S]`.

The server under test has one core, load and mock upstream the other; all gateways take turns in
every round, and what is reported is the CPU of a whole process tree per unit of work and its ratio
to nginx and to the floor inside one run. Dragoman runs as it is installed: with its store.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tests.architecture import calls

from . import agents, client, gateways, machine, programs, realtime, start, state, tokens
from .gateways import STORED, UNSTORED, Gateway
from .state import verdict
from .works import WORKS, Load, Work

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "performance.md"
CALLS = {
    "plain": ("Chat, request", 60),
    "ten_tools": ("Chat with ten tools, request", 60),
    "coding_agent": ("Chat with forty tools and long instructions, request", None),
    "stored": ("Responses, stored request", 60),
    "stored_chunk": ("Responses, stored, paced chunk", 9),
    "websocket_turn": ("Responses, stored, a turn over WebSocket", None),
}

WISHED = (
    "What the others take, as multiples of what Dragoman takes as installed. The goals are 150 for",
    "a request and 25 for a paced chunk beside LiteLLM; beside agentic-api at least 1 everywhere,",
    "and 2 for bursts and stored requests.",
)


class Figure(Struct, frozen=True):
    """CPU microseconds per unit of one gateway on one load, and how many answers were none."""

    cpu_us: float
    bad: int


Figures = dict[tuple[str, Load], list[Figure]]


def main() -> None:
    """Measure and print; `--write` puts the page into the documentation."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    choices = ("all", "agents", "gateways", "programs", "realtime", "state", "tokens")
    parser.add_argument("part", nargs="?", choices=choices, default="all", help="what to measure")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load per work and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only works whose name contains this")
    parser.add_argument("--install", action="store_true", help="install the others (PyPI), and end")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    if options.install:
        gateways.install(gateways.PACKAGES | agents.PACKAGES | programs.PACKAGES)
        return
    lines = _head(options.seconds, options.rounds)
    if options.part in ("all", "gateways", "state"):
        with machinery() as (upstream, load_program, folder):
            if options.part != "state":
                works = [work for work in WORKS if options.only in work.name]
                found, missing = gateways.installed()
                figures = measure(
                    works, found, options.seconds, options.rounds, upstream, load_program, folder
                )
                if missing:
                    lines += [f"Not installed, so not measured: {', '.join(missing)}.", ""]
                lines += [*against_proxies(works, figures), "", *against_others(works, figures), ""]
            if options.part != "gateways":
                lines += [*state.table(upstream, load_program), "", *called(), ""]
    if options.part in ("all", "tokens"):
        lines += [*tokens.table(), ""]
    if options.part in ("all", "realtime"):
        lines += [*realtime.table(), ""]
    if options.part in ("all", "agents"):
        lines += [*agents.table(), ""]
    if options.part in ("all", "programs"):
        lines += [*programs.table(), ""]
    if options.part == "all":
        lines += [*client.table(), "", *start.table(), ""]
    text = "\n".join(lines).rstrip() + "\n"
    print(text, end="")
    if options.write:
        PAGE.write_text(text)


@contextmanager
def machinery() -> Iterator[tuple[int, str, Path]]:
    """The mock upstream, running on a port; the load generator; and a folder for all files."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for name in ("upstream", "load"):
            source = HERE / f"{name}.c"
            subprocess.run(["gcc", "-O2", "-o", str(folder / name), str(source)], check=True)
        port = machine.free_port()
        ready = f"http://127.0.0.1:{port}/v1/models"
        with machine.running([str(folder / "upstream"), str(port)], core=1, ready=ready):
            yield port, str(folder / "load"), folder


def measure(
    works: list[Work],
    found: list[Gateway],
    seconds: float,
    rounds: int,
    upstream: int,
    load_program: str,
    folder: Path,
) -> Figures:
    """All gateways on all loads, interleaved; the first round only warms up."""
    figures: Figures = {}
    with ExitStack() as stack:
        servers = []
        for gateway in found:
            port = machine.free_port()
            place = folder / gateway.name
            place.mkdir()
            command = gateway.command(port, upstream, place)
            ready = f"http://127.0.0.1:{port}{gateway.ready}"
            process = stack.enter_context(
                machine.running(command, core=0, ready=ready, environment=gateway.environment)
            )
            servers.append((gateway, port, process.pid))
        asked = [work.load for work in works]
        loads = dict.fromkeys(each for load in asked for each in (_chat(load), load))
        for number in range(rounds + 1):
            for load in loads:
                file = folder / "body.json"
                file.write_bytes(load.text())
                for gateway, port, pid in servers:
                    needless = load not in asked and len(gateway.wires) > 1
                    speaks = load.wire in gateway.wires and load.body in gateway.bodies
                    if needless or not speaks:
                        continue
                    time = seconds if number else 0.5
                    figure = run(load_program, port, pid, load, time, gateway.key, file)
                    if number:
                        figures.setdefault((gateway.name, load), []).append(figure)
    return figures


def run(
    program: str, port: int, pid: int, load: Load, seconds: float, key: str, file: Path
) -> Figure:
    """Put one load on one server and count its CPU."""
    arguments = [str(port), load.path, str(load.connections), str(seconds), str(file), key]
    before = machine.cpu(pid)
    done = subprocess.run(
        ["taskset", "-c", "1", program, *arguments],
        capture_output=True,
        check=True,
        timeout=seconds + 60,
    )
    seen = json.loads(done.stdout)
    used = machine.cpu(pid) - before
    units = seen["answers"] if load.pace == "whole" else seen["events"]
    return Figure(used / max(units, 1) * 1e6, seen["broken"] + seen["refused"])


def _chat(load: Load) -> Load:
    return replace(load, wire="chat")


def _cost(figures: Figures, name: str, load: Load) -> float | None:
    """Microseconds per unit of a gateway; of the same over Chat where it speaks only that."""
    for wanted in (load, _chat(load)):
        if rounds := figures.get((name, wanted)):
            return statistics.median(figure.cpu_us for figure in rounds)
    return None


def against_proxies(works: list[Work], figures: Figures) -> list[str]:
    """CPU per unit beside nginx and the floor, with the gates."""
    lines = [
        "| CPU, us | nginx | floor | dragoman | unstored | x nginx | x floor | unstored x floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for work in works:
        names = ("nginx", "floor", STORED, UNSTORED)
        nginx, floor, ours, unstored = (_cost(figures, name, work.load) for name in names)
        cells = [
            *(f"{cost:.1f}" if cost else "–" for cost in (nginx, floor, ours, unstored)),
            _ratio(ours, nginx, work.nginx),
            _ratio(ours, floor, work.floor),
            _ratio(unstored, floor, work.unstored),
        ]
        lines.append(f"| {work.name} | {' | '.join(cells)} |")
    bad = {f"{name}, {load}": sum(f.bad for f in all) for (name, load), all in figures.items()}
    if failed := [f"{name}: {count}" for name, count in bad.items() if count]:
        lines += ["", f"Answers that were refused or broke off: {'; '.join(failed)}."]
    return lines


def _ratio(ours: float | None, theirs: float | None, gate: float | None) -> str:
    if not ours or not theirs:
        return "–"
    ratio = ours / theirs
    return f"{ratio:.1f}" + (f" (gate {gate:g}: {verdict(ratio, gate)})" if gate else "")


def against_others(works: list[Work], figures: Figures) -> list[str]:
    """CPU per unit of the others that convert and store, and how many times ours it is."""
    names = [name for name in ("litellm", "agentic-api") if any(name in key for key in figures)]
    if not names:
        return []
    lines = [
        *WISHED,
        "",
        f"| CPU, us | {' | '.join(f'{name} | x dragoman' for name in names)} |",
        f"|---|{'---|---|' * len(names)}",
    ]
    for work in works:
        ours, cells = _cost(figures, STORED, work.load), []
        for name in names:
            theirs = figures.get((name, work.load)) and _cost(figures, name, work.load)
            cells += [f"{theirs:.1f}", _ratio(theirs, ours, None)] if theirs else ["–", "–"]
        if set(cells) != {"–"}:
            lines.append(f"| {work.name} | {' | '.join(cells)} |")
    return lines


def called() -> list[str]:
    """Our calls, counted as the ratchets of tests/architecture count them."""
    lines = ["| our Python calls, as installed | calls | gate | |", "|---|---|---|---|"]
    for case, value in calls.measured().items():
        name, gate = CALLS[case]
        judged = f"{gate} | {verdict(value, gate)}" if gate else "– | "
        lines.append(f"| {name} | {value:g} | {judged} |")
    return lines


def _head(seconds: float, rounds: int) -> list[str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    today = datetime.datetime.now(tz=datetime.UTC).date()
    load = os.getloadavg()[0]
    return [
        "# Performance",
        "",
        "Written by `python -m bench --write`. CPU of the whole process tree per unit of work, the",
        "median of interleaved rounds. Only ratios inside one run can be trusted, to about a",
        "quarter. nginx passes on unbuffered; above 16 kB it spools bodies to a file and is no",
        "yardstick. The floor (`bench/floor.py`) decodes and encodes Chat and does nothing else;",
        "rows of other wires are compared with the same over Chat. Dragoman runs as installed,",
        "with its store in SQLite; `unstored` is `--store none`.",
        "",
        f"{machine.describe()}; {today}; commit {commit}; {rounds} rounds of {seconds:g} s;",
        f"load average before the run {load:.1f}.",
        "",
    ]


if __name__ == "__main__":
    main()
