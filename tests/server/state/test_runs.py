"""Runs: replayed, in the background, in the foreground, and on other servers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Delta, Failed, ItemDone, PartDone
from dragoman.core.item import Message, Text, Token
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.server.app import App
from dragoman.server.responder import MANY_TOKENS
from dragoman.server.settings import Settings
from dragoman.server.state.run import Runs
from dragoman.server.state.service import ENCODER_VERSION, Memory
from dragoman.stores.base import LogSegment, Paging, Record, StoreError
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sql import Store
from tests.server.state.storing import Server, all_ended, frames, identity, opened, storing
from tests.server.stubs import FINISHED, OPENING, STARTED, Call, Stub, closing, saying, word

# ---- replay --------------------------------------------------------------------------------


async def test_the_official_sdk_resumes_a_stream(server: Server) -> None:
    numbers = []
    async with server.sdk.responses.stream(model="stub", input="Hi", background=True) as stream:
        async for event in stream:
            numbers.append(event.sequence_number)
            if len(numbers) == 4:
                break
    id = (await server.memory.store.list_responses("", None, Paging())).items[0].id
    async with server.sdk.responses.stream(
        response_id=f"resp_{id}", starting_after=numbers[-1]
    ) as stream:
        async for event in stream:
            numbers.append(event.sequence_number)
        final = await stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert final.output_text == "Hello, world"


# ---- background ----------------------------------------------------------------------------


async def test_background_response_completes_without_its_client(store: Store) -> None:
    go = asyncio.Event()
    async with storing(
        Stub(*OPENING, word("Hel"), go, word("lo"), *closing("Hello")), store
    ) as server:
        queued = await server.sdk.responses.create(model="stub", input="Hi", background=True)
        assert (queued.status, queued.background, queued.output) == ("queued", True, [])
        engine = server.app._engine
        await engine.begun.wait()
        now = await server.sdk.responses.retrieve(queued.id)
        assert now.status in ("queued", "in_progress")
        go.set()
        await all_ended(server)
        done = await server.sdk.responses.retrieve(queued.id)
        assert (done.status, done.output_text, done.id) == ("completed", "Hello", queued.id)


@pytest.mark.parametrize("ending", ["verified", None])
async def test_h5_background_response_has_the_headers_of_an_answer(store: Store, ending) -> None:
    """Those known before the engine began are on the acknowledgement, all on what is read later."""
    begun = replace(STARTED, losses=(Loss("wibble", "dropped", "why"),))
    ended = replace(FINISHED, losses=(Loss("tools[0]", "emulated", "how"),), guarantee=ending)
    _, *events, _ = saying("{}")
    body = {
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
        "include": ["reasoning.encrypted_content"],
    }
    go = asyncio.Event()
    async with storing(Stub(begun, *events[:2], go, *events[2:], ended), store) as server:
        create, read = (getattr(server.sdk.responses.with_raw_response, n) for n in _METHODS)
        queued = await create(model="stub", input="Hi", background=True, extra_body=body)
        known = "include[reasoning.encrypted_content]"
        assert _reports(queued) == (f"dropped: {known}", None)
        id = queued.parse().id
        await server.app._engine.begun.wait()
        go.set()
        await all_ended(server)
        expected = f"dropped: {known}, wibble; emulated: tools[0]", ending or "best-effort"
        assert _reports(await read(id)) == expected
        cancelled = await server.sdk.responses.with_raw_response.cancel(id)
        assert _reports(cancelled) == expected


_METHODS = "create", "retrieve"


def _reports(answer: Any) -> tuple[str | None, str | None]:
    return tuple(answer.headers.get(f"x-dragoman-{name}") for name in ("loss", "guarantee"))


async def test_reading_from_beyond_the_last_event_is_refused(server: Server) -> None:
    whole = await server.sdk.responses.create(model="stub", input="Hi", background=True)
    await all_ended(server)
    replay = await server.get(f"/{whole.id}?stream=true")
    *events, done = frames(replay.body)
    rest = await server.get(f"/{whole.id}?stream=true&starting_after={len(events) - 1}")
    assert (rest.status, rest.body) == (200, done)
    for number in (len(events), 99999):
        beyond = await server.get(f"/{whole.id}?stream=true&starting_after={number}")
        assert (beyond.status, beyond.json["error"]["param"]) == (400, "starting_after")


async def test_background_stream_continues_after_a_disconnect(store: Store) -> None:
    go = asyncio.Event()
    async with storing(
        Stub(*OPENING, word("Hel"), go, word("lo"), *closing("Hello")), store
    ) as server:
        call = server.begin(stream=True, background=True)
        task = asyncio.create_task(call())
        await call.until(lambda: b'"Hel"' in call.body)
        call.hang_up()
        await task
        seen = frames(call.body)
        id = identity(call)
        resumed = server.reading(f"/{id}?stream=true&starting_after={len(seen) - 1}")
        following = asyncio.create_task(resumed())
        go.set()
        await following
        whole = await server.get(f"/{id}?stream=true")
        assert b"".join(seen) + resumed.body == whole.body


@pytest.mark.parametrize("end", [FINISHED, Failed(Fault("upstream_cut", "cut", "upstream"))])
async def test_many_log_probabilities_of_a_background_stream_are_encoded_in_a_thread(
    store: Store, monkeypatch, end
) -> None:
    tokens = (Token("a", -1.0, top=(Token("b", -2.0),)),) * (MANY_TOKENS + 1)
    part = Text("a" * len(tokens), tokens=tokens)
    done = ItemDone(0, Message("assistant", (part,), id="msg_0", status="completed"))
    few = [*[Delta(0, 0, "text", "a" * 99, tokens[:99])] * 40, 0.05] * 3  # none is many alone
    whole = (PartDone(0, 0, part), done) if end is FINISHED else ()
    deltas = [Delta(0, 0, "text", part.text, tokens)] if whole else few
    said = (*OPENING, *deltas, *whole, end)
    to_thread, apart = asyncio.to_thread, list[str]()

    async def seen(work: Any, *given: Any) -> Any:
        apart.append(repr(work))
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", seen)
    async with storing(Stub(*said), store) as server:
        call = server.begin(stream=True, background=True)
        await call()
    assert (b"[DONE]" if whole else b"response.failed") in frames(call.body)[-1]
    assert "Stream._encoded" in "".join(apart)


async def test_a_background_response_is_cancelled_once_and_for_all(store: Store) -> None:
    never = asyncio.Event()
    async with storing(Stub(*OPENING, word("Hel"), never), store) as server:
        queued = await server.sdk.responses.create(model="stub", input="Hi", background=True)
        engine = server.app._engine
        await engine.begun.wait()
        for _ in range(2):
            cancelled = await server.sdk.responses.cancel(queued.id)
            assert cancelled.status == "cancelled"
        assert engine.cancelled.is_set()
        assert engine.running == 0


async def test_a_background_response_waits_for_its_turn() -> None:
    go = asyncio.Event()
    memory = Memory(MemoryStore())
    engine = Stub(*OPENING, word("Hel"), go, *closing("Hel"))
    app = App(engine, Settings(background=1), memory)
    body = {"model": "stub", "input": "Hi", "background": True}
    first, second = [(await Call(app, "/v1/responses", body)()).json["id"] for _ in range(2)]
    await engine.begun.wait()
    assert len(engine.asked) == 1
    waiting = await Call(app, f"/v1/responses/{second}", method="GET")()
    assert waiting.json["status"] == "queued"
    go.set()
    for id in (first, second):
        replay = Call(app, f"/v1/responses/{id}", method="GET")
        replay._scope["query_string"] = b"stream=true"
        assert b"response.completed" in (await replay()).body
    await app.close()


class Held:
    """A store that takes a segment of events when it is let, and says how many wait for that."""

    def __init__(self, inside: Store) -> None:
        self._inside = inside
        self._places = asyncio.Semaphore(0)
        self.waiting = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)

    async def append(self, id: str, segment: LogSegment, size: int, tenant: str) -> None:
        self.waiting.set()
        await self._places.acquire()
        self.waiting.clear()
        await self._inside.append(id, segment, size, tenant)

    def let(self, segments: int) -> None:
        for _ in range(segments):
            self._places.release()


async def turns() -> None:
    """Let everything go on that can."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_p22_background_events_are_sent_after_they_are_stored() -> None:
    more, last = asyncio.Event(), asyncio.Event()
    cues = (*OPENING, word("Hel"), more, word("lo"), last, *closing("Hello"))
    held: Any = Held(MemoryStore())
    async with storing(Stub(*cues), held) as server:
        call = server.begin(stream=True, background=True)
        answering = asyncio.create_task(call())
        await held.waiting.wait()
        (record,) = (await held.list_responses("", None, Paging())).items
        other = server.reading(f"/resp_{record.id}?stream=true")
        following = asyncio.create_task(other())
        more.set()  # all but the end has come, and the first of it waits to be stored
        await turns()
        for each in (call, other):
            assert b"output_item.added" not in each.body
        held.let(1)
        await held.waiting.wait()
        for each in (call, other):
            await each.until(lambda each=each: b'"Hel"' in each.body)
        await turns()  # what came since waits to be stored
        for each in (call, other):
            assert b'"lo"' not in each.body
        stored = [event for each in await held.log(record.id) for event in each.events]
        assert word("Hel") in stored
        assert word("lo") not in stored
        held.let(9)
        last.set()
        await answering
        await following
        assert call.body == other.body
        assert b"response.completed" in call.body


