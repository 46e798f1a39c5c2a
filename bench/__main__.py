"""Runs the measurements and writes the table: `python -m bench [tokens] [--seconds S]`.

Server under test on one core, load and mock upstream on the other; every gateway does the same
work in every round, and what is reported is CPU per unit and the ratio inside one run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from . import client, gateways, machine, start, tokens

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reference" / "performance.md"


class Work(Struct, frozen=True):
    """One kind of load, and the unit its CPU is counted per."""

    name: str
    unit: str
    model: str
    stream: bool
    connections: int


WORKS = (
    Work("request", "answers", "mock-n200-us0", False, 16),
    Work("burst chunk", "events", "mock-n200-us0", True, 8),
    Work("paced chunk", "events", "mock-n100-us20000", True, 40),
)
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


class Figure(Struct, frozen=True):
    """CPU microseconds per unit of one gateway on one work, and what the load saw."""

    cpu_us: float
    first_byte_ms: float
    bad: int


def main() -> None:
    """Measure and print; `--write` puts the page into the documentation."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    choices = ("all", "tokens")
    parser.add_argument("part", nargs="?", choices=choices, default="all", help="what to measure")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load per work and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="only works whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    if options.part == "tokens":
        print("\n".join(tokens.table()))
        return
    works = [work for work in WORKS if not options.only or options.only in work.name]
    figures, missing = measure(works, options.seconds, options.rounds)
    lines = page(figures, works, missing, full=options.only is None)
    print("\n".join(lines))
    if options.write:
        PAGE.write_text("\n".join(lines) + "\n")


def build(folder: Path) -> tuple[str, str]:
    """Compile the mock upstream and the load generator."""
    for name in ("upstream", "load"):
        source, target = HERE / f"{name}.c", folder / name
        subprocess.run(["gcc", "-O2", "-o", str(target), str(source)], check=True)
    return str(folder / "upstream"), str(folder / "load")


def measure(
    works: list[Work], seconds: float, rounds: int
) -> tuple[dict[tuple[str, str, str], list[Figure]], list[str]]:
    """All gateways on all works, interleaved."""
    found, missing = gateways.installed()
    figures: dict[tuple[str, str, str], list[Figure]] = {}
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        folder = Path(text)
        upstream_program, load_program = build(folder)
        upstream = machine.free_port()
        stack.enter_context(
            machine.running(
                [upstream_program, str(upstream)],
                core=1,
                ready=f"http://127.0.0.1:{upstream}/v1/models",
            )
        )
        servers = []
        for gateway in found:
            port = machine.free_port()
            command = gateway.command(port, upstream, folder)
            ready = gateway.ready.format(port=port)
            process = stack.enter_context(
                machine.running(command, core=0, ready=ready, environment=gateway.environment)
            )
            servers.append((gateway, port, process.pid))
        for _ in range(rounds):
            for work in works:
                for gateway, port, pid in servers:
                    for wire in gateway.wires:
                        figure = load(load_program, port, pid, wire, work, seconds, gateway.key)
                        figures.setdefault((work.name, gateway.name, wire), []).append(figure)
    return figures, missing


def load(
    program: str, port: int, pid: int, wire: str, work: Work, seconds: float, key: str
) -> Figure:
    """Put one load on one server and count its CPU."""
    arguments = [str(port), PATHS[wire], str(work.connections), str(seconds), work.model]
    before = machine.cpu(pid)
    done = subprocess.run(
        ["taskset", "-c", "1", program, *arguments, str(int(work.stream)), "0", key],
        capture_output=True,
        check=True,
        timeout=seconds + 60,
    )
    seen = json.loads(done.stdout)
    used = machine.cpu(pid) - before
    units = max(seen[work.unit], 1)
    return Figure(used / units * 1e6, seen["ttfb50_us"] / 1e3, seen["broken"] + seen["refused"])


def page(
    figures: dict[tuple[str, str, str], list[Figure]],
    works: list[Work],
    missing: list[str],
    *,
    full: bool,
) -> list[str]:
    """The page, as lines of Markdown."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    today = datetime.datetime.now(tz=datetime.UTC).date()
    lines = [
        "# Performance",
        "",
        "Written by `python -m bench --write`. CPU of the whole process tree per unit of work, and",
        "the ratio to nginx (`proxy_pass`, unbuffered) or to whoever is named, within one run: CPU",
        "per unit can be trusted to about a quarter, absolute throughput cannot.",
        "",
        f"{machine.describe()}; {today}; commit {commit}.",
        "",
        "Goals: at most 4 times nginx per request, 2.5 per paced chunk, 4.5 per burst chunk;",
        "at most 12 us per burst chunk from Chat to Responses; a client 40 times below the SDK.",
        "`relay` is the gateway before a server whose answers it lets pass unread: wished for are",
        "1.7 times nginx per request, 1.8 per paced chunk, 1.2 per burst chunk.",
        *([f"Not installed, so not measured: {', '.join(missing)}."] if missing else []),
        "",
        "| work | gateway | client speaks | CPU per unit | x nginx | first byte, p50 | bad |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in works:
        base = figures.get((work.name, "nginx", "chat"))
        for (name, gateway, wire), rounds in figures.items():
            if name != work.name:
                continue
            middle = statistics.median(figure.cpu_us for figure in rounds)
            ratio = f"{middle / statistics.median(f.cpu_us for f in base):.2f}" if base else "–"
            wait = statistics.median(figure.first_byte_ms for figure in rounds)
            bad = sum(figure.bad for figure in rounds)
            lines.append(
                f"| {work.name} | {gateway} | {wire} | {middle:.2f} us | {ratio} "
                f"| {wait:.2f} ms | {bad} |"
            )
    if full:
        lines += ["", *client.table(), "", *tokens.table(), "", *start.table()]
    return lines


if __name__ == "__main__":
    main()
