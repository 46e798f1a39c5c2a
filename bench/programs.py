"""Programs: what a history costs, a stream, many at once, and a large choice; beside guidance.

The mock is a process of its own, and so is guidance; where that is installed it runs the same
programs. The best of three is reported: CPU of the process that runs the program, and time. A floor
for many at once is the same bytes over plain sockets of asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from dragoman import connect, connect_sync
from dragoman.engines.script import Script
from dragoman.program import Model, assistant, gen, select, user

from .gateways import ELSEWHERE

TURNS, TOKENS, AT_ONCE, OPTIONS = 400, 3_000, 100, 1_000
DELAY = 0.05
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MISSING = b"HTTP/1.1 404 X\r\ncontent-length: 2\r\n\r\n{}"
PACKAGES = {"guidance": "guidance[openai]==0.3.1"}

THEIRS = """
import sys, time
from guidance import user, assistant, gen
from guidance.models import OpenAI

def timed(name, work, times):
    found = []
    for _ in range(times):
        cpu, began = time.process_time(), time.perf_counter()
        work()
        found.append((time.process_time() - cpu, time.perf_counter() - began))
    print(name, *min(found), flush=True)

def model():
    return OpenAI("gpt-4o", api_key="none", base_url=sys.argv[1], echo=False)

def turns():
    lm = model()
    for number in range(int(sys.argv[2])):
        with user():
            lm += f"turn {number}"

def tokens():
    lm = model()
    with user():
        lm += "many"
    with assistant():
        lm += gen("x")

