"""When a stream begins and ends, what may still come after, and how its reader slows it down."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import threading
import time
import weakref
from typing import Any

import pytest

from dragoman.core.event import Delta, Finished, Started
from dragoman.core.fold import fold
from dragoman.core.interfaces import Caller
from dragoman.core.lifecycle import check
from dragoman.core.response import Usage
from dragoman.engines.base import wait_closed
from dragoman.engines.remote import LATE_USAGE, Remote
from dragoman.net.connection import Connection, Timeouts
from dragoman.net.threads import reading
from tests.engines.asking import (
    BODY,
    COUNTED,
    HELLO,
    HELLO_STREAM,
    ask,
    asking,
    events,
    fault,
    remote,
)
from tests.engines.receiving import Receiver, nothing_left, received
from tests.mock import Reply, chunk, completion, head, plain, stream

both = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
USAGE = Usage(input_tokens=3, output_tokens=2)


# ---- the beginning -------------------------------------------------------------------------

AFTER_SILENCE = {
    "a stream": (HELLO_STREAM.pieces, "completed"),
    "a whole answer": (HELLO.pieces, "completed"),
    "gzip": (
        plain(200, gzip.compress(BODY), "content-encoding: gzip").pieces,
        "completed",
    ),
    "a refusal": (plain(500, {"error": {"message": "boom"}}).pieces, "boom"),
    "a close": ([b""], "closed the connection"),
    "a cut in the head": ([b"HTTP/1.1 200 OK\r\ncont"], "before the answer"),
    "a cut in the body": (HELLO_STREAM.pieces[:2], "before the answer"),
    "a cut before the body": ([head()], "no answer in it"),
    "another protocol": ([b"SSH-2.0\r\n"], "does not speak HTTP"),
    "comments": ([head(), *[b": note\n\n"] * 8, *HELLO_STREAM.pieces[1:]], "completed"),
    "only [DONE]": ([head(), b"data: [DONE]\n\n"], "no answer in it"),
}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(("pieces", "end"), AFTER_SILENCE.values(), ids=AFTER_SILENCE)
async def test_stream_begins_before_a_silent_server_answers(pieces, end, warm) -> None:
    later = Reply(pieces, pause=0.06)
    replies = [HELLO, later] if warm else [later]
    async with remote(lambda asked: replies.pop(0), header_hold=0.03) as (engine, _):
        if warm:
            await received(engine, asking())
        begun, *_, last = await received(engine, asking(stream=True))
    assert isinstance(begun, Started)
    assert begun.extra is None  # the server had said nothing of itself
    assert end in (last.status if isinstance(last, Finished) else last.fault.message)


async def test_stream_begins_during_the_wait_before_a_retry() -> None:
    replies = [plain(429, b"", "retry-after: 0"), Reply(HELLO_STREAM.pieces, pause=0.06)]
    async with remote(lambda asked: replies.pop(0), header_hold=0.03, retries=1) as (engine, _):
        heard = await received(engine, asking(stream=True))
    assert isinstance(heard[0], Started)
    assert heard[0].extra is None
    assert fold(heard).text == "Hello"


@pytest.mark.parametrize(("streamed", "hold"), [(True, 10.0), (False, 0.0)])
async def test_failure_before_the_beginning_is_the_only_event(streamed, hold) -> None:
    reply = Reply(plain(429, b"", "retry-after: 1").pieces, pause=0.06)
    async with remote(reply, header_hold=hold) as (engine, _):
        (only,) = await events(engine, asking(stream=streamed))
    assert only.fault.status == 429


async def test_header_hold_is_five_seconds_by_default() -> None:
    async with remote(HELLO) as (engine, _):
        assert engine.header_hold == 5.0


# ---- the end -------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "more",
    [
        [COUNTED],
        [b": note\n\n", chunk({"content": " and more"}), COUNTED],
        [{"error": {"message": "late"}}, COUNTED],
    ],
)
async def test_p29_usage_after_done_is_read_and_nothing_else_is(more, streamed: bool) -> None:
    late = [each if isinstance(each, bytes) else _data(each) for each in more]
    async with remote(Reply([*HELLO_STREAM.pieces, *late])) as (engine, _):
        answer = await ask(engine, asking(stream=streamed))
    assert (answer.text, answer.usage) == ("Hello", USAGE)


@both
@pytest.mark.parametrize("more", [b"", b": note\n\n"])
async def test_p29_late_usage_is_not_waited_for_for_long(more, streamed: bool) -> None:
    async with remote(Reply([*HELLO_STREAM.pieces, more], hang=True)) as (engine, up):
        began = time.monotonic()
        answer = await ask(engine, asking(stream=streamed))
        assert time.monotonic() - began < 40 * LATE_USAGE
        assert answer.usage is None
        async with asyncio.timeout(5):
            await up.asked[0].gone


@both
@pytest.mark.parametrize(
    "end", [Reply([b"data: {"], reset=True), Reply([], hang=True)], ids=["reset", "silence"]
)
async def test_break_after_the_finish_reason_is_no_failure(end, streamed: bool) -> None:
    said = stream(chunk({"content": "x"}), chunk(finish="stop"), done=False).pieces
    reply = Reply([b"".join(said), *end.pieces], hang=end.hang, reset=end.reset)
    async with remote(reply, timeouts=Timeouts(idle=0.05)) as (engine, _), asyncio.timeout(60):
        assert (await ask(engine, asking(stream=streamed))).text == "x"


async def test_reader_that_stops_at_the_end_leaves_the_connection_usable() -> None:
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


async def test_r2_35_last_stated_finish_reason_counts() -> None:
    pieces = [chunk({"content": "x"}), chunk(finish="length"), chunk(), COUNTED]
    async with remote(stream(*pieces)) as (engine, _):
        answer = await ask(engine, asking(stream=True))
    assert (answer.reasons, answer.status, answer.usage) == (("length",), "incomplete", USAGE)


@both
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


async def test_slow_reader_pauses_the_server() -> None:
    many = [chunk({"content": f"{n:09}" * 100}) for n in range(3000)]
    async with remote(stream(*many, chunk(finish="stop"))) as (engine, _), nothing_left():
        events = []
        async for event in engine.stream(asking(stream=True)):
            events.append(event)
            if len(events) < 5:
                await asyncio.sleep(0.05)
        check(events)
        assert len(fold(events).text) == 900 * 3000


@pytest.mark.parametrize("pieces", [[], HELLO_STREAM.pieces[:2]], ids=["silent", "begun"])
async def test_answer_that_was_cancelled_is_no_reference_cycle(pieces) -> None:
    async def cancelled(engine: Remote) -> weakref.ref[Receiver]:
        sink = Receiver()
        sink.start(engine, asking(stream=True))
        await sink.until(lambda: bool(sink.batches))
        assert sink.handle is not None
        sink.handle.cancel()
        await wait_closed(sink.handle)
        return weakref.ref(sink)

    gc.disable()
    try:
        async with remote(Reply(pieces, hang=True), header_hold=0.01) as (engine, _):
            there = await cancelled(engine)
            await asyncio.sleep(0)
            assert there() is None
    finally:
        gc.enable()


def _data(value: dict[str, Any]) -> bytes:
    return stream(value, done=False).pieces[1]


# ---- what is large -------------------------------------------------------------------------

WORDS = "word " * 40_000
LOGPROBS = {"content": [{"token": "a", "logprob": -1.0}] * 9_000}
CODED = "content-encoding: gzip"


def _with_logprobs() -> dict[str, Any]:
    answer = completion({"content": "a" * 9_000})
    answer["choices"][0]["logprobs"] = LOGPROBS
    return answer


LARGE_ANSWERS = {
    "whole": plain(200, completion({"content": WORDS})),
    "in one event": stream(chunk({"content": WORDS}), chunk(finish="stop")),
    "compressed": plain(
        200, gzip.compress(json.dumps(completion({"content": WORDS})).encode()), CODED
    ),
    "log-probabilities": plain(200, _with_logprobs()),
    "in the tail": Reply([*stream(chunk({"content": WORDS}, "stop"), COUNTED).pieces]),
}


@both
@pytest.mark.parametrize("name", LARGE_ANSWERS)
async def test_what_is_large_is_decoded_in_a_thread(name, streamed, monkeypatch) -> None:
    apart: list[object] = []
    to_thread = asyncio.to_thread

    def counted(work: Any, *given: Any) -> Any:
        apart.append(work)
        return to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    async with remote(LARGE_ANSWERS[name]) as (engine, _):
        answer = await ask(engine, asking(stream=streamed))
    assert answer.status == "completed"
    assert answer.text in (WORDS, "a" * 9_000)
    assert apart


@pytest.fixture
def held(monkeypatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Set once a thread is to decode, and to let it."""
    started, go_on, to_thread = asyncio.Event(), asyncio.Event(), asyncio.to_thread

    async def when_let(work: Any, *given: Any) -> Any:
        started.set()
        await go_on.wait()
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", when_let)
    return started, go_on


