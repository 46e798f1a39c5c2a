"""Decoders and sinks that raise: the answer fails once, and nothing is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
from collections.abc import Iterator

import pytest

from dragoman.core.error import FaultError
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller, Decoder
from dragoman.core.request import Request
from dragoman.engines import remote as remote_module
from dragoman.engines.remote import Remote, UpstreamRequest
from dragoman.net.client import Pool
from dragoman.net.connection import Connection, Timeouts
from tests.engines.asking import BODY, HELLO, HELLO_STREAM, asking, events, remote
from tests.engines.receiving import Receiver, left, let_go, nothing_left, received
from tests.engines.test_cancel_and_pause import PHASES
from tests.mock import Reply, chunk, mock, plain
from tests.mock import stream as streamed

both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

SPOKEN = streamed(chunk({"content": "Hel"}), done=False).pieces


def assert_internal(event: Event) -> None:
    assert event.fault.code == "internal"
    assert "BrokenError" in event.fault.message


# ---- failing ---------------------------------------------------------------------------------


class BrokenError(Exception):
    """What these tests raise."""


class Spoilt:
    """A decoder that fails at its n-th piece, or at the end."""

    def __init__(self, inside: Decoder, at: int) -> None:
        self._inside = inside
        self._left = at

    @property
    def ended(self) -> bool:
        return self._inside.ended

    def feed(self, data: bytes) -> list[Event]:
        if not self._left:
            raise BrokenError
        self._left -= 1
        return self._inside.feed(data)

    def close(self) -> list[Event]:
        raise BrokenError


class Spoiling(Remote):
    """An engine with such a decoder."""

    at = 0

    def _prepare(self, request: Request, caller: Caller) -> UpstreamRequest:
        prepared = super()._prepare(request, caller)
        prepared.decoder = Spoilt(prepared.decoder, self.at)
        return prepared


@both
@pytest.mark.parametrize("at", [0, 1, 99])
@pytest.mark.parametrize(
    "reply",
    [HELLO_STREAM, plain(200, gzip.compress(BODY), "content-encoding: gzip"), Reply(SPOKEN)],
    ids=["stream", "coded", "cut"],
)
async def test_a_decoder_that_raises_fails_the_answer_once(reply, at, stream: bool) -> None:
    async with mock(reply) as up, nothing_left():
        engine = Spoiling(up.base_url, wire="chat", header_hold=0.0)
        engine.at = at
        sink = Receiver()
        sink.start(engine, asking(stream=stream))
        assert_internal((await sink.end())[-1])
        await let_go(engine)
        await engine.close()


async def test_a_decoder_that_raises_after_late_usage_fails_the_answer(monkeypatch) -> None:
    monkeypatch.setattr(remote_module, "LATE_USAGE", 0.01)
    async with mock(Reply(HELLO_STREAM.pieces, hang=True)) as up, nothing_left():
        engine = Spoiling(up.base_url, wire="chat")
        engine.at = 99
        sink = Receiver()
        sink.start(engine, asking(stream=True))
        assert_internal((await sink.end())[-1])
        await left(up)
        await engine.close()


FAILS = {
    "stream": HELLO_STREAM,
    "whole": plain(200, BODY),
    "refusal": plain(500, b"oh"),
    "late": Reply(HELLO_STREAM.pieces, hang=True),
    "cut": Reply(SPOKEN),
    "closed": Reply([]),
    "silent": Reply([], hang=True),
}


@both
@pytest.mark.parametrize("when", [Event, Started, Finished | Failed], ids=["any", "first", "last"])
@pytest.mark.parametrize("reply", FAILS.values(), ids=FAILS)
async def test_a_sink_that_raises_receives_failed_and_no_more(reply, when, stream: bool) -> None:
    def fail(events: list[Event]) -> None:
        if any(isinstance(event, when) for event in events):
            raise BrokenError

    timeouts = Timeouts(first_byte=0.1)
    async with remote(reply, header_hold=0.0, timeouts=timeouts) as (engine, _), nothing_left():
        sink = Receiver(fail)
        sink.start(engine, asking(stream=stream))
        *_, last = await sink.end()
        if any(isinstance(event, when) for event in sink.batches[0]) and len(sink.batches) == 2:
            assert_internal(last)
        await let_go(engine)


async def test_a_sink_that_cancels_and_raises_receives_no_more() -> None:
    def fail(events: list[Event]) -> None:
        sink.cancel()
        raise BrokenError

    async with remote(HELLO_STREAM) as (engine, up), nothing_left():
        sink = Receiver(fail)
        sink.start(engine, asking(stream=True))
        await sink.until(lambda: sink.events)
        await left(up)
        assert len(sink.batches) == 1


async def test_an_exception_while_connecting_fails_the_answer(monkeypatch) -> None:
    async def acquire(*_: object, **__: object) -> Connection:
        await asyncio.sleep(0.01)
        raise BrokenError

    monkeypatch.setattr(Pool, "acquire", acquire)
    engine = Remote("http://127.0.0.1:9/v1", wire="chat", header_hold=0.03)
    async with nothing_left():
        sink = Receiver()
        sink.start(engine, asking(stream=True))
        assert_internal((await sink.end())[-1])
        await asyncio.sleep(0.05)
        assert len(sink.events) == 1
    await engine.close()


# ---- what is left ----------------------------------------------------------------------------


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Fail where only the garbage collector would find something of ours."""
    gc.collect()
    gc.freeze()  # what other tests left behind is not looked at, here or later
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        ours = [type(each) for each in gc.garbage if type(each).__module__.startswith("dragoman")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours


LEFT = {
    "stream": HELLO_STREAM,
    "whole": plain(200, BODY),
    "late": Reply(HELLO_STREAM.pieces, hang=True),
    "cut": Reply(SPOKEN),
    "refusal": plain(500, b"oh"),
    "coded": plain(200, gzip.compress(BODY), "content-encoding: gzip"),
    "closed": Reply([]),
    "another protocol": Reply([b"SSH"]),
}


@both
async def test_nothing_is_left_of_an_answer(stream: bool) -> None:
    async with remote(lambda asked: LEFT[asked.json["model"]], header_hold=5.0) as (engine, _):
        requests = [asking(model=name, stream=stream) for name in LEFT]
        await received(engine, requests[0])
        with no_garbage():
            for request in (*requests, *requests):
                await received(engine, request)
            await asyncio.sleep(0.02)


@both
async def test_nothing_is_left_of_a_cancelled_answer(stream: bool) -> None:
    async with remote(lambda asked: PHASES[asked.json["model"]], retries=1) as (engine, up):
        with no_garbage():
            for name in PHASES:
                up.forget()
                sink = Receiver()
                sink.start(engine, asking(model=name, stream=stream))
                await up.arrived.wait()
                await asyncio.sleep(0.02)
                sink.cancel()
                sink.handle = None
                await left(up)
                await asyncio.sleep(0.02)
                del sink


LISTINGS = {
    "lists more than 10000 models": {"data": [{"id": f"m{n}"} for n in range(10_001)]},
    "a body of more than 4194304 bytes": {"data": [{"id": "m", "about": "x" * (1 << 22)}]},
}


@pytest.mark.parametrize("problem", LISTINGS)
async def test_a_listing_that_is_too_large_is_refused(problem) -> None:
    async with remote(HELLO, probed=plain(200, LISTINGS[problem])) as (engine, _):
        with pytest.raises(FaultError) as refused:
            await engine.models()
        assert problem in refused.value.fault.message
        assert fold(await events(engine, asking())).text == "Hello"
