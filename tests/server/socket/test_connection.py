"""One connection, spoken to in ASGI itself: what a real client would have to be slow to see."""

import asyncio
import json
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from websockets.frames import Frame, Opcode

from dragoman.core.interfaces import ANYONE
from dragoman.server import websocket
from dragoman.server.cancellation import InFlight
from dragoman.server.channel import TOGETHER, Handshake
from dragoman.server.exchange import Exchange
from dragoman.server.frames import SocketProtocol
from dragoman.server.limits import Budget, Gate
from dragoman.server.responder import Service
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.server.websocket import Connection
from dragoman.stores.memory import MemoryStore
from tests.server.stubs import OPENING, Stub, closing, word

BOUND = 10.0


class Client:
    """Sends what a test says, and reads so many frames before it stops reading."""

    def __init__(self, engine: Stub, reads: float = float("inf"), **settings: Any) -> None:
        self.memory = Memory(MemoryStore())
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.said.put_nowait({"type": "websocket.connect"})
        self.heard: list[dict[str, Any]] = []
        self.closed: list[int] = []
        self.reads = reads
        self.reading = asyncio.Event()
        self.connection = Connection(
            Service(
                engine,
                replace(Settings(), **settings),
                InFlight(),
                Gate(8, 8, 1.0),
                Gate(1, 8, 1.0),
                Budget(1 << 28),
                self.memory,
            ),
            self.memory.runs,
            Handshake(
                Exchange("GET", "/v1/responses", b"", []), ANYONE, {}, self.said.get, self._take
            ),
        )

    async def _take(self, message: dict[str, Any]) -> None:
        if len(self.heard) >= self.reads and not self.reading.is_set():
            await self.reading.wait()
        if message["type"] == "websocket.close":
            self.closed.append(message["code"])
        elif message["type"] != "websocket.accept":
            self.heard.append(json.loads(message["text"]))

    def ask(self, **fields: Any) -> None:
        frame = {"type": "response.create", "model": "stub", "input": "Hi", **fields}
        self.said.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def leave(self) -> None:
        self.said.put_nowait({"type": "websocket.disconnect"})


async def test_stalled_websocket_is_closed_and_frames_have_no_gap() -> None:
    more = asyncio.Event()
    engine = Stub(*OPENING, more, word("a"), word("b"), *closing("ab"))
    client = Client(engine, reads=3, stall=0.05)
    client.ask()
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(client.connection.serve())
        while len(client.heard) < 3:
            await asyncio.sleep(0)
        more.set()
        await serving
    assert [event["sequence_number"] for event in client.heard] == [0, 1, 2]
    assert engine.running == 0
    await client.memory.close()


async def test_others_have_their_turn_between_frames_that_are_sent_together() -> None:
    """180,000 that had waited for an item before theirs were sent in one turn: 1.4 seconds."""
    client, sent, turn = Client(Stub()), Counter[int](), 0

    async def send(message: dict[str, Any]) -> None:
        sent[turn] += 1

    connection = Connection(
        client.connection.service,
        client.memory.runs,
        Handshake(client.connection.exchange, ANYONE, {}, client.said.get, send),
    )
    connection.write(*[b"{}"] * 5 * TOGETHER)
    connection.close()
    serving = asyncio.ensure_future(connection.serve())
    async with asyncio.timeout(BOUND):
        while sent.total() < 5 * TOGETHER + 2:  # with those that open and close it
            turn += 1
            await asyncio.sleep(0)
        client.leave()
        await serving
    assert max(sent.values()) <= TOGETHER + 2
    await client.memory.close()


async def test_what_a_connection_remembers_counts_with_its_answers() -> None:
    size = 1_000_000
    client = Client(Stub(*OPENING, word("x" * size), *closing("x" * size)))
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(client.connection.serve())
        for turn in range(3):
            client.ask(store=False)
            while not client.heard or client.heard[-1]["type"] != "response.completed":
                await asyncio.sleep(0)
            while client.connection.service.budget.held > (turn + 1.1) * size:
                await asyncio.sleep(0)  # the last frames are being sent
            assert client.connection.service.budget.held > (turn + 1) * size
            client.heard.clear()
        client.leave()
        await serving
    assert client.connection.service.budget.held == 0
    await client.memory.close()


