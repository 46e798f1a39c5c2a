"""Programs: what a history costs, a stream, many at once, and a large choice; beside guidance.

    python -m bench.programs [--guidance PYTHON]

Where PYTHON is an interpreter that has guidance and the OpenAI SDK, it runs the same programs
against the same mock server, in a process of its own. Every figure is the best of three.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from dragoman import connect, connect_sync
from dragoman.engines.script import Script
from dragoman.program import Model, assistant, gen, select, user

TURNS, TOKENS, AT_ONCE, OPTIONS = 400, 3_000, 100, 1_000
DELAY = 0.05
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MISSING = b"HTTP/1.1 404 X\r\ncontent-length: 2\r\n\r\n{}"

THEIRS = """
import sys, time
import guidance
from guidance import user, assistant, gen
from guidance.models import OpenAI

def timed(name, work):
    best = min(work() for _ in range(1 if name == "turns" else 3))
    print(name, best, flush=True)

def turns():
    lm = OpenAI("gpt-4o", api_key="none", base_url=sys.argv[1], echo=False)
    began = time.perf_counter()
    for number in range(int(sys.argv[2])):
        with user():
            lm += f"turn {number}"
    return time.perf_counter() - began

def tokens():
    lm = OpenAI("gpt-4o", api_key="none", base_url=sys.argv[1], echo=False)
    with user():
        lm += "many"
    began = time.perf_counter()
    with assistant():
        lm += gen("x")
    return time.perf_counter() - began

timed("turns", turns)
timed("tokens", tokens)
"""


@contextlib.contextmanager
def mock() -> Iterator[str]:
    """The mock in a process of its own; gives its address."""
    command = [sys.executable, "-m", "bench.programs", "--mock"]
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


def best(work: Callable[[], float]) -> float:
    """The shortest of three runs, in seconds."""
    return min(work() for _ in range(3))


def turns() -> float:
    """Literal turns, without an engine."""
    lm = Model(Script("x"))
    began = time.perf_counter()
    for number in range(TURNS):
        with user():
            lm += f"turn {number}"
    return time.perf_counter() - began


def asked(url: str, text: str) -> Model:
    """A model after a question."""
    lm = Model(url, model="gpt-4o")
    with user():
        return lm + text


def tokens(url: str) -> float:
    """A long answer, in a program."""
    lm = asked(url, "many")
    began = time.perf_counter()
    with assistant():
        lm += gen("x")
    took = time.perf_counter() - began
    if len(lm["x"].split()) != TOKENS:
        raise RuntimeError("tokens are missing")
    return took


def snapshots(url: str) -> float:
    """The same, streamed: every delta with the model so far."""
    lm = asked(url, "many")
    began = time.perf_counter()
    with assistant():
        count = sum(delta.model is not lm for delta in lm.stream(gen("x")))
    if count < TOKENS:
        raise RuntimeError("deltas are missing")
    return time.perf_counter() - began


def raw(url: str) -> float:
    """The same answer, by the client alone."""
    client = connect_sync(url, model="gpt-4o")
    began = time.perf_counter()
    client.respond("many")
    return time.perf_counter() - began


def at_once(url: str, count: int) -> float:
    """Several programs at the same time."""
    lm = asked(url, "one")
    with assistant():
        lm.batch([gen("x") for _ in range(count)]).wait()  # the connections are made
        began = time.perf_counter()
        lm.batch([gen("x") for _ in range(count)]).wait()
    return time.perf_counter() - began


def clients(url: str, count: int) -> float:
    """As many answers at the same time, by the client alone."""
    client = connect(url, model="gpt-4o")

    async def ask() -> float:
        await asyncio.gather(*(client.respond("one") for _ in range(count)))
        began = time.perf_counter()
        await asyncio.gather(*(client.respond("one") for _ in range(count)))
        return time.perf_counter() - began

    return asyncio.run(ask())


def choice(model: Model) -> float:
    """One of many options, on the pocket model."""
    options = [f"option {number}" for number in range(OPTIONS)]
    began = time.perf_counter()
    with assistant():
        lm = model + select(options, name="x", guarantee="enforced")
    if lm["x"] not in options:
        raise RuntimeError("this is no option")
    return time.perf_counter() - began


def theirs(python: str, url: str) -> dict[str, float]:
    """The figures of guidance, as far as it can run the programs."""
    command = [python, "-c", THEIRS, url, str(TURNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
    lines = (line.split() for line in done.stdout.splitlines())
    return {words[0]: float(words[1]) for words in lines if len(words) == 2}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mock", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--guidance", metavar="PYTHON", default="")
    arguments = parser.parse_args()
    if arguments.mock:
        serve_mock()
    with mock() as url:
        table(url, arguments.guidance)


def table(url: str, guidance: str) -> None:
    """Measure, and print."""
    pocket = Model("pocket", temperature=0)
    with user():
        pocket += "Choose one."
    first = choice(pocket)
    one = best(lambda: at_once(url, 1))
    figures = {
        "turns": best(turns),
        "raw": best(lambda: raw(url)),
        "tokens": best(lambda: tokens(url)),
        "snapshots": best(lambda: snapshots(url)),
        "one": one,
        "clients": best(lambda: clients(url, AT_ONCE)),
        "at once": best(lambda: at_once(url, AT_ONCE)),
        "select, first": first,
        "select, again": best(lambda: choice(pocket)),
    }
    other = theirs(guidance, url) if guidance else {}
    names = {
        "turns": f"{TURNS} literal turns",
        "raw": f"{TOKENS} tokens, client alone",
        "tokens": f"{TOKENS} tokens, in a program",
        "snapshots": f"{TOKENS} tokens, with snapshots",
        "one": f"one gen, mock of {DELAY * 1000:g} ms",
        "clients": f"{AT_ONCE} answers at once, client alone",
        "at once": f"{AT_ONCE} gens at once, the same mock",
        "select, first": f"select of {OPTIONS}, pocket, first time",
        "select, again": f"select of {OPTIONS}, pocket, again",
    }
    for name, seconds in figures.items():
        beside = f"   guidance {other[name] * 1000:10.1f} ms" if name in other else ""
        print(f"{names[name]:42}{seconds * 1000:10.1f} ms{beside}")


if __name__ == "__main__":
    main()
