"""A caller that is cancelled closes the connection to the upstream at once, in every phase."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.core.event import Delta, Failed
from dragoman.core.request import Sampling
from dragoman.engines.remote import Remote
from tests.cancel.phases import AT_ONCE, FIRST, PHASES, TRIALS, Phase, closed_after, now
from tests.engines.asking import asking, events, remote
from tests.mock import Asked, Mock, Reply, head, plain, stream


@asynccontextmanager
async def leaving(engine: Remote, phase: Phase, up: Mock) -> AsyncIterator[asyncio.Task[None]]:
    """A task that asks, once it is in its phase."""
    spoken = asyncio.Event()

    async def listen() -> None:
        async for event in engine.stream(asking(stream=phase.streamed)):
            if isinstance(event, Delta):
                spoken.set()

    up.forget()
    task = asyncio.ensure_future(listen())
    async with asyncio.timeout(10):
        await (spoken.wait() if phase.heard else up.arrived.wait())
        for _ in range(5):
            await asyncio.sleep(0)  # what the server has sent is read, up to where it hangs
        yield task
        await asyncio.wait((task,))


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
async def test_p26_cancelling_the_caller_closes_the_upstream(phase: Phase, wire: str) -> None:
    def handler(asked: Asked) -> Reply:
        return phase.reply(wire)

    async with remote(handler, wire=wire, retries=phase.retries, header_hold=0.01) as (engine, up):
        for _ in range(TRIALS):
            async with leaving(engine, phase, up) as task:
                left = now()
                task.cancel()
            assert task.cancelled()
            (asked,) = up.asked  # and it was not asked again
            assert await closed_after(left, asked) < AT_ONCE


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_p26_closing_the_events_closes_the_upstream(wire: str) -> None:
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
        assert isinstance(end, Failed)
        assert end.fault.code in ("upstream_cut", "upstream_unreachable")


async def test_a_cancelled_caller_leaves_no_task() -> None:
    async with remote(lambda asked: Reply([head()], hang=True)) as (engine, up):
        before = asyncio.all_tasks()
        for _ in range(TRIALS):
            async with leaving(engine, PHASES[2], up) as task:
                task.cancel()
            await up.asked[0].gone
        for _ in range(100):  # the loop needs some turns to put things away
            if not asyncio.all_tasks() - before:
                break
            await asyncio.sleep(0.001)
        assert asyncio.all_tasks() - before == set()
