"""Streams: when headers go out, what fills a silence, and the one end on every path."""

import asyncio
import json
import logging
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


GOOD_ENDS = ("finish", "response.completed", "message_stop")
BAD_ENDS = ("error", "response.failed")
TERMINAL = {*GOOD_ENDS, "response.failed", "response.incomplete"}


def _finishes(chunk: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in chunk.get("choices", ()))


# ---- the beginning -------------------------------------------------------------------------


async def test_p28_stream_headers_forbid_buffering_and_transforming(wire: str) -> None:
    call = await streaming(Stub(), wire, headers={"accept-encoding": "gzip"})()
    assert call.status == 200
    assert call.headers["content-type"] == "text/event-stream"
    assert call.headers["cache-control"] == "no-cache, no-transform"
    assert call.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in call.headers


async def test_p24_failure_before_the_first_event_has_its_own_status(wire: str) -> None:
    call = await streaming(Stub(Failed(BUSY)), wire)()
    assert call.status == 429
    assert call.headers["content-type"] == "application/json"
    assert call.headers["retry-after"] == "7"
    assert call.json["error"]["message"] == "Slow down."


async def test_p37_losses_are_in_a_header(wire: str) -> None:
    started = [Loss("seed", "dropped", "why"), Loss("top_k", "emulated", "how")]
    events = saying("a")
    stub = Stub(type(STARTED)("abc", 1, "stub", tuple(started)), *events[1:])
    for stream in (False, True):
        body = asking(wire, stream=stream, store=True)
        call = await Call(App(stub, Settings()), PATHS[wire], body)()
        dropped = "seed" if wire == "messages" else "store, seed"
        assert call.headers["x-dragoman-loss"] == f"dropped: {dropped}; emulated: top_k"
    call = await Call(App(Stub(), Settings()), PATHS[wire], asking(wire))()
    assert "x-dragoman-loss" not in call.headers


async def test_late_losses_are_in_a_comment_before_the_end(wire: str) -> None:
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
    assert b"x-dragoman-loss" not in plain.body


async def test_losses_are_in_a_comment_where_the_model_was_silent_for_long(wire: str) -> None:
    gate = asyncio.Event()
    begun = replace(STARTED, losses=(Loss("seed", "dropped", "why"),))
    call = Call(
        App(Stub(gate, begun, *saying("a")[1:]), Settings(header_hold=0.01)),
        PATHS[wire],
        asking(wire, stream=True),
    )
    task = asyncio.create_task(call())
    await call.until(lambda: bool(call.sent))
    gate.set()
    await task
    assert "x-dragoman-loss" not in call.headers
    assert call.body.count(b": x-dragoman-loss: dropped: seed\n\n") == 1