async def test_background_needs_store(server: Server) -> None:
    call = await server.ask(background=True, store=False)
    assert (call.status, call.json["error"]["param"]) == (400, "background")


async def test_running_response_cannot_be_continued(store: Store) -> None:
    async with storing(Stub(*OPENING, asyncio.Event()), store) as server:
        queued = await server.ask(background=True)
        call = await server.ask(previous_response_id=queued.json["id"])
        assert (call.status, call.json["error"]["param"]) == (400, "previous_response_id")


async def test_deleting_a_run_stops_it(store: Store) -> None:
    async with storing(Stub(*OPENING, asyncio.Event()), store) as server:
        queued = await server.ask(background=True)
        engine = server.app._engine
        await engine.begun.wait()
        await server.sdk.responses.delete(queued.json["id"])
        assert engine.running == 0


async def test_a_failure_in_the_background_is_in_the_record(store: Store) -> None:
    fault = Fault("upstream_unreachable", "It is not there.", "upstream")
    async with storing(Stub(Failed(fault)), store) as server:
        queued = await server.ask(background=True)
        await all_ended(server)
        done = await server.sdk.responses.retrieve(queued.json["id"])
        assert done.status == "failed"
        assert "not there" in done.error.message


# ---- in the foreground -----------------------------------------------------------------------


