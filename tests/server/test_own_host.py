"""Answers on our own host: their time, their end, their connection, and that nothing is left."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from uvicorn.server import ServerState

from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.interfaces import Secret
from dragoman.server.app import App
from dragoman.server.exchange import Exchange
from dragoman.server.http import HTTPConfig, HTTPExchange, HTTPProtocol
from dragoman.server.responder import Responder, Stream
from dragoman.server.settings import Settings
from dragoman.server.state.run import Run
from tests.server.stubs import OPENING, Stub, closing, saying, served, word
from tests.server.talk import Talk, request, talking

CUT = Failed(Fault("upstream_cut", "The stream ended early.", "upstream"))
BUSY = Fault("upstream_refused", "Slow down.", "upstream", status=429, retry_after="7")


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


async def test_headers_are_sent_after_the_hold_and_a_later_failure_ends_the_stream(
    wire: str,
) -> None:
    gate = asyncio.Event()
    stub = Stub(gate, Failed(BUSY))
    async with asking(stub, request(wire, stream=True), header_hold=0.01) as (_, talk):
        assert " 200 " in (await talk.head())[0]
        assert await talk.chunk() == b": waiting\n\n"
        gate.set()
        assert b"Slow down." in await talk.chunks()


@pytest.mark.parametrize("agent", ["codex_cli_rs/1", "another"])
async def test_p27_silence_is_filled_with_heartbeats_of_the_clients_kind(wire: str, agent) -> None:
    gate = asyncio.Event()
    stub = Stub(*OPENING, word("a"), gate, *closing("a"))
    packet = request(wire, f"user-agent: {agent}", stream=True)
    async with asking(stub, packet, heartbeat=0.1) as (_, talk):
        await talk.head()
        seen = b""
        while b'"a"' not in seen:
            seen += await talk.chunk()
        beats = [await talk.chunk(), await talk.chunk()]
        gate.set()
        assert b"a" in await talk.chunks()
    assert len({re.sub(rb'"sequence_number":\d+', b"", beat) for beat in beats}) == 1
    # Messages has an event for it, which all of its clients know.
    assert beats[0].startswith(b":") == (agent == "another" and wire != "messages")


async def test_lively_stream_has_no_heartbeat(wire: str) -> None:
    cues = [cue for _ in range(10) for cue in (0.05, word("a"))]
    stub = Stub(*OPENING, *cues, *closing("a" * 10))
    async with asking(stub, request(wire, stream=True), heartbeat=0.4) as (_, talk):
        assert b"still working" not in (await talk.answer()).body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_answer_over_the_deadline_fails(wire: str, stream, begun) -> None:
    cues = (*(OPENING if begun else ()), *([word("a")] if begun else []), asyncio.Event())
    async with asking(Stub(*cues), request(wire, stream=stream), deadline=0.1) as (_, talk):
        answer = await talk.answer()
    assert (" 504 " in answer.status) == (not begun or not stream)
    assert b"no complete answer within 0.1 s" in answer.body


async def test_an_idle_connection_is_closed_after_an_answer(wire: str) -> None:
    async with asking(Stub(), request(wire, stream=True), keep_alive=1) as (_, talk):
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
async def test_p26_a_disconnect_cancels_the_engine(wire: str, phase) -> None:
    cues, stream, options = PHASES[phase]
    stub = Stub(*cues, asyncio.Event())
    packet = request(wire, stream=stream)
    async with asking(stub, packet, concurrency=1, **options) as (app, talk):
        if stream and phase != "before the head":
            await talk.head()
        await stub.begun.wait()
        talk.leave()
        await within(stub.cancelled.wait())
        assert app.busy == 0


async def test_half_a_request_is_no_request(wire: str) -> None:
    stub = Stub()
    packet = request(wire)
    for size in (30, len(packet) - 1):
        async with asking(stub, packet[:size]) as (app, talk):
            while size > 30 and not app.busy:
                await asyncio.sleep(0)
            talk.leave()
            await idle(app)
    assert not stub.asked


WORDS = 200
WIDE = word("x" * 50_000)
FLOOD = (*OPENING, *[cue for _ in range(WORDS) for cue in (0, WIDE)], *closing("x"))


async def held(stub: Stub) -> int:
    """The number of events that a paused engine has given."""
    await within(stub.begun.wait())
    said = -1
    while said != stub.said:
        said = stub.said
        await asyncio.sleep(0.02)
    return said


@pytest.mark.uncounted
async def test_p27_unread_answer_pauses_the_engine(wire: str) -> None:
    stub = Stub(*FLOOD)
    async with asking(stub, request(wire, stream=True) * 2, room=4096) as (_, talk):
        assert await held(stub) < WORDS
        for _ in range(2):
            assert (await talk.answer()).body.count(b"x" * 50_000) >= WORDS


async def test_p27_a_client_that_never_reads_is_disconnected(wire: str) -> None:
    stub = Stub(*FLOOD)
    packet = request(wire, stream=True)
    async with asking(stub, packet, room=4096, stall=0.2, heartbeat=0.1) as (app, talk):
        await within(stub.ended.wait())
        assert app.busy == 0
        await broken_off(talk)


async def broken_off(talk: Talk) -> None:
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        while await talk.answer():
            pytest.fail("it ended well")


async def test_a_disconnect_while_paused_cancels_the_engine(wire: str) -> None:
    stub = Stub(*FLOOD)
    async with asking(stub, request(wire, stream=True), room=4096) as (app, talk):
        await held(stub)
        talk.leave()
        await within(stub.ended.wait())
        assert app.busy == 0


async def test_a_paused_answer_ends_at_shutdown(wire: str) -> None:
    stub = Stub(*FLOOD)
    async with asking(stub, request(wire, stream=True), room=4096) as (app, talk):
        await held(stub)
        await app.drain(0)
        await within(stub.ended.wait())
        assert b"shutting down" in (await talk.answer()).body


# ---- other requests on the connection ------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_with_a_pipelined_request_cancels_the_first(wire: str, stream) -> None:
    stub = Stub(*OPENING, word("a"), asyncio.Event())
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


@pytest.mark.parametrize("behind", GARBAGE)
async def test_refusal_is_not_written_into_a_running_answer(wire: str, behind) -> None:
    stub = Stub(*OPENING, word("a"), asyncio.Event())
    async with asking(stub, request(wire, stream=True)) as (app, talk):
        await talk.head()
        talk.send(GARBAGE[behind])
        rest = await talk.rest()
        assert b"HTTP/1.1" not in rest
        assert b"\r\n0\r\n" not in rest
        await within(stub.cancelled.wait())
        await idle(app)


@pytest.mark.parametrize("behind", GARBAGE)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_before_the_answer_cancels_the_engine(wire: str, behind, stream) -> None:
    stub = Stub(asyncio.Event())
    async with asking(stub, request(wire, stream=stream)) as (app, talk):
        await within(stub.begun.wait())
        talk.send(GARBAGE[behind])
        assert " 400 " in (await talk.answer()).status
        await within(stub.cancelled.wait())
        await idle(app)


@pytest.mark.parametrize("behind", GARBAGE)
async def test_garbage_after_a_request_in_one_packet_refuses_both(wire: str, behind) -> None:
    stub = Stub()
    async with asking(stub, request(wire) + GARBAGE[behind]) as (app, talk):
        assert " 400 " in (await talk.answer()).status
        assert (len(stub.asked), app.busy) == (0, 0)


# ---- shutting down, and many at once -------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
async def test_shutdown_ends_every_answer_once(wire: str, phase) -> None:
    cues, stream, options = PHASES[phase]
    options = {name: value for name, value in options.items() if name != "heartbeat"}
    stub = Stub(*cues, asyncio.Event())
    async with asking(stub, request(wire, stream=stream), **options) as (app, talk):
        await within(stub.begun.wait())
        began = stream and phase != "before the head"
        if began:
            await talk.head()
        await app.drain(0)
        body = await talk.chunks() if began else (await talk.answer()).body
        assert body.count(b"shutting down") == 1
        await within(stub.cancelled.wait())


# ---- what breaks ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_connection_whose_end_cannot_be_written_is_dropped(
    wire: str, stream, monkeypatch
) -> None:
    write, start = HTTPExchange.write, HTTPExchange.start

    def written(self: HTTPExchange, body: bytes, *, more: bool) -> bool:
        if not more:
            raise RuntimeError("on purpose")
        return write(self, body, more=more)

    def started(self: HTTPExchange, status: int, headers: Any, body: bytes | None = None) -> None:
        start(self, status, headers, None)
        if body is not None:
            raise RuntimeError("on purpose")

    monkeypatch.setattr(HTTPExchange, "write", written)
    monkeypatch.setattr(HTTPExchange, "start", started)
    stub = Stub()
    async with asking(stub, request(wire, stream=stream)) as (app, talk):
        await broken_off(talk)
        assert app.busy == 0


# ---- what is left --------------------------------------------------------------------------

OURS = (Responder, Exchange, Run)


@contextmanager
def collected() -> Iterator[list[Any]]:
    """What only the collector could remove, of ours."""
    found: list[Any] = []
    gc.collect()
    gc.freeze()  # what other tests left behind is not looked at, here or later
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [thing for thing in gc.garbage if isinstance(thing, OURS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


LEFT: dict[str, tuple[Any, ...]] = {
    "well": saying("a"),
    "at once": (CUT,),
    "badly": (*OPENING, word("a"), CUT),
    "by a mistake": (ValueError("on purpose"),),
    "by a mistake in the middle": (*OPENING, ValueError("on purpose")),
}


@pytest.mark.uncounted
async def test_ended_answers_leave_nothing_for_the_collector(wire: str) -> None:
    stub = Stub()
    async with served(App(stub, Settings())) as port, talking(port) as talk:
        with collected() as found:
            for cues in LEFT.values():
                stub.cues = cues
                for number in range(50):
                    talk.send(request(wire, stream=bool(number % 2)))
                    await talk.answer()
            await asyncio.sleep(0)
        assert len(stub.asked) == 50 * len(LEFT)
    assert not found


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnected_clients_leave_nothing_for_the_collector(wire: str, stream) -> None:
    stub = Stub(*OPENING, word("a"), asyncio.Event())
    app = App(stub, Settings(concurrency=1))
    async with served(app) as port:
        with collected() as found:
            for number in range(20):
                stub.begun.clear()
                async with talking(port) as talk:
                    talk.send(request(wire, stream=stream))
                    await within(stub.begun.wait())
                    if stream and number % 2:
                        await talk.head()
                await within(stub.cancelled.wait())
                stub.cancelled.clear()
            while stub.running:
                await asyncio.sleep(0)
        assert (len(stub.asked), app.busy) == (20, 0)
    assert not found


# ---- a connection --------------------------------------------------------------------------


class Link(asyncio.Transport):
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = self.ended = False

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connected(app: Any) -> tuple[HTTPProtocol, Link]:
    options = {"interface": "asgi3", "proxy_headers": False, "log_config": None}
    config = HTTPConfig(app, Settings(), **options)
    config.load()
    state, link = ServerState(), Link()
    protocol = HTTPProtocol(config, state, {}, asyncio.get_running_loop())
    protocol.connection_made(link)
    return protocol, link


async def test_paused_connection_reads_no_further_request(wire: str) -> None:
    stub = Stub()
    protocol, link = connected(App(stub, Settings()))
    protocol.pause_writing()
    protocol.data_received(request(wire))
    await asyncio.sleep(0.01)
    assert (stub.asked, link.written) == ([], b"")
    protocol.resume_writing()
    await until(link, b"Hello, world")
    protocol.connection_lost(None)


@pytest.mark.parametrize("streamed", [False, True])
async def test_large_bodies_are_not_copied_to_be_sent(
    wire: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "word " * 100_000
    protocol, link = connected(App(Stub(*saying(text)), Settings()))
    sent: list[Any] = []
    write = link.write

    def noted(data: Any) -> None:
        sent.append(data)
        write(data)

    monkeypatch.setattr(link, "write", noted)
    protocol.data_received(request(wire, stream=streamed))
    await until(link, b"0\r\n\r\n" if streamed else text.encode())
    assert not [data for data in sent if type(data) is bytes and len(data) > len(text)]
    assert [data for data in sent if type(data) is memoryview]
    head, _, rest = link.written.partition(b"\r\n\r\n")
    if b"chunked" in head:
        sizes = []
        while rest and rest != b"0\r\n\r\n":
            size, _, rest = rest.partition(b"\r\n")
            sizes.append(int(size, 16))
            assert rest[sizes[-1] : sizes[-1] + 2] == b"\r\n"
            rest = rest[sizes[-1] + 2 :]
        assert max(sizes) > len(text)
    else:
        assert f"content-length: {len(rest)}\r\n".encode() in head + b"\r\n"
    protocol.connection_lost(None)


async def until(link: Link, words: bytes) -> None:
    async with asyncio.timeout(60):
        while words not in link.written:
            await asyncio.sleep(0)


async def test_bytes_after_a_refusal_are_not_read(wire: str) -> None:
    stub = Stub()
    protocol, link = connected(App(stub, Settings()))
    protocol.data_received(b"\0\r\n\r\n")
    protocol.data_received(request(wire))
    assert link.written.startswith(b"HTTP/1.1 400 ")
    assert not stub.asked
    protocol.connection_lost(None)


async def test_unread_body_of_a_refused_request_is_skipped(wire: str) -> None:
    protocol, link = connected(App(Stub(), Settings(keys=(Secret("right"),))))
    refused = request(wire)
    protocol.data_received(refused[:-2])
    await until(link, b"HTTP/1.1 401 ")
    protocol.data_received(refused[-2:] + request(wire, "x-api-key: right"))
    await until(link, b"Hello, world")
    protocol.connection_lost(None)


async def test_empty_piece_is_not_written() -> None:
    protocol, link = connected(App(Stub(asyncio.Event()), Settings()))
    protocol.data_received(request("chat", stream=True))
    cycle: Any = protocol.cycle
    cycle.start(200, [])
    cycle.write(b"", more=True)
    head = link.written
    cycle.write(b"", more=True)
    assert link.written == head
    cycle.write(b"", more=False)
    assert link.written == head + b"0\r\n\r\n"
    protocol.connection_lost(None)


async def test_a_heartbeat_that_cannot_be_encoded_ends_the_stream(wire: str, monkeypatch) -> None:
    def broken(self: Stream) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(Stream, "_open", broken)
    stub = Stub(asyncio.Event())
    app = App(stub, Settings(header_hold=0))
    async with served(app) as port, talking(port) as talk:
        talk.send(request(wire, stream=True))
        assert " 500 " in (await talk.answer()).status
        await asyncio.wait_for(stub.cancelled.wait(), 60)
        assert not app._roster._due  # or the next heartbeat would be torn into another answer