timed("turns", turns, 1)
timed("tokens", tokens, 3)
"""


class Took(NamedTuple):
    """Seconds of CPU, and of the clock."""

    cpu: float
    wall: float


def timed(work: Callable[[], object]) -> Took:
    """What some work takes."""
    cpu, began = time.process_time(), time.perf_counter()
    work()
    return Took(time.process_time() - cpu, time.perf_counter() - began)


def best(work: Callable[[], Took], times: int = 3) -> Took:
    """The least of several runs."""
    return least([work() for _ in range(times)])


def least(runs: list[Took]) -> Took:
    """The least CPU and the least time; what else the machine does is in the time."""
    return Took(min(run.cpu for run in runs), min(run.wall for run in runs))


@contextlib.contextmanager
def mock() -> Iterator[str]:
    """The mock in a process of its own; gives its address."""
    command = [sys.executable, "-m", "bench.programs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip() if server.stdout else ""
        finally:
            server.terminate()


def serve_mock() -> None:
    """A chat server: `many` is answered with many tokens, else with one after a wait."""

    def chunk(text: str | None, finish: str | None = None) -> bytes:
        delta = {} if text is None else {"content": text}
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        about = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "gpt-4o"}
        return b"data: " + json.dumps({**about, "choices": [choice]}).encode() + b"\n\n"

    def piece(data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)

    end = piece(chunk(None, "stop") + b"data: [DONE]\n\n") + b"0\r\n\r\n"
    one = piece(chunk("yes"))
    ten = piece(b"".join(chunk(" word") for _ in range(10)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await answer(reader, writer)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        size = next((int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length")), 0)
        body = await reader.readexactly(size)
        if head.startswith(b"GET") or body == b"{}":
            writer.write(MISSING)
        else:
            writer.write(HEAD)
            if b"many" in body:
                for _ in range(TOKENS // 10):
                    writer.write(ten)
            else:
                await asyncio.sleep(DELAY)
                writer.write(one)
            writer.write(end)
        await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
        port = server.sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}/v1", flush=True)
        await server.serve_forever()

    asyncio.run(main())


def turns() -> None:
    """Literal turns, without an engine."""
    lm = Model(Script("x"))
    for number in range(TURNS):
        with user():
            lm += f"turn {number}"


def asked(url: str, text: str) -> Model:
    """A model after a question."""
    lm = Model(url, model="gpt-4o")
    with user():
        return lm + text


def tokens(url: str) -> Took:
    """A long answer, in a program."""
    lm = asked(url, "many")
    found: list[Model] = []
    with assistant():
        took = timed(lambda: found.append(lm + gen("x")))
    if len(found[0]["x"].split()) != TOKENS:
        raise RuntimeError("tokens are missing")
    return took


def snapshots(url: str) -> Took:
    """The same, streamed: every delta with the model so far."""
    lm = asked(url, "many")
    count: list[int] = []
    with assistant():
        took = timed(lambda: count.append(len([delta.model for delta in lm.stream(gen("x"))])))
    if count[0] < TOKENS:
        raise RuntimeError("deltas are missing")
    return took


def alone(url: str) -> Took:
    """The same answer, by the client alone."""
    client = connect_sync(url, model="gpt-4o")
    return timed(lambda: client.respond("many"))


def at_once(url: str, count: int) -> Took:
    """Several programs at the same time."""
    lm = asked(url, "one")
    with assistant():
        lm.batch([gen("x") for _ in range(count)]).wait()  # the connections are made
        return best(lambda: timed(lm.batch([gen("x") for _ in range(count)]).wait))


def clients(url: str, count: int) -> Took:
    """As many answers at the same time, by the client alone."""
    client = connect(url, model="gpt-4o")

    async def ask() -> None:
        await asyncio.gather(*(client.respond("one") for _ in range(count)))

    return many(ask)


def sockets(url: str, count: int) -> Took:
    """As many, by plain sockets: bytes that are ready, and no look at what comes."""
    place = urllib.parse.urlsplit(url)
    body = b'{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"one"}]}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    data = request % (len(body), body)
    ready: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(number: int) -> None:
        if number == len(ready):
            ready.append(await asyncio.open_connection(place.hostname, place.port))
        reader, writer = ready[number]
        writer.write(data)
        await reader.readuntil(b"0\r\n\r\n")

    async def ask() -> None:
        if not ready:
            for number in range(count):
                await one(number)
        await asyncio.gather(*map(one, range(count)))

    return many(ask)


def many(ask: Callable[[], Awaitable[None]]) -> Took:
    """What the second and later times take, for which all is ready."""

    async def run() -> Took:
        await ask()
        found = []
        for _ in range(5):
            cpu, began = time.process_time(), time.perf_counter()
            await ask()
            found.append(Took(time.process_time() - cpu, time.perf_counter() - began))
        return least(found)

    return asyncio.run(run())


def choice(model: Model) -> Took:
    """One of many options, on the pocket model."""
    options = [f"option {number}" for number in range(OPTIONS)]
    with assistant():
        return timed(lambda: model + select(options, name="x", guarantee="enforced"))


def theirs(url: str) -> dict[str, Took]:
    """The figures of guidance, as far as it can run the programs."""
    python = ELSEWHERE / "guidance" / "bin" / "python"
    if not python.exists():
        return {}
    command = [str(python), "-c", THEIRS, url, str(TURNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return {name: Took(float(cpu), float(wall)) for name, cpu, wall in lines}


def table() -> list[str]:
    """The comparison, as lines of Markdown."""
    with mock() as url:
        pocket = Model("pocket", temperature=0)
        with user():
            pocket += "Choose one."
        figures = {
            f"{TURNS} literal turns": best(lambda: timed(turns)),
            f"{TOKENS:,} streamed tokens, client alone": best(lambda: alone(url)),
            f"{TOKENS:,} streamed tokens": best(lambda: tokens(url)),
            f"{TOKENS:,} streamed tokens, with snapshots": best(lambda: snapshots(url)),
            f"one gen, mock of {DELAY * 1000:g} ms": at_once(url, 1),
            f"{AT_ONCE} requests at once, plain sockets": sockets(url, AT_ONCE),
            f"{AT_ONCE} answers at once, client alone": clients(url, AT_ONCE),
            f"{AT_ONCE} gens at once": at_once(url, AT_ONCE),
            f"select of {OPTIONS:,} on pocket, first time": choice(pocket),
            f"select of {OPTIONS:,} on pocket, again": best(lambda: choice(pocket)),
        }
        pocket.close()
        other = theirs(url)
    names = {f"{TURNS} literal turns": "turns", f"{TOKENS:,} streamed tokens": "tokens"}
    lines = [
        "| programs, in one process | CPU | time | guidance 0.3.1, CPU | time |",
        "|---|---|---|---|---|",
    ]
    for name, took in figures.items():
        beside = other.get(names.get(name, ""))
        cells = [*took, *(beside or (None, None))]
        shown = ["–" if each is None else f"{each * 1e3:,.1f} ms" for each in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    bare, client, gens = (took for name, took in figures.items() if "at once" in name)
    each = ", ".join(f"{took.cpu * 1e3 / AT_ONCE:.2f} ms" for took in (gens, client, bare))
    room, times = 0.3 * DELAY * 1e3 / AT_ONCE, gens.wall / DELAY
    load = os.getloadavg()[0]
    lines += [
        "",
        f"Goals: 50 ms for the turns; for {AT_ONCE} gens 1.3 times the mock's time, which leaves",
        f"{room:.2f} ms of one core for each. CPU of a gen, of an answer of the client alone, and",
        f"of the bytes alone: {each}. {AT_ONCE} gens took {times:.1f} times as long.",
        f"Load average: {load:.1f}; it is in the times, and hardly in the CPU.",
    ]
    if not other:
        lines += ["", "Not installed, so not measured: guidance."]
    return lines


if __name__ == "__main__":
    serve_mock()
