"""Places and queues are shared: one tenant takes none from another, nor the background from those
who wait. Counted in a process, not timed."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.interfaces import ANYONE, Secret
from dragoman.core.session_values import SessionConfig
from dragoman.net.threads import reading
from dragoman.server import realtime
from dragoman.server.app import App
from dragoman.server.limits import Gate
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores import sqlite
from dragoman.stores.base import Paging, StoreError, WaitedError
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import SHARE, PostgresStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.statements import Row, Values
from tests.samples import samples
from tests.server.stubs import OPENING, Call, Stub, asking, closing

KEYS = ("first-tenants-key", "second-tenants-key", "third-tenants-key")
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BEHIND = {"model": "stub", "input": "Hi", "background": True}
EVERYBODY = Settings(keys=tuple(map(Secret, KEYS)))


class Server:
    """An application whose engine answers when it is told to, and who asked what of it."""

    def __init__(self, **settings: Any) -> None:
        self.go = asyncio.Event()
        self.engine = Stub(*OPENING, self.go, *closing(""))
        keys = EVERYBODY.keys[: settings.pop("keys", 3)]
        self.memory = Memory(MemoryStore(), Settings(**settings))
        self.app = App(self.engine, Settings(keys=keys, **settings), self.memory)
        self.calls: dict[str, list[Call]] = {}
        self.tasks: list[asyncio.Task[Call]] = []

    async def flood(self, key: str, number: int, path: str = CHAT, **fields: Any) -> list[Call]:
        """Ask so often, and go on when all were taken, queued or refused."""
        body = BEHIND if path == RESPONSES else asking(**fields)
        headers = {"authorization": f"Bearer {key}"} if key else None
        calls = [Call(self.app, path, body, headers=headers) for _ in range(number)]
        self.calls.setdefault(key, []).extend(calls)
        tasks = [asyncio.create_task(call()) for call in calls]
        self.tasks += tasks
        if path == RESPONSES:
            await asyncio.gather(*tasks)
        for _ in range(20):
            await asyncio.sleep(0)
        return calls

    async def statuses(self, key: str) -> Counter[int]:
        """What a tenant was answered in the end."""
        self.go.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10)
        return Counter(call.status for call in self.calls[key])


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    server = Server(**settings)
    try:
        yield server
    finally:
        server.go.set()
        await asyncio.gather(*server.tasks)
        await server.app.close()


async def test_who_floods_finds_the_door_shut_alone() -> None:
    """5.09. 200 requests of one key at 8 places and 8 in the queue; four of another are served."""
    one, other, _ = KEYS
    async with serving(concurrency=8, queue=8) as server:
        await server.flood(one, 200)
        assert len(server.engine.asked) == 4  # half of the places
        await server.flood(other, 4)
        assert await server.statuses(other) == {200: 4}
        # Its own half of the places and of the queue.
        assert await server.statuses(one) == {200: 8, 429: 192}


async def test_long_streams_of_one_key_leave_room_for_others() -> None:
    """5.10."""
    async with serving(concurrency=8, queue=0) as server:
        await server.flood(KEYS[0], 8, stream=True)
        for key in KEYS[1:]:
            await server.flood(key, 1, stream=True)
        assert server.engine.running == 6
        for key in KEYS[1:]:
            assert await server.statuses(key) == {200: 1}


async def test_a_key_that_is_alone_may_take_everything() -> None:
    async with serving(keys=1, concurrency=8, queue=8) as server:
        await server.flood(KEYS[0], 20)
        assert len(server.engine.asked) == 8
        assert await server.statuses(KEYS[0]) == {200: 16, 429: 4}
    async with serving(keys=0, concurrency=8, queue=8) as server:
        await server.flood("", 20)
        assert len(server.engine.asked) == 8


async def test_share_says_how_much_one_key_may_take() -> None:
    async with serving(concurrency=100, share=0.9) as server:
        await server.flood(KEYS[0], 100)
        assert len(server.engine.asked) == 90


# ---- the background --------------------------------------------------------------------------


async def ends(server: Server) -> Counter[str]:
    """How the stored responses ended, once all have."""
    server.go.set()
    while server.memory.runs.live:
        await asyncio.sleep(0)
    found = await server.memory.store.list_responses("", None, Paging())
    return Counter(record.status for record in found.items)


async def test_what_was_acknowledged_in_the_background_is_run() -> None:
    """5.11. However long its turn takes."""
    async with serving(keys=0, background=2, concurrency=2, queue_time=0.1) as server:
        calls = await server.flood("", 10, RESPONSES)
        assert [call.json["status"] for call in calls] == ["queued"] * 10
        await asyncio.sleep(0.3)
        assert len(server.engine.asked) == 2
        assert await ends(server) == {"completed": 10}


async def test_what_cannot_be_run_in_the_background_is_refused_when_asked() -> None:
    """5.12."""
    async with serving(keys=0, background=2, background_queue=3) as server:
        calls = await server.flood("", 10, RESPONSES)
        refused = [call for call in calls if call.status == 429]
        assert len(refused) == 5
        assert all(call.headers["retry-after"] for call in refused)
        assert await ends(server) == {"completed": 5}


async def test_the_background_takes_no_places_of_the_foreground() -> None:
    """5.13."""
    async with serving(keys=0, background=4, concurrency=4, queue=0) as server:
        await server.flood("", 20, RESPONSES)
        calls = await server.flood("", 4)
        server.go.set()
        await asyncio.gather(*server.tasks)
        assert [call.status for call in calls] == [200] * 4


async def test_a_flood_in_the_background_is_the_floods_own_loss() -> None:
    one, other, _ = KEYS
    async with serving(background=2, background_queue=4) as server:
        calls = await server.flood(one, 10, RESPONSES)
        assert Counter(call.status for call in calls) == {200: 3, 429: 7}
        calls = await server.flood(other, 2, RESPONSES)
        assert Counter(call.status for call in calls) == {200: 2}


async def test_what_waits_in_the_background_is_counted_as_long_as_it_does() -> None:
    async with serving(keys=0, background=1, memory=1_000_000) as server:
        body = {**BEHIND, "input": "x" * 300_000}
        calls = [await Call(server.app, RESPONSES, body)() for _ in range(4)]
        assert [call.status for call in calls] == [200, 200, 200, 503]
        assert await ends(server) == {"completed": 3}
        async with asyncio.timeout(10):
            while server.app.budget.held:
                await asyncio.sleep(0)


async def test_a_cancelled_run_gives_its_turn_to_the_next() -> None:
    async with serving(keys=0, background=1, background_queue=1) as server:
        _, queued = await server.flood("", 2, RESPONSES)
        assert (await server.flood("", 1, RESPONSES))[0].status == 429
        path = f"{RESPONSES}/{queued.json['id']}/cancel"
        assert (await Call(server.app, path, b"")()).json["status"] == "cancelled"
        (call,) = await server.flood("", 1, RESPONSES)
        assert call.status == 200
        assert await ends(server) == {"completed": 2, "cancelled": 1}
        assert len(server.engine.asked) == 2


# ---- what else takes places ------------------------------------------------------------------

BESIDE = {
    "/v1/messages/count_tokens": asking("messages"),
    "/v1/responses/input_tokens": {"model": "stub", "input": "Hi"},
    "/v1/responses/compact": {"model": "stub", "input": "Hi"},
    "/v1/embeddings": {"model": "stub", "input": "Hi"},
}


@pytest.mark.parametrize("path", BESIDE)
async def test_endpoints_beside_the_answers_wait_at_the_same_gate(path) -> None:
    async with serving(keys=0, concurrency=1, queue=0) as server:
        await server.flood("", 1)
        assert (await Call(server.app, path, BESIDE[path])()).status == 429
        await server.statuses("")
        assert (await Call(server.app, path, BESIDE[path])()).status != 429


# ---- the gate itself -------------------------------------------------------------------------


async def test_long_messages_of_many_sessions_are_taken_one_in_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others waited for those of thirty together."""
    decode, turn = realtime.decode_frame, 0
    taken: list[int] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count)

    def counted(*given: Any, **options: Any) -> Any:
        taken.append(turn)
        return decode(*given, **options)

    monkeypatch.setattr(realtime, "decode_frame", counted)
    session = {"type": "realtime", "instructions": "x" * 100_000}
    update = json.dumps({"type": "session.update", "session": session}).encode()
    service = App(Stub(), Settings())._realtime._service
    client: Any = SimpleNamespace(emit=lambda events: False, close=lambda: None)
    config, request = SessionConfig(model="stub"), ("/v1/realtime", "1")
    sessions = [realtime.ServedSession(service, ANYONE, config, None, request) for _ in range(9)]
    for each in sessions:
        await each.join(client)
    count()
    await asyncio.gather(*[each.take(client, update) for each in sessions])
    for each in sessions:
        assert each.live.session.config.instructions == session["instructions"]
        await each.close()
    assert len({*taken}) == len(taken) == 9


