"""When a stream begins, when it ends, and what may still come after."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.response import Usage
from dragoman.engines.remote import LATE_USAGE
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, events, remote
from tests.mock import Asked, Reply, chunk, completion, head, plain, stream

COUNTED = {**chunk(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
USAGE = Usage(input_tokens=3, output_tokens=2)


class Gate:
    """A server that answers once it is let."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.open = asyncio.Event()

    async def __call__(self, asked: Asked) -> Reply:
        await self.open.wait()
        return self.reply


async def held(reply: Reply, hold: float = 0.02) -> list[Event]:
    """The events of a stream whose server is silent until the stream has begun."""
    gate = Gate(reply)
    async with remote(gate, header_hold=hold) as (engine, _), asyncio.timeout(60):
        answer = engine.stream(asking(stream=True))
        heard = [await anext(answer)]
        gate.open.set()
        heard += [event async for event in answer]
    check(heard)
    assert isinstance(heard[0], Started)
    return heard


# ---- the beginning -------------------------------------------------------------------------


async def test_a_silent_server_does_not_keep_a_stream_from_beginning() -> None:
    response = fold(await held(HELLO_STREAM))
    assert response.text == "Hello"
    assert response.extra is not None
    assert response.extra["upstream"] == {"id": "chatcmpl-1", "created": 1700000000}


async def test_a_failure_after_that_is_the_end_of_the_stream() -> None:
    *_, last = await held(plain(500, {"error": {"message": "boom"}}))
    assert isinstance(last, Failed)
    assert (last.fault.status, last.fault.message) == (500, "boom")


@pytest.mark.parametrize("reply", [Reply([]), Reply([b"SSH-2.0\r\n"]), Reply([head()])])
async def test_so_is_a_server_that_breaks(reply: Reply) -> None:
    *_, last = await held(reply)
    assert isinstance(last, Failed)


async def test_a_failure_before_that_is_all_there_is() -> None:
    gate = Gate(plain(429, b"", "retry-after: 1"))
    async with remote(gate, header_hold=10) as (engine, up):
        waiting = asyncio.ensure_future(events(engine, asking(stream=True)))
        await up.arrived.wait()
        gate.open.set()
        (only,) = await waiting
    assert isinstance(only, Failed)
    assert only.fault.status == 429


async def test_a_plain_answer_is_not_begun_before_it_is_there() -> None:
    gate = Gate(plain(503, b"busy"))
    async with remote(gate, header_hold=0.0) as (engine, up):
        waiting = asyncio.ensure_future(events(engine, asking()))
        await up.arrived.wait()
        gate.open.set()
        (only,) = await waiting
    assert isinstance(only, Failed)


async def test_the_usual_hold_is_five_seconds() -> None:
    async with remote(HELLO) as (engine, _):
        assert engine.header_hold == 5.0


# ---- the end -------------------------------------------------------------------------------


async def test_p29_usage_after_done_is_heard() -> None:
    late = Reply([*HELLO_STREAM.pieces, _data(COUNTED)])
    async with remote(late) as (engine, _):
        assert (await ask(engine, asking(stream=True))).usage == USAGE


async def test_p29_late_usage_is_not_waited_for_for_long() -> None:
    async with remote(Reply([*HELLO_STREAM.pieces], hang=True)) as (engine, up):
        began = time.monotonic()
        answer = await ask(engine, asking(stream=True))
        assert time.monotonic() - began < 40 * LATE_USAGE
        assert answer.usage is None
        async with asyncio.timeout(5):
            await up.asked[0].gone


async def test_nothing_but_counts_is_heard_after_the_end() -> None:
    more = [_data(chunk({"content": " and more"})), _data({"error": {"message": "late"}})]
    async with remote(Reply([*HELLO_STREAM.pieces, *more, _data(COUNTED)])) as (engine, _):
        answer = await ask(engine, asking(stream=True))
    assert (answer.text, answer.usage) == ("Hello", USAGE)


async def test_a_reader_that_stops_at_the_end_frees_the_connection() -> None:
    body = b"".join(stream(chunk({"content": "x"}), COUNTED, chunk(finish="stop")).pieces[1:])
    whole = Reply([head(200, f"content-length: {len(body)}"), body], keep=True)
    async with remote(whole) as (engine, up):
        for _ in range(4):
            answer = engine.stream(asking(stream=True))
            async for event in answer:
                if isinstance(event, Finished):
                    break
            await answer.aclose()
        assert up.connections == 1


async def test_r2_35_the_last_reason_that_was_stated_counts() -> None:
    pieces = [chunk({"content": "x"}), chunk(finish="length"), chunk(), COUNTED]
    async with remote(stream(*pieces)) as (engine, _):
        answer = await ask(engine, asking(stream=True))
    assert (answer.reasons, answer.status, answer.usage) == (("length",), "incomplete", USAGE)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_p30_a_zero_is_a_zero_and_what_is_missing_is_missing(streamed: bool) -> None:
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for usage, expected in (
        (zero, Usage(input_tokens=0, output_tokens=0, total_tokens=0)),
        ({"prompt_tokens": 3}, Usage(input_tokens=3)),
        ({"prompt_tokens": None}, None),
        (None, None),
    ):
        answer: dict[str, Any] = completion({"content": "x"}, usage=usage)
        async with remote(plain(200, answer)) as (engine, _):
            assert (await ask(engine, asking(stream=streamed))).usage == expected


async def test_p24_a_cut_is_a_failure_that_keeps_what_came() -> None:
    for pieces in ([chunk({"content": "Hel"})], [chunk({"content": "Hel"}), b'{"choices": [{"de']):
        async with remote(stream(*pieces, done=False)) as (engine, _):
            heard = await events(engine, asking(stream=True))
        last = heard[-1]
        assert isinstance(last, Failed)
        assert last.fault.code == "upstream_cut"
        assert fold(heard).text == "Hel"


def _data(value: dict[str, Any]) -> bytes:
    return stream(value, done=False).pieces[1]
