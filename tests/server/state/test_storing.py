"""What the store is given, and when: unary answers whole, background events before they show."""

import asyncio
import gc
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import ItemReference, Message
from dragoman.core.request import Request
from dragoman.engines.reasoning import RetryingReasoning
from dragoman.engines.script import Script, spoken
from dragoman.server.limits import Budget
from dragoman.server.state import run as running
from dragoman.server.state.run import Run
from dragoman.server.state.service import Memory, Plan
from dragoman.stores.base import APART, LogSegment, Paging, Record, StoreError
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sql import Store
from tests.answers import answer
from tests.server.state.storing import BOUND, frames, identity, opened, storing
from tests.server.state.test_ends import Slow
from tests.server.stubs import OPENING, Stub, closing, word


class Spy:
    """A store that notes which of its methods are called."""

    def __init__(self, inside: Store) -> None:
        self._inside = inside
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return getattr(self._inside, name)


async def test_unary_answer_is_stored_by_one_call_and_a_stream_by_its_begin_and_end() -> None:
    spy: Any = Spy(MemoryStore())
    writes = {"begin", "append", "finish", "put", "delete"}
    async with storing(Stub(), spy, upkeep=False) as server:
        await server.ask()
        assert [name for name in spy.called if name in writes] == ["put"]
        spy.called.clear()
        await server.ask(stream=True)
        assert [name for name in spy.called if name in writes] == ["begin", "finish"]


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_is_stored_in_a_file_without_a_task_of_its_own(stream, tmp_path) -> None:
    begun: list[str] = []

    def noted(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        begun.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **options)

    async with storing(Stub(), opened("sqlite", tmp_path), upkeep=False) as server:
        asyncio.get_running_loop().set_task_factory(noted)
        await server.ask(stream=stream)
        asyncio.get_running_loop().set_task_factory(None)
        assert len((await server.memory.store.list_responses("", None, Paging())).items) == 1
    assert not [name for name in begun if name.startswith(("Run.", "Store."))]


@pytest.mark.parametrize("stream", [False, True])
async def test_run_whose_answer_was_sent_is_no_reference_cycle(stream) -> None:
    """It has the whole request, which counts in `memory` until then."""

    def alive() -> int:
        """Runs of this server: tests before this one may have left others."""
        runs = [each for each in gc.get_objects() if isinstance(each, Run)]
        return sum(run._runs is server.memory.runs for run in runs)

    async with storing(RetryingReasoning(Script(spoken("a"))), upkeep=False) as server:
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                await server.ask(stream=stream)
            async with asyncio.timeout(BOUND):  # timers and the store's thread know the last ones
                while alive() > 2:
                    await asyncio.sleep(0.05)
        finally:
            gc.enable()


async def test_unary_answer_is_not_in_the_store_before_its_end(store: Store) -> None:
    gate = asyncio.Event()
    async with storing(Stub(*OPENING, word("a"), gate, *closing("a")), store) as server:
        asked = asyncio.create_task(server.ask())
        while not server.memory.runs.live:
            await asyncio.sleep(0)
        assert (await store.list_responses("", None, Paging())).items == ()
        gate.set()
        call = await asked
        (record,) = (await store.list_responses("", None, Paging())).items
        assert call.json["id"] == f"resp_{record.id}"
        assert record.status == "completed"


async def test_unary_answer_that_is_stored_streams_byte_for_byte_from_every_place(
    store: Store,
) -> None:
    async with storing(Stub(), store) as server:
        id = (await server.ask()).json["id"]
        whole = frames((await server.get(f"/{id}?stream=true")).body)
        assert whole[-2].startswith(b"event: response.completed")
        for number in range(len(whole) - 1):
            rest = await server.get(f"/{id}?stream=true&starting_after={number}")
            assert rest.body == b"".join(whole[number + 1 :])
        assert (await server.get(f"/{id}?stream=true")).body == b"".join(whole)


async def test_background_event_is_not_shown_before_it_is_stored(store: Store) -> None:
    slow: Any = Slow(store, "append")
    stub = Stub(*OPENING, word("a"), asyncio.Event())
    async with storing(stub, slow) as server:
        call = asyncio.create_task(server.ask(background=True, stream=True))
        async with asyncio.timeout(BOUND):
            await slow.asked.wait()
            (run,) = server.memory.runs.live.values()
            while len(run.events) < len(OPENING) + 1:
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert run.events
        assert run.visible == 0
        slow.go.set()
        async with asyncio.timeout(BOUND):
            while run.visible < len(run.events):
                await asyncio.sleep(0)
        stored = await store.log(run.record.id)
        assert sum(len(segment.events) for segment in stored) == run.visible
        run.stop()
        await call


