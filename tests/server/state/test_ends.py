"""Every run ends, in the store as for its client, whoever goes and whatever fails meanwhile."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta
from dragoman.core.fold import fold
from dragoman.core.request import Request
from dragoman.engines.base import now
from dragoman.server.app import App
from dragoman.server.state.service import Memory
from dragoman.stores.base import Paging, Record, StoreError
from dragoman.stores.retention import DAY
from dragoman.stores.sql import Store
from tests.server.state.storing import (
    BOUND,
    PATH,
    SETTINGS,
    all_ended,
    frames,
    identity,
    opened,
    storing,
)
from tests.server.stubs import OPENING, STARTED, Call, Stub, closing, word


class Slow:
    """A store that takes its time for one thing: until it is told to go on."""

    def __init__(self, inside: Store, name: str) -> None:
        self._inside = inside
        self._name = name
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        inside = getattr(self._inside, name)
        if name != self._name:
            return inside

        async def wait(*given: Any, **named: Any) -> Any:
            self.asked.set()
            await self.go.wait()
            return await inside(*given, **named)

        return wait


def asked(app: App, **fields: Any) -> Call:
    return Call(app, PATH, {"model": "stub", "input": "Hi", "stream": True, **fields})


async def statuses(store: Store) -> list[str]:
    return [found.status for found in (await store.list_responses("", None, Paging())).items]


async def test_disconnect_during_begin_leaves_no_record(store: Store) -> None:
    slow: Any = Slow(store, "begin")
    async with storing(Stub(*OPENING, asyncio.Event()), slow) as server:
        call = asked(server.app)
        task = asyncio.create_task(call())
        await slow.asked.wait()
        call.hang_up()
        await task
        slow.go.set()
        await all_ended(server)
        assert await statuses(store) == []


@pytest.mark.parametrize("name", ["finish", "append"])
async def test_disconnect_while_the_end_is_stored_changes_nothing(
    store: Store, name, monkeypatch
) -> None:
    monkeypatch.setattr("dragoman.server.state.run.BEHIND", 0.001)
    slow: Any = Slow(store, name)
    stub = Stub()
    if name == "append":  # something is written when the end comes
        stub = Stub(*stub.cues[:3], slow.asked, *stub.cues[3:])
    async with storing(stub, slow) as server:
        call = asked(server.app)
        task = asyncio.create_task(call())
        await slow.asked.wait()
        (run,) = server.memory.runs.live.values()
        while not run._complete:
            await asyncio.sleep(0)
        call.hang_up()
        await task
        slow.go.set()
        await all_ended(server)
        assert await statuses(store) == ["completed"]


async def test_a_write_of_nothing_new_leaves_room_for_the_rest(store: Store) -> None:
    """Events that came between a write's beginning and its first step are in it, and are due."""
    go = asyncio.Event()
    async with storing(Stub(*OPENING, word("Hel"), go, word("lo"), *closing("Hello")), store) as of:
        call = asked(of.app)
        task = asyncio.create_task(call())
        for _ in range(2):
            await of.app._engine.begun.wait()
            (run,) = of.memory.runs.live.values()
            while not run._stored or run._stored < run.visible:
                await asyncio.sleep(0.01)
            run.write_behind()
        go.set()
        await task
        await all_ended(of)
        assert await statuses(store) == ["completed"]


async def test_request_refused_by_the_queue_leaves_no_record(store: Store) -> None:
    memory = Memory(store)
    app = App(Stub(), replace(SETTINGS, concurrency=1, queue=0), memory)
    async with app._sockets._service.gate.place(""):
        for stream in (False, True):
            assert (await asked(app, stream=stream)()).status == 429
    assert not memory.runs.live
    assert await statuses(store) == []
    await app.close()


async def test_failed_begin_of_a_background_run_leaves_nothing(store: Store) -> None:
    async with storing(Stub(), store) as server:

        async def fail(_: Record) -> None:
            raise StoreError("The disk is full.")

        store.begin = fail
        assert (await server.ask(background=True)).status == 503
        assert not server.memory.runs.live


async def test_run_whose_end_was_not_stored_is_ended_later(store: Store) -> None:
    async with storing(Stub(), store, lease=0.2) as server:
        await store.begin(
            Record(
                id="lost",
                tenant="",
                wire="responses",
                created_at=now(),
                request=Request(model="m", store=True),
                owner=server.memory.runs.owner,
                lease=1.0,
                dialect="openai",
            )
        )
        server.memory.begin()
        async with asyncio.timeout(BOUND):
            while await statuses(store) != ["failed"]:
                await asyncio.sleep(0.01)


