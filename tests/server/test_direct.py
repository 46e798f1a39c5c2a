"""Answers that are told as they come: their time, their end, and that nothing is left of them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller, Listener
from dragoman.core.request import Request
from dragoman.server.app import App
from dragoman.server.http import Cycle
from dragoman.server.settings import Settings
from tests.server.both import both, request
from tests.server.stubs import OPENING, Stub, Teller, Telling, closing, saying, served, word
from tests.server.talk import Talk, talking

CUT = Fault("upstream_cut", "The stream ended early.", "upstream")
BUSY = Fault("upstream_refused", "Slow down.", "upstream", status=429, retry_after="7")
KINDS = [Teller, Stub]


@asynccontextmanager
async def asking(
    stub: Stub, *packets: bytes, room: int | None = None, app: App | None = None, **options: Any
) -> AsyncIterator[tuple[App, Talk]]:
    """A server around the stub, and a client that has sent this."""
    settings = Settings(**options)
    app = app or App(stub, settings)
    async with served(app, settings) as port, talking(port, room=room) as talk:
        for packet in packets:
            talk.send(packet)
        yield app, talk


async def within(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, 60)


async def idle(app: App) -> None:
    async with asyncio.timeout(60):
        while app.busy:
            await asyncio.sleep(0.001)


# ---- time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_the_head_goes_out_after_the_hold(wire: str, kind: type[Stub]) -> None:
    gate = asyncio.Event()
    stub = kind(gate, Failed(BUSY))
    async with asking(stub, request(wire, stream=True), header_hold=0.01) as (_, talk):
        assert " 200 " in (await talk.head())[0]
        assert await talk.chunk() == b": waiting\n\n"
        gate.set()
        assert b"Slow down." in await talk.chunks()


@pytest.mark.parametrize("agent", ["codex_cli_rs/1", "another"])
async def test_silence_is_filled_in_the_words_the_client_hears(wire: str, agent: str) -> None:
    beats = []
    for kind in KINDS:
        gate = asyncio.Event()
        stub = kind(*OPENING, word("a"), gate, *closing("a"))
        packet = request(wire, f"user-agent: {agent}", stream=True)
        async with asking(stub, packet, heartbeat=0.1) as (_, talk):
            await talk.head()
            seen = b""
            while b'"a"' not in seen:
                seen += await talk.chunk()
            beats += [await talk.chunk(), await talk.chunk()]
            gate.set()
            assert closing("a")
            assert b"a" in await talk.chunks()
    numbered = {re.sub(rb'"sequence_number":\d+', b"", beat) for beat in beats}
    assert len(numbered) == 1
    assert beats[0].startswith(b":") == (agent == "another")


async def test_a_stream_that_speaks_needs_no_heartbeat(wire: str) -> None:
    cues = [cue for _ in range(10) for cue in (0.05, word("a"))]
    stub = Teller(*OPENING, *cues, *closing("a" * 10))
    async with asking(stub, request(wire, stream=True), heartbeat=0.4) as (_, talk):
        assert b"still working" not in (await talk.answer()).body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_an_answer_may_take_no_longer_than_the_deadline(
    wire: str, stream: bool, begun: bool
) -> None:
    cues = (*(OPENING if begun else ()), *([word("a")] if begun else []), asyncio.Event())
    [answer] = await both(cues, request(wire, stream=stream), deadline=0.1)
    assert (" 504 " in answer.status) == (not begun or not stream)
    assert b"no complete answer within 0.1 s" in answer.body


async def test_an_idle_connection_is_closed_after_an_answer(wire: str) -> None:
    async with asking(Teller(), request(wire, stream=True), keep_alive=1) as (_, talk):
        assert not (await talk.answer()).closed
        assert await talk.rest() == b""


# ---- the client ----------------------------------------------------------------------------

PHASES: dict[str, tuple[tuple[Any, ...], bool, dict[str, Any]]] = {
    "before the head": ((), True, {}),
    "after the hold": ((), True, {"header_hold": 0}),
    "in mid-stream": ((*OPENING, word("a")), True, {}),
    "between heartbeats": ((*OPENING, word("a")), True, {"heartbeat": 0.1}),
    "in a whole answer": ((*OPENING, word("a")), False, {}),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_p26_who_leaves_stops_the_telling(wire: str, phase: str) -> None:
    cues, stream, options = PHASES[phase]
    stub = Teller(*cues, asyncio.Event())
    packet = request(wire, stream=stream)
    async with asking(stub, packet, concurrency=1, **options) as (app, talk):
        if stream and phase != "before the head":
            await talk.head()
        await stub.begun.wait()
        talk.leave()
        await within(stub.tellings[0].stopped.wait())
        assert app.busy == 0
        assert stub.tellings[0].stops == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_left_of_those_who_came_and_went(wire: str, stream: bool) -> None:
    """One place for all: a place that were not given back would be the last."""
    stub = Teller(*OPENING, word("a"), asyncio.Event())
    app = App(stub, Settings(concurrency=1))
    async with served(app) as port:
        for number in range(200):
            stub.begun.clear()
            async with talking(port) as talk:
                talk.send(request(wire, stream=stream))
                await within(stub.begun.wait())
                if stream and number % 2:
                    await talk.head()
            await within(stub.tellings[number].stopped.wait())
        assert (stub.told, stub.running, app.busy) == (200, 0, 0)


async def test_half_a_request_is_no_request(wire: str) -> None:
    stub = Teller()
    packet = request(wire)
    for size in (30, len(packet) - 1):
        async with asking(stub, packet[:size]) as (app, talk):
            while size > 30 and not app.busy:
                await asyncio.sleep(0)
            talk.leave()
            await idle(app)
    assert stub.told == 0


WORDS = 400
WIDE = word("x" * 50_000)
FLOOD = (*OPENING, *[WIDE] * WORDS, *closing("x"))


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "with another request behind"])
async def test_p27_a_client_that_does_not_read_holds_the_engine(wire: str, behind: bool) -> None:
    stub = Teller(*FLOOD)
    packets = [request(wire, stream=True)] * (1 + behind)
    async with asking(stub, b"".join(packets), room=4096) as (_, talk):
        await within(stub.begun.wait())
        telling = stub.tellings[0]
        await within(telling.held.wait())
        said = telling.said
        assert said < WORDS
        await asyncio.sleep(0.01)
        assert telling.said == said
        assert (await talk.answer()).body.count(b"x" * 50_000) >= WORDS
        assert telling.stops == 0
        if behind:
            assert (await talk.answer()).body.count(b"x" * 50_000) >= WORDS


async def test_p27_a_client_that_never_reads_is_let_go(wire: str) -> None:
    stub = Teller(*FLOOD)
    packet = request(wire, stream=True)
    async with asking(stub, packet, room=4096, stall=0.2, heartbeat=0.1) as (app, talk):
        await within(stub.begun.wait())
        await within(stub.tellings[0].stopped.wait())
        assert app.busy == 0
        await broken_off(talk)


async def broken_off(talk: Talk) -> None:
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        while await talk.answer():
            pytest.fail("it ended well")


class Deaf(Teller):
    """Does not stop talking when it is asked to."""

    def tell(self, request: Request, caller: Caller, listener: Listener) -> Telling | None:
        telling = super().tell(request, caller, listener)
        assert telling is not None
        telling.hold = telling.held.set
        return telling


async def test_who_never_reads_is_let_go_though_the_engine_talks_on(wire: str) -> None:
    cues = [cue for _ in range(WORDS) for cue in (0.02, WIDE)]
    stub = Deaf(*OPENING, *[WIDE] * WORDS, *cues, *closing("x"))
    packet = request(wire, stream=True)
    async with asking(stub, packet, room=4096, stall=0.5, heartbeat=0.1) as (_, talk):
        await within(stub.begun.wait())
        await within(stub.ended.wait())
        assert stub.tellings[0].stopped.is_set()
        assert stub.tellings[0].said < 2 * WORDS
        await broken_off(talk)


async def test_who_leaves_unread_words_stops_the_telling(wire: str) -> None:
    stub = Teller(*FLOOD)
    async with asking(stub, request(wire, stream=True), room=4096) as (app, talk):
        await within(stub.begun.wait())
        await within(stub.tellings[0].held.wait())
        talk.leave()
        await within(stub.tellings[0].stopped.wait())
        assert app.busy == 0


async def test_a_held_answer_can_be_ended(wire: str) -> None:
    stub = Teller(*FLOOD)
    async with asking(stub, request(wire, stream=True), room=4096) as (app, talk):
        await within(stub.begun.wait())
        await within(stub.tellings[0].held.wait())
        await app.drain(0)
        assert stub.tellings[0].stops == 1
        assert b"shutting down" in (await talk.answer()).body


# ---- other requests on the connection ------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_with_a_request_behind_stops_the_first(
    wire: str, kind: type[Stub], stream: bool
) -> None:
    stub = kind(*OPENING, word("a"), asyncio.Event())
    async with asking(stub, request(wire, stream=stream) * 2) as (app, talk):
        await within(stub.begun.wait())
        if stream:
            await talk.head()
        talk.leave()
        await within(stub.cancelled.wait())
        await idle(app)
        assert len(stub.asked) == 1


GARBAGE = {
    "no HTTP": b"\0\0\0\r\n\r\n",
    "a body that is none": request("chat", sized=False)[:-10] + b"zz\r\n",
    "a socket": b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("behind", GARBAGE)
async def test_nothing_is_written_into_an_answer(wire: str, kind: type[Stub], behind: str) -> None:
    stub = kind(*OPENING, word("a"), asyncio.Event())
    async with asking(stub, request(wire, stream=True)) as (app, talk):
        await talk.head()
        talk.send(GARBAGE[behind])
        rest = await talk.rest()
        assert b"HTTP/1.1" not in rest
        assert b"\r\n0\r\n" not in rest
        await within(stub.cancelled.wait())
        await idle(app)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("behind", GARBAGE)
@pytest.mark.parametrize("stream", [False, True])
async def test_after_a_refusal_no_answer_is_wanted(
    wire: str, kind: type[Stub], behind: str, stream: bool
) -> None:
    stub = kind(asyncio.Event())
    async with asking(stub, request(wire, stream=stream)) as (app, talk):
        await within(stub.begun.wait())
        talk.send(GARBAGE[behind])
        assert " 400 " in (await talk.answer()).status
        await within(stub.cancelled.wait())
        await idle(app)


@pytest.mark.parametrize("behind", GARBAGE)
async def test_garbage_in_the_same_packet_refuses_both(wire: str, behind: str) -> None:
    stub = Teller()
    async with asking(stub, request(wire) + GARBAGE[behind]) as (app, talk):
        assert " 400 " in (await talk.answer()).status
        assert (stub.told, app.busy) == (0, 0)


# ---- shutting down, and many at once -------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
async def test_who_shuts_down_ends_every_answer_once(wire: str, phase: str) -> None:
    cues, stream, options = PHASES[phase]
    options = {name: value for name, value in options.items() if name != "heartbeat"}
    bodies = []
    for kind in KINDS:
        stub = kind(*cues, asyncio.Event())
        async with asking(stub, request(wire, stream=stream), **options) as (app, talk):
            await within(stub.begun.wait())
            began = stream and phase != "before the head"
            head = await talk.head() if began else None
            await app.drain(0)
            body = await talk.chunks() if began else (await talk.answer()).body
            assert b"shutting down" in body
            assert not stub.running
        bodies.append((head, body))
    assert bodies[0] == bodies[1]


async def closing_down(app: App) -> asyncio.Task[None]:
    """Lets answers end, and takes no more from now on."""
    draining = asyncio.create_task(app.drain(3600))
    while not app._roster.closing:
        await asyncio.sleep(0)
    return draining


async def test_a_second_signal_ends_what_the_first_lets_end(wire: str) -> None:
    stub = Teller(*OPENING, asyncio.Event())
    async with asking(stub, request(wire)) as (app, talk):
        await within(stub.begun.wait())
        draining = await closing_down(app)
        app.hurry()
        await draining
        assert " 503 " in (await talk.answer()).status


async def test_who_shuts_down_lets_answers_end_and_takes_no_more(wire: str) -> None:
    gate = asyncio.Event()
    stub = Teller(*OPENING, gate, *closing(""))
    app = App(stub, Settings())
    async with served(app) as port, talking(port) as first, talking(port) as second:
        first.send(request(wire))
        await within(stub.begun.wait())
        draining = await closing_down(app)
        second.send(request(wire))
        assert " 503 " in (await second.answer()).status
        gate.set()
        assert " 200 " in (await first.answer()).status
        await draining
        assert stub.told == 1


async def test_when_all_places_are_taken_the_next_waits_and_one_more_is_refused(
    wire: str,
) -> None:
    gate = asyncio.Event()
    stub = Teller(*OPENING, gate, *closing(""))
    app = App(stub, Settings(concurrency=1, queue=1))
    async with served(app) as port, talking(port) as first, talking(port) as second:
        first.send(request(wire))
        await within(stub.begun.wait())
        second.send(request(wire, stream=True))
        while app.busy < 2:
            await asyncio.sleep(0)
        async with talking(port) as third:
            third.send(request(wire))
            refused = await third.answer()
            assert (refused.status[9:12], refused.header("retry-after")) == ("429", "1")
        gate.set()
        assert " 200 " in (await first.answer()).status
        assert " 200 " in (await second.answer()).status
        assert (stub.told, len(stub.asked)) == (1, 2)


# ---- engines that break --------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_told_after_the_end_is_not_heard(wire: str, stream: bool) -> None:
    stub = Teller(*saying("a"))
    packet = request(wire, stream=stream)
    async with asking(stub, packet) as (_, talk):
        first = await talk.answer()
        listener = stub.tellings[0].listener
        listener.broke(ValueError("on purpose"))
        listener.heard([word("b")])
        listener.heard([Failed(CUT)])
        listener.drained()
        talk.send(packet)
        assert await talk.answer() == first
        assert stub.tellings[0].stops == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_told_after_it_was_stopped_is_not_heard(wire: str, stream: bool) -> None:
    stub = Teller(asyncio.Event())
    packet = request(wire, stream=stream)
    async with asking(stub, packet, deadline=0.1) as (_, talk):
        first = await talk.answer()
        stub.tellings[0].listener.heard([*saying("b")])
        stub.tellings[0].listener.broke(ValueError("on purpose"))
        talk.send(packet)
        assert await talk.answer() == first


class Stubborn(Teller):
    """Cannot be stopped."""

    def tell(self, request: Request, caller: Caller, listener: Listener) -> Telling | None:
        telling = super().tell(request, caller, listener)
        assert telling is not None
        self.halt = telling.stop

        def stop() -> None:
            raise ValueError("on purpose")

        telling.stop = stop
        return telling


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_cannot_be_stopped_disturbs_nobody_else(
    wire: str, stream: bool
) -> None:
    stub = Stubborn(asyncio.Event())
    async with asking(stub, request(wire, stream=stream), concurrency=1) as (app, talk):
        await within(stub.begun.wait())
        await within(app.drain(0))
        await broken_off(talk)
        assert app.busy == 0
        stub.halt()


class Refusing(Teller):
    """Will not tell, or fails to."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    def tell(self, request: Request, caller: Caller, listener: Listener) -> None:
        self.told += 1
        if self._error is not None:
            raise self._error


async def test_an_engine_that_will_not_tell_is_awaited(wire: str) -> None:
    stub = Refusing(None)
    async with asking(stub, request(wire), concurrency=1) as (app, talk):
        assert " 200 " in (await talk.answer()).status
        assert (stub.told, len(stub.asked), app.busy) == (1, 1, 0)


async def test_an_engine_that_fails_to_tell_is_our_mistake_and_holds_no_place(
    wire: str, caplog: pytest.LogCaptureFixture
) -> None:
    stub = Refusing(ValueError("on purpose"))
    async with asking(stub, concurrency=1) as (app, talk):
        for told in (1, 2):  # there is room for one
            talk.send(request(wire))
            assert " 500 " in (await talk.answer()).status
            assert (stub.told, app.busy) == (told, 0)
    assert "ValueError: on purpose" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_takes_no_end_is_dropped(
    wire: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Cycle.put

    def broken(self: Cycle, body: bytes, *, more: bool) -> None:
        if not more:
            raise RuntimeError("on purpose")
        put(self, body, more=more)

    monkeypatch.setattr(Cycle, "put", broken)
    stub = Teller()
    async with asking(stub, request(wire, stream=stream)) as (app, talk):
        await broken_off(talk)
        assert app.busy == 0