async def test_run_holds_what_is_not_stored_and_late_follower_gets_all_events(store: Store) -> None:
    letters, gate = "abcdefgh", asyncio.Event()
    words = [cue for letter in letters for cue in (word(letter), 0.01)]
    async with storing(Stub(*OPENING, *words, gate, *closing(letters)), store) as server:
        id = (await server.ask(background=True)).json["id"]
        (run,) = server.memory.runs.live.values()
        count = len(OPENING) + len(letters)
        async with asyncio.timeout(BOUND):
            while run.visible < count:
                await asyncio.sleep(0)
        assert run.first > 0
        assert len(run.events) == count - run.first
        late = asyncio.create_task(server.get(f"/{id}?stream=true"))
        await asyncio.sleep(0.05)
        gate.set()
        assert (await late).body == (await server.get(f"/{id}?stream=true")).body


@pytest.mark.parametrize("background", [False, True], ids=["stream", "background"])
async def test_what_waits_for_a_failing_store_is_not_packed_again_each_time(
    background, store: Store, monkeypatch
) -> None:
    monkeypatch.setattr(running, "RETRY", 0.001)
    monkeypatch.setattr(running, "BEHIND", 0.001)
    monkeypatch.setattr(running, "PIECE", 10_000)
    packed, away = list[int](), True
    append, count, size = store.append, 100, 1_000

    async def tried(id: str, segment: LogSegment, *more: Any) -> None:
        packed.append(len(segment.events))
        if away:
            raise StoreError("No answer came in time.", "SQLite")
        await append(id, segment, *more)

    monkeypatch.setattr(store, "append", tried)
    gate = asyncio.Event()
    text = [cue for _ in range(count) for cue in (word("a" * size), 0.002)]
    async with (
        asyncio.timeout(BOUND),
        storing(Stub(*OPENING, *text, gate, *closing("a" * count * size)), store) as server,
    ):
        asking = asyncio.create_task(server.ask(stream=True, background=background))
        while not server.memory.runs.live:
            await asyncio.sleep(0)
        (live,) = server.memory.runs.live.values()
        while live.first + len(live.events) < len(OPENING) + count:
            live._size = size * len(live.events)  # as of what an upstream sends
            await asyncio.sleep(0.001)
        first, tries = packed[0], len(packed)
        assert tries > 10
        assert set(packed) == {first}
        assert first < count // 2
        away = False
        while live._stored < len(OPENING) + count:
            await asyncio.sleep(0.001)
        assert max(packed[tries:]) <= max(first, 10 + len(OPENING))
        gate.set()
        body = (await asking).body
        assert b"x-dragoman-loss" not in body
        log = [event for each in await store.log(live.record.id) for event in each.events]
        assert len(log) == len(OPENING) + count + len(closing(""))
        replay = await server.get(f"/resp_{live.record.id}?stream=true")
        assert frames(replay.body) == frames(body)


async def test_a_follower_reads_the_log_when_there_is_room_for_it(store: Store) -> None:
    words = [cue for letter in "abcd" for cue in (word(letter), 0.01)]
    async with storing(Stub(*OPENING, *words, asyncio.Event()), store) as server:
        await server.ask(background=True)
        runs = server.memory.runs
        (run,) = runs.live.values()
        async with asyncio.timeout(BOUND):
            while not run.first:
                await asyncio.sleep(0)
            runs.budget = Budget(100)
            other, own = runs.budget.hold("other"), runs.budget.hold("")
            other.resize(100)
            reading = asyncio.create_task(anext(runs.follow(run.record, own)))
            await asyncio.sleep(0.1)
            assert not reading.done()
            other.close()
            assert await reading
        assert 0 < own.size <= 100
        run.stop()


async def test_follower_of_a_run_whose_log_was_deleted_gets_a_failure(store: Store) -> None:
    words = [cue for letter in "abcd" for cue in (word(letter), 0.01)]
    async with storing(Stub(*OPENING, *words, asyncio.Event()), store) as server:
        await server.ask(background=True)
        (run,) = server.memory.runs.live.values()
        async with asyncio.timeout(BOUND):
            while not run.first:
                await asyncio.sleep(0)
            await store.delete("", run.record.id)
            assert [batch async for batch in server.memory.runs.follow(run.record)] == []
        run.stop()


