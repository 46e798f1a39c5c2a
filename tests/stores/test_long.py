"""Long texts in every store, and many who wait for the same run."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dragoman.core.fold import unfold
from dragoman.core.item import FunctionCall, Message, Reasoning, Thought
from dragoman.core.request import FunctionTool, Request
from dragoman.net import threads
from dragoman.net.threads import TenantLock, Turns, reading
from dragoman.stores import serialize, sql
from dragoman.stores.base import (
    Conversation,
    LogSegment,
    OutboxMessage,
    Record,
    Room,
    StoredAnswer,
    StoreError,
    TooMuchError,
    call_digest,
)
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.statements import Steps
from tests.postgres import Postgres
from tests.stores.test_conformance import EVENTS, answer, record


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        opened = PostgresStore(server.address, schema=tmp_path.name)
    else:
        opened = SqliteStore(tmp_path / "deep" / "store.db")
    yield opened
    await opened.close()


LONG_TEXTS = {
    "plain": "plain " * 50,
    "wide": "w\u00f6rd \N{GRINNING FACE}" * 30,
    "halves": "half \ud83d" * 40,
    "like a name": "text 00 0 0" + "0" * 300,
}


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
async def test_long_texts_are_kept_once_in_pieces_and_come_back(
    store: Store, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialize, "LONG", 64)
    for module in (serialize, sql):
        monkeypatch.setattr(module, "APART", 100)
    call = FunctionCall("c", "f", text, id="fc_b_1", status="completed")
    thought = Reasoning((Thought(text),), id="rs_b_2", status="completed")
    said = answer("b", text)
    said = replace(said, output=(*said.output, call, thought))
    asked = Request(
        model="m",
        instructions=text * 9,
        items=(Message("user", "hi", id="msg_y"), Message("user", text, id="msg_x")),
        tools=(FunctionTool("f", text * 9),),
        metadata={"k": text},
    )
    large = record("b", request=asked, metadata={"k": text}, size=101, background=True)
    events = tuple(unfold(said))
    await store.begin(large)
    await store.append("b", LogSegment(0, events[:5]), 101, "t")
    assert await store.finish("b", said, LogSegment(5, events[5:]), size=101, tenant="t")
    whole = replace(record("c", request=asked, previous="b"), response=said, status="completed")
    await store.put(replace(whole, size=101))

    for found in (await store.get("t", "b"), await store.get("t", "c", Room())):
        assert found is not None
        assert (found.request, found.response) == (asked, said)
    chain = await store.chain("t", "c", Room())
    assert [each.response for each in chain] == [said, said]
    assert tuple([e for segment in await store.log("b") for e in segment.events]) == events
    assert tuple([e for segment in await store.log("c") for e in segment.events]) == events
    assert (await store.find_items("t", ("msg_x",)))["msg_x"] == asked.items[1]
    assert await store.find_answers("t", [call_digest(call)]) == (StoredAnswer("m", said),)
    with pytest.raises(TooMuchError):
        await store.get("t", "b", Room(most=len(text), left=len(text)))

    sizes = [size for (size,) in await store._read("SELECT length(data) FROM parts")]
    assert len([size for size in sizes if size > 1_000]) == 0
    pieces = len(text.encode("utf-8", "surrogatepass"))
    once = pieces + 2 * 9 * pieces  # said, asked and thought; instructions and a description
    assert sum(sizes) < 1.2 * once + 2_000
    await store.delete("t", "b")
    again = await store.get("t", "c")
    assert again is not None
    assert again.response == said
    await store.delete("t", "c")
    for table in ("parts", "part_uses"):
        assert await store._read(f"SELECT * FROM {table}") == []


async def test_long_texts_count_as_often_as_their_pieces_are_referred_to(store: Store) -> None:
    """60 MB of one letter counted as one piece of it, for each request that went on from it."""
    letters, item = "a" * 2_000_000, Message("user", "".join(map(chr, range(33, 127))) * 1_500)
    for items in ((Message("user", letters),), (item,) * 14):
        asked = Request(model="m", items=items)
        size = sum(len(each.text) for each in items)
        whole = record("a", request=asked, status="completed", response=answer("a"), size=size)
        await store.put(whole)
        room = Room(count=lambda more: None)
        found = await store.get("t", "a", room)
        assert found is not None
        assert found.request == asked
        assert size <= room.held < 1.5 * size
        await store.delete("t", "a")


async def test_what_is_stored_late_of_a_run_that_is_gone_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialize, "LONG", 64)
    for module in (serialize, sql):
        monkeypatch.setattr(module, "APART", 100)
    said = answer("a", "said " * 50)
    assert not await store.finish("a", said, size=101, tenant="t")
    with pytest.raises(StoreError):
        await store.append("a", LogSegment(0, tuple(unfold(said))), 101, "t")
    for table in ("parts", "part_uses"):
        assert await store._read(f"SELECT * FROM {table}") == []


async def test_those_who_wait_for_a_run_look_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, read = list[str](), store._read

    async def noted(statement: str, *values: object) -> object:
        looks.append(statement)
        return await read(statement, *values)

    await store.begin(record("a"))
    await store.append("a", LogSegment(0, EVENTS[:1]))
    monkeypatch.setattr(store, "_read", noted)
    waiting = [asyncio.create_task(store.wait("a", 1, 30)) for _ in range(50)]
    while not looks:
        await asyncio.sleep(0.001)
    late = [asyncio.create_task(store.wait("a", 1, 30)) for _ in range(50)]
    await asyncio.sleep(0.01)
    await store.finish("a", answer("a"), LogSegment(1, EVENTS[1:]))
    assert await asyncio.gather(*waiting, *late) == [False] * 100
    assert len(looks) < 20
    looks.clear()
    logs = await asyncio.gather(*[store.log("a", 1, 4) for _ in range(50)])
    assert all(log == (LogSegment(1, EVENTS[1:]),) for log in logs)
    assert len(looks) == 1


async def test_a_long_text_that_was_deleted_meanwhile_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialize, "LONG", 64)
    for module in (serialize, sql):
        monkeypatch.setattr(module, "APART", 100)
    said, read = answer("a", "said " * 50), store._read
    whole = replace(record("a"), response=said, status="completed", size=101)
    await store.put(whole)

    async def late(statement: str, *values: object) -> object:
        if "FROM parts" in statement:
            monkeypatch.setattr(store, "_read", read)
            await store.delete("t", "a")
        return await read(statement, *values)

    monkeypatch.setattr(store, "_read", late)
    assert await store.get("t", "a") is None
    await store.put(whole)
    monkeypatch.setattr(store, "_read", late)
    with pytest.raises(StoreError, match="deleted"):
        await store.log("a")
    assert await store.log("a") == ()


async def test_a_turn_is_over_when_the_work_is() -> None:
    turns, working, most = Turns(), 0, 0
    go = threading.Event()

    def work() -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        go.wait(10)
        working -= 1

    tasks = [asyncio.create_task(turns.take(work)) for _ in range(3)]
    while not working:
        await asyncio.sleep(0.001)
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.sleep(0.01)
    assert tasks[0].cancelled()
    go.set()
    await tasks[2]
    assert most == 1


async def test_tenants_that_wait_for_large_work_take_turns() -> None:
    turns, order = Turns(), list[str]()

    async def take(tenant: str) -> None:
        reading.set(tenant)
        await turns.take(order.append, tenant)

    tasks = [asyncio.create_task(take(tenant)) for tenant in "aaaaaab"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "a", "b", "a", "a", "a"]


async def test_the_pause_after_large_work_is_bounded(monkeypatch) -> None:
    turns, now = Turns(), [0.0]
    monkeypatch.setattr(threads, "PAUSE", 0.01)
    monkeypatch.setattr(threads, "time", SimpleNamespace(monotonic=lambda: now[0]))
    await turns.take(now.__setitem__, 0, 100.0)
    async with asyncio.timeout(10):
        await turns.take(int)


async def test_a_turn_that_came_to_a_cancelled_task_goes_to_the_next() -> None:
    lock = TenantLock()

    async def hold() -> None:
        async with lock.turn("a"):
            await asyncio.sleep(0)

    await lock.acquire("a")
    tasks = [asyncio.create_task(hold()) for _ in range(2)]
    await asyncio.sleep(0)
    lock.release("a")
    tasks[0].cancel()
    async with asyncio.timeout(10):
        await tasks[1]
        await hold()


async def test_a_look_that_fails_fails_for_all(store: Store, monkeypatch) -> None:
    async def failing(statement: str, *values: object) -> object:
        raise StoreError("gone")

    await store.begin(record("a"))
    monkeypatch.setattr(store, "_read", failing)
    asked = [store.wait("a", 1, 30), store.wait("a", 1, 30), store.log("a"), store.log("a")]
    for found in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(found, StoreError)
    assert not store._asked._asking


async def test_a_long_statement_in_memory_does_not_hold_the_loop() -> None:
    store, go = MemoryStore(), threading.Event()

    def steps() -> Steps[bool]:
        yield "SELECT 1", ()
        return go.wait(5)

    writing = asyncio.ensure_future(store._transact((), steps))
    reading = asyncio.create_task(store._read("SELECT 2"))
    await asyncio.sleep(0)
    go.set()
    assert await writing
    assert await reading == [(2,)]


async def test_a_store_in_memory_is_not_closed_while_its_thread_writes() -> None:
    store, go = MemoryStore(), threading.Event()
    store._thread.submit(go.wait, 5)
    writing = store.begin(record("a"))
    there = weakref.ref(store)
    del store
    gc.collect()
    assert there() is not None
    go.set()
    await writing


async def test_messages_of_several_tenants_are_taken_by_turns(store: Store) -> None:
    given = [("a1", 1.0), ("a2", 2.0), ("a3", 3.0), ("b1", 9.0), ("b2", 10.0), ("1", 11.0)]
    messages = [
        OutboxMessage(id=id, target="http://x", body=b"", due=due, tenant=id.rstrip("123"))
        for id, due in given
    ]
    await store.begin(record("a"))
    await store.finish("a", answer("a"), messages=messages)
    taken: list[str] = []
    last = ""
    for _ in messages:
        (message,) = await store.take_due("http://x", 99.0, 500.0, 1, last)
        taken.append(message.id)
        last = message.tenant
    assert taken == ["a1", "b1", "1", "a2", "b2", "a3"]


async def test_history_that_is_sent_again_is_added_in_few_statements(store: Store) -> None:
    sent = [Message("user", "", id=f"{place}") for place in range(1_000)]
    chosen = Message("user", "", id="0_1002")
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50), [chosen])
    await store.put(_put("a"), sent)
    statements = list[str]()
    if isinstance(store, SqliteStore):
        store._writing.set_trace_callback(statements.append)
    await store.put(_put("b"), [chosen, *sent])
    assert len([each for each in statements if "INTO items" in each]) <= 3 * 5
    page = await store.list_items("t", "v")
    assert page is not None
    ids = [item.id or "" for item in page.items]
    assert len({*ids}) == len(ids) == 2_002
    assert ids[1_001] == "0_1002_1001"
    assert ids[1_003:] == [f"{place}_{place + 1_002}" for place in range(1, 1_000)]
    assert ids[1_002].startswith("0_")
    for id in (ids[1_002], ids[-1]):
        found = await store.get_item("t", "v", id)
        assert found == Message("user", "", id=id)


def _put(id: str) -> Record:
    return record(id, status="completed", response=answer(id), conversation="v")


async def test_long_ids_are_found_and_listed(store: Store) -> None:
    sent = [Message("user", f"{place}", id=id * 5_000 + "x") for place, id in enumerate("aab")]
    sent[1] = replace(sent[1], id=f"msg_{sent[1].id}_in0")
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50))
    await store.put(replace(_put("a"), request=replace(record("a").request, items=tuple(sent))))
    await store.put(_put("b"), [*sent, *sent])
    for item in sent:
        assert await store.find_items("t", [item.id or ""]) == {item.id: item}
    page = await store.list_items("t", "v")
    assert page is not None
    assert [item.text for item in page.items if isinstance(item, Message)] == [*"012"] * 2
    ids = {item.id or "" for item in page.items}
    assert len(ids) == 6
    assert max(map(len, ids)) < 600
