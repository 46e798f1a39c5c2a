"""Streams: when headers go out, what fills a silence, and the one end on every path."""

import asyncio
import json
import logging
import time
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Progress
from dragoman.core.loss import Loss
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import (
    FINISHED,
    OPENING,
    PATHS,
    STARTED,
    Call,
    Stub,
    asking,
    closing,
    saying,
    word,
)

BUSY = Fault("upstream_refused", "Slow down.", "upstream", status=429, retry_after="7")
CUT = Fault("upstream_cut", "The stream ended early.", "upstream")


def streaming(stub: Stub, wire: str = "chat", **options: Any) -> Call:
    settings = options.pop("settings", Settings())
    return Call(App(stub, settings), PATHS[wire], asking(wire, stream=True), **options)


def data(body: bytes) -> list[Any]:
    """The payloads of all events, `[DONE]` as that word."""
    payloads = [
        line.removeprefix("data: ")
        for line in body.decode().splitlines()
        if line.startswith("data: ")
    ]
    return [p if p == "[DONE]" else json.loads(p) for p in payloads]


def ends(body: bytes) -> list[str]:
    """What ended a stream: the names of all terminal events in it."""
    return [
        *("finish" for d in data(body) if d != "[DONE]" and _finishes(d)),
        *(d["type"] for d in data(body) if d != "[DONE]" and d.get("type", "") in TERMINAL),
        *("error" for d in data(body) if d != "[DONE]" and "choices" not in d and "error" in d),
    ]


TERMINAL = {"response.completed", "response.failed", "response.incomplete"}


def _finishes(chunk: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in chunk.get("choices", ()))


# ---- the beginning -------------------------------------------------------------------------


async def test_p28_streams_forbid_buffering_and_transforming(wire: str) -> None:
    call = await streaming(Stub(), wire, headers={"accept-encoding": "gzip"})()
    assert call.status == 200
    assert call.headers["content-type"] == "text/event-stream"
    assert call.headers["cache-control"] == "no-cache, no-transform"
    assert call.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in call.headers


async def test_p24_a_failure_before_the_first_event_has_its_own_status(wire: str) -> None:
    call = await streaming(Stub(Failed(BUSY)), wire)()
    assert call.status == 429
    assert call.headers["content-type"] == "application/json"
    assert call.headers["retry-after"] == "7"
    assert call.json["error"]["message"] == "Slow down."


async def test_headers_wait_for_the_first_event() -> None:
    gate = asyncio.Event()
    call = streaming(Stub(gate, *saying("a")))
    task = asyncio.create_task(call())
    await asyncio.sleep(0.02)
    assert not call.sent
    gate.set()
    await task
    assert call.status == 200


async def test_headers_go_out_after_the_hold_and_a_later_failure_ends_the_stream(wire: str) -> None:
    gate = asyncio.Event()
    settings = Settings(header_hold=0.01)
    call = streaming(Stub(gate, Failed(BUSY)), wire, settings=settings)
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.sent) == 2)
    assert call.status == 200
    assert call.writes[0].startswith(b":")
    gate.set()
    await task
    assert call.whole
    assert "Slow down." in json.dumps(data(call.body))
    assert b"[DONE]" not in call.body or wire == "responses"


async def test_p37_losses_are_told_in_a_header(wire: str) -> None:
    started = [Loss("seed", "dropped", "why"), Loss("top_k", "emulated", "how")]
    events = saying("a")
    stub = Stub(type(STARTED)("abc", 1, "stub", tuple(started)), *events[1:])
    for stream in (False, True):
        body = asking(wire, stream=stream, store=True)
        call = await Call(App(stub, Settings()), PATHS[wire], body)()
        assert call.headers["x-dragoman-loss"] == "dropped: store, seed; emulated: top_k"
    call = await Call(App(Stub(), Settings()), PATHS[wire], asking(wire))()
    assert "x-dragoman-loss" not in call.headers


async def test_what_is_lost_late_is_told_in_a_comment_before_the_end(wire: str) -> None:
    gate = asyncio.Event()
    late = Loss("tool_choice", "dropped", "why"), Loss("stop", "emulated", "how")
    finished = replace(FINISHED, losses=late)
    call = streaming(Stub(*OPENING, gate, *closing("")[:-1], finished), wire)
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) >= 1)
    gate.set()
    await task
    assert "x-dragoman-loss" not in call.headers
    comment = b": x-dragoman-loss: dropped: tool_choice; emulated: stop\n\n"
    assert call.body.count(comment) == 1
    before, after = call.body.split(comment)
    assert not ends(before)
    assert len(ends(after)) == 1
    plain = await streaming(Stub(*OPENING, *closing("")), wire)()
    assert before + after == plain.body


async def test_a_stream_that_lost_nothing_late_or_failed_has_no_such_comment(wire: str) -> None:
    for end in (FINISHED, Failed(CUT)):
        call = await streaming(Stub(*OPENING, *closing("")[:-1], end), wire)()
        assert b"x-dragoman-loss" not in call.body


# ---- silence -------------------------------------------------------------------------------


