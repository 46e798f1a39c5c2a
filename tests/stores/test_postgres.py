"""What only the PostgreSQL store has: connecting, migrating together, notifying other servers."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from dragoman.core.event import Started
from dragoman.core.files import IndexedFile, StoredFile, VectorStore
from dragoman.core.item import Message
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import Response
from dragoman.stores import postgres as postgres_module
from dragoman.stores import retention
from dragoman.stores.base import (
    REST,
    SLOW,
    Conversation,
    LogSegment,
    LongError,
    Piece,
    Record,
    StoreError,
)
from dragoman.stores.factory import open_store
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.retention import Retention
from dragoman.stores.statements import Steps, inserts_of
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
        with suppress(StoreError):  # that which listens
            await store.wait("a", 0, 0.0)
    waiting = asyncio.create_task(store.wait("a", 0, 60.0))
    await store.append("a", FIRST)
    await waiting
    await store.close()


async def test_followers_of_other_servers_poll_where_there_is_no_connection_to_listen_on(
    postgres: Postgres, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(postgres_module, "DEAF", 0.3)
    address = await postgres.database()
    store, other = PostgresStore(address), PostgresStore(address)
    await other.begin(record("a"))
    connection = store._connection
    attempts: list[float] = []

    async def refused() -> Any:
        attempts.append(0.0)
        raise asyncpg.TooManyConnectionsError("no more connections")

    await store.get("t", "a")
    monkeypatch.setattr(store, "_connection", refused)
    for length in range(2):
        waiting = asyncio.create_task(store.wait("a", length, 60.0))
        await asyncio.sleep(0.05)
        await other.append("a", replace(FIRST, first=length))
        assert await asyncio.wait_for(waiting, 20)
    assert len(attempts) <= 12
    assert len(caplog.messages) == 1
    assert "no more connections" in caplog.text
    assert "is polled for each second" in caplog.text
    monkeypatch.setattr(store, "_connection", connection)
    await asyncio.sleep(0.4)
    waiting = asyncio.create_task(store.wait("a", 2, 60.0))
    await asyncio.sleep(0.2)
    assert store._listener is not None, "it listens again"
    await other.append("a", replace(FIRST, first=2))
    assert await asyncio.wait_for(waiting, 20)
    await store.close()
    await other.close()


async def test_connections_that_were_lost_in_silence_are_all_dropped(postgres: Postgres) -> None:
    address = await postgres.database()
    store = PostgresStore(address, patience=1.0)
    await asyncio.gather(*[store._read("SELECT pg_sleep(0.2)") for _ in range(5)])
    connection = await asyncpg.connect(address)
    processes = await connection.fetch(
        """SELECT pid FROM pg_stat_activity
            WHERE application_name = 'dragoman' AND datname = current_database()"""
    )
    await connection.close()
    assert len(processes) == 5
    for (process,) in processes:
        os.kill(process, signal.SIGSTOP)  # it takes what is sent, and others answer
    try:
        with pytest.raises(StoreError):
            await store._read("SELECT 1")
        await asyncio.sleep(REST + 0.1)
        assert await store._read("SELECT 1") == [(1,)]
    finally:
        for (process,) in processes:
            os.kill(process, signal.SIGCONT)
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
            taken = [run async for run in store.take_orphans("me", 50.0, 60.0)]
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


async def test_orphans_and_messages_beyond_the_limit_stay_where_the_planner_expects_one_row(
    postgres: Postgres,
) -> None:
    address = await postgres.database()
    store = PostgresStore(address)
    connection = await asyncpg.connect(address)
    message = "INSERT INTO dragoman.outbox VALUES ($1, 'here', $2, 5, 0)"

    async def fill(*ids: str) -> None:
        for id in ids:
            await store.begin(replace(record(id), lease=10.0))
            await connection.execute(message, id, b"{}")

    await fill("a")
    await connection.execute("VACUUM ANALYZE dragoman.runs, dragoman.outbox")
    await fill(*"bcdef")
    assert len(await store.take_due("here", 50.0, 60.0, 2)) == 2
    assert len([run async for run in store.take_orphans("me", 50.0, 60.0)]) == 6
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


@pytest.mark.parametrize("tenant", ["t", "another"])
async def test_a_deletion_waits_for_long_writes_of_its_own_tenant_and_others_never(
    postgres: Postgres, tenant
) -> None:
    address = await postgres.database()
    here, there = PostgresStore(address), PostgresStore(address)
    await there.put(replace(whole("old"), tenant=tenant))
    long = asyncio.create_task(
        here._transact(inserts_of(whole("new")), lambda: steps_of(("SELECT pg_sleep(2)", ())))
    )
    while not await there._read("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
        await asyncio.sleep(0.01)
    deleting = asyncio.create_task(there.delete(tenant, "old"))
    await asyncio.sleep(0.1)
    await there.put(replace(whole("other"), tenant="other"))  # it does not wait behind them
    assert deleting.done() == (tenant == "another")
    assert not long.done()
    assert await deleting
    await long
    assert (await there.get("t", "new")).request == whole("new").request
    await here.close()
    await there.close()


def steps_of(*statements: tuple[str, tuple[object, ...]]) -> Steps[None]:
    for statement in statements:
        assert (yield statement) is not None


async def test_a_deadlock_is_resolved(postgres: Postgres) -> None:
    store = PostgresStore(await postgres.database())
    for id in "ab":
        await store.put(whole(id))

    def locking(*ids: str) -> Steps[None]:
        yield "SET LOCAL deadlock_timeout TO '50ms'", ()
        for id in ids:
            yield "SELECT 1 FROM responses WHERE id = $1 FOR UPDATE", (id,)
            yield "SELECT pg_sleep(0.2)", ()

    both = (partial(locking, "a", "b"), partial(locking, "b", "a"))
    await asyncio.gather(*(store._transact((), steps) for steps in both))
    await store.close()


async def test_what_a_database_refuses_opens_no_breaker_however_long_it_took(
    postgres: Postgres,
) -> None:
    store = PostgresStore(postgres.address)
    steps = partial(steps_of, (f"SELECT pg_sleep({SLOW + 0.1})", ()), ("SELECT 1 / 0", ()))
    with pytest.raises(StoreError, match="division by zero"):
        await store._transact((), steps)
    assert not store._breaker.open
    await store.close()


async def test_large_rows_that_a_database_does_not_take_fail_in_time(postgres: Postgres) -> None:
    address = await postgres.database()
    store, other = PostgresStore(address, patience=1.0), await asyncpg.connect(address)
    await store.ready()
    asked = Request(model="m", items=(Message("user", random.randbytes(8_000_000).hex(), id="i"),))
    large = replace(whole("a"), request=asked, size=16_000_000)
    async with asyncio.timeout(20.0), other.transaction():
        part = next(row for statement, row in inserts_of(large) if " parts " in statement)
        await other.execute("INSERT INTO dragoman.parts VALUES ($1, $2)", *part)
        with pytest.raises(StoreError):
            await store.put(large)
    await other.close()
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
    postgres: Postgres, tmp_path, monkeypatch
) -> None:
    store = PostgresStore(postgres.address, schema=tmp_path.name, patience=0.5)
    await store.ready()
    loop = asyncio.get_running_loop()
    early = partial(lambda later, delay, *rest: later(delay * 0.8, *rest), loop.call_later)
    monkeypatch.setattr(loop, "call_later", early)  # as uvloop's is, by a part of a millisecond
    long = ("SELECT pg_sleep(2)", ())
    slow = asyncio.create_task(store._read(long[0]))
    writing = asyncio.create_task(store._transact((), partial(steps_of, long)))
    while not (slow.done() and writing.done()):
        await store._read("SELECT 1")
        await asyncio.sleep(0.05)
    with pytest.raises(LongError):
        await slow
    with pytest.raises(StoreError) as caught:
        await writing
    assert caught.value.fault.code == "store_unavailable"
    await store._read("SELECT 1")
    await store.close()


async def test_a_statement_that_the_database_ends_opens_no_breaker_where_others_are_answered(
    postgres: Postgres, tmp_path
) -> None:
    store = PostgresStore(postgres.address, schema=tmp_path.name, patience=1.0)
    await store.ready()
    limit = ("SET LOCAL statement_timeout TO '700ms'", ())
    steps = partial(steps_of, limit, ("SELECT pg_sleep(2)", ()))
    slow = asyncio.create_task(store._transact((), steps))
    while not slow.done():
        await store._read("SELECT 1")
        await asyncio.sleep(0.05)
    with pytest.raises(StoreError, match="statement timeout"):
        await slow
    assert not store._breaker.open
    await store.close()


async def test_locks_of_a_frozen_server_are_released(postgres: Postgres) -> None:
    address = await postgres.database()
    store, frozen = PostgresStore(address), PostgresStore(address, patience=0.5)
    await store.ready()
    connection = await frozen._connection()
    await connection.execute("BEGIN; LOCK TABLE responses")
    await store.put(whole("a"))
    connection.terminate()
    await store.close()


async def test_statements_that_were_given_up_do_not_stay_in_the_database(
    postgres: Postgres,
) -> None:
    address = await postgres.database()
    store, other = PostgresStore(address, patience=0.5), await asyncpg.connect(address)
    await store.ready()
    async with asyncio.timeout(30.0), other.transaction():
        await other.execute("LOCK TABLE dragoman.responses")
        with pytest.raises(StoreError):
            await store.put(whole("a"))
        left = """SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
            AND datname = current_database()"""
        while await other.fetchval(left):
            await other.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.05)
    await other.close()
    await store.close()


async def test_a_run_that_is_locked_keeps_none_from_being_renewed_or_stopped(
    postgres: Postgres,
) -> None:
    address = await postgres.database()
    store, other = PostgresStore(address, patience=20.0), await asyncpg.connect(address)
    for id in "abcd":
        await store.begin(replace(record(id), owner="me", lease=10.0))
    assert await store.request_cancel("t", "d")
    async with asyncio.timeout(15.0), other.transaction():
        await other.execute(
            """SELECT 1 FROM dragoman.runs u JOIN dragoman.responses r ON r.seq = u.seq
                WHERE r.id = 'a' FOR UPDATE OF u"""
        )
        assert await store.renew_leases("me", [*"abcd", "x"], 20.0) == {"d": False, "x": False}
    assert [(await store.get("t", id)).lease for id in "bcd"] == [20.0, 20.0, 10.0]
    async with other.transaction():
        await other.execute("UPDATE dragoman.runs SET lease = lease")
        renewing = asyncio.create_task(store.renew_leases("me", ["a"], 30.0))
        await waiting(other)
    assert await renewing == {}
    assert (await store.get("t", "a")).lease == 30.0
    await other.close()
    await store.close()


async def test_a_server_that_was_suspended_amid_statements_fails_as_a_store_does(
    postgres: Postgres,
) -> None:
    store = PostgresStore(await postgres.database())
    await store.ready()  # with the usual patience, as a busy machine may take longer than ours
    store._patience = 0.2
    for steps in range(10):
        reading = asyncio.create_task(store._read(f"SELECT {steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        time.sleep(0.25)  # the answer and the end of its patience are found together
        with suppress(StoreError):
            assert await reading == [(steps,)]
        store._breaker.open = False
    await store.close()


# ---- files that are deleted while they are indexed -----------------------------------------------

INDEX = IndexedFile(store="v", file="f", name="f.txt", created_at=50)


async def indexing(address: str) -> tuple[PostgresStore, int]:
    """A store with a file that is being indexed for one of two vector stores."""
    store = PostgresStore(address)
    for id in ("v", "w"):
        made = VectorStore(id=id, tenant="t", created_at=50, active_at=50, name="notes")
        await store.add_vector_store(made, 10)
    file = StoredFile(id="f", tenant="t", name="f.txt", purpose="assistants", size=3, created_at=50)
    await store.add_file(file, b"cat", 10, 1_000)
    return store, await store.index_file("t", INDEX)


async def test_chunks_are_not_added_to_a_file_that_is_being_removed(postgres: Postgres) -> None:
    address = await postgres.database()
    store, seq = await indexing(address)
    connection = await asyncpg.connect(address)
    async with connection.transaction():
        await connection.execute("UPDATE dragoman.indexed_files SET status = 'deleted'")
        adding = asyncio.create_task(store.add_pieces(seq, [Piece("cat", ["cat"])], 10))
        await waiting(connection)
    assert not await adding
    assert await store._read("SELECT count(*) FROM chunks") == [(0,)]
    await connection.close()
    await store.close()


async def test_a_file_that_is_being_deleted_is_not_indexed_elsewhere(postgres: Postgres) -> None:
    address = await postgres.database()
    store, seq = await indexing(address)
    connection = await asyncpg.connect(address)
    async with connection.transaction():  # another server adds chunks of it to the first
        await connection.execute("SELECT 1 FROM dragoman.indexed_files FOR UPDATE")
        deleting = asyncio.create_task(store.delete_file("t", "f"))
        await waiting(connection)
        adding = asyncio.create_task(store.index_file("t", replace(INDEX, store="w")))
        await waiting(connection, 2)
    assert await deleting
    assert await adding != seq
    assert await store.file_data("t", "f") is None
    await connection.close()
    await store.close()


async def waiting(connection: asyncpg.Connection, most: int = 1) -> None:
    """Return when so many wait for locks in the database."""
    statement = """SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()"""
    async with asyncio.timeout(60.0):
        while await connection.fetchval(statement) < most:
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)


# ---- sessions ------------------------------------------------------------------------------------


POOLED = {"user", "database", "application_name", "client_encoding"}
"""The parameters of a connection that PgBouncer takes, of those that there are here."""


@asynccontextmanager
async def pooler(address: str, folder: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a way to this database, and the parameters of its connections."""
    parts = urlsplit(address)
    (database,) = parse_qs(parts.query)["host"]
    named: list[str] = []
    passing: set[asyncio.Task[None]] = set()

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing.add(asyncio.current_task())
        head = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(head) - 4)
        named.extend(rest[4:].decode().split("\0")[:-2:2])
        other = await asyncio.open_unix_connection(f"{database}/.s.PGSQL.5432")
        other[1].write(head + rest)
        await asyncio.gather(pipe(reader, other[1]), pipe(other[0], writer))

    server = await asyncio.start_unix_server(passed, folder / ".s.PGSQL.5432")
    try:
        yield address.replace(database, str(folder)), named
    finally:
        server.close()
        await asyncio.wait(passing)


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_sessions_are_configured_without_parameters_that_poolers_refuse(
    postgres: Postgres,
) -> None:
    with TemporaryDirectory() as folder:
        async with pooler(await postgres.database(), Path(folder)) as (address, named):
            store = PostgresStore(address)
            await store.begin(record("a"))
            async with store._pubsub.subscribe("a"):
                pass  # it listens
            connections = [store._read("SHOW search_path") for _ in range(3)]
            assert await asyncio.gather(*connections) == [[("dragoman",)]] * 3
            assert await store._read("SHOW search_path") == [("dragoman",)]  # used again
            await store.close()
    assert "user" in named
    assert set(named) <= POOLED


