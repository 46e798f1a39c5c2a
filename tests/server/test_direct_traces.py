"""What answers that are told leave behind, and where they are made in the first place: on which
requests, and how a connection hears of its client.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from uvicorn.server import ServerState

from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.interfaces import ANYONE, Secret
from dragoman.core.item import ItemReference, Message, Text
from dragoman.core.request import Request
from dragoman.engines.reasoning_encryption import Seal
from dragoman.server.app import App
from dragoman.server.direct import DirectStream, DirectWhole
from dragoman.server.exchange import Exchange
from dragoman.server.heartbeat import Clock
from dragoman.server.http import HTTPConfig, HTTPProtocol
from dragoman.server.settings import Settings
from dragoman.server.speech import Speech
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from tests.server.both import request
from tests.server.stubs import OPENING, PATHS, Teller, saying, served, word
from tests.server.talk import talking

# ---- what is kept --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("wire", "store", "kept"),
    [
        ("chat", None, False),
        ("chat", False, False),
        ("chat", True, True),
        ("responses", None, True),
        ("responses", True, True),
        ("responses", False, False),
    ],
)
async def test_what_is_kept_is_awaited_and_the_rest_leaves_no_trace(
    wire: str, store: bool | None, kept: bool, stream: bool
) -> None:
    teller, memory = Teller(), Memory(MemoryStore())
    app = App(teller, Settings(), memory)
    fields: dict[str, Any] = {} if store is None else {"store": store}
    async with served(app) as port, talking(port) as talk:
        talk.send(request(wire, stream=stream, **fields))
        answer = await talk.answer()
        assert " 200 " in answer.status
        assert (teller.told, len(teller.asked)) == (not kept, 1)
        assert len(memory.store._runs) == kept
        talk.send(f"GET {PATHS[wire]}/resp_abc HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert " 404 " in (await talk.answer()).status


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_leaves_a_line_is_awaited(
    wire: str, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    teller = Teller()
    async with served(App(teller, Settings(request_log=True))) as port, talking(port) as talk:
        talk.send(request(wire, stream=stream))
        assert " 200 " in (await talk.answer()).status
    assert teller.told == 0
    assert capsys.readouterr().err.startswith(f"POST {PATHS[wire]} 200 ")


PLAIN = (Message("user", (Text("Hi"),)),)
SEALED = ("reasoning.encrypted_content",)
REQUESTS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, True),
    "not in the background": ({"background": False}, True),
    "sealed": ({"include": SEALED}, True),
    "stored": ({"store": True}, False),
    "by default": ({"store": None}, False),
    "in the background": ({"background": True}, False),
    "a reference": ({"items": (ItemReference("msg_1"),)}, False),
    "going on": ({"previous_response_id": "resp_1"}, False),
    "a conversation": ({"conversation": "conv_1"}, False),
}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_plan_that_is_made_at_once_is_the_same(name: str, sealed: bool) -> None:
    fields, at_once = REQUESTS[name]
    asked = replace(Request(model="m", items=PLAIN, store=False), **fields)
    memory = Memory(MemoryStore(), seal=Seal(b"k" * 32) if sealed else None)
    plan = memory.plan_at_once("responses", asked)
    assert (plan is not None) == at_once
    if at_once:
        assert plan == await memory.plan("responses", asked, ANYONE)
    assert memory.plan_at_once("chat", replace(asked, store=True)) is None
    assert (memory.plan_at_once("chat", replace(asked, store=None)) is not None) == (
        at_once or name in ("stored", "by default")
    )


# ---- what is left --------------------------------------------------------------------------

OURS = (DirectStream, DirectWhole, Clock, Exchange)


@contextmanager
def collected() -> Iterator[list[Any]]:
    """What only the collector could remove, of ours."""
    found: list[Any] = []
    gc.collect()
    gc.freeze()  # what other tests left behind is not looked at
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [thing for thing in gc.garbage if isinstance(thing, OURS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()


CUT = Failed(Fault("upstream_cut", "The stream ended early.", "upstream"))
LEFT: dict[str, tuple[Any, ...]] = {
    "well": saying("a"),
    "at once": (CUT,),
    "badly": (*OPENING, word("a"), CUT),
    "by a mistake": (ValueError("on purpose"),),
    "by a mistake in the middle": (*OPENING, ValueError("on purpose")),
}


@pytest.mark.parametrize("name", LEFT)
async def test_nothing_is_left_for_the_collector(wire: str, name: str) -> None:
    teller = Teller(*LEFT[name])
    async with served(App(teller, Settings())) as port, talking(port) as talk:
        with collected() as found:
            for number in range(100):
                talk.send(request(wire, stream=bool(number % 2)))
                await talk.answer()
                teller.tellings.clear()
            await asyncio.sleep(0)
        assert teller.told == 100
    assert not found


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_left_of_those_who_went(wire: str, stream: bool) -> None:
    teller = Teller(*OPENING, word("a"), asyncio.Event())
    async with served(App(teller, Settings())) as port:
        with collected() as found:
            for _ in range(20):
                teller.begun.clear()
                async with talking(port) as talk:
                    talk.send(request(wire, stream=stream))
                    await asyncio.wait_for(teller.begun.wait(), 60)
                await asyncio.wait_for(teller.tellings[0].stopped.wait(), 60)
                teller.tellings.clear()
            while teller.running:
                await asyncio.sleep(0)
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

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connected(app: Any) -> tuple[HTTPProtocol, Link]:
    limits = {"header_limit": 65536, "read_time": 60}
    config = HTTPConfig(app, **limits, interface="asgi3", proxy_headers=False, log_config=None)
    config.load()
    state, link = ServerState(), Link()
    protocol = HTTPProtocol(config, state, {}, asyncio.get_running_loop())
    protocol.connection_made(link)
    return protocol, link


async def test_a_large_body_in_one_go_is_read_on_after(wire: str) -> None:
    """Or else nobody would notice that its client leaves."""
    text = "x" * 70_000
    fields = {"input": text} if wire == "responses" else {}
    fields |= {"messages": [{"role": "user", "content": text}]} if wire == "chat" else {}
    teller = Teller(asyncio.Event())
    protocol, link = connected(App(teller, Settings()))
    protocol.data_received(request(wire, **fields))
    assert teller.told == 1
    assert link.reading
    protocol.connection_lost(None)
    assert teller.tellings[0].stops == 1


async def test_who_does_not_read_is_not_answered_at_once(wire: str) -> None:
    teller = Teller()
    protocol, link = connected(App(teller, Settings()))
    protocol.pause_writing()
    protocol.data_received(request(wire))
    await teller.begun.wait()
    assert (teller.told, link.written) == (0, b"")
    protocol.resume_writing()
    await until(link, b"Hello, world")
    protocol.data_received(request(wire))
    assert teller.told == 1
    protocol.connection_lost(None)


async def until(link: Link, words: bytes) -> None:
    async with asyncio.timeout(60):
        while words not in link.written:
            await asyncio.sleep(0)


async def test_an_application_that_can_only_be_awaited_is(wire: str) -> None:
    app = App(Teller(), Settings())

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    protocol, link = connected(plain)
    protocol.data_received(request(wire))
    await until(link, b"Hello, world")
    protocol.connection_lost(None)


async def test_what_comes_after_a_refusal_is_not_read(wire: str) -> None:
    teller = Teller()
    protocol, link = connected(App(teller, Settings()))
    protocol.data_received(b"\0\r\n\r\n")
    protocol.data_received(request(wire))
    assert link.written.startswith(b"HTTP/1.1 400 ")
    assert teller.told == 0
    protocol.connection_lost(None)


async def test_a_body_that_nobody_reads_is_passed_over(wire: str) -> None:
    protocol, link = connected(App(Teller(), Settings(keys=(Secret("right"),))))
    refused = request(wire)
    protocol.data_received(refused[:-2])
    await until(link, b"HTTP/1.1 401 ")
    protocol.data_received(refused[-2:] + request(wire, "x-api-key: right"))
    await until(link, b"Hello, world")
    protocol.connection_lost(None)


async def test_a_piece_without_a_byte_is_not_written() -> None:
    protocol, link = connected(App(Teller(asyncio.Event()), Settings()))
    protocol.data_received(request("chat", stream=True))
    cycle: Any = protocol.cycle
    cycle.start(200, [])
    cycle.put(b"", more=True)
    head = link.written
    cycle.put(b"", more=True)
    assert link.written == head
    cycle.put(b"", more=False)
    assert link.written == head + b"0\r\n\r\n"
    protocol.connection_lost(None)


async def test_a_sign_of_life_that_cannot_be_given_ends_the_stream(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alive(_: Speech) -> bytes:
        raise ValueError("on purpose")

    monkeypatch.setattr(Speech, "alive", alive)
    teller = Teller(asyncio.Event())
    async with served(App(teller, Settings(header_hold=0))) as port, talking(port) as talk:
        talk.send(request(wire, stream=True))
        assert " 500 " in (await talk.answer()).status
        assert teller.tellings[0].stops == 1
