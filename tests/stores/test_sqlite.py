"""What only the SQLite store has: a file, and threads that can fail."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.event import Finished
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.stores import sqlite
from dragoman.stores.base import (
    LogSegment,
    Paging,
    Record,
    Retention,
    StoreError,
)
from dragoman.stores.sqlite import SWEPT, SqliteStore

BOUND = 10.0


@pytest.mark.parametrize("content", [None, b"not a database" * 100])
def test_a_place_that_holds_no_store_is_refused(tmp_path: Path, content: bytes | None) -> None:
    place = tmp_path / "store.db"
    if content is None:
        place.mkdir()
    else:
        place.write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.db cannot be"):
        SqliteStore(place)


def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    connection = sqlite3.connect(place)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="a later Dragoman"):
        SqliteStore(place)


async def test_what_goes_wrong_in_the_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute("DROP TABLE outbox")
    other.close()
    with pytest.raises(StoreError, match="no such table"):
        await store.settle("a")
    await store.close()


async def test_a_closed_store_keeps_nobody_waiting(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.close()
    async with asyncio.timeout(BOUND):
        with pytest.raises(StoreError, match="closed"):
            await store.settle("a")
        with pytest.raises(StoreError, match="closed"):
            await store.get("t", "a")
    await store.close()


async def test_a_sweep_in_many_steps_leaves_what_shall_stay(tmp_path: Path) -> None:
    keeping = Retention(max_age=100.0, max_log_age=10.0, max_responses=2 * SWEPT)
    store = SqliteStore(tmp_path / "store.db", keeping)
    request = Request(model="m", items=(Message("user", "ask", id="msg"),))

    async def keep(place: int) -> None:
        id = f"{place:04}"
        await store.begin(
            Record(id=id, tenant="t", wire="responses", created_at=place, request=request)
        )
        done = Response(id=id, created_at=place, model="m", status="completed")
        await store.finish(id, done, LogSegment(0, (Finished("completed"),)))

    last = 4 * SWEPT
    await asyncio.gather(*map(keep, range(last)))
    assert await store.sweep(last) == last - 100
    page = await store.list_responses("t", None, Paging(limit=1, order="asc"))
    assert page.records[0].created_at == last - 100
    assert await store.log(f"{last - 11:04}") == ()
    assert await store.log(f"{last - 10:04}") != ()
    assert await store.find_item("t", "msg") is not None
    await store.close()


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    for trial in range(5):
        path = tmp_path / f"{trial}.db"
        words = (
            "import pathlib, sys; from dragoman.stores.sqlite import SqliteStore; "
            f"SqliteStore(pathlib.Path({str(path)!r}))"
        )
        opening = [subprocess.Popen([sys.executable, "-c", words]) for _ in range(4)]
        assert [process.wait(60) for process in opening] == [0] * 4


def test_a_file_that_stays_locked_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked:
        tries = 0

        def execute(self, statement: str) -> None:
            self.tries += 1
            raise sqlite3.OperationalError("database is locked")

    locked: Any = Locked()
    monkeypatch.setattr(sqlite, "PATIENCE", 0.03)
    with pytest.raises(sqlite3.OperationalError):
        sqlite._write_ahead(locked)
    assert locked.tries > 1