async def test_large_values_are_sent_in_pieces_and_leave_nothing(postgres: Postgres) -> None:
    sent: list[int] = []

    class Watched(PostgresStore):
        async def _set(self, connection: asyncpg.Connection) -> None:
            await super()._set(connection)
            connection.add_query_logger(
                lambda query: sent.extend(
                    [len(value) for value in query.args or () if isinstance(value, bytes)]
                )
            )

    store, data = Watched(await postgres.database()), bytes(range(256)) * 10_000
    about = StoredFile(id="f", tenant="t", name="f", purpose="user_data", size=1, created_at=50)
    await store.add_file(about, data, 10, 1_000)
    items = tuple([Message("user", text, id=text[:2]) for text in (data.hex(), "short")])
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50), items)
    schema = {"texts": [data[start : start + 1_000].hex() for start in range(0, len(data), 1_000)]}
    asked = Request(model="m", tools=(FunctionTool("f", parameters=schema),))
    await store.put(replace(whole("a"), request=asked))
    assert (await store.get("t", "a")).request == asked
    assert await store.file_data("t", "f") == data
    assert (await store.list_items("t", "v")).items == items
    assert sum(sent) > 4 * len(data) > 8 * max(sent)
    assert await store._read("SELECT 1 FROM pg_largeobject_metadata") == []
    await store.close()


