"""What a token costs: served, parsed, masked, written by the pocket model.

Recorded tokens of harmony are replayed behind our server and behind that of the package gpt-oss,
where GPT_OSS names the Python that has it; the vocabulary is where gpt-oss itself looks for it
(TIKTOKEN_ENCODINGS_BASE). What is not there is left out, and said to be.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.engines.token.engine import raw_ids
from dragoman.formats.harmony import HARMONY

from . import machine, replay

HERE = Path(__file__).parent
GPT_OSS = "GPT_OSS"
ANSWERS = 20
ROUNDS = 3
WORDS = 300
"""Groups of words of the recorded answer; a third of them is thought before."""


def recorded() -> list[int]:
    """The ids of an answer as a model of the gpt-oss kind writes it."""
    said = [
        f"word{number % 97} {'and so' if number % 5 else 'on, then.'}" for number in range(WORDS)
    ]
    thought, text = " ".join(said[: WORDS // 3]), " ".join(said)
    answer = (
        f"<|channel|>analysis<|message|>{thought}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    )
    return raw_ids(answer, replay.vocabulary())


def table() -> list[str]:
    """The figures, as lines of Markdown."""
    ids = recorded()
    other = os.environ.get(GPT_OSS)
    lines = ["| tokens | measured | goal |", "|---|---|---|"]
    served = _served(ids, other)
    for name, (cost, deltas) in served.items():
        each = f"served over Responses in {deltas:.2f} deltas a token"
        lines.append(f"| {each}, {name}, CPU | {cost:.1f} us | |")
    theirs = served.pop("gpt-oss's server", None)
    if theirs is not None:
        for name, (cost, _) in served.items():
            ratio = f"{theirs[0] / cost:.1f} times as much"
            lines.append(f"| gpt-oss's server, beside {name} | {ratio} | 8 times |")
    else:
        lines.append(f"| gpt-oss's server | not measured: {GPT_OSS} names no Python | |")
    lines.append(f"| parsed, CPU | {_parsed(ids):.2f} us | |")
    if other:
        lines.append(f"| parsed by openai-harmony, CPU | {_parsed_there(ids, other):.2f} us | |")
    return lines + _pocket()


def _served(ids: list[int], other: str | None) -> dict[str, tuple[float, float]]:
    """Microseconds of CPU and deltas for each token of every server, in interleaved rounds."""
    figures: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as text, ExitStack() as stack:
        file = Path(text) / "ids.json"
        file.write_text(json.dumps(ids))
        kinds = {"dragoman, plain function": "function", "dragoman, stream of ids": "stream"}
        commands = {
            name: [sys.executable, "-m", "bench.replay", "{port}", str(file), kind]
            for name, kind in kinds.items()
        }
        if other:
            program = str(HERE / "replay_gpt_oss.py")
            commands["gpt-oss's server"] = [other, program, "serve", "{port}", str(file)]
        running = {}
        for name, command in commands.items():
            port = machine.free_port()
            filled = [word.format(port=port) for word in command]
            ready = f"http://127.0.0.1:{port}/v1/models"
            process = stack.enter_context(machine.running(filled, core=0, ready=ready))
            running[name] = (port, process.pid)
            _ask(port)  # the first answer warms up
        for _ in range(ROUNDS):
            for name, (port, pid) in running.items():
                before = machine.cpu(pid)
                deltas = sum(_ask(port) for _ in range(ANSWERS))
                used, told = machine.cpu(pid) - before, ANSWERS * len(ids)
                figures.setdefault(name, []).append((used / told * 1e6, deltas / told))
    return {name: statistics.median_low(rounds) for name, rounds in figures.items()}


def _ask(port: int) -> int:
    """Stream one answer to its end; how many deltas it had."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = json.dumps({"model": "replay", "input": "Hello!", "stream": True})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    said = connection.getresponse().read()
    connection.close()
    if b"response.completed" not in said:
        raise RuntimeError(f"the answer is no whole one: {said[-300:]!r}")
    return said.count(b"event: response.output_text.delta") + said.count(
        b"event: response.reasoning_text.delta"
    )


def _parsed(ids: list[int]) -> float:
    """Microseconds for each token, given one at a time."""
    request, vocabulary = Request(model="m", items=()), replay.vocabulary()
    best = float("inf")
    for _ in range(20):
        turn = Turn("1", 0, "m", think=None)
        parser = HARMONY.parser(request, turn, vocabulary)
        begun = time.process_time()
        for id in ids:
            parser.feed([id])
            turn.take()
        best = min(best, time.process_time() - begun)
    return best / len(ids) * 1e6


def _parsed_there(ids: list[int], python: str) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        command = [python, str(HERE / "replay_gpt_oss.py"), "parse", file.name]
        done = subprocess.run(command, capture_output=True, check=True)
    return float(done.stdout) / len(ids) * 1e6


def _pocket() -> list[str]:
    done = subprocess.run([sys.executable, "-m", "bench.pocket"], capture_output=True, check=True)
    found = json.loads(done.stdout)
    size = replay.vocabulary().size
    return [
        f"| mask of a JSON schema, {size:,} ids, mean | {found['mask_us']:.0f} us | |",
        f"| the same, p99 | {found['mask_p99_us']:.0f} us | |",
        f"| pocket model, one stream | {found['alone']:.0f} tokens/s | |",
        f"| pocket model, 32 streams together | {found['together']:.0f} tokens/s | |",
        f"| the most tokens a stream of them got, by the least | {found['ratio']:.2f} | 1.2 |",
        f"| memory of the process with the pocket model | {found['rss_mb']:.0f} MB | |",
    ]


if __name__ == "__main__":
    print("\n".join(table()))