async def test_p27_silence_is_filled_with_comments() -> None:
    gate = asyncio.Event()
    call = streaming(Stub(*OPENING, gate, *closing("")), settings=Settings(heartbeat=0.01))
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) >= 4)
    gate.set()
    await task
    assert all(write.startswith(b":") for write in call.writes[1:-1])
    assert ends(call.body) == ["finish"]


async def test_p27_clients_that_overhear_comments_get_events(wire: str) -> None:
    gate = asyncio.Event()
    call = streaming(
        Stub(*OPENING, gate, *closing("")),
        wire,
        settings=Settings(heartbeat=0.01),
        headers={"user-agent": "codex_cli_rs/0.169.0 (Linux)"},
    )
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) >= 3)
    gate.set()
    await task
    for beat in call.writes[1:-1]:
        (event,) = data(beat)
        if wire == "chat":
            assert not any(choice["delta"] for choice in event["choices"])
        else:
            assert event["type"] == "response.in_progress"
    numbers = [d["sequence_number"] for d in data(call.body) if "sequence_number" in d]
    assert numbers == list(range(len(numbers)))
    assert len(ends(call.body)) == 1


async def test_a_heartbeat_that_waits_for_the_reader_keeps_its_place() -> None:
    gate = asyncio.Event()
    call = streaming(
        Stub(*OPENING, gate, word("after"), *closing("after")),
        "responses",
        settings=Settings(heartbeat=0.01, heartbeat_data=("",)),
    )
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) == 1)
    call.reading.clear()
    await asyncio.sleep(0.05)  # a heartbeat is on its way, and nobody reads
    gate.set()
    await asyncio.sleep(0.01)
    call.reading.set()
    await task
    numbers = [d["sequence_number"] for d in data(call.body) if "sequence_number" in d]
    assert numbers == list(range(len(numbers)))


async def test_a_lively_stream_has_no_heartbeat() -> None:
    cues = [cue for _ in range(10) for cue in (0.01, word("x"))]
    call = streaming(Stub(*OPENING, *cues, *closing("x" * 10)), settings=Settings(heartbeat=5))
    await call()
    assert not any(write.startswith(b":") for write in call.writes)


