"""The same request to two servers, one with an engine that tells and one with an engine that is
awaited, and their answers, which have to be the same.

What a request or an answer should be is for the tests to say.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from tests.server.stubs import PATHS, Stub, Teller, asking, served
from tests.server.talk import Answer, Talk, talking


def request(
    wire: str,
    *headers: str,
    body: bytes | None = None,
    line: str = "",
    type: str = "application/json",
    sized: bool = True,
    **fields: Any,
) -> bytes:
    """A request with an id, so that its answer shows no other."""
    data = json.dumps(asking(wire, **fields)).encode() if body is None else body
    head = [line or f"POST {PATHS[wire]} HTTP/1.1", "host: localhost", "x-request-id: r1", *headers]
    head += [f"content-type: {type}"] if type else []
    if sized:
        head.append(f"content-length: {len(data)}")
    else:
        head.append("transfer-encoding: chunked")
        data = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
    return "\r\n".join((*head, "", "")).encode("latin-1") + data


async def asked(
    stub: Stub, *packets: bytes, answers: int, settings: Settings, remembers: bool
) -> list[Answer]:
    memory = Memory(MemoryStore(), dialect=settings.dialect) if remembers else None
    async with served(App(stub, settings, memory)) as port, talking(port) as talk:
        for packet in packets[:-1]:
            talk.send(packet)
            await stub.begun.wait()
        talk.send(packets[-1])
        return [await awaited(talk) for _ in range(answers)]


async def awaited(talk: Talk) -> Answer:
    """The next answer that is one."""
    answer = await talk.answer()
    return await talk.answer() if " 100 " in answer.status else answer


async def both(
    cues: Sequence[Any],
    *packets: bytes,
    answers: int = 1,
    told: int | None = 1,
    remembers: bool = False,
    **options: Any,
) -> list[Answer]:
    """The answers, which were the same on both ways; so many of them were told."""
    common: Any = {
        "answers": answers,
        "settings": Settings(**options),
        "remembers": remembers,
    }
    teller, stub = Teller(*cues), Stub(*cues)
    short, long = await asyncio.gather(
        asked(teller, *packets, **common), asked(stub, *packets, **common)
    )
    assert short == long
    assert told is None or teller.told == told
    assert teller.running == 0
    return short