async def test_a_turn_is_cancelled_by_another_reader() -> None:
    engine = Stub(*OPENING, word("a"), asyncio.Event())
    client = Client(engine)
    client.ask()
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(client.connection.serve())
        while not any(event["type"].endswith("text.delta") for event in client.heard):
            await asyncio.sleep(0)
        (run,) = client.memory.runs.live.values()
        cancelled = await client.memory.runs.cancel(run.record)
        assert cancelled.status == "cancelled"
        assert engine.running == 0
        client.leave()
        await serving
    await client.memory.close()


@pytest.mark.parametrize("read_paused", [True, False], ids=["in the queue", "not parsed"])
async def test_4_12_others_have_their_turn_between_frames(
    read_paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[str]()
    decode = websocket.decode_frame
    monkeypatch.setattr(
        websocket, "decode_frame", lambda *given: steps.append("frame") or decode(*given)
    )
    client = Client(Stub(*OPENING, *closing("")))
    frames = 20

    def parse() -> None:
        nonlocal frames
        frames -= 1
        client.ask(model="stub", input=[]) if frames else client.leave()

    room = SimpleNamespace(hold=None, behind=True, read_paused=read_paused, parse=parse)
    client.connection._room = cast(Any, room)
    if read_paused:
        for _ in range(20):
            parse()
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(client.connection.serve())
        while not serving.done():
            steps.append("other")
            await asyncio.sleep(0)
        await serving
    assert steps.count("frame") == 19
    assert ["frame", "frame"] not in [steps[n : n + 2] for n in range(len(steps))]
    await client.memory.close()


def test_4_11_what_is_not_parsed_is_counted() -> None:
    budget = Budget(200_000)
    protocol = SocketProtocol.__new__(SocketProtocol)
    protocol.conn = cast(Any, SimpleNamespace(reader=SimpleNamespace(buffer=b"x" * 1_000)))
    protocol.frames, protocol.read_paused = [], False
    protocol.hold, protocol._unparsed, protocol._at = budget.hold(""), b"x" * 104_096, 4_096
    assert protocol._has_room()
    assert budget.held == 101_000


@pytest.mark.parametrize("size", [60_000, 3_000_000])
async def test_4_11_turns_that_are_cut_off_hold_nothing(size: int) -> None:
    engine = Stub(*OPENING, asyncio.Event())
    client = Client(engine)
    budget = client.connection.service.budget
    for lane in range(3):
        client.ask(input="x" * size, x=[[]] * 15_000, store=False, stream_id=f"lane{lane}")
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(client.connection.serve())
        while engine.running < 3:
            await asyncio.sleep(0.001)
        assert budget.held > 3 * size + 3 * 80 * 30_000
        client.leave()
        await serving
    assert budget.held == 0
    await client.memory.close()


async def test_2e_06_fragments_take_no_more_than_they_weigh() -> None:
    protocol = cast(Any, object.__new__(SocketProtocol))
    protocol.frames = [b"ab"]
    for _ in range(10_000):
        protocol.handle_cont(Frame(Opcode.CONT, b"cd", fin=False))
    assert sum(map(sys.getsizeof, protocol.frames)) < 30_000


async def test_2f_01_unread_frames_count_by_their_bytes() -> None:
    client = Client(Stub(*OPENING, word("\N{GRINNING FACE}" * 50_000), *closing("ab")), reads=1)
    budget = client.connection.service.budget
    client.ask()
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(client.connection.serve())
        while budget.held < 200_000:
            await asyncio.sleep(0)
        client.leave()
        await serving
    assert budget.held == 0