async def test_disconnect_cancels_a_foreground_run(store: Store) -> None:
    never = asyncio.Event()
    async with storing(Stub(*OPENING, word("Hel"), never), store) as server:
        call = server.begin(stream=True)
        task = asyncio.create_task(call())
        await call.until(lambda: b'"Hel"' in call.body)
        call.hang_up()
        await task
        id = identity(call)
        await all_ended(server)
        found = await server.sdk.responses.retrieve(id)
        assert (found.status, found.output_text) == ("cancelled", "Hel")
        assert server.app._engine.running == 0


async def test_a_second_reader_follows_a_foreground_run(store: Store) -> None:
    go = asyncio.Event()
    async with storing(
        Stub(*OPENING, word("Hel"), go, word("lo"), *closing("Hello")), store
    ) as server:
        call = server.begin(stream=True)
        task = asyncio.create_task(call())
        await call.until(lambda: b'"Hel"' in call.body)
        id = identity(call)
        second = server.reading(f"/{id}?stream=true")
        following = asyncio.create_task(second())
        await second.until(lambda: b'"Hel"' in second.body)
        go.set()
        await task
        await following
        assert frames(second.body) == frames(call.body)


async def test_failure_before_the_first_event_is_not_stored(store: Store) -> None:
    fault = Fault("upstream_unreachable", "It is not there.", "upstream")
    async with storing(Stub(Failed(fault)), store) as server:
        for stream in (False, True):
            call = await server.ask(stream=stream)
            assert call.status == 502
        await all_ended(server)
        assert (await server.memory.store.list_responses("", None, Paging())).items == ()