async def test_turns_go_round_by_tenant() -> None:
    gate, order = Gate(1, 100, None), []
    await gate.enter("")

    async def wait(tenant: str) -> None:
        async with gate.place(tenant):
            order.append(tenant)

    tasks = [asyncio.create_task(wait(tenant)) for tenant in "aaaabbc"]
    await asyncio.sleep(0)
    gate.leave("")
    await asyncio.gather(*tasks)
    assert "".join(order) == "abcabaa"


@pytest.mark.parametrize("seed", range(samples(20, 2000)))
async def test_whatever_comes_and_goes_places_and_queues_add_up(seed) -> None:
    """Against a plain count: never over a bound, nobody waits for what is theirs, nothing leaks."""
    chance = random.Random(seed)
    places, room, share = chance.randint(1, 6), chance.randint(0, 6), chance.choice([0.3, 0.5, 1.0])
    gate, inside, waiting = Gate(places, room, None, share), [], []
    for _ in range(200):
        match chance.choice("qqlga"):
            case "q":
                tenant = chance.choice("abc")
                with suppress(FaultError):
                    waiting.append((tenant, gate.queue(tenant)))
            case "l" if inside:
                gate.leave(inside.pop(chance.randrange(len(inside))))
            case "g" | "a" if waiting:
                tenant, turn = waiting.pop(chance.randrange(len(waiting)))
                if chance.random() < 0.5:
                    turn.cancel()
                gate.give_up(tenant, turn)
        inside += [tenant for tenant, turn in waiting if turn.done()]
        waiting = [(tenant, turn) for tenant, turn in waiting if not turn.done()]
        held, free = Counter(inside), places - len(inside)
        assert free >= 0
        assert len(waiting) <= room
        for tenant in dict(waiting):  # each has its share, or there is no place left
            assert not free or (held[tenant] and held[tenant] + 1 > share * (held[tenant] + free))
    for tenant, turn in waiting:
        gate.give_up(tenant, turn)
    for tenant in inside:
        gate.leave(tenant)
    assert (gate._free, gate._room, gate._running, gate._queues) == (places, room, {}, {})