async def test_server_does_not_end_its_own_live_run_whose_lease_expired(store: Store) -> None:
    gate = asyncio.Event()
    stub = Stub(*OPENING, word("a"), gate, *closing("a"))
    async with storing(stub, store, upkeep=False) as server:
        asked = await server.ask(background=True)
        (run,) = server.memory.runs.live.values()
        await store.renew_leases(run.record.owner, [run.record.id], 1.0)
        await server.memory.runs._end_orphans()
        gate.set()
        await run.finished()
        found = await server.get(f"/{asked.json['id']}")
        assert found.json["status"] == "completed"


async def test_log_of_another_encoder_version_is_not_replayed(store: Store) -> None:
    async with storing(Stub(), store) as server:
        id = identity(await server.ask(stream=True))
        (record,) = (await store.list_responses("", None, Paging())).items
        assert (await server.get(f"/{id}?stream=true")).status == 200
        await store.delete("", record.id)
        await store.put(replace(record, version=record.version - 1))
        refused = await server.get(f"/{id}?stream=true")
        assert (refused.status, refused.json["error"]["param"]) == (400, "stream")
        assert (await server.get(f"/{id}")).status == 200


def remembering() -> tuple[Memory, dict[str, Record]]:
    """A memory, and what a connection remembers: a response, `r`, to "a" that says "b"."""
    memory = Memory(MemoryStore(), upkeep=False)
    asked = Request(model="stub", items=(Message("user", "a"),))
    before = Record(id="r", tenant="", wire="responses", created_at=0, request=asked)
    recent = {"r": replace(before, status="completed", response=answer(Message("assistant", "b")))}
    return memory, recent


async def test_connection_goes_on_from_what_it_remembers_though_the_store_fails(
    monkeypatch,
) -> None:
    memory, recent = remembering()

    async def fails(tenant: str, id: str) -> Record:
        raise StoreError("The disk is gone.")

    monkeypatch.setattr(memory.store, "get", fails)
    items = (Message("user", "c"),)
    request = Request(model="stub", items=items, previous_response_id="resp_r")
    plan = memory.plan("responses", request, ANYONE, recent)
    assert not isinstance(plan, Plan)
    run = (await plan).run
    assert run is not None
    assert run.record.previous is None
    assert [item.text for item in run.record.request.items] == ["a", "b", "c"]
    await memory.close()


async def test_record_holds_what_its_connection_forgot_while_the_rest_was_looked_up(
    monkeypatch,
) -> None:
    """Another lane may fail, or fill the connection, at the same time."""
    memory, recent = remembering()

    async def found(tenant: str, items: set[str], room: object) -> dict[str, Message]:
        recent.clear()
        return {item: Message("user", "c", id=item) for item in items}

    monkeypatch.setattr(memory.store, "find_items", found)
    request = Request(model="stub", items=(ItemReference("msg_c"),), previous_response_id="resp_r")
    plan = memory.plan("responses", request, ANYONE, recent)
    assert not isinstance(plan, Plan)
    run = (await plan).run
    assert run is not None
    assert run.record.previous is None
    assert [item.text for item in run.record.request.items] == ["a", "b", "c"]
    await memory.close()


async def test_large_items_of_others_are_packed_in_a_thread() -> None:
    """Those of the connection, and those that references name."""
    memory, recent = remembering()
    long = Message("user", "long " * APART, id="msg_long")
    large = replace(recent["r"], size=2 * APART, request=Request(model="m", items=(long,)))
    asked = Request(model="stub", items=(Message("user", "b"),), previous_response_id="resp_r")
    named = Request(model="stub", items=(ItemReference("msg_long"),))
    for request in (asked, named):
        plan = memory.plan("responses", request, ANYONE, {"r": large})
        assert not isinstance(plan, Plan)
        run = (await plan).run
        assert run is not None
        assert run.record.size > APART
        assert long in run.record.request.items
    await memory.close()


async def test_the_answer_of_a_cancelled_run_counts_as_large_as_it_is(
    store: Store, monkeypatch
) -> None:
    sizes, apart = list[int](), store.apart

    async def seen(size: int, work: Any, *given: Any) -> Any:
        sizes.append(size)
        return await apart(size, work, *given)

    said = Delta(0, 0, "text", "a" * 300_000)
    async with storing(Stub(*OPENING, said, asyncio.Event()), store) as server:
        queued = await server.sdk.responses.create(model="stub", input="Hi", background=True)
        await server.app._engine.begun.wait()
        monkeypatch.setattr(store, "apart", seen)
        cancelled = await server.sdk.responses.cancel(queued.id)
        assert len(cancelled.output_text) == 300_000
    assert sizes[-1] > 300_000
