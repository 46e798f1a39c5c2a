"""Which conversations a sweep deletes, in every store."""

from collections.abc import AsyncIterator

import pytest

from dragoman.core.item import Message
from dragoman.stores.base import Conversation
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.retention import Retention
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from tests.postgres import Postgres
from tests.stores.test_conformance import RETENTION, answer, record


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore(RETENTION)
    elif request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        opened = PostgresStore(server.address, RETENTION, schema=tmp_path.name)
    else:
        opened = SqliteStore(tmp_path / "store.db", RETENTION)
    await opened.ready()  # its clock is that of the database, until a test sets it
    yield opened
    await opened.close()


async def test_conversations_age_from_their_last_use(store: Store, monkeypatch) -> None:
    async def is_there(id: str) -> bool:
        return await store.get_conversation("t", id) is not None

    monkeypatch.setattr(store, "now", lambda: 150.0)
    for id in ("idle", "begun", "added", "put", "ended", "live"):
        await store.create_conversation(Conversation(id=id, tenant="t", created_at=1))
    said = [Message("user", "", id="1")]
    await store.begin_turn("t", "begun")
    await store.begin_turn("other", "idle")
    await store.add_items("t", "added", said)
    await store.put(record("a", status="completed", response=answer("a"), conversation="put"), said)
    for id in ("ended", "live"):
        await store.begin(record(id, conversation=id))
    await store.finish("ended", answer("ended"), items=said)
    await store.sweep(200.0)
    assert [await is_there(id) for id in ("idle", "begun", "added", "put", "ended", "live")] == [
        False,
        *[True] * 5,
    ]
    assert await store.set_conversation_metadata("t", "put", {"k": "v"})
    known = await store.get_conversation("t", "put")
    assert known == Conversation(id="put", tenant="t", created_at=1, metadata={"k": "v"})
    await store.sweep(251.0)
    left = [id for id in ("begun", "added", "put", "ended", "live") if await is_there(id)]
    assert left == ["begun", "live"]  # its turn may go on
    await store.sweep(851.0)
    assert [id for id in left if await is_there(id)] == ["live"]


async def test_surplus_conversations_are_those_not_used_for_longest(
    store: Store, monkeypatch
) -> None:
    monkeypatch.setattr(store, "_retention", Retention(max_conversations=2))
    for number, id in enumerate("abcd"):
        await store.create_conversation(Conversation(id=id, tenant="t", created_at=number))
    monkeypatch.setattr(store, "now", lambda: 10.0)
    await store.begin_turn("t", "a")
    await store.begin(record("r", conversation="b"))
    await store.sweep(10.0)
    left = [id for id in "abcd" if await store.get_conversation("t", id)]
    assert left == ["a", "b"]


async def test_conversation_of_a_turn_is_deleted_last(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(store, "_retention", Retention(max_conversations=2))
    monkeypatch.setattr(store, "now", lambda: 10.0)
    await store.create_conversation(Conversation(id="a", tenant="t", created_at=10))
    await store.begin_turn("t", "a")  # of a unary answer, which takes long
    for number, id in enumerate("bcd", 11):
        await store.create_conversation(Conversation(id=id, tenant="t", created_at=number))
    await store.sweep(13.0)
    assert [id for id in "abcd" if await store.get_conversation("t", id)] == ["a", "d"]
    monkeypatch.setattr(store, "now", lambda: 14.0)
    said = [Message("user", "", id="1")]
    await store.put(record("r", status="completed", response=answer("r"), conversation="a"), said)
    for number, id in enumerate("ef", 15):
        await store.create_conversation(Conversation(id=id, tenant="t", created_at=number))
    await store.sweep(16.0)
    assert [id for id in "adef" if await store.get_conversation("t", id)] == ["e", "f"]
