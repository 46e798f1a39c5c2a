"""What only the PostgreSQL store has: connecting, migrating together, notifying other servers."""

import asyncio
import sys
from contextlib import suppress

import asyncpg
import pytest
from msgspec.structs import replace

from dragoman.core.event import Started
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.stores.base import LogSegment, LongError, Record, StoreError
from dragoman.stores.factory import open_store
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.retention import Retention
from tests.postgres import Postgres

SECRET = "hunter2"
FIRST = LogSegment(0, (Started("a", 50, "m"),))


def record(id: str) -> Record:
    asked = Request(model="m", items=(Message("user", "Hi", id=f"msg_{id}"),))
    return Record(id=id, tenant="t", wire="responses", created_at=50, request=asked)


@pytest.mark.parametrize(
    "word", [f"postgress://user:{SECRET}@host/db", f"postgresql://user:{SECRET}@host:port/db"]
)
def test_invalid_address_is_not_repeated(word) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(word, Retention(), {})
    assert SECRET not in str(caught.value)


def test_missing_package_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in [name for name in sys.modules if name.startswith("dragoman.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(StoreError, match=r"pip install '\.\[postgres\]'"):
        open_store("postgresql:///", Retention(), {})


async def test_servers_that_start_together_migrate_once(postgres: Postgres) -> None:
    address = await postgres.database()
    stores = [PostgresStore(address) for _ in range(5)]
    await asyncio.gather(*(each.begin(record(f"r{n}")) for n, each in enumerate(stores)))
    for each in stores:
        assert await each.get("t", "r0") == record("r0")
        await each.close()


@pytest.mark.parametrize("ending", [False, True])
async def test_write_on_one_server_wakes_waiter_on_another(
    postgres: Postgres, tmp_path, monkeypatch, ending
) -> None:
    monkeypatch.setattr(PostgresStore, "POLL", 1_000.0)
    here, there = (PostgresStore(postgres.address, schema=tmp_path.name) for _ in range(2))
    await here.begin(record("a"))
    async with there._pubsub.subscribe("a") as notified:
        waiting = asyncio.create_task(there.wait("a", 0, 60.0))
        if ending:
            done = Response(id="a", created_at=50, model="m", status="completed")
            assert await here.finish("a", done)
        else:
            await here.append("a", FIRST)
        async with asyncio.timeout(20.0):
            await waiting
            await notified.wait()
    await here.close()
    await there.close()


async def test_cut_connections_are_reopened(postgres: Postgres) -> None:
    address = await postgres.database()
    store = PostgresStore(address)
    await store.begin(record("a"))
    await store.wait("a", 0, 0.0)
    connection = await asyncpg.connect(address)
    await connection.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'dragoman' AND datname = current_database()"""
    )
    await connection.close()
    for _ in range(10):  # as many as there may be connections to find cut
        with suppress(StoreError):
            await store.get("t", "a")
    waiting = asyncio.create_task(store.wait("a", 0, 60.0))
    await store.append("a", FIRST)
    await waiting
    await store.close()


def whole(id: str) -> Record:
    """A record that has ended, of a request with a large part."""
    made = record(id)
    asked = Request(model="m", items=made.request.items, instructions="Be kind. " * 500)
    done = Response(id=id, created_at=50, model="m", status="completed")
    return replace(made, request=asked, status="completed", response=done)


async def test_run_that_another_server_is_ending_is_passed_over_not_waited_for(
    postgres: Postgres,
) -> None:
    address = await postgres.database()
    store = PostgresStore(address)
    for id in "ab":
        await store.begin(replace(record(id), lease=10.0))
    connection = await asyncpg.connect(address)
    async with connection.transaction():
        await connection.execute(
            """SELECT 1 FROM dragoman.runs u JOIN dragoman.responses r ON r.seq = u.seq
                WHERE r.id = 'a' FOR UPDATE OF u"""
        )
        async with asyncio.timeout(20.0):
            taken = await store.take_orphans("me", 50.0, 60.0)
    assert [each.id for each in taken] == ["b"]
    await connection.close()
    await store.close()


async def test_a6_message_that_another_server_is_taking_is_passed_over_not_waited_for(
    postgres: Postgres,
) -> None:
    address = await postgres.database()
    store = PostgresStore(address)
    await store.begin(record("a"))
    connection = await asyncpg.connect(address)
    for id in "ab":
        await connection.execute(
            "INSERT INTO dragoman.outbox (id, target, body, due, attempts) "
            "VALUES ($1, $2, $3, 5, 0)",
            *(id, "here", b"{}"),
        )
    async with connection.transaction():
        await connection.execute("SELECT 1 FROM dragoman.outbox WHERE id = 'a' FOR UPDATE")
        async with asyncio.timeout(20.0):
            taken = await store.take_due("here", 50.0, 60.0)
    assert [each.id for each in taken] == ["b"]
    await connection.close()
    await store.close()


async def test_part_is_deleted_with_its_last_response_and_never_before(postgres: Postgres) -> None:
    address = await postgres.database()
    stores = [PostgresStore(address) for _ in range(3)]

    async def churn(store: PostgresStore, name: str) -> None:
        for n in range(20):
            await store.put(whole(f"{name}{n}"))
            found = await store.get("t", f"{name}{n}")
            assert found.request == whole(f"{name}{n}").request
            assert await store.delete("t", f"{name}{n}")

    await asyncio.gather(*(churn(store, name) for store, name in zip(stores, "abc", strict=True)))
    connection = await asyncpg.connect(address)
    for table in ("responses", "parts", "part_uses"):
        assert await connection.fetchval(f"SELECT count(*) FROM dragoman.{table}") == 0
    await connection.close()
    for store in stores:
        await store.close()


async def test_cancelled_read_leaves_nothing_behind(postgres: Postgres) -> None:
    store = PostgresStore(await postgres.database())
    await store.ready()
    reading = asyncio.create_task(store._read("SELECT pg_sleep(0.2)"))
    await asyncio.sleep(0.05)
    reading.cancel()
    await asyncio.wait((reading,))
    await store.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_slow_statement_opens_no_breaker_where_others_are_answered(
    postgres: Postgres, tmp_path
) -> None:
    store = PostgresStore(postgres.address, schema=tmp_path.name, patience=0.5)
    await store.ready()
    slow = asyncio.create_task(store._read("SELECT pg_sleep(2)"))
    while not slow.done():
        await store._read("SELECT 1")
        await asyncio.sleep(0.05)
    with pytest.raises(LongError):
        await slow
    await store._read("SELECT 1")
    await store.close()