class Broken:
    """A store that fails at one thing."""

    def __init__(self, inside: Store, *names: str, error: type[Exception] = StoreError) -> None:
        self._inside = inside
        self._names = names
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            return getattr(self._inside, name)

        async def fail(*_: Any) -> None:
            raise self._error("The disk is full.")

        return fail


@pytest.mark.parametrize(
    ("names", "stream"),
    [(("begin",), True), (("finish",), True), (("append", "finish"), True), (("put",), False)],
)
@pytest.mark.parametrize("error", [StoreError, RuntimeError])
async def test_failing_store_costs_the_record_and_not_the_answer(names, stream, error) -> None:
    broken: Any = Broken(opened("memory", Path()), *names, error=error)
    async with storing(Stub(), broken) as server:
        call = await server.ask(stream=stream)
        assert b"Hello" in call.body
        if stream:
            assert b"store" in call.body.split(b"event: response.completed")[0]
        else:
            assert "store" in call.headers["x-dragoman-loss"]


class Unacknowledged:
    """A store that reports each first write of a segment as failed, although it was stored."""

    def __init__(self, inside: Store) -> None:
        self._inside = inside
        self._failed: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)

    async def append(self, id: str, segment: LogSegment, *more: Any) -> None:
        await self._inside.append(id, segment, *more)
        if segment.first not in self._failed:
            self._failed.add(segment.first)
            raise StoreError("The connection was lost while it was committed.")


@pytest.mark.parametrize("background", [True, False])
async def test_answer_is_kept_where_the_store_loses_acknowledgements(background) -> None:
    written = asyncio.Event()
    losing: Any = Unacknowledged(MemoryStore())
    cues = (*OPENING, word("Hel"), written, word("lo"), *closing("Hello"))
    async with storing(Stub(*cues), losing) as server:
        call = server.begin(stream=True, background=background)
        answering = asyncio.create_task(call())
        while not losing._failed:
            await asyncio.sleep(0.01)
        written.set()
        await answering
        await all_ended(server)
        (record,) = (await losing.list_responses("", None, Paging())).items
        assert (record.status, record.response.losses) == ("completed", ())
        assert b'"dropped"' not in call.body
        log = [event for each in await losing.log(record.id) for event in each.events]
        assert [type(event).__name__ for event in log].count("Finished") == 1


# ---- other servers ---------------------------------------------------------------------------


