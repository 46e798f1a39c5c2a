"""A store that fails costs what needs it, and that says so; it comes back without a restart."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.server.state import run
from dragoman.server.state.run import Run
from dragoman.server.state.service import Memory
from dragoman.server.state.webhooks import Receiver, Webhooks
from dragoman.stores import retention
from dragoman.stores.base import Breaker, Paging, Record, StoreError
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.retention import QUICK, Retention, delete_quickly
from dragoman.stores.serialize import pack_items
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore, migrate
from dragoman.stores.statements import extend, index
from tests.postgres import Postgres
from tests.server.state.storing import Server, frames, identity, storing
from tests.server.stubs import OPENING, Call, Stub, word
from tests.server.stubs import closing as ended

PATIENCE = 1.0
"""Seconds that a store has in these tests."""
BOUND = 20.0
"""Seconds in which all routes together have answered; nobody waits for each of them."""


@dataclass
class Known:
    """What was stored while all was well, by id."""

    response: str
    stream: str
    background: str
    conversation: str
    completion: str


async def known(server: Server) -> Known:
    """All of it is stored: on a busy machine that may take more than the patience of one try."""
    async with asyncio.timeout(BOUND):
        response = await until_stored(server.ask)
        stream = await until_stored(partial(server.ask, stream=True))
        background = await until_stored(partial(server.ask, background=True))
        talk = partial(on, server, "POST", "/v1/conversations", {"items": []})
        conversation = await until_stored(talk)
        chat = partial(on, server, "POST", "/v1/chat/completions", CHAT)
        completion = await until_stored(chat)
    for live in tuple(server.memory.runs.live.values()):
        await live.finished()
    return Known(
        response.json["id"],
        identity(stream),
        background.json["id"],
        conversation.json["id"],
        completion.json["id"],
    )


async def until_stored(ask: Callable[[], Awaitable[Call]]) -> Call:
    while (call := await ask()).status != 200 or "x-dragoman-loss" in str(call.sent):
        await asyncio.sleep(0.1)
    return call


CHAT = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}], "store": True}
ASKED = {"model": "stub", "input": "Hi" * 200_000}
ITEM = {"type": "message", "role": "user", "content": "Hi"}

ROUTES: dict[str, tuple[str, str, Any]] = {
    "get": ("GET", "/v1/responses/{0.response}", None),
    "replay": ("GET", "/v1/responses/{0.stream}?stream=true", None),
    "input items": ("GET", "/v1/responses/{0.response}/input_items", None),
    "cancel": ("POST", "/v1/responses/{0.background}/cancel", None),
    "delete": ("DELETE", "/v1/responses/{0.response}", None),
    "chain": ("POST", "/v1/responses", {**ASKED, "previous_response_id": "{0.stream}"}),
    "background": ("POST", "/v1/responses", {**ASKED, "background": True}),
    "in a conversation": ("POST", "/v1/responses", {**ASKED, "conversation": "{0.conversation}"}),
    "list completions": ("GET", "/v1/chat/completions", None),
    "get completion": ("GET", "/v1/chat/completions/{0.completion}", None),
    "messages": ("GET", "/v1/chat/completions/{0.completion}/messages", None),
    "change completion": ("POST", "/v1/chat/completions/{0.completion}", {"metadata": {}}),
    "delete completion": ("DELETE", "/v1/chat/completions/{0.completion}", None),
    "new conversation": ("POST", "/v1/conversations", {}),
    "get conversation": ("GET", "/v1/conversations/{0.conversation}", None),
    "change conversation": ("POST", "/v1/conversations/{0.conversation}", {"metadata": {}}),
    "items": ("GET", "/v1/conversations/{0.conversation}/items", None),
    "add items": ("POST", "/v1/conversations/{0.conversation}/items", {"items": [ITEM]}),
    "delete conversation": ("DELETE", "/v1/conversations/{0.conversation}", None),
}
"""What needs the store. What only may store (an answer that is not stored) says so instead."""

WRITING = ("background", "delete", "change completion", "new conversation", "add items")
"""Some of what writes and cannot say, as an answer may, that nothing was stored."""


async def on(server: Server, method: str, path: str, body: Any = None) -> Call:
    path, _, query = path.partition("?")
    call = Call(server.app, path, body, method=method)
    call._scope["query_string"] = query.encode()
    return await call()


def filled(value: Any, there: Known) -> Any:
    if isinstance(value, dict):
        return {name: filled(each, there) for name, each in value.items()}
    return value.format(there) if isinstance(value, str) else value


# ---- faults --------------------------------------------------------------------------------


@contextmanager
def locked(store: SqliteStore) -> Iterator[None]:
    """Another program holds the lock."""
    other = sqlite3.connect(store._path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


@contextmanager
def full(store: SqliteStore) -> Iterator[None]:
    """The disk is full."""
    store._writing.execute("PRAGMA max_page_count = 1")
    try:
        yield
    finally:
        store._writing.execute("PRAGMA max_page_count = 1073741823")


@contextmanager
def garbage(store: SqliteStore) -> Iterator[None]:
    """What the rows hold is garbage."""
    with closing(sqlite3.connect(store._path, isolation_level=None)) as other:
        for table, column in (
            ("responses", "record"),
            ("segments", "events"),
            ("conversations", "conversation"),
        ):
            other.execute(f"UPDATE {table} SET {column} = randomblob(1000)")
    yield


@contextmanager
def deleted(store: SqliteStore) -> Iterator[None]:
    """The file is gone, and there is no place for another."""
    folder = store._path.parent
    with store._opening:  # or it would make another between two of these steps
        away = folder.rename(folder.with_name("away"))
        folder.write_text("in the way")
    try:
        yield
    finally:
        with store._opening:
            folder.unlink()
            away.rename(folder)


@dataclass(frozen=True)
class Case:
    """A fault, what fails by it for certain, and the kind of store as clients are told. Damage
    shows where it is met, and stays."""

    fault: Callable[[Any], AbstractContextManager[None]]
    fails: Collection[str] = tuple(ROUTES)
    kind: str = "SQLite"
    damage: bool = False


FAULTS = {
    "4b.08 locked": Case(locked, WRITING),
    "4b.02 4b.06 full": Case(full, WRITING[:1]),
    "4b.11 garbage": Case(
        garbage, ("get", "replay", "chain", "get conversation", "messages"), damage=True
    ),
    "4b.10 deleted": Case(deleted),
    "4c.03 4c.08 stopped": Case(lambda server: server.unreachable(), kind="PostgreSQL"),
    "4c.10 frozen": Case(lambda server: server.frozen(), kind="PostgreSQL"),
}


@asynccontextmanager
async def failing(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Server, Callable[[], AbstractContextManager[None]]]]:
    """A server, and the fault of its store."""
    store: Store
    if case.kind == "SQLite":
        store = SqliteStore(tmp_path / "folder" / "store.db", patience=PATIENCE)
        subject: Any = store
    else:
        subject = request.getfixturevalue("postgres")
        assert isinstance(subject, Postgres)
        # It starts with the patience that a busy machine needs.
        store = PostgresStore(subject.address, schema=tmp_path.name)
        await store.ready()
        store._patience, store._breaker = PATIENCE, Breaker(case.kind, PATIENCE)
    async with storing(Stub(), store) as server:
        yield server, lambda: case.fault(subject)
    for connection in store._opened if isinstance(store, SqliteStore) else ():
        connection.close()  # it was left open while the store could not be read


@pytest.mark.parametrize("name", FAULTS)
async def test_a_failing_store_is_an_error_on_every_route_and_recovers(
    name, tmp_path, request, caplog
) -> None:
    case = FAULTS[name]
    async with failing(case, tmp_path, request) as (server, fault):
        there = await known(server)
        caplog.clear()
        with fault():
            async with asyncio.timeout(BOUND):
                unary, stream = await server.ask(**ASKED), await server.ask(**ASKED, stream=True)
                answers = {
                    route: await on(server, method, filled(path, there), filled(body, there))
                    for route, (method, path, body) in ROUTES.items()
                }
        assert unary.status == stream.status == 200
        if not case.damage:
            assert unary.headers["x-dragoman-loss"] == "dropped: store"
            assert b"x-dragoman-loss: dropped: store" in stream.body
        for route, answer in answers.items():
            assert answer.status == 503 or route not in case.fails, (route, answer.body)
            assert answer.status in (200, 503), (route, answer.body)
            if answer.status == 503:
                error = answer.json["error"]
                assert error["code"] == "store_unavailable", route
                said = "" if case.damage else f" ({case.kind})"
                assert f"The store of this server{said} cannot" in error["message"], route
                assert int(answer.headers["retry-after"]) > 0, route
        assert "Traceback" not in caplog.text
        if case.damage:  # each row that is damaged is one line
            return
        assert len(caplog.records) < 8, caplog.text
        async with asyncio.timeout(BOUND):
            await until_stored(server.ask)
            await until_stored(partial(server.ask, background=True))


@pytest.mark.parametrize("ahead", [60.0, -60.0], ids=["4d.06 4d.07 ahead", "4d.06 4d.07 behind"])
async def test_run_is_not_ended_by_a_server_whose_clock_differs(
    ahead, tmp_path, postgres, monkeypatch
) -> None:
    here, there = (PostgresStore(postgres.address, schema=tmp_path.name) for _ in range(2))
    gate, real = asyncio.Event(), time.time
    async with (
        storing(Stub(*OPENING, gate, *ended("")), here, lease=5) as one,
        storing(Stub(), there, lease=5) as two,
    ):
        await here.clock()
        asked = await one.ask(background=True)
        monkeypatch.setattr(time, "time", lambda: real() + ahead)
        await two.memory.runs._end_orphans()
        assert asked.json["id"][5:] in one.memory.runs.live
        found = await here.get("", asked.json["id"][5:])
        assert found is not None
        assert found.running
        assert 0 < found.lease - real() <= 6
        gate.set()
        (run,) = one.memory.runs.live.values()
        await run.finished()
        assert (await two.get(f"/{asked.json['id']}")).json["status"] == "completed"


# ---- a server that was cut off from its store for longer than its leases -------------------------


@dataclass
class CutOff:
    """A live run that another server has ended, and its client."""

    one: Server
    two: Server
    live: Run
    call: Call
    gate: asyncio.Event
    answering: asyncio.Task[Call]

    async def end(self) -> bytes:
        """Let the engine end the answer; what the client got."""
        self.gate.set()
        return (await self.answering).body


@asynccontextmanager
async def cut_off(folder: Path, **fields: Any) -> AsyncIterator[CutOff]:
    gate = asyncio.Event()
    stub = Stub(*OPENING, word("Hel"), gate, word("lo"), *ended("Hello"))
    stores = [SqliteStore(folder / "store.db") for _ in range(2)]
    async with (
        asyncio.timeout(BOUND),
        storing(stub, stores[0], upkeep=False) as one,
        storing(Stub(), stores[1], upkeep=False) as two,
    ):
        call = begun(one, **fields)
        answering = asyncio.create_task(call())
        await call.until(lambda: b'"Hel"' in call.body)
        (live,) = one.memory.runs.live.values()
        while not await stores[0].log(live.record.id):
            await asyncio.sleep(0.01)
        assert not await stores[0].renew_leases(one.memory.runs.owner, [live.record.id], 1.0)
        await two.memory.runs._end_orphans()
        yield CutOff(one, two, live, call, gate, answering)
        await answering


def begun(server: Server, path: str = "/v1/responses", **fields: Any) -> Call:
    given = CHAT if "chat" in path else {"model": "stub", "input": "Hi"}
    return Call(server.app, path, {**given, "stream": True, **fields})


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("noticed", [False, True])
async def test_client_gets_the_whole_answer_that_another_server_has_ended(
    path, noticed, tmp_path
) -> None:
    async with cut_off(tmp_path, path=path) as cut:
        if noticed:
            await cut.one.memory.runs._renew()
            await cut.one.memory.runs._renew()
        body = await cut.end()
        assert b'"lo"' in body
        assert b"dropped: store" in body
        assert (b"event: response.completed" if "responses" in path else b'"stop"') in body
        (record,) = (await cut.two.memory.store.list_responses("", None, Paging())).items
        assert record.status == "failed"
        assert record.response is not None
        assert record.response.output[0].text == "Hel"


@pytest.mark.parametrize("noticed", [False, True])
async def test_followers_of_a_run_that_another_server_has_ended_get_its_end(
    noticed, tmp_path
) -> None:
    async with cut_off(tmp_path, background=True) as cut:
        resumed = cut.one.reading(f"/{cut.live.record.id}?stream=true")
        following = asyncio.create_task(resumed())
        await resumed.until(lambda: b'"Hel"' in resumed.body)
        if noticed:
            await cut.one.memory.runs._renew()
            assert cut.live.ended
            while cut.one.app._engine.running:
                await asyncio.sleep(0)
        body = await cut.end()
        await following
        stored = await cut.two.get(f"/{cut.live.record.id}?stream=true")
    assert frames(body) == frames(resumed.body) == frames(stored.body)
    assert frames(body)[-2].startswith(b"event: response.failed")


async def test_foreground_run_that_was_deleted_meanwhile_is_stopped(tmp_path) -> None:
    async with cut_off(tmp_path) as cut:
        assert (await cut.two.get(f"/{cut.live.record.id}", "DELETE")).status == 200
        await cut.one.memory.runs._renew()
        body = await cut.end()
    assert b'"lo"' not in body
    assert b'"cancelled"' in body


# ---- a store that fails for a moment -------------------------------------------------------


class Failing:
    """Fails at these methods of a store while it is `on`."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.on = False
        self.failed = 0
        self._again = asyncio.Event()
        for name in names:
            monkeypatch.setattr(store, name, self._method(getattr(store, name)))

    def _method(self, inside: Callable[..., Any]) -> Callable[..., Any]:
        async def method(*given: Any, **named: Any) -> Any:
            if self.on:
                self.failed += 1
                self._again.set()
                raise StoreError("The disk is full.", "SQLite")
            return await inside(*given, **named)

        return method

    async def more(self) -> None:
        """Return when it has failed once more."""
        self._again.clear()
        await self._again.wait()


