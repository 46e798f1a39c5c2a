"""Whoever goes away stops what works for them: an engine before a server, in every phase.

The server stamps the moment its connection is closed; more than `LATEST` seconds after the caller
left is a failure, whatever the phase.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dragoman.core.event import Delta, Event
from dragoman.core.request import Sampling
from dragoman.engines.remote import Remote
from tests.cancel.phases import FIRST, LATEST, PHASES, TRIALS, Phase, closed_after
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
async def test_p26_a_caller_that_is_cancelled_closes_the_upstream(phase: Phase, wire: str) -> None:
    def handler(asked: Asked) -> Reply:
        return phase.reply(wire)

    async with remote(handler, wire=wire, retries=phase.retries, header_hold=0.01) as (engine, up):
        for _ in range(TRIALS):
            async with leaving(engine, phase, up) as task:
                left = time.monotonic()
                task.cancel()
            assert task.cancelled()
            (asked,) = up.asked  # and it was not asked again
            assert await closed_after(left, asked) < LATEST


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
            left = time.monotonic()
            await answer.aclose()
            assert await closed_after(left, up.asked[0]) < LATEST


async def test_p26_closing_the_events_of_a_stream_begun_in_silence() -> None:
    async with remote(Reply([], hang=True), header_hold=0.01) as (engine, up):
        for _ in range(TRIALS):
            up.forget()
            answer = engine.stream(asking(stream=True))
            await anext(answer)
            await up.arrived.wait()
            left = time.monotonic()
            await answer.aclose()
            assert await closed_after(left, up.asked[0]) < LATEST


async def test_p26_all_alternatives_are_given_up() -> None:
    def reply(asked: Asked) -> Reply:
        return stream(*FIRST["chat"], done=False, hang=True)

    request = asking(stream=True, sampling=Sampling(n=3))
    async with remote(reply, profile="ollama") as (engine, up):
        answer = engine.stream(request)
        async with asyncio.timeout(10):
            while len(up.asked) < 3:
                await anext(answer)
        left = time.monotonic()
        await answer.aclose()
        assert max([await closed_after(left, asked) for asked in up.asked]) < LATEST


async def test_p26_a_caller_that_leaves_while_the_server_is_looked_at() -> None:
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
        left = time.monotonic()
        await engine.close()
        assert await closed_after(left, up.probes[0]) < LATEST


async def test_p26_closing_the_engine_ends_what_runs() -> None:
    async with remote(Reply([head()], hang=True)) as (engine, up):
        task = asyncio.ensure_future(events(engine, asking(stream=True)))
        await up.arrived.wait()
        left = time.monotonic()
        await engine.close()
        assert await closed_after(left, up.asked[0]) < LATEST
        async with asyncio.timeout(10):
            assert _fault_code(await task) in ("upstream_cut", "upstream_unreachable")


def _fault_code(heard: list[Event]) -> str | None:
    fault = getattr(heard[-1], "fault", None)
    return fault.code if fault is not None else None


async def test_a_caller_that_left_leaves_nothing_behind() -> None:
    async with remote(lambda asked: Reply([head()], hang=True)) as (engine, up):
        before = asyncio.all_tasks()
        for _ in range(TRIALS):
            async with leaving(engine, PHASES[2], up) as task:
                task.cancel()
            await up.asked[0].gone
        assert await _settled(lambda: asyncio.all_tasks() - before) == set()


async def _settled(left: Callable[[], set[asyncio.Task[object]]]) -> set[asyncio.Task[object]]:
    """What is left after the loop has had some turns to put things away."""
    for _ in range(100):
        if not left():
            break
        await asyncio.sleep(0.001)
    return left()