@pytest.mark.parametrize("moment", ["pause", "cancel"])
async def test_who_pauses_or_cancels_while_a_thread_decodes_is_heeded(moment, held) -> None:
    started, go_on = held
    async with remote(LARGE_ANSWERS["in one event"]) as (engine, _), nothing_left():
        receiver = Receiver()
        receiver.start(engine, asking(stream=True))
        await started.wait()
        if moment == "cancel":
            receiver.cancel()
            go_on.set()
        else:
            receiver.pause()
            go_on.set()
            await asyncio.sleep(0.01)
            receiver.resume()
            assert fold(await receiver.end()).text == WORDS


async def test_what_came_while_a_thread_decoded_is_read_after_a_pause(held, monkeypatch) -> None:
    started, go_on = held
    monkeypatch.setattr(Connection, "pause", lambda self: None)  # uvloop has read on by then
    reply = Reply(LARGE_ANSWERS["in one event"].pieces, pause=0.02)
    async with remote(reply) as (engine, _), nothing_left():
        receiver = Receiver(lambda events: receiver.pause() if started.is_set() else None)
        receiver.start(engine, asking(stream=True))
        await started.wait()
        await asyncio.sleep(0.2)
        go_on.set()
        async with asyncio.timeout(5):
            await receiver.until(lambda: any(isinstance(each, Delta) for each in receiver.events))
            receiver.resume()
            assert fold(await receiver.end()).text == WORDS


