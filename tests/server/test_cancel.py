"""A disconnect cancels the engine at once, in every phase, and nothing is left running.

Here the engine is a stub and the time is taken at its `CancelledError`; what becomes of an
upstream's connection is tested in tests/cancel.
"""

import asyncio

from dragoman.core.interfaces import ANYONE, Caller, Model
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, post, served

GOAL = 0.1
"""Seconds from hanging up to the engine's cancellation."""
SLACK = 50
"""What a machine that stops for seconds may take; the first heartbeat comes later still."""


async def test_p26_disconnect_after_a_large_request_cancels_the_engine(wire: str) -> None:
    """The host pauses reading such a connection; the hang-up must get through."""
    stub = Stub(asyncio.Event())
    text = "x" * 2_000_000
    body = (
        asking(wire, messages=[{"role": "user", "content": text}])
        if wire == "chat"
        else asking(wire, input=text)
    )
    async with served(App(stub, Settings())) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(port, body, PATHS[wire]))
        await asyncio.wait_for(stub.begun.wait(), 10)
        writer.close()
        await asyncio.wait_for(stub.cancelled.wait(), GOAL * SLACK)


async def test_p26_disconnect_cancels_a_listing() -> None:
    waiting, given_up = asyncio.Event(), asyncio.Event()

    class Slow(Stub):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            return ()

    call = Call(App(Slow(), Settings()), "/v1/models", method="GET")
    task = asyncio.create_task(call())
    await waiting.wait()
    call.hang_up()
    await task
    assert given_up.is_set()
    assert not call.sent


async def test_slow_cleanup_of_an_engine_is_not_cut_short(wire: str) -> None:
    stopped = asyncio.Event()

    class Tidy(Stub):
        async def stream(self, request, caller=None):
            try:
                for event in OPENING:
                    yield event
                self.begun.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                stopped.set()

    engine = Tidy()
    call = Call(App(engine, Settings()), PATHS[wire], asking(wire, stream=True))
    task = asyncio.create_task(call())
    await engine.begun.wait()
    call.hang_up()
    await task
    await asyncio.wait_for(stopped.wait(), 10)