# ---- the end -------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[Any, ...]] = {
    "finished": saying("a"),
    "failed": (*OPENING, word("a"), Failed(CUT)),
    "raised": (*OPENING, word("a"), ValueError("a bug")),
    "raised after a wait": (*OPENING, word("a"), 0.001, ValueError("a bug")),
    "raised a fault": (*OPENING, 0.001, CUT),
    "stopped": (*OPENING, word("a")),
    "out of order": (STARTED, 0.001, word("nobody opened this"), FINISHED),
    "more after the end": (*saying("a"), *saying("b")),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_p15_every_path_ends_in_exactly_one_terminal_event(
    wire: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    call = await streaming(Stub(*ENDINGS[ending]), wire)()
    assert call.whole
    assert len(ends(call.body)) == 1
    good = ending in ("finished", "more after the end")
    assert ends(call.body)[0] in (("finish", "response.completed") if good else BAD_ENDS)


BAD_ENDS = ("error", "response.failed")


@pytest.mark.parametrize("ending", ["failed", "raised", "raised after a wait", "stopped"])
async def test_p24_a_cut_is_no_success_and_what_came_is_kept(
    wire: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    call = await streaming(Stub(*ENDINGS[ending]), wire)()
    events = data(call.body)
    if wire == "chat":
        assert "[DONE]" not in events
        assert not any(_finishes(event) for event in events)
        assert events[-1]["error"]["message"]
        said = [c["delta"].get("content") for e in events[:-1] for c in e["choices"]]
    else:
        assert [e["type"] for e in events if e != "[DONE]"][-1] == "response.failed"
        said = [e["delta"] for e in events if e != "[DONE]" and "delta" in e]
    assert "a" in said


async def test_o5_a_failure_in_mid_stream_has_a_code_of_the_protocol() -> None:
    call = await streaming(Stub(*ENDINGS["failed"]), "responses")()
    (failed,) = [d for d in data(call.body) if d != "[DONE]" and d["type"] == "response.failed"]
    assert not str(failed["response"]["error"]["code"]).isdecimal()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_gives_nothing_is_an_upstream_error(wire: str, stream: bool) -> None:
    stub = Stub(0)
    call = await Call(App(stub, Settings()), PATHS[wire], asking(wire, stream=stream))()
    assert call.status == 502
    assert call.json["error"]["code"] == "upstream_cut"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exception_is_our_mistake_and_says_where_to_look(
    wire: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stub = Stub(RuntimeError("an inner secret"))
    call = await Call(App(stub, Settings()), PATHS[wire], asking(wire, stream=stream))()
    assert call.status == 500
    assert "an inner secret" not in call.body.decode()
    id = call.json["error"]["message"].removesuffix(".").rpartition(" ")[2]
    assert f"{id}: an engine raised" in caplog.text
    assert "an inner secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_takes_too_long_is_stopped(wire: str, stream: bool) -> None:
    stub = Stub(*OPENING, asyncio.Event())
    app = App(stub, Settings(deadline=0.02))
    call = await Call(app, PATHS[wire], asking(wire, stream=stream))()
    assert stub.cancelled.is_set()
    assert call.whole
    if stream:
        assert ends(call.body)[0] in BAD_ENDS
    else:
        assert call.status == 504
        assert call.json["error"]["code"] == "upstream_timeout"


# ---- the pace ------------------------------------------------------------------------------


async def test_all_that_is_ready_is_one_write(wire: str) -> None:
    gate = asyncio.Event()
    stub = Stub(*OPENING, *(word(str(n)) for n in range(100)), gate, *closing("…"))
    call = streaming(stub, wire)
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) >= 1)
    gate.set()
    await task
    assert len(call.writes) == 2
    assert call.sent[-1]["more_body"] is False  # the end is in the last write


async def test_a_lone_piece_is_written_at_once(wire: str) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    cues = [cue for gate in gates for cue in (gate, word("x"))]
    call = streaming(Stub(*OPENING, *cues, *closing("xxx")), wire)
    task = asyncio.create_task(call())
    for number, gate in enumerate(gates, 1):
        await call.until(lambda number=number: len(call.writes) == number)
        gate.set()
    await task
    assert len(call.writes) == 4  # the last piece is written with the end


async def test_a_slow_reader_slows_the_engine_down() -> None:
    text = "x" * 30_000
    stub = Stub(*OPENING, *(cue for _ in range(100) for cue in (0, word(text))), *closing("x"))
    call = streaming(stub)
    call.reading.clear()
    produced = 0
    feed = Stub.stream

    async def counting(request: Any, caller: Any) -> Any:
        nonlocal produced
        async for event in feed(stub, request, caller):
            produced += 1
            yield event

    stub.stream = counting
    task = asyncio.create_task(call())
    await asyncio.sleep(0.02)
    assert produced < 10
    call.reading.set()
    await task
    assert call.body.count(text.encode()) == 100


async def test_a_reader_that_stalls_is_let_go() -> None:
    stub = Stub(*OPENING, asyncio.Event())
    call = streaming(stub, settings=Settings(stall=0.02, heartbeat=0.01, header_hold=0.01))
    call.reading.clear()
    started = time.monotonic()
    await call()
    await asyncio.wait_for(stub.cancelled.wait(), 10)
    assert not call.sent
    assert time.monotonic() - started < 20


async def test_a_host_that_raises_for_a_client_that_left_is_understood(wire: str) -> None:
    stub = Stub(*OPENING, 0, word("a"), asyncio.Event())
    call = streaming(stub, wire)

    async def broken(message: dict[str, Any]) -> None:
        raise OSError("gone")

    call.send = broken
    await call()
    await asyncio.wait_for(stub.cancelled.wait(), 10)


async def test_a_failure_at_the_very_moment_of_the_hold_is_still_plain(wire: str) -> None:
    """A heartbeat may be due in the same turn of the loop; nothing has gone out yet."""
    stub = Stub(0.01, Failed(BUSY))
    call = streaming(stub, wire, settings=Settings(header_hold=0.01))
    await call()
    assert call.status in (200, 429)
    assert call.whole
    if call.status == 429:
        assert call.json["error"]["message"] == "Slow down."


async def test_a_stream_may_begin_with_progress(wire: str) -> None:
    alive = Progress(None, "alive")
    call = await streaming(Stub(STARTED, alive, *saying("a")[1:]), wire)()
    assert len(ends(call.body)) == 1


async def test_an_end_that_could_not_be_sent_is_sent_once(wire: str) -> None:
    """The server shuts down while the client does not read the last piece."""
    app = App(Stub(*saying("a")), Settings())
    call = Call(app, PATHS[wire], asking(wire, stream=True))
    call.reading.clear()
    task = asyncio.create_task(call())
    await asyncio.sleep(0.01)
    await app.drain(0)
    call.reading.set()
    await task
    assert len(ends(call.body)) == 1
    assert call.whole


async def test_a_client_that_does_not_read_the_end_is_not_waited_for(wire: str) -> None:
    app = App(Stub(*OPENING, 0, asyncio.Event()), Settings(stall=0.05))
    call = Call(app, PATHS[wire], asking(wire, stream=True))
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) == 1)
    call.reading.clear()
    await app.drain(0)
    await asyncio.wait_for(task, 5)
    assert not call.whole


async def test_a_timeout_of_the_engine_survives_a_heartbeat_that_is_not_read() -> None:
    class Timed(Stub):
        async def stream(self, request, caller=None):
            for event in OPENING:
                yield event
            try:
                async with asyncio.timeout(0.05):
                    await asyncio.Event().wait()
            except TimeoutError:
                yield word("late")
            for event in closing("late"):
                yield event

    settings = Settings(heartbeat=0.01, heartbeat_data=("",))
    call = streaming(Timed(), "responses", settings=settings)
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) == 1)
    call.reading.clear()
    await asyncio.sleep(0.1)
    call.reading.set()
    await task
    assert ends(call.body) == ["response.completed"]
    numbers = [d["sequence_number"] for d in data(call.body) if "sequence_number" in d]
    assert numbers == list(range(len(numbers)))