async def test_one_large_answer_is_decoded_at_a_time_also_where_clients_left(monkeypatch) -> None:
    """Nothing ends a thread, so that its turn ends with it, and not with its client."""
    working: list[str] = []
    most, begun, go_on, to_thread = 0, asyncio.Event(), threading.Event(), asyncio.to_thread
    loop = asyncio.get_running_loop()

    def held(work: Any, *given: Any) -> Any:
        def slow() -> Any:
            nonlocal most
            working.append(reading.get())
            most = max(most, len(working))
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(10)
            working.pop()
            return work(*given)

        return to_thread(slow)

    monkeypatch.setattr(asyncio, "to_thread", held)
    async with remote(LARGE_ANSWERS["in one event"]) as (engine, _), nothing_left():
        receivers = [Receiver() for _ in range(3)]
        for receiver in receivers:
            receiver.start(engine, asking(stream=True), Caller(tenant="a"))
        await begun.wait()
        assert working == ["a"]
        await asyncio.sleep(0.05)  # the others wait for it
        receivers[0].cancel()
        receivers[1].cancel()
        await asyncio.sleep(0.3)  # more than the pause after large work
        go_on.set()
        assert fold(await receivers[2].end()).text == WORDS
    assert most == 1


async def test_one_value_with_too_many_in_it_is_refused() -> None:
    body = b'{"choices": [], "x": [' + b"[]," * 1_600_000 + b"[]]}"
    async with remote(plain(200, body)) as (engine, _):
        refused = await fault(engine)
    assert "more than 3000000 values" in refused.message
