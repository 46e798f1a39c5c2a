"""What only the SQLite store has: a file, and a thread that writes."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Finished
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.net.threads import reading
from dragoman.stores import base, sqlite
from dragoman.stores.base import LogSegment, Paging, Record, StoreError
from dragoman.stores.retention import SWEPT, Retention
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.statements import DUE
from tests.samples import samples

BOUND = 10.0


async def test_sqlite_error_becomes_store_error(tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute("DROP TABLE outbox")
    other.close()
    with pytest.raises(StoreError, match="no such table"):
        await store.settle("a")
    await store.close()


async def test_closed_store_fails_at_once(tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.close()
    async with asyncio.timeout(BOUND):
        with pytest.raises(StoreError, match="closed"):
            await store.settle("a")
        with pytest.raises(StoreError, match="closed"):
            await store.get("t", "a")
    await store.close()


async def test_no_more_responses_are_read_once_all_items_are_found(tmp_path, monkeypatch) -> None:
    store, read = SqliteStore(tmp_path / "store.db"), []
    request = Request(model="m", items=(Message("user", "ask", id="msg"),))
    for place in range(20):
        await store.begin(
            Record(id=f"{place}", tenant="t", wire="responses", created_at=1, request=request)
        )
    records = store._records
    monkeypatch.setattr(store, "_records", lambda *a, **b: read.append(a) or records(*a, **b))
    assert (await store.find_items("t", ("msg",)))["msg"] == request.items[0]
    assert len(read) == 1
    assert await store.find_items("t", ("msg", "other"))
    assert len(read) == 4
    await store.close()


async def test_sweep_in_many_transactions_deletes_only_the_oldest(tmp_path) -> None:
    retention = Retention(max_age=100.0, max_log_age=10.0, max_responses=2 * SWEPT)
    store = SqliteStore(tmp_path / "store.db", retention)
    request = Request(model="m", items=(Message("user", "ask", id="msg"),))

    async def put(place: int) -> None:
        id = f"{place:04}"
        await store.begin(
            Record(id=id, tenant="t", wire="responses", created_at=place, request=request)
        )
        done = Response(id=id, created_at=place, model="m", status="completed")
        await store.finish(id, done, LogSegment(0, (Finished("completed"),)))

    last = 4 * SWEPT
    await asyncio.gather(*map(put, range(last)))
    assert await store.sweep(last) == last - 100
    page = await store.list_responses("t", None, Paging(limit=1, order="asc"))
    assert page.items[0].created_at == last - 100
    assert await store.log(f"{last - 11:04}") == ()
    assert await store.log(f"{last - 10:04}") != ()
    assert "msg" in await store.find_items("t", ("msg",))
    await store.close()


def test_new_file_is_opened_by_many_processes_at_once(tmp_path) -> None:
    for trial in range(samples(2, 20)):
        path = tmp_path / f"{trial}.db"
        words = (
            "import pathlib, sys; from dragoman.stores.sqlite import SqliteStore; "
            f"SqliteStore(pathlib.Path({str(path)!r}))"
        )
        opening = [subprocess.Popen([sys.executable, "-c", words]) for _ in range(4)]
        assert [process.wait(60) for process in opening] == [0] * 4


def test_file_that_stays_locked_fails_after_its_timeout() -> None:
    class Locked:
        tries = 0

        def execute(self, statement: str) -> None:
            self.tries += 1
            raise sqlite3.OperationalError("database is locked")

    locked: Any = Locked()
    with pytest.raises(sqlite3.OperationalError):
        sqlite._write_ahead(locked, 0.03)
    assert locked.tries > 1


# ---- a file that does not answer ------------------------------------------------------------


async def test_one_write_at_a_time_tries_whether_the_file_is_free(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(base, "REST", 600.0)
    store = SqliteStore(tmp_path / "store.db", patience=0.1)
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked"):
            await store.put(whole("a"))
        tries: list[int] = []
        real = sqlite.commit
        monkeypatch.setattr(sqlite, "commit", lambda *given: (tries.append(1), real(*given))[1])
        for expected in (0, 1):
            results = await asyncio.gather(
                *(store.put(whole(f"b{n}")) for n in range(20)), return_exceptions=True
            )
            assert {str(result) for result in results} == {
                "The store could not be written: database is locked."
            }
            assert len(tries) == expected
            store._breaker._next = 0.0  # it has rested
    await store.put(whole("a"))
    await asyncio.gather(*(store.put(whole(f"c{n}")) for n in range(20)))
    await store.close()


@pytest.mark.parametrize("reading", [False, True])
async def test_disk_that_hangs_blocks_no_other_request(tmp_path, monkeypatch, reading) -> None:
    monkeypatch.setattr(sqlite, "LOOK", 0.05)
    monkeypatch.setattr(base, "REST", 0.05)
    store = SqliteStore(tmp_path / "store.db", patience=0.1)
    await store.put(whole("a"))
    free = threading.Event()
    name = "found" if reading else "commit"
    real = getattr(sqlite, name)
    monkeypatch.setattr(sqlite, name, lambda *given: (free.wait(), real(*given))[1])
    async with asyncio.timeout(BOUND):
        for trial in range(3):
            with pytest.raises(StoreError, match=r"did not answer within 0\.1 s"):
                await (store.get("t", "a") if reading else store.put(whole(f"b{trial}")))
        free.set()
        while True:
            with suppress(StoreError):
                await (store.get("t", "a") if reading else store.put(whole("c")))
                break
            await asyncio.sleep(0.05)
        assert await store.get("t", "a") == whole("a")
    await store.close()


async def test_deleted_file_is_made_again_by_who_reads_first(tmp_path, caplog) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.put(whole("a"))
    await store.get("t", "a")
    path.unlink()
    assert await store.get("t", "a") is None
    assert "deleted or replaced" in caplog.text
    await store.put(whole("b"))
    assert await store.get("t", "b") == whole("b")
    await store.close()
    again = SqliteStore(path)
    assert await again.get("t", "b") == whole("b")
    await again.close()


# ---- what is in the file -------------------------------------------------------------------


def whole(id: str, **asked: object) -> Record:
    """A record that has ended, of a request with large parts."""
    items = tuple(Message("user", f"turn {n} " * 50) for n in range(40))
    request = Request(model="m", items=items, instructions="Be kind. " * 500, **asked)
    done = Response(id=id, created_at=50, model="m", status="completed")
    return Record(
        id=id,
        tenant="t",
        wire="responses",
        created_at=50,
        request=request,
        status="completed",
        response=done,
    )


def counted(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)


async def test_a_file_that_is_moved_away_and_back_has_all_that_was_stored(tmp_path) -> None:
    here, away = tmp_path / "store.db", tmp_path / "away.db"
    store = SqliteStore(here)
    for id in ("a", "b"):
        await store.put(whole(id))
    here.rename(away)
    assert await store.get("t", "a") is None
    async with asyncio.timeout(BOUND):
        while True:  # the writer leaves it a moment later
            await asyncio.sleep(0.01)
            moved = closing(sqlite3.connect(f"file:{away}?immutable=1", uri=True))
            with moved as file, suppress(sqlite3.OperationalError):
                if file.execute("SELECT count(*) FROM responses").fetchone() == (2,):
                    break
    await store.put(whole("c"))
    away.rename(here)
    for id in ("a", "b"):
        assert await store.get("t", id) is not None
    await store.put(whole("d"))
    await store.close()
    with closing(sqlite3.connect(here)) as file:
        assert file.execute("SELECT count(*) FROM responses").fetchone() == (3,)


ENDLESS = """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
    SELECT count(*) FROM n"""


async def test_long_reads_of_a_tenant_are_ended_and_hold_up_no_other(tmp_path) -> None:
    """A search may take long, which is no failure of the store."""
    store = SqliteStore(tmp_path / "store.db", patience=0.3)

    async def read(tenant: str, statement: str) -> object:
        reading.set(tenant)
        return await store._read(statement)

    long = [asyncio.create_task(read("t", ENDLESS)) for _ in range(3)]
    await asyncio.sleep(0.05)
    before = time.monotonic()
    assert await asyncio.create_task(read("other", "SELECT 1")) == [(1,)]
    assert time.monotonic() - before < 0.2
    for found in await asyncio.gather(*long, return_exceptions=True):
        assert isinstance(found, base.LongError)
    assert not store._reading.open
    await store.close()


async def test_a_slow_statement_is_no_stuck_disk_where_others_are_answered(
    tmp_path, monkeypatch
) -> None:
    """One step of a search may take longer than `STEPS` are waited for."""
    store = SqliteStore(tmp_path / "store.db", patience=0.1)
    monkeypatch.setattr(sqlite, "LOOK", 0.1)
    monkeypatch.setattr(sqlite, "STEPS", 1 << 30)
    real = sqlite.found

    def slow(connection: Any, statement: str, values: Any) -> Any:
        if "2" in statement:
            time.sleep(0.4)
        return real(connection, statement, values)

    monkeypatch.setattr(sqlite, "found", slow)
    task = asyncio.create_task(store._read("SELECT 2"))
    await asyncio.sleep(0.05)
    await store._read("SELECT 1")
    with pytest.raises(base.LongError):
        await task
    assert await store._read("SELECT 1") == [(1,)]
    await store.close()


async def test_history_sent_again_takes_no_room_and_is_deleted_with_its_last_response(
    tmp_path,
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    await store.put(whole("a"))
    parts = counted(path, "parts")
    assert parts > 3
    for id in "bc":
        await store.put(whole(id))
    assert counted(path, "parts") == parts
    await store.delete("t", "a")
    assert counted(path, "parts") == parts
    await store.delete("t", "b")
    await store.sweep(1e9)
    for table in ("responses", "ends", "segments", "parts", "part_uses", "item_index"):
        assert counted(path, table) == 0, table
    await store.close()


async def test_unary_answer_is_one_row(tmp_path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    request = Request(model="m", items=(Message("user", "Hi"),))
    await store.put(replace(whole("a"), request=request))
    tables = ("responses", "runs", "ends", "segments", "parts", "part_uses", "item_index", "calls")
    assert [counted(path, table) for table in tables] == [1, 0, 0, 0, 0, 0, 0, 0]
    await store.close()


async def test_file_is_readable_by_its_user_alone(tmp_path) -> None:
    path = tmp_path / "deep" / "store.db"
    store = SqliteStore(path)
    await store.put(whole("a"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    files = [path, *path.parent.glob("store.db-*")]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    await store.close()


def test_every_connection_syncs_so_that_a_power_cut_leaves_the_file_whole(tmp_path) -> None:
    with closing(sqlite.connect(tmp_path / "store.db")) as connection:
        normal, wal = connection.execute("PRAGMA synchronous").fetchone(), "wal"
        assert normal == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == (wal,)


async def test_writes_of_one_turn_share_a_commit(tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    statements: list[str] = []
    store._writing.set_trace_callback(statements.append)
    await asyncio.gather(*(store.put(whole(f"r{n}")) for n in range(20)))
    await store.close()
    assert statements.count("COMMIT") == 1


async def test_commit_that_fails_fails_all_its_writes(tmp_path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE part_uses")
    results = await asyncio.gather(
        *(store.put(whole(f"r{n}")) for n in range(3)), return_exceptions=True
    )
    assert [str(result) for result in results] == [
        "The store could not be written: no such table: part_uses."
    ] * 3
    assert counted(path, "responses") == 0
    await store.close()


async def test_store_is_used_by_several_event_loops(tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def put() -> None:
        await store.put(whole("a"))

    await asyncio.to_thread(asyncio.run, put())
    await store.put(whole("b"))
    assert await store.get("t", "a") == whole("a")
    await store.close()


async def test_messages_of_one_tenant_are_not_read_for_those_of_the_next(tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    for turn in ("> $3", "<= $3"):
        find = f"EXPLAIN QUERY PLAN {DUE} {turn} ORDER BY tenant, due LIMIT 8"
        ((*_, plan),) = await store._read(find, "x", 1.0, "t")  # it sorts nothing
        assert f"outbox_by_turn (target=? AND tenant{turn[0]}?" in plan
    await store.close()