async def test_the_runs_of_a_dead_server_are_ended_by_another(tmp_path) -> None:
    store = opened("sqlite", tmp_path)
    async with storing(Stub(), store) as server:
        request = server.memory  # a server that remembers
        for id, events in (("dead", (*OPENING, word("Hel"))), ("young", ())):
            record = Record(
                id=id,
                tenant="",
                wire="responses",
                created_at=0,
                request=Request(model="m", items=(Message("user", "Hi"),), store=True),
                owner="dead",
                lease=1.0,
                dialect="openai",
                version=ENCODER_VERSION,
            )
            await store.begin(record)
            if events:
                await store.append(id, LogSegment(0, events, "dead"))
        await request.runs._end_orphans()
        found = await server.sdk.responses.retrieve("resp_dead")
        assert (found.status, found.output_text) == ("failed", "Hel")
        assert "stopped before its end" in found.error.message
        assert (await server.sdk.responses.retrieve("resp_young")).status == "failed"
        replay = await server.get("/resp_dead?stream=true")
        assert frames(replay.body)[-2].startswith(b"event: response.failed")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE responses SET record = x'00ff' WHERE id = 'r0'",
        "INSERT INTO segments (seq, first, length, events) SELECT seq, 0, 1, x'ff' FROM responses",
    ],
)
async def test_orphan_that_cannot_be_read_holds_up_no_other(tmp_path, damage) -> None:
    store = opened("sqlite", tmp_path)
    asked = Request(model="m", items=(Message("user", "Hi"),), store=True)
    given = {"tenant": "", "wire": "responses", "created_at": 0, "request": asked, "lease": 1.0}
    await store.begin(Record(id="r0", **given))
    await store._write(f"{damage} RETURNING seq")
    for number in range(1, 4):
        await store.begin(Record(id=f"r{number}", **given))
    await Runs(store, upkeep=False)._end_orphans()
    left = "SELECT id FROM responses WHERE seq IN (SELECT seq FROM runs)"
    assert await store._read(left) == [("r0",)]
    await store.close()


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("passes", [False, True])
async def test_orphan_without_events_is_requeued_where_configured(
    tmp_path, requeue, said, passes
) -> None:
    store, engine = opened("sqlite", tmp_path), Stub()
    engine.passes_client_key = passes  # which is not stored
    async with storing(engine, store, requeue=requeue) as server:
        asked = Request(model="m", items=(Message("user", "Hi", id="m1"),), store=True)
        record = Record(
            id="dead",
            tenant="",
            wire="responses",
            created_at=0,
            request=asked,
            status="queued",
            background=True,
            owner="dead",
            lease=1.0,
            dialect="openai",
        )
        await store.begin(record)
        if said:
            await store.append("dead", LogSegment(0, OPENING, "dead"))
        await server.memory.runs._end_orphans()
        async for _ in server.memory.runs.follow(record):
            pass
        found = await server.sdk.responses.retrieve("resp_dead")
        again = requeue and not said and not passes
        assert found.status == ("completed" if again else "failed")
        asked_by = [caller for _, caller in server.app._engine.asked]
        assert [caller.size > 0 for caller in asked_by] == [True] * again  # prepared in a thread


async def test_orphans_are_ended_one_after_the_other(monkeypatch) -> None:
    """Their requests may be large, and the memory of several servers was free for them."""
    store, order = MemoryStore(), list[str]()
    request = Request(model="m", items=(Message("user", "Hi"),))
    about = {"tenant": "", "wire": "responses", "created_at": 1, "request": request}
    for id in "abc":
        await store.begin(Record(id=id, owner="dead", lease=1.0, **about))
    runs = Runs(store)
    for name in ("_records", "finish"):
        inside = getattr(store, name)

        def noted(*given: Any, name: str = name, inside: Any = inside, **named: Any) -> Any:
            order.append(name)
            return inside(*given, **named)

        monkeypatch.setattr(store, name, noted)
    await runs._end_orphans()
    assert order == ["_records", "finish"] * 3
    await store.close()


@pytest.mark.parametrize("room", [True, False])
async def test_orphan_that_is_begun_again_counts_in_memory_while_it_waits(room) -> None:
    """Only those that there is room for: others keep their lease, and are tried again."""
    store, held = MemoryStore(), 2_000_000
    request = Request(model="m", items=(Message("user", "x" * 300_000),))
    about = {"tenant": "", "wire": "responses", "created_at": 1, "request": request}
    limits = {"memory": held if room else 700_000, "background": 1, "requeue": True}
    async with storing(Stub(asyncio.Event()), store, upkeep=False, **limits) as server:
        for id in "abc":
            await store.begin(Record(id=id, owner="dead", lease=1.0, background=True, **about))
        await server.memory.runs._end_orphans()
        assert list(server.memory.runs.live) == (["a", "b", "c"] if room else ["a"])
        assert server.app.budget.held > 300_000 * (3 if room else 1)
        for run in list(server.memory.runs.live.values()):
            run.stop()
            await run.finished()
        assert server.app.budget.held == 0
    await store.close()