# ---- silence -------------------------------------------------------------------------------


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
async def test_p15_every_path_has_one_terminal_event(wire: str, ending, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    call = await streaming(Stub(*ENDINGS[ending]), wire)()
    assert call.whole
    assert len(ends(call.body)) == 1
    good = ending in ("finished", "more after the end")
    assert ends(call.body)[0] in (GOOD_ENDS if good else BAD_ENDS)


@pytest.mark.parametrize("ending", ["failed", "raised", "raised after a wait", "stopped"])
async def test_p24_o5_cut_stream_is_a_failure_that_keeps_its_text(
    wire: str, ending, caplog
) -> None:
    caplog.set_level(logging.CRITICAL)
    call = await streaming(Stub(*ENDINGS[ending]), wire)()
    events = data(call.body)
    if wire == "chat":
        assert "[DONE]" not in events
        assert not any(_finishes(event) for event in events)
        assert events[-1]["error"]["message"]
        said = [c["delta"].get("content") for e in events[:-1] for c in e["choices"]]
    elif wire == "messages":
        assert ends(call.body) == ["error"]
        assert events[-1]["error"]["message"]
        said = [e["delta"].get("text") for e in events if e["type"] == "content_block_delta"]
    else:
        assert [e["type"] for e in events if e != "[DONE]"][-1] == "response.failed"
        said = [e["delta"] for e in events if e != "[DONE]" and "delta" in e]
        (failed,) = [e for e in events if e != "[DONE]" and e["type"] == "response.failed"]
        assert not str(failed["response"]["error"]["code"]).isdecimal()
    assert "a" in said


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_without_events_is_an_upstream_error(wire: str, stream) -> None:
    stub = Stub(0)
    call = await Call(App(stub, Settings()), PATHS[wire], asking(wire, stream=stream))()
    assert call.status == 502
    assert call.code == {"messages": "api_error"}.get(wire, "upstream_cut")


@pytest.mark.parametrize("stream", [False, True])
async def test_exception_is_500_with_the_id_of_its_traceback(wire: str, stream, caplog) -> None:
    stub = Stub(RuntimeError("an inner secret"))
    call = await Call(App(stub, Settings()), PATHS[wire], asking(wire, stream=stream))()
    assert call.status == 500
    assert "an inner secret" not in call.body.decode()
    id = call.json["error"]["message"].removesuffix(".").rpartition(" ")[2]
    assert f"{id}: an engine raised" in caplog.text
    assert "an inner secret" in caplog.text


# ---- the pace ------------------------------------------------------------------------------


async def test_ready_events_are_one_write(wire: str) -> None:
    gate = asyncio.Event()
    stub = Stub(*OPENING, *(word(str(n)) for n in range(100)), gate, *closing("…"))
    call = streaming(stub, wire)
    task = asyncio.create_task(call())
    await call.until(lambda: len(call.writes) >= 1)
    gate.set()
    await task
    assert len(call.writes) == 2
    assert call.sent[-1]["more_body"] is False  # the end is in the last write


async def test_single_delta_is_written_at_once(wire: str) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    cues = [cue for gate in gates for cue in (gate, word("x"))]
    call = streaming(Stub(*OPENING, *cues, *closing("xxx")), wire)
    task = asyncio.create_task(call())
    for number, gate in enumerate(gates, 1):
        await call.until(lambda number=number: len(call.writes) == number)
        gate.set()
    await task
    assert len(call.writes) == 4  # the last piece is written with the end


async def test_send_that_raises_cancels_the_engine(wire: str) -> None:
    stub = Stub(*OPENING, 0, word("a"), asyncio.Event())
    call = streaming(stub, wire)

    async def broken(message: dict[str, Any]) -> None:
        raise OSError("gone")

    call.send = broken
    await call()
    await asyncio.wait_for(stub.cancelled.wait(), 10)


async def test_stream_may_begin_with_progress(wire: str) -> None:
    alive = Progress(None, "alive")
    call = await streaming(Stub(STARTED, alive, *saying("a")[1:]), wire)()
    assert len(ends(call.body)) == 1


async def test_unread_end_is_sent_once(wire: str) -> None:
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


async def test_engine_timeout_survives_an_unread_heartbeat() -> None:
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


# ---- guarantees ----------------------------------------------------------------------------

HEADER = "x-dragoman-guarantee"
FORMATS: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_object"}},
    "responses": {"text": {"format": {"type": "json_object"}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
}


@pytest.mark.parametrize(
    ("bound", "start", "end", "plain", "streamed"),
    [
        (True, None, None, "best-effort", "best-effort"),
        (True, "enforced", "enforced", "enforced", "enforced"),
        (True, None, "verified", "verified", "best-effort"),  # and a comment at the end
        (False, None, None, None, None),
    ],
)
async def test_p34_guarantee_is_in_a_header(wire: str, bound, start, end, plain, streamed) -> None:
    _, *events, _ = saying("{}")
    stub = Stub(replace(STARTED, guarantee=start), *events, replace(FINISHED, guarantee=end))
    for stream, header in ((False, plain), (True, streamed)):
        body = asking(wire, stream=stream) | (FORMATS[wire] if bound else {})
        call = await Call(App(stub, Settings()), PATHS[wire], body)()
        assert (call.status, call.headers.get(HEADER)) == (200, header)
        late = f": {HEADER}: verified\n" in call.body.decode()
        assert late is (stream and end == "verified")
