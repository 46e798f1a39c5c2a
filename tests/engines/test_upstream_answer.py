"""What `Remote.start` delivers, whatever its server does."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.request import Request, Sampling
from dragoman.core.response import Usage
from dragoman.engines.completions import CompletionServer
from dragoman.engines.remote import Remote
from dragoman.net.client import Client
from dragoman.net.connection import Limits, Timeouts
from tests.engines.asking import HELLO, HELLO_STREAM, asking, remote
from tests.engines.receiving import Receiver, left, nothing_left, received, unused
from tests.mock import Asked, Handler, Reply, chunk, head, mock, plain, response, said
from tests.mock import stream as streamed

both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
wires = pytest.mark.parametrize("wire", ["chat", "responses"])

WHOLE = {"chat": HELLO, "responses": plain(200, response(said("Hello")))}
COUNTED = {**chunk(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
WARM_UP = "Are you there?"
USAGE = Usage(input_tokens=3, output_tokens=2)


async def events_of(
    server: Handler | Reply,
    request: Request,
    *,
    warm: bool = False,
    asked: list[bytes] | None = None,
    **options: Any,
) -> list[Event]:
    """The events of an answer by this server. `warm` leaves an idle connection from an earlier
    answer; `asked` gets the bodies of the requests."""

    def serve(question: Asked) -> Any:
        if WARM_UP.encode() in question.body:
            return WHOLE[options.get("wire", "chat")]
        return server if isinstance(server, Reply) else server(question)

    async with mock(serve) as up:
        engine = Remote(up.base_url, **{"wire": "chat", **options})
        try:
            if warm:
                await received(engine, asking(WARM_UP))
            up.forget()
            events = await received(engine, request)
        finally:
            await engine.close()
        check(events)
        if asked is not None:
            asked += [question.body for question in up.asked]
    return events


def one_after_the_other(*replies: Reply) -> Handler:
    """A server that gives each answer once."""
    left = iter(replies)
    return lambda asked: next(left)


@both
@wires
@pytest.mark.parametrize("status", [204, 301, 400, 401, 403, 404, 429, 500, 503])
@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"error": {"message": "no", "code": "c"}}'])
async def test_refusals(wire: str, stream: bool, status: int, body: bytes) -> None:
    reply = plain(status, b"" if status == 204 else body, "retry-after: 7")
    events = await events_of(reply, asking(stream=stream), wire=wire, key="sk-12345678")
    assert isinstance(events[-1], Failed)


@both
@wires
@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_a_refusal_is_tried_again_where_that_is_configured(
    wire: str, stream: bool, retries: int
) -> None:
    busy = plain(429, b"", "retry-after: 0")
    make = one_after_the_other(busy, busy, WHOLE[wire])
    *_, last = await events_of(make, asking(stream=stream), wire=wire, retries=retries)
    assert isinstance(last, Finished if retries == 2 else Failed)


@both
@wires
@pytest.mark.parametrize("coding", ["gzip", "identity", "brotli"])
async def test_a_coded_body(wire: str, stream: bool, coding: str) -> None:
    body = WHOLE[wire].pieces[0].partition(b"\r\n\r\n")[2]
    coded = gzip.compress(body) if coding == "gzip" else body
    reply = plain(200, coded, f"content-encoding: {coding}")
    *_, last = await events_of(reply, asking(stream=stream), wire=wire)
    assert isinstance(last, Failed if coding == "brotli" else Finished)


@both
@wires
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_an_answer_cut_anywhere(wire: str, stream: bool, reset: bool) -> None:
    (whole,) = WHOLE[wire].pieces
    body = whole.index(b"\r\n\r\n") + 4
    for at in (1, body // 2, body, body + 1, len(whole) - 40, len(whole) - 1):
        for pieces in ([whole[:at]], [whole[: at // 2], whole[at // 2 : at]]):
            make = one_after_the_other(Reply(pieces, reset=reset))
            *_, last = await events_of(make, asking(stream=stream), wire=wire)
            assert isinstance(last, Failed)


@both
@pytest.mark.parametrize("end", [b'data: {"choi', b": note", b"data: [DON", b"data: nonsense\n\n"])
async def test_events_cut_in_the_middle(stream: bool, end: bytes) -> None:
    begun = streamed(chunk({"content": "Hel"}), done=False).pieces
    events = await events_of(Reply([*begun, end]), asking(stream=stream))
    assert fold(events).text == "Hel"
    assert isinstance(events[-1], Failed)


@both
async def test_many_answers_in_one(stream: bool) -> None:
    deltas = [{**chunk(), "choices": [_choice(n, {"content": "x"})]} for n in range(3)]
    ends = [{**chunk(), "choices": [_choice(n, {}, "stop")]} for n in range(3)]
    request = asking(stream=stream, sampling=Sampling(n=3))
    events = await events_of(streamed(*deltas, *ends), request, profile="openai")
    assert len(fold(events).reasons) == 3


def _choice(number: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "finish_reason": finish}


async def test_a_kind_of_server_is_known_by_a_told_answer() -> None:
    reply = plain(200, HELLO.pieces[0].partition(b"\r\n\r\n")[2], "server: llama.cpp")
    async with remote(reply) as (engine, _):
        await received(engine, asking())
        assert engine.profile.name == "llama.cpp"


async def test_text_is_heard_by_a_token_format() -> None:
    answer = {"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]}
    async with mock(plain(200, answer)) as up:
        engine = CompletionServer(up.base_url, format="hermes")
        assert fold(await received(engine, asking())).text == "Hello"
        await engine.close()


# ---- silence ---------------------------------------------------------------------------------

BODY = HELLO.pieces[0].partition(b"\r\n\r\n")[2]
AFTER_SILENCE = {
    "an answer": HELLO_STREAM.pieces,
    "a whole answer": HELLO.pieces,
    "a coded one": plain(200, gzip.compress(BODY), "content-encoding: gzip").pieces,
    "a refusal": plain(500, {"error": {"message": "boom"}}).pieces,
    "a cut": [b""],
    "a cut in the head": [b"HTTP/1.1 200 OK\r\ncont"],
    "a cut in the body": HELLO_STREAM.pieces[:2],
    "a reset": [head()],
    "another protocol": [b"SSH-2.0\r\n"],
    "notes": [head(), b": note\n\n", b": note\n\n", b": note\n\n", *HELLO_STREAM.pieces[1:]],
    "the end": [head(), b"data: [DONE]\n\n"],
}


@wires
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("pieces", AFTER_SILENCE.values(), ids=AFTER_SILENCE)
async def test_after_a_silence_a_stream_has_begun(
    wire: str, pieces: list[bytes], warm: bool
) -> None:
    reply = Reply(pieces, pause=0.06)
    events = await events_of(reply, asking(stream=True), wire=wire, warm=warm, header_hold=0.03)
    assert isinstance(events[0], Started)
    assert events[0].extra is None  # the server had said nothing of itself


async def test_notes_do_not_keep_a_stream_from_beginning() -> None:
    notes = Reply([head(), *[b": note\n\n"] * 8, *HELLO_STREAM.pieces[1:]], pause=0.03)
    events = await events_of(notes, asking(stream=True), header_hold=0.1)
    assert isinstance(events[0], Started)
    assert events[0].extra is None


async def test_it_begins_while_a_refusal_is_waited_out() -> None:
    busy = plain(429, b"", "retry-after: 0")
    make = one_after_the_other(busy, Reply(HELLO_STREAM.pieces, pause=0.06))
    events = await events_of(make, asking(stream=True), header_hold=0.03, retries=1)
    assert isinstance(events[0], Started)
    assert fold(events).text == "Hello"


async def test_a_whole_answer_is_not_begun_before_it_is_there() -> None:
    reply = Reply(plain(503, b"busy").pieces, pause=0.06)
    (only,) = await events_of(reply, asking(), header_hold=0.0)
    assert isinstance(only, Failed)


@both
@pytest.mark.parametrize("pieces", [[], [head()], HELLO_STREAM.pieces[:2]], ids=len)
async def test_a_server_that_stays_silent(stream: bool, pieces: list[bytes]) -> None:
    reply = Reply(pieces, hang=True)
    timeouts = Timeouts(first_byte=0.1, idle=0.1)
    *_, last = await events_of(reply, asking(stream=stream), timeouts=timeouts)
    assert isinstance(last, Failed)
    assert last.fault.code == "upstream_timeout"


# ---- late news -------------------------------------------------------------------------------


def data(value: dict[str, Any]) -> bytes:
    return streamed(value, done=False).pieces[1]


@both
async def test_usage_after_the_end_is_heard(stream: bool) -> None:
    for more in ([data(COUNTED)], [b": note\n\n", data(chunk({"content": "no"})), data(COUNTED)]):
        make = one_after_the_other(Reply([*HELLO_STREAM.pieces, *more]))
        answer = fold(await events_of(make, asking(stream=stream)))
        assert (answer.text, answer.usage) == ("Hello", USAGE)


@both
async def test_late_news_is_not_waited_for_for_long(stream: bool) -> None:
    for more in ([], [b": note\n\n"], [data(COUNTED)]):
        make = one_after_the_other(Reply([*HELLO_STREAM.pieces, *more], hang=True))
        answer = fold(await events_of(make, asking(stream=stream)))
        assert (answer.text, answer.usage) == ("Hello", USAGE if data(COUNTED) in more else None)


@both
async def test_a_cut_after_the_end_is_none(stream: bool) -> None:
    make = one_after_the_other(Reply([*HELLO_STREAM.pieces, b"data: {"], reset=True))
    assert fold(await events_of(make, asking(stream=stream))).status == "completed"


# ---- connections -----------------------------------------------------------------------------


async def test_many_at_once_connect_and_then_share() -> None:
    kept = plain(200, BODY)
    async with remote(lambda asked: kept) as (engine, up):
        first = await asyncio.gather(*(received(engine, asking(f"{n}")) for n in range(20)))
        assert up.connections == 20
        then = await asyncio.gather(*(received(engine, asking(f"{n}")) for n in range(20)))
        assert up.connections == 20
    assert {fold(events).text for events in (*first, *then)} == {"Hello"}


async def test_who_finds_no_place_waits_for_one() -> None:
    client = Client(limits=Limits(connections=2))
    async with remote(plain(200, BODY), client=client) as (engine, up), client:
        answers = await asyncio.gather(*(received(engine, asking()) for _ in range(7)))
        assert [fold(events).text for events in answers] == ["Hello"] * 7
        assert up.connections == 2


@both
async def test_an_idle_connection_that_was_closed_is_not_the_end(stream: bool) -> None:
    dead: set[int] = set()

    def answer(asked: Asked) -> Reply:
        if asked.connection in dead or not dead:
            dead.add(asked.connection)
            return Reply([])
        return HELLO

    asked: list[bytes] = []
    events = await events_of(answer, asking("Once more.", stream=stream), warm=True, asked=asked)
    assert fold(events).text == "Hello"
    assert len(asked) == 2


@both
async def test_on_a_fresh_one_it_is_asked_once_only(stream: bool) -> None:
    asked: list[bytes] = []
    (only,) = await events_of(Reply([]), asking(stream=stream), warm=True, asked=asked)
    assert isinstance(only, Failed)
    assert only.fault.code == "upstream_unreachable"
    assert len(asked) == 2


async def test_an_answer_that_began_is_not_asked_for_again() -> None:
    asked: list[bytes] = []
    events = await events_of(Reply([b"HTTP"]), asking(), warm=True, asked=asked)
    assert isinstance(events[-1], Failed)
    assert len(asked) == 1


@both
async def test_nobody_is_there(stream: bool) -> None:
    async with mock(HELLO) as gone:
        base_url = gone.base_url
    engine = Remote(base_url, wire="chat")
    (failed,) = await received(engine, asking(stream=stream))
    assert isinstance(failed, Failed)
    assert failed.fault.code == "upstream_unreachable"
    await engine.close()


@both
async def test_a_server_that_goes_away_for_good(stream: bool) -> None:
    async with mock(plain(200, BODY)) as up:
        engine = Remote(up.base_url, wire="chat")
        await received(engine, asking())
        sink = Receiver()
        sink.start(engine, asking(stream=stream))
    *_, last = await sink.end()
    assert isinstance(last, Failed | Finished)
    await engine.close()


@both
async def test_closing_the_engine_ends_what_is_told(stream: bool) -> None:
    async with remote(Reply([], hang=True)) as (engine, up):
        sink = Receiver()
        sink.start(engine, asking(stream=stream))
        await up.arrived.wait()
        await engine.close()
        *_, last = await sink.end()
        assert isinstance(last, Failed)


# ---- what is awaited first, or refused -------------------------------------------------------


async def test_wires_are_found_out_before_the_first_request() -> None:
    async with remote(HELLO, wire="auto") as (engine, up):
        assert fold(await received(engine, asking())).text == "Hello"
        assert up.probes
        assert fold(await received(engine, asking())).text == "Hello"


async def test_cancel_while_wires_are_found_out_sends_no_request() -> None:
    async with remote(HELLO, wire="auto") as (engine, up), nothing_left():
        sink = Receiver()
        sink.start(engine, asking())
        sink.pause()
        sink.cancel()
        await asyncio.sleep(0.05)
        assert not up.asked


async def test_several_choices_of_a_server_that_gives_one_are_requested_one_by_one() -> None:
    several = asking(sampling=Sampling(n=2))
    async with remote(lambda asked: WHOLE["responses"], wire="responses") as (engine, up):
        assert len(fold(await received(engine, several)).reasons) == 2
        assert len(up.asked) == 2


async def test_what_no_wire_can_carry_is_refused_without_a_request() -> None:
    async with remote(HELLO) as (engine, up):
        (failed,) = await received(engine, asking(previous_response_id="resp_1"))
        assert isinstance(failed, Failed)
        assert not up.asked


async def test_stream_gives_the_events_of_start() -> None:
    async with remote(lambda asked: HELLO_STREAM) as (engine, _), nothing_left():
        events = [event async for event in engine.stream(asking(stream=True))]
        assert [type(e) for e in events] == [
            type(e) for e in await received(engine, asking(stream=True))
        ]


async def test_a_reader_of_stream_that_is_slow_pauses_the_server() -> None:
    many = [chunk({"content": f"{n:09}" * 100}) for n in range(3000)]
    async with remote(streamed(*many, chunk(finish="stop"))) as (engine, _), nothing_left():
        events = []
        async for event in engine.stream(asking(stream=True)):
            events.append(event)
            if len(events) < 5:
                await asyncio.sleep(0.05)
        check(events)
        assert len(fold(events).text) == 900 * 3000


async def test_closing_the_stream_cancels_the_request() -> None:
    async with remote(Reply(HELLO_STREAM.pieces[:2], hang=True)) as (engine, up), nothing_left():
        events = engine.stream(asking(stream=True))
        await anext(events)
        await events.aclose()
        await left(up)
        assert unused(engine)
