"""A caller that is cancelled closes the connection to the upstream at once, in every phase."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.core.event import Delta
from dragoman.core.request import Sampling
from tests.cancel.phases import AT_ONCE, FIRST, TRIALS, closed_after, now
from tests.engines.asking import asking, events, remote
from tests.mock import Asked, Reply, head, plain, stream


@pytest.mark.parametrize("wire", FIRST)
async def test_p26_closing_the_events_closes_the_upstream(wire) -> None:
    reply = stream(*FIRST[wire], done=False, hang=True)
    async with remote(reply, wire=wire) as (engine, up):
        for _ in range(TRIALS):
            up.forget()
            answer = engine.stream(asking(stream=True))
            async for event in answer:
                if isinstance(event, Delta):
                    break
            left = now()
            await answer.aclose()
            assert await closed_after(left, up.asked[0]) < AT_ONCE


async def test_p26_closing_a_stream_begun_in_silence_closes_the_upstream() -> None:
    async with remote(Reply([], hang=True), header_hold=0.01) as (engine, up):
        for _ in range(TRIALS):
            up.forget()
            answer = engine.stream(asking(stream=True))
            await anext(answer)
            await up.arrived.wait()
            left = now()
            await answer.aclose()
            assert await closed_after(left, up.asked[0]) < AT_ONCE


async def test_p26_closing_a_fan_out_closes_every_upstream_request() -> None:
    def reply(asked: Asked) -> Reply:
        return stream(*FIRST["chat"], done=False, hang=True)

    request = asking(stream=True, sampling=Sampling(n=3))
    async with remote(reply, profile="ollama") as (engine, up):
        answer = engine.stream(request)
        async with asyncio.timeout(10):
            while len(up.asked) < 3:
                await anext(answer)
        left = now()
        await answer.aclose()
        assert max([await closed_after(left, asked) for asked in up.asked]) < AT_ONCE


async def test_p26_cancelling_during_the_probe_sends_no_request_and_close_ends_the_probe() -> None:
    def probed(asked: Asked) -> Reply:
        return Reply([], hang=True)

    async with remote(plain(500, b""), wire="auto", probed=probed) as (engine, up):
        task = asyncio.ensure_future(events(engine, asking(stream=True)))
        async with asyncio.timeout(10):
            while not up.probes:
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert not up.asked
        left = now()
        await engine.close()
        assert await closed_after(left, up.probes[0]) < AT_ONCE


async def test_p26_closing_the_engine_fails_its_running_request() -> None:
    async with remote(Reply([head()], hang=True)) as (engine, up):
        task = asyncio.ensure_future(events(engine, asking(stream=True)))
        await up.arrived.wait()
        left = now()
        await engine.close()
        assert await closed_after(left, up.asked[0]) < AT_ONCE
        async with asyncio.timeout(10):
            end = (await task)[-1]
        assert end.fault.code in ("upstream_cut", "upstream_unreachable")