async def test_timed_out_stream_equals_the_stored_one(store: Store) -> None:
    memory = Memory(store)
    stub = Stub(*OPENING, word("Hel"), asyncio.Event())
    app = App(stub, replace(SETTINGS, deadline=0.1), memory)
    call = await asked(app)()
    while memory.runs.live:
        await asyncio.sleep(0)
    again = Call(app, f"{PATH}/{identity(call)}", method="GET")
    again._scope["query_string"] = b"stream=true"
    assert b"event: response.failed" in call.body
    assert frames((await again()).body) == frames(call.body)
    assert await statuses(store) == ["failed"]
    await app.close()


async def test_cancelled_stream_equals_the_stored_one(store: Store) -> None:
    async with storing(Stub(*OPENING, word("Hel"), asyncio.Event()), store) as server:
        call = asked(server.app)
        task = asyncio.create_task(call())
        await call.until(lambda: b'"Hel"' in call.body)
        cancelled = await server.sdk.responses.cancel(identity(call))
        await task
        assert cancelled.status == "cancelled"
        assert b"event: response.incomplete" in call.body
        assert server.app._engine.running == 0
        replay = await server.get(f"/{identity(call)}?stream=true")
        assert frames(replay.body) == frames(call.body)


@pytest.mark.parametrize("end", [(), (RuntimeError("broken"),)])
async def test_an_answer_that_breaks_off_has_failed_in_the_store_too(store: Store, end) -> None:
    async with storing(Stub(STARTED, *end), store) as server:
        call = await asked(server.app)()
        assert b"event: response.failed" in call.body
        await all_ended(server)
        assert await statuses(store) == ["failed"]


@pytest.mark.parametrize("pause", [0.0, 0.02])
@pytest.mark.parametrize("kind", ["unary", "stream", "background"])
async def test_events_out_of_order_end_a_run_and_are_not_in_its_log(
    store: Store, kind, pause, monkeypatch
) -> None:
    monkeypatch.setattr("dragoman.server.state.run.BEHIND", 0.001)
    lost = Delta(7, 0, "text", "nobody opened this")
    stub = Stub(*OPENING, word("Hel"), pause, lost, pause, *closing("Hel"))
    async with storing(stub, store) as server:
        await server.ask(stream=kind == "stream", background=kind == "background")
        await all_ended(server)
        (record,) = (await store.list_responses("", None, Paging())).items
        assert record.status == "failed"
        assert [item.text for item in record.response.output] == ["Hel"]
        log = [event for segment in await store.log(record.id) for event in segment.events]
        assert fold(log) == record.response
        assert lost not in log


async def test_engine_is_given_the_id_that_its_answer_is_stored_under(tmp_path) -> None:
    store = opened("sqlite", tmp_path)
    async with storing(Stub(), store) as server:
        await server.ask()
        caller = server.app._engine.asked[0][1]
        (record,) = (await store.list_responses("", None, Paging())).items
        assert caller.response == record.id


async def test_follower_of_a_log_that_is_deleted_meanwhile_is_cut_off(
    tmp_path, monkeypatch
) -> None:
    go, waits, late = asyncio.Event(), asyncio.Event(), asyncio.Event()
    engine = Stub(*OPENING, word("Hel"), go, *closing("Hel"))
    async with (
        storing(engine, opened("sqlite", tmp_path)) as server,
        storing(Stub(), opened("sqlite", tmp_path)) as other,
    ):
        id = (await server.ask(background=True)).json["id"]
        follower, waited = other.reading(f"/{id}?stream=true"), other.memory.store.wait

        async def wait(*given: Any) -> bool:
            if b'"Hel"' in follower.body:
                waits.set()
                await late.wait()
            return await waited(*given)

        monkeypatch.setattr(other.memory.store, "wait", wait)
        following = asyncio.create_task(follower())
        await waits.wait()
        go.set()
        await all_ended(server)
        await server.memory.store.sweep(server.memory.store.now() + 2 * DAY)
        late.set()
        await following
        assert b"response.failed" not in follower.body
        assert not follower.whole
        assert (await other.sdk.responses.retrieve(id)).status == "completed"