async def test_orphan_that_there_is_never_room_for_ends() -> None:
    store = MemoryStore()
    request = Request(model="m", items=(Message("user", "x" * 300_000),))
    about = {"tenant": "", "wire": "responses", "created_at": 1, "request": request}
    async with storing(Stub(), store, upkeep=False, memory=200_000, requeue=True) as server:
        await store.begin(Record(id="a", owner="dead", lease=1.0, background=True, **about))
        await server.memory.runs._end_orphans()
        assert [found.status for found in await store.chain("", "a")] == ["failed"]
        assert (server.memory.runs.live, server.app.budget.held) == ({}, 0)


async def test_own_leases_do_not_wait_until_all_orphans_have_ended() -> None:
    """Another server would take this server's runs for orphans."""
    store, left = MemoryStore(), list[int]()
    request = Request(model="m", items=(Message("user", "Hi"),))
    about = {"tenant": "", "wire": "responses", "created_at": 1, "request": request}
    for id in "abc":
        await store.begin(Record(id=id, owner="dead", lease=1.0, **about))
    runs = Runs(store, lease=0.0, upkeep=False)
    while (live := await store._read("SELECT seq FROM runs WHERE lease < 2")) or not left:
        left.append(len(live))
        await runs._end_orphans()
    assert left == [3, 2, 1]
    await store.close()


async def test_server_that_starts_leaves_owners_time_to_renew(store: Store) -> None:
    now = store.now()
    request = Request(model="m", items=(Message("user", "Hi"),))
    about = {"tenant": "", "wire": "responses", "created_at": int(now), "request": request}
    # The store was away for longer than the lease: the owner has not renewed it yet.
    await store.begin(Record(id="a", owner="other", lease=now - 1, **about))
    runs = Runs(store, lease=5.0)
    runs.begin()
    await asyncio.sleep(0.2)
    assert await store.renew_leases("other", ["a"], now + 60) == {}
    runs._upkeep.cancel()
    await store.close()


async def test_upkeep_continues_after_an_exception(caplog, monkeypatch) -> None:
    runs = Runs(MemoryStore(), lease=0.01)
    trouble = [RuntimeError("odd"), StoreError("It is full."), StoreError("It is full.")]
    calm = asyncio.Event()

    async def end_orphans() -> None:
        if trouble:
            raise trouble.pop(0)
        calm.set()

    monkeypatch.setattr(runs, "_end_orphans", end_orphans)
    runs.begin()
    async with asyncio.timeout(10):
        await calm.wait()
    await runs.close()
    assert caplog.text.count("upkeep") == 1  # what fails in a store is logged there


async def test_a_run_elsewhere_is_followed_and_cancelled_through_the_store(tmp_path) -> None:
    never = asyncio.Event()
    async with (
        storing(Stub(*OPENING, word("Hel"), never), opened("sqlite", tmp_path), lease=60.0) as one,
        storing(Stub(), opened("sqlite", tmp_path), lease=60.0) as two,
    ):
        queued = await one.ask(background=True)
        id = queued.json["id"]
        resumed = two.reading(f"/{id}?stream=true")
        following = asyncio.create_task(resumed())
        await resumed.until(lambda: b'"Hel"' in resumed.body)
        cancelled = await two.sdk.responses.cancel(id)
        assert cancelled.status == "cancelled"
        await following
        assert one.app._engine.running == 0


async def test_runs_are_ended_when_the_server_shuts_down(tmp_path) -> None:
    async with storing(Stub(*OPENING, asyncio.Event()), opened("sqlite", tmp_path)) as server:
        id = (await server.ask(background=True)).json["id"]
        await server.app._engine.begun.wait()
    async with storing(Stub(), opened("sqlite", tmp_path)) as again:
        found = await again.sdk.responses.retrieve(id)
        assert found.status == "failed"
        assert "shut down" in found.error.message


