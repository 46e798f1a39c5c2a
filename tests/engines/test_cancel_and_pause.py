"""Cancel and pause in every phase of an upstream request; nothing is left of it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator

import pytest

from dragoman.core.event import Started
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.response import Usage
from dragoman.engines import remote as remote_module
from dragoman.net.connection import Timeouts
from tests.cancel import phases
from tests.engines.asking import BODY, COUNTED, HELLO, HELLO_STREAM, asking, remote
from tests.engines.receiving import Receiver, left, let_go, nothing_left, pools, received, unused
from tests.mock import Reply, chunk, head, plain
from tests.mock import stream as streamed

both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

GZIP = head(200, "content-encoding: gzip")
SPOKEN = streamed(chunk({"content": "Hel"}), done=False).pieces


# ---- cancel ----------------------------------------------------------------------------------

PHASES = {phase.name: phase.reply("chat") for phase in phases.PHASES} | {
    "in a coded body": Reply([GZIP, gzip.compress(BODY)[:9]], hang=True),
    "late usage": Reply(HELLO_STREAM.pieces, hang=True),
}


@pytest.mark.parametrize(
    ("stream", "warm", "begun"),
    [(True, False, False), (True, True, True), (False, False, False)],
    ids=["streamed", "streamed, begun, warm", "whole"],
)
@pytest.mark.parametrize("reply", PHASES.values(), ids=PHASES)
async def test_cancel_in_any_phase_closes_the_connection(reply, warm, begun, stream) -> None:
    hold = 0.0 if begun else 5.0
    async with remote(_after(HELLO, reply, warm), retries=1, header_hold=hold) as (engine, up):
        async with nothing_left():
            if warm:
                await received(engine, asking())
                up.forget()
            sink = Receiver()
            sink.start(engine, asking(stream=stream))
            await up.arrived.wait()
            await asyncio.sleep(0.02)  # what was written arrives
            sink.cancel()
            assert unused(engine)
            sink.cancel()
            await left(up)
        assert unused(engine)


def _after(first: Reply, then: Reply, warm: bool) -> Callable[[object], Reply]:
    replies = [first] if warm else []
    return lambda asked: replies.pop() if replies else then


@both
@pytest.mark.parametrize("turns", range(8))
async def test_cancel_while_connecting_leaves_nothing(turns, stream: bool) -> None:
    async with remote(Reply([], hang=True)) as (engine, _), nothing_left():
        sink = Receiver()
        sink.start(engine, asking(stream=stream))
        for _ in range(turns):
            await asyncio.sleep(0)
        sink.cancel()
        sink.handle.pause()
        sink.handle.resume()
        await let_go(engine)
        await asyncio.sleep(0.02)  # the server takes in what was connected


LONG = b"".join(streamed(*[chunk({"content": "x" * 9_000})] * 40).pieces[1:])
SPEAKING = {
    "stream": HELLO_STREAM,
    "whole": plain(200, BODY),
    "refusal": plain(500, b""),
    "coded, in many pieces": plain(200, gzip.compress(LONG), "content-encoding: gzip"),
}


@both
@pytest.mark.parametrize("reply", SPEAKING.values(), ids=SPEAKING)
async def test_cancel_inside_receive_ends_delivery(reply, stream: bool) -> None:
    async with remote(reply, header_hold=0.0) as (engine, _), nothing_left():
        sink = Receiver(lambda events: None if sink.ended else sink.cancel())
        sink.start(engine, asking(stream=stream))
        await sink.until(lambda: sink.events)
        await let_go(engine)
        await asyncio.sleep(0.02)


async def test_cancel_after_the_end_keeps_the_connection() -> None:
    async with remote(lambda asked: plain(200, BODY)) as (engine, up), nothing_left():
        for _ in range(3):
            sink = Receiver()
            sink.start(engine, asking())
            handle = sink.handle
            await sink.end()
            for _ in range(2):
                handle.pause()
                handle.resume()
                handle.cancel()
        assert up.connections == 1
        assert [len(pool.idle) for pool in pools(engine)] == [1]


# ---- pause -----------------------------------------------------------------------------------


class Counted(list[bytes]):
    """Pieces that count how many were written."""

    written = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in super().__iter__():
            yield piece
            self.written += 1


async def stalled(pieces: Counted) -> None:
    """Wait until no more is written."""
    before = -1
    async with asyncio.timeout(10):
        while pieces.written != before:
            before = pieces.written
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("coded", [False, True], ids=["plain", "coded"])
async def test_pause_stalls_the_server(coded) -> None:
    many = [chunk({"content": f"{n:09}" * 7000}) for n in range(200)]
    pieces = Counted(streamed(*many, chunk(finish="stop")).pieces)
    if coded:
        pieces[0] = head(200, "transfer-encoding: identity", "connection: close")
    async with remote(Reply(pieces), timeouts=Timeouts(idle=0.05)) as (engine, _), nothing_left():
        sink = Receiver(lambda events: sink.pause() if len(sink.events) < 9 else None)
        sink.start(engine, asking(stream=True))
        await sink.until(lambda: sink.events)
        await stalled(pieces)
        assert pieces.written < 150
        assert not sink.ended
        before = len(sink.events)
        await asyncio.sleep(0.1)
        assert len(sink.events) == before
        sink.resume()
        events = await sink.end()
        check(events)
        assert fold(events).text == "".join(f"{n:09}" * 7000 for n in range(200))


@pytest.mark.parametrize("pieces", [[], [head()], SPOKEN], ids=len)
async def test_timeouts_count_again_after_resume(pieces) -> None:
    options = {"timeouts": Timeouts(first_byte=0.1, idle=0.1), "header_hold": 0.0}
    async with remote(Reply(pieces, hang=True), **options) as (engine, _), nothing_left():
        sink = Receiver(lambda events: sink.pause())
        sink.start(engine, asking(stream=True))
        await sink.until(lambda: sink.events)
        await asyncio.sleep(0.3)
        assert not sink.ended
        sink.resume()
        *_, last = await sink.end()
        assert last.fault.code == "upstream_timeout"


async def test_pause_while_connecting_holds_until_resume() -> None:
    async with remote(HELLO_STREAM, header_hold=0.0) as (engine, up), nothing_left():
        sink = Receiver(lambda events: sink.pause())
        sink.start(engine, asking(stream=True))
        sink.pause()
        await up.arrived.wait()
        await asyncio.sleep(0.05)
        assert not [event for event in sink.events if not isinstance(event, Started)]
        sink.resume()
        assert fold(await sink.end()).text == "Hello"


async def test_late_usage_is_waited_for_while_paused(monkeypatch) -> None:
    monkeypatch.setattr(remote_module, "LATE_USAGE", 0.1)
    first, *rest = HELLO_STREAM.pieces
    late = streamed(COUNTED, done=False).pieces[1]
    reply = Reply([first, b"".join(rest), late], pause=0.02)
    async with remote(reply) as (engine, _), nothing_left():
        sink = Receiver(lambda events: sink.pause())
        sink.start(engine, asking(stream=True))
        await sink.until(lambda: sink.events)
        await asyncio.sleep(0.2)
        assert not sink.ended
        sink.resume()
        response = fold(await sink.end())
    assert (response.text, response.usage) == ("Hello", Usage(input_tokens=3, output_tokens=2))
