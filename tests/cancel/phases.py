"""The moments in which a caller disconnects: what the upstream does, and how the moment shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tests.mock import Asked, Reply, chunk, head, stream
from tests.samples import samples

TRIALS = samples(5, 20)
AT_ONCE = 0.25
"""Seconds by the clock of the loop (tests/steady.py) within which the upstream must see it. Work
and a machine that stops count as moments there, so this is time that somebody waited on purpose."""

CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
SPOKEN = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"}
BEGUN = {"type": "message_start", "message": {"id": "msg_1", "content": []}}
TEXT = {"type": "text", "text": "Hello"}
OPENED = {"type": "content_block_start", "index": 0, "content_block": TEXT}
FIRST = {
    "chat": [chunk({"content": "Hello"})],
    "responses": [CREATED, SPOKEN],
    "messages": [BEGUN, OPENED],
}
BUSY = head(429, "content-length: 4", "retry-after: 50")


@dataclass(frozen=True)
class Phase:
    """A moment to leave in. `reply` is the server's, by its wire."""

    name: str
    reply: Callable[[str], Reply]
    streamed: bool = True
    retries: int = 0
    heard: bool = False
    """Wait for the first words, and not only for the request to arrive."""


PHASES = (
    Phase("before headers", lambda wire: Reply([], hang=True)),
    Phase("inside headers", lambda wire: Reply([b"HTTP/1.1 200 OK\r\nco"], hang=True)),
    Phase("after headers", lambda wire: Reply([head()], hang=True)),
    Phase("mid-stream", lambda wire: stream(*FIRST[wire], done=False, hang=True), heard=True),
    Phase("unary", lambda wire: Reply([], hang=True), streamed=False),
    Phase(
        "unary, in the body",
        lambda wire: Reply([head(200, "content-length: 99"), b"{"], hang=True),
        streamed=False,
    ),
    Phase("in a refusal", lambda wire: Reply([head(500), b"oh"], hang=True)),
    Phase("between retries", lambda wire: Reply([BUSY], hang=True), retries=3),
)


def now() -> float:
    return asyncio.get_running_loop().time()


async def closed_after(left: float, asked: Asked) -> float:
    """Seconds from leaving to the close that the server saw."""
    async with asyncio.timeout(30):
        return await asked.gone - left