async def test_isolation_is_that_which_the_statements_were_written_for(postgres: Postgres) -> None:
    address = await postgres.database()
    connection = await asyncpg.connect(address)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    )
    store = PostgresStore(address)
    assert await store._read("SHOW transaction_isolation") == [("read committed",)]
    assert await store._write("SHOW transaction_isolation") == [("read committed",)]
    await store.begin(record("a"))
    async with connection.transaction():
        await connection.execute("UPDATE dragoman.runs SET lease = lease")
        ending = store.finish("a", whole("a").response)
        await waiting(connection)
    assert await ending
    await connection.close()
    await store.close()


async def test_a_database_that_was_read_only_is_written_to_again(postgres: Postgres) -> None:
    address = await postgres.database()
    connection = await asyncpg.connect(address)
    name = await connection.fetchval("SELECT current_database()")
    store = PostgresStore(address)
    await store.ready()
    change = f"ALTER DATABASE {name} SET default_transaction_read_only = "
    await connection.execute(f"{change} on")
    await store._pool.expire_connections()  # sessions have what was set when they began
    with pytest.raises(StoreError, match="read-only"):
        await store.begin(record("a"))
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute(f"{change} off")
    await store.begin(record("a"))
    await connection.close()
    await store.close()


async def test_writes_of_other_servers_do_not_wait_for_a_sweep(
    postgres: Postgres, monkeypatch
) -> None:
    address = await postgres.database()
    here, there = PostgresStore(address, Retention(max_age=10.0)), PostgresStore(address)
    for number in range(50):
        await here.put(whole(f"r{number}"))
    ticks = count()  # after each row a transaction has taken long enough
    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=lambda: next(ticks) % 3 // 2))
    await there.ready()
    sweeping = asyncio.create_task(here.sweep(1_000.0))
    await there.put(whole("a"))
    left = await there._read("SELECT 1 FROM responses WHERE id <> 'a'")
    assert left
    assert await sweeping >= 50
    await here.close()
    await there.close()