# ---- a reading that ends before its run ------------------------------------------------------


async def test_deadline_ends_no_reading_of_a_background_response(store: Store) -> None:
    go = asyncio.Event()
    events = *OPENING, word("Hel"), go, word("lo"), *closing("Hello")
    async with storing(Stub(*events), store, deadline=0.1) as server:
        stream = server.begin(background=True, stream=True)
        reading = asyncio.create_task(stream())
        await stream.until(lambda: b'"Hel"' in stream.body)
        follower = server.reading(f"/{identity(stream)}?stream=true")
        following = asyncio.create_task(follower())
        await asyncio.sleep(0.3)
        go.set()
        await asyncio.gather(reading, following)
        assert b"response.completed" in stream.body
        assert frames(follower.body) == frames(stream.body)


async def test_follower_of_a_run_elsewhere_is_cut_off_at_shutdown_and_resumes(tmp_path) -> None:
    go = asyncio.Event()
    events = *OPENING, word("Hel"), go, word("lo"), *closing("Hello")
    async with (
        storing(Stub(*events), opened("sqlite", tmp_path)) as one,
        storing(Stub(), opened("sqlite", tmp_path)) as two,
    ):
        path = f"/{(await one.ask(background=True)).json['id']}?stream=true"
        follower, late = two.reading(path), two.reading(f"{path}&starting_after=100")
        following = asyncio.gather(follower(), late())
        await follower.until(lambda: b'"Hel"' in follower.body)
        await two.app.drain(0.0)
        await following
        assert (late.status, late.code) == (503, "shutting_down")
        assert not follower.whole
        go.set()
        await all_ended(one)
        seen, replayed = frames(follower.body), frames((await one.get(path)).body)
        assert seen == replayed[: len(seen)]
        resumed = await one.get(f"{path}&starting_after={len(seen) - 1}")
        assert seen + frames(resumed.body) == replayed
        assert b"response.completed" in resumed.body


async def test_follower_of_a_run_elsewhere_is_cut_off_where_the_store_cannot_be_read(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("dragoman.server.state.run.FOLLOWED", 0.0)
    engine = Stub(*OPENING, word("Hel"), asyncio.Event())
    async with (
        storing(engine, opened("sqlite", tmp_path)) as server,
        storing(Stub(), opened("sqlite", tmp_path)) as other,
    ):
        id = (await server.ask(background=True)).json["id"]
        follower = other.reading(f"/{id}?stream=true")
        following = asyncio.create_task(follower())
        await follower.until(lambda: b'"Hel"' in follower.body)

        async def unreadable(*given: Any) -> Any:
            raise StoreError("gone")

        for name in ("log", "size_of_log", "wait"):
            monkeypatch.setattr(other.memory.store, name, unreadable)
        await server.sdk.responses.cancel(id)
        await following
        assert b"response.failed" not in follower.body
        assert not follower.whole


async def test_readers_of_own_runs_get_the_stored_end_at_shutdown(store: Store) -> None:
    async with storing(Stub(*OPENING, word("Hel"), asyncio.Event()), store) as server:
        stream = server.begin(background=True, stream=True)
        reading = asyncio.create_task(stream())
        await stream.until(lambda: b'"Hel"' in stream.body)
        record = await server.memory.store.get("", identity(stream).removeprefix("resp_"))
        follower = server.reading(f"/{identity(stream)}?stream=true")
        following = asyncio.create_task(follower())
        await follower.until(lambda: b'"Hel"' in follower.body)
        await server.app.drain(0.0)
        await asyncio.gather(reading, following)
        assert follower.whole
        assert frames(follower.body) == frames(stream.body)
        log = await server.memory.store.log(record.id)
        assert log[-1].events[-1].fault.message in stream.body.decode()