@pytest.mark.parametrize(
    ("background", "ending"),
    [(False, False), (True, False), (True, True)],  # the client of a stream waits for the end
    ids=["stream", "background", "background, at the end"],
)
async def test_answer_is_stored_though_its_store_fails_for_a_moment(
    background, ending, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(run, "RETRY", 0.01)
    monkeypatch.setattr(run, "BEHIND", 0.01)
    first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
    text = (word("a"), first, word("b"), second, word("c"), third)
    store = SqliteStore(tmp_path / "store.db")
    failing = Failing(store, monkeypatch, "append", "finish", "log")
    async with (
        asyncio.timeout(BOUND),
        storing(Stub(*OPENING, *text, *ended("abc")), store) as server,
    ):
        asking = asyncio.create_task(server.ask(stream=True, background=background))
        while not server.memory.runs.live or not (await ids(store, "")):
            await asyncio.sleep(0.01)
        (live,) = server.memory.runs.live.values()
        while not live._stored:
            await asyncio.sleep(0.01)
        first.set()
        while not live.first:  # what came is in the store alone
            await asyncio.sleep(0.01)
        failing.on = True
        follower = asyncio.create_task(taken(live))
        second.set()
        await failing.more()
        if ending:
            third.set()
            await failing.more()
            await failing.more()
        failing.on = False
        third.set()
        body = (await asking).body
        assert b"x-dragoman-loss" not in body
        assert b'"delta":"c"' in body
        found = (await server.get(f"/resp_{live.record.id}")).json
        assert found["status"] == "completed"
        assert found["output"][0]["content"][0]["text"] == "abc"
        replay = await server.get(f"/resp_{live.record.id}?stream=true")
        assert frames(replay.body) == frames(body)
        assert len(await follower) == len(OPENING) + 3 + len(ended(""))


async def taken(live: Run) -> list[Event]:
    followed = live._runs.follow(live.record)
    return [event async for batch in followed for event in batch]


async def test_background_answer_that_cannot_be_stored_says_so(
    tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(run, "RETRY", 0.01)
    monkeypatch.setattr(run, "HELD", 0.05)
    store = SqliteStore(tmp_path / "store.db")
    failing = Failing(store, monkeypatch, "finish")
    failing.on = True
    async with asyncio.timeout(BOUND), storing(Stub(), store) as server:
        asked = await server.ask(stream=True, background=True)
        assert failing.failed > 1
        assert b"x-dragoman-loss: dropped: store" in asked.body
        assert caplog.text.count("could not be stored") == 1


async def test_shutdown_does_not_wait_for_a_store_that_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 600.0)
    store = SqliteStore(tmp_path / "store.db")
    failing = Failing(store, monkeypatch, "finish")
    async with storing(Stub(*OPENING, asyncio.Event()), store) as server:
        await server.ask(background=True)
        failing.on = True
        async with asyncio.timeout(BOUND):
            await server.memory.runs.drain(0.1)
        assert not server.memory.runs.live


async def test_run_whose_end_cannot_be_stored_holds_up_no_cancel(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run, "PATIENCE", 0.1)
    store = SqliteStore(tmp_path / "store.db")
    failing = Failing(store, monkeypatch, "finish")
    gate = asyncio.Event()
    async with asyncio.timeout(BOUND), storing(Stub(*OPENING, gate), store) as server:
        asked = await server.ask(background=True)
        failing.on = True
        path = f"/v1/responses/{asked.json['id']}/cancel"
        assert (await on(server, "POST", path)).json["status"] in ("queued", "in_progress")
        failing.on = False
        for live in tuple(server.memory.runs.live.values()):
            await live.finished()
        assert (await on(server, "POST", path)).json["status"] == "cancelled"


async def test_runs_of_others_are_left_alone_after_the_store_failed(tmp_path, monkeypatch) -> None:
    """Their servers could not renew their leases either."""
    store = SqliteStore(tmp_path / "store.db")
    other = replace(whole("r", ""), status="in_progress", response=None, owner="other", lease=1.0)
    async with asyncio.timeout(BOUND), storing(Stub(), store, lease=2) as server:
        failing = Failing(server.memory.runs, monkeypatch, "_end_orphans")
        failing.on = True
        await store.begin(other)
        server.memory.begin()
        await failing.more()
        failing.on = False
        await asyncio.sleep(1.0)
        assert await store.renew_leases("other", ["r"], time.time() + 60) == {}
        await asyncio.sleep(1.5)
        found = await store.get("", "r")
        assert found is not None
        assert found.running


async def test_runs_of_others_are_left_alone_after_the_clock_was_set(tmp_path) -> None:
    """As after a machine slept: their servers have not renewed their leases yet either."""
    store = SqliteStore(tmp_path / "store.db")
    ahead = 0.0
    store.now = lambda: time.time() + ahead
    other = replace(whole("r", ""), status="in_progress", response=None, owner="other")
    async with storing(Stub(), store, lease=1) as server:
        await store.begin(replace(other, lease=time.time() + 30))
        server.memory.begin()
        await asyncio.sleep(0.3)
        ahead = 60.0
        await asyncio.sleep(0.5)
        assert await store.renew_leases("other", ["r"], time.time() + 120) == {}


# ---- bounds --------------------------------------------------------------------------------


def whole(id: str, tenant: str, text: str = "Hi") -> Record:
    asked = Request(model="m", items=(Message("user", text),))
    done = Response(id=id, created_at=50, model="m", status="completed")
    return Record(
        id=id,
        tenant=tenant,
        wire="responses",
        created_at=50,
        request=asked,
        status="completed",
        response=done,
    )


async def ids(store: Store, tenant: str) -> list[str]:
    page = await store.list_responses(tenant, None, Paging(limit=1000, order="asc"))
    return [record.id for record in page.items]


async def test_4b_14_and_4b_16_bounds_hold_while_it_runs(tmp_path) -> None:
    kept = Retention(max_responses=50, max_conversations=10, max_items=3, max_bytes=2_000)
    store = SqliteStore(tmp_path / "store.db", kept)
    async with storing(Stub(), store, lease=1) as server:
        server.memory.begin()
        for _ in range(120):
            assert (await server.ask()).status == 200
            assert (await on(server, "POST", "/v1/conversations", {})).status == 200
        async with asyncio.timeout(BOUND):
            while len(await ids(store, "")) > 50:
                await asyncio.sleep(0.05)
            while (await store._read("SELECT count(*) FROM conversations"))[0][0] > 10:
                await asyncio.sleep(0.05)
        latest = (await on(server, "POST", "/v1/conversations", {})).json["id"]
        path = f"/v1/conversations/{latest}/items"
        large = await on(server, "POST", path, {"items": [{**ITEM, "content": "x" * 3_000}]})
        assert (large.status, large.json["error"]["param"]) == (400, "conversation")
        assert "room for 2000 bytes" in large.json["error"]["message"]
        assert (await on(server, "POST", path, {"items": [ITEM, ITEM]})).status == 200
        assert (await server.ask(conversation=latest)).status == 200  # with its answer there are 4
        for full in (
            await on(server, "POST", path, {"items": [ITEM]}),
            await server.ask(conversation=latest),
        ):
            assert full.status == 400
            assert "room for 3 items" in full.json["error"]["message"]


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        (Retention(max_responses=50), (40, 10)),
        (Retention(max_responses_per_key=30), (30, 10)),
        (Retention(max_responses=15), (8, 7)),
    ],
    ids=["4b.19 in total", "4b.19 per key", "4b.19 fair shares"],
)
async def test_nobody_pushes_out_what_others_stored(kept, left, tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db", kept)
    for number in range(10):
        await store.put(whole(f"b{number}", "b"))
    for number in range(60):
        await store.put(whole(f"a{number}", "a"))
    await store.sweep(60.0)
    a, b = await ids(store, "a"), await ids(store, "b")
    assert sum(map(len, (a, b))) <= kept.max_responses
    assert abs(len(a) - left[0]) <= 1
    assert abs(len(b) - left[1]) <= 1
    assert a[-1] == "a59"
    assert b[-1] == "b9"
    await store.close()


@pytest.mark.parametrize("earlier", [False, True], ids=["4b.18 new", "4b.18 of an earlier version"])
async def test_room_goes_back_to_the_disk(earlier, tmp_path) -> None:
    path = tmp_path / "store.db"
    if earlier:
        with sqlite3.connect(path, isolation_level=None) as old:
            migrate(old, path)
            assert old.execute("PRAGMA auto_vacuum").fetchone() == (0,)
        old.close()
    store = SqliteStore(path)
    for number in range(50):
        await store.put(whole(f"r{number}", "", f"{number}" * 50_000))
    await store.sweep(60.0)
    assert used(tmp_path) > 3_000_000
    await store.sweep(1e9)
    assert used(tmp_path) < 500_000
    await store.close()


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


# ---- large deletions and many items --------------------------------------------------------


def test_many_items_are_added_by_few_statements() -> None:
    """PostgreSQL answers each: one for each item kept its connections for seconds."""
    items = pack_items([Message("user", "Hi", id=f"a{n}") for n in range(1_000)])
    steps = extend("c", items)
    next(steps)
    count, (_, values) = 1, steps.send([(-1,)])
    with suppress(StopIteration):
        while True:
            _, values = steps.send([(place,) for place in values[1::3]])
            count += 1
    assert count == 4


def test_an_answer_of_many_calls_is_found_by_few_statements() -> None:
    """The run is locked in PostgreSQL meanwhile, and each statement is a round trip."""
    keys = [f"{n}" for n in range(1_000)]
    assert len([*index(1, "t", keys, keys)]) == 8


def test_a_sweep_deletes_in_short_transactions(monkeypatch) -> None:
    now, sizes = 0.0, list[int]()
    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=lambda: now))

    def delete(rows):
        nonlocal now
        now += len(rows) * QUICK / 2
        sizes.append(len(rows))
        yield "", ()

    steps = delete_quickly([(n,) for n in range(100)], delete)
    next(steps)
    with pytest.raises(StopIteration) as end:
        while True:
            steps.send(())
    assert (end.value.value, sizes) == (3, [1, 2])


async def test_webhooks_and_sweeps_go_by_the_clock_of_the_store(tmp_path, monkeypatch) -> None:
    store, swept = SqliteStore(tmp_path / "store.db"), asyncio.Event()
    webhooks = Webhooks([Receiver(url="http://127.0.0.1:9/", key=b"k", events=())])

    async def sweep(now: float) -> int:
        assert now == 5.0
        swept.set()
        return 0

    monkeypatch.setattr(store, "sweep", sweep)
    memory = Memory(store, webhooks=webhooks)
    store.now = lambda: 5.0
    memory.begin()
    async with asyncio.timeout(10):
        await swept.wait()
    assert webhooks.clock() == 5.0
    await memory.close()
