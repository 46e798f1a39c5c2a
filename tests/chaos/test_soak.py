"""A server under a mixed load for a long time: it answers to the end, and keeps nothing.

A seventh of the clients leave in the middle. For minutes under `make test-full`, where memory is
measured too; the seconds of `make test` show answers and open files only.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dragoman.net.connection import Limits
from tests.hostile.stage import gateway, memory
from tests.mock import Asked, Reply, chunk, completion, plain, stream
from tests.product import Product
from tests.samples import FULL, samples

SECONDS = samples(2, 20 * 60)
CLIENTS = 8
GROWTH = 1.0
"""Megabytes of memory that 10,000 requests may leave."""
WORDS = [f"word{number} " for number in range(40)]
USER = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "json_schema", "name": "s", "schema": {"type": "object"}}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
STORED = ("POST", "/v1/responses", {"input": "Hi"}, 200)
"""What is gone on from, and read, once it was answered: earlier ones make room for others."""
KINDS: list[tuple[str, str, Any, int]] = [
    STORED,
    ("POST", "/v1/chat/completions", {"messages": USER}, 200),
    ("POST", "/v1/chat/completions", {"messages": USER, "stream": True}, 200),
    ("POST", "/v1/chat/completions", {"messages": USER, "stream": True, "store": True}, 200),
    ("POST", "/v1/responses", {"input": "Hi", "stream": True}, 200),
    ("POST", "/v1/responses", {"input": "Hi", "stream": True, "store": False}, 200),
    ("POST", "/v1/responses", {"input": "Hi", "background": True}, 200),
    ("POST", "/v1/responses", {"input": "Hi", "previous_response_id": "LAST"}, 200),
    ("POST", "/v1/responses", {"input": "Hi", "tools": [TOOL], "text": {"format": SCHEMA}}, 200),
    ("POST", "/v1/messages", {"messages": USER, "max_tokens": 9, "stream": True}, 200),
    ("POST", "/v1/messages", {"messages": USER, "max_tokens": 9}, 200),
    ("POST", "/v1/messages/count_tokens", {"messages": USER}, 200),
    ("POST", "/v1/responses", {"input": 7}, 400),
    ("POST", "/v1/chat/completions", {"messages": USER, "fail": True}, 429),
    ("GET", "/v1/responses/LAST", None, 200),
    ("GET", "/healthz", None, 200),
    ("GET", "/v1/nowhere", None, 404),
]
"""What is asked: a method, a path, the body of a model, and the status of its answer."""


def reply(asked: Asked) -> Reply:
    """What the model's server says: forty words, or that it is too much."""
    if asked.json.get("fail"):
        return plain(429, {"error": {"message": "Slow down."}})
    if asked.json.get("stream"):
        return stream(*(chunk({"content": word}) for word in WORDS), chunk(finish="stop"))
    return plain(200, completion({"content": "".join(WORDS)}))


class Load:
    """Clients that ask one thing after the other."""

    def __init__(self, server: Product) -> None:
        self.server = server
        self.asked = 0
        self.wrong: list[str] = []
        self._numbers = count()
        self._last = ""

    async def run(self, seconds: float, every: float, look: Callable[[], object]) -> None:
        """Ask for so long, and look every so often."""
        end = time.monotonic() + seconds
        self._keep(await self._ask(*STORED[:3]))
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client(end))
            while time.monotonic() < end:
                await asyncio.sleep(min(every, max(end - time.monotonic(), 0)))
                look()

    async def _client(self, end: float) -> None:
        while time.monotonic() < end:
            number = next(self._numbers)
            method, path, body, status = KINDS[number % len(KINDS)]
            answer = await self._ask(method, path, body, leaving=number % 7 == 3)
            whole = status != 200 or answer is None or answer.endswith((b"}", b"ok", b"0\r\n\r\n"))
            if answer is not None and not (answer.startswith(b"HTTP/1.1 %d " % status) and whole):
                self.wrong.append(f"{method} {path} {body}: {answer[:300]!r}")
            elif KINDS[number % len(KINDS)] is STORED:
                self._keep(answer)

    def _keep(self, answer: bytes | None) -> None:
        if answer is not None:
            self._last = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]

    async def _ask(
        self, method: str, path: str, body: Any, *, leaving: bool = False
    ) -> bytes | None:
        """A whole answer, or None for a client that left."""
        given = "" if body is None else json.dumps({"model": "m", **body})
        given, path = given.replace("LAST", self._last), path.replace("LAST", self._last)
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(given)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            writer.write(f"{head}{given}".encode())
            if leaving:
                await reader.read(64)
                return None
            async with asyncio.timeout(60):
                answer = await reader.read()
        finally:
            writer.close()
        self.asked += 1
        return answer


def files(pid: int) -> int:
    """How many files a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.timeout(2 * SECONDS + 300)
def test_a_long_mixed_load_leaves_nothing() -> None:
    with gateway(reply) as (server, model):
        pid, load = server.process.pid, Load(server)
        seen: list[tuple[int, float]] = []

        def look() -> None:
            model.asked.clear()
            seen.append((load.asked, memory(pid)))

        asyncio.run(load.run(SECONDS / 4, 1.0, look))  # until all is warm
        before = settled(pid)
        seen.clear()
        asyncio.run(load.run(SECONDS, SECONDS / 100, look))
        after = settled(pid)
    assert not load.wrong, (len(load.wrong), load.wrong[:3])
    assert load.asked > 20 * SECONDS
    assert after <= before + (0 if FULL else 8)  # a connection of the store may open late
    slope = statistics.linear_regression(*zip(*seen, strict=True)).slope
    print(f"{load.asked} requests, {slope * 10_000:.2f} MB per 10,000, {before} to {after} files")
    assert not FULL or slope * 10_000 <= GROWTH


def settled(pid: int) -> int:
    """How many files are open once those of the last clients are closed, and at full length the
    idle connections to the model's server, of which there are as many as were in use at once."""
    least = files(pid)
    for _ in range(20 * (1 + FULL * math.ceil(Limits().keep_alive))):
        time.sleep(0.05)
        least = min(least, files(pid))
    return least