# ---- those who read ----------------------------------------------------------------------------


class Slow(SqliteStore):
    """Reads when it is told to, and notes what."""

    def __init__(self, path: Path, patience: float = 5.0) -> None:
        super().__init__(path, patience=patience)
        self.go, self.noted = threading.Event(), list[object]()

    def _read_here(self, statement: str, values: Values, began: float) -> list[Row]:
        assert self.go.wait(60)
        self.noted.extend(values)
        return super()._read_here(statement, values, began)

    def look(self, tenant: str, number: int) -> list[asyncio.Task[Any]]:
        """So many reads of a tenant."""

        async def one(n: int) -> Any:
            reading.set(tenant)
            return await self._read("SELECT $1", f"{tenant}{n}")

        return [asyncio.create_task(one(n)) for n in range(number)]


@asynccontextmanager
async def slow(path: Path, patience: float = 5.0) -> AsyncIterator[Slow]:
    store = Slow(path / "store.db", patience)
    try:
        yield store
    finally:
        store.go.set()
        await store.close()


async def test_15_tenants_read_in_turns(tmp_path: Path) -> None:
    async with slow(tmp_path) as store:
        asked = store.look("a", 50)
        await asyncio.sleep(0)
        asked += store.look("b", 2)
        left = store.look("a", 20)
        await asyncio.sleep(0)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)  # else a thread may be before them
        store.go.set()
        rows = await asyncio.gather(*asked)
        assert [row for ((row,),) in rows][-2:] == ["b0", "b1"]
        assert len(store.noted) == 52  # nothing for those who left
        assert max(map(store.noted.index, ("b0", "b1"))) < 10


async def test_15_many_reads_that_wait_say_nothing_about_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK", -4.9)
    async with slow(tmp_path) as store:
        answers = await asyncio.gather(*store.look("a", 9), return_exceptions=True)
        assert set(map(type, answers)) == {WaitedError}
        assert {error.fault.code for error in answers if isinstance(error, WaitedError)} == {
            "rate_limited"
        }
        assert not store._reading.open
        store.go.set()
        monkeypatch.setattr(sqlite, "LOOK", 60)
        assert await asyncio.gather(*store.look("b", 1)) == [[("b0",)]]


async def test_15_reads_that_get_no_answer_are_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOOK", 0.1)
    async with slow(tmp_path, patience=0.01) as store:
        answers = await asyncio.gather(*store.look("a", 9), return_exceptions=True)
        assert set(map(type, answers)) == {StoreError}
        assert store._reading.open


async def test_15_reads_of_one_tenant_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WAITING", 3)
    async with slow(tmp_path) as store:
        asked = store.look("a", 20)
        await asyncio.sleep(0)
        asked += store.look("b", 3)
        await asyncio.sleep(0.01)
        store.go.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [isinstance(answer, WaitedError) for answer in answers]
        assert 15 <= sum(refused[:20]) < 20
        assert not any(refused[20:])


async def test_15_a_tenant_leaves_connections_to_others_and_says_nothing_about_the_database(
    tmp_path: Path, postgres: Any
) -> None:
    store = PostgresStore(postgres.address, schema=tmp_path.name)
    await store.ready()
    async with AsyncExitStack() as stack:
        reading.set("a")
        for _ in range(SHARE):
            await stack.enter_async_context(store._connected())
        store._patience = 0.1
        with pytest.raises(WaitedError):
            await store._read("SELECT 1")
        assert not store._breaker.open
        store._patience = 30.0
        reading.set("b")
        assert [tuple(row) for row in await store._read("SELECT 1")] == [(1,)]
        reading.set("a")
        store._patience = 1.0
        waiting = asyncio.create_task(store._read("SELECT 1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        store._breaker.failed("It hangs", 60.0)
        with pytest.raises(StoreError, match="no answer came"):
            await waiting
        store._breaker.worked()
        store._patience = 30.0
    assert [tuple(row) for row in await store._read("SELECT 1")] == [(1,)]
    await store.close()
