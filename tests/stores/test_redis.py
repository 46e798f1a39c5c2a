"""News by Redis: heard by other servers, survived when Redis fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core.event import Delta, Started
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.stores import redis_news
from dragoman.stores.keeping import Keeping
from dragoman.stores.opening import open_store
from dragoman.stores.postgres import PostgresStore, store
from dragoman.stores.record import Record, Stretch
from dragoman.stores.redis_news import LATEST, STREAM, RedisNews, _entries
from dragoman.stores.store import StoreError
from tests import redis
from tests.postgres import Postgres

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with redis.running(PASSWORD) as url:
        yield url


def record(id: str) -> Record:
    asked = Request(model="m", items=(Message("user", "Hi", id=f"msg_{id}"),))
    return Record(id=id, tenant="t", wire="responses", created_at=50, request=asked)


async def test_one_server_hears_of_what_another_writes(
    postgres: Postgres, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "POLL", 1_000.0)
    here, there = (
        PostgresStore(postgres.address, schema=tmp_path.name, news=RedisNews(address, PASSWORD))
        for _ in range(2)
    )
    await here.begin(record("a"))
    for place in range(20):
        waiting = asyncio.create_task(there.wait("a", place, 60.0))
        event = Started("a", 50, "m") if place == 0 else Delta(0, 0, "text", "x")
        async with there._news.hearing("a"):
            await here.append("a", Stretch(place, (event,)))
            await waiting
    await here.close()
    await there.close()


async def test_what_is_told_holds_nothing_that_was_said_and_is_cut(address: str) -> None:
    news = RedisNews(address, PASSWORD)
    async with news.hearing("last") as told:
        names = [f"name{place}" for place in range(LATEST + 5_000)]
        await news.publish(names)
        news.tell("last")
        await told.wait()
        await news.close()
    news = RedisNews(address, PASSWORD)
    assert await news._redis.xlen(STREAM) < LATEST + 1_000
    (entry,) = await news._redis.xrevrange(STREAM, count=1)
    assert entry[1] == {b"name": b"last"}
    await news.close()


async def test_without_redis_everything_goes_on(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "POLL", 0.01)
    monkeypatch.setattr(redis_news, "AGAIN", 0.01)
    here, there = (
        PostgresStore(
            postgres.address,
            schema=tmp_path.name,
            news=RedisNews(f"unix://{tmp_path}/nothing"),
        )
        for _ in range(2)
    )
    await here.begin(record("a"))
    waiting = asyncio.create_task(there.wait("a", 0, 60.0))
    await here.append("a", Stretch(0, (Started("a", 50, "m"),)))
    await waiting
    with pytest.raises(StoreError, match="Redis failed"):
        await here._news.publish(["a"])
    await here.close()
    await there.close()


async def test_redis_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_news, "AGAIN", 0.01)
    place = tmp_path / "socket"
    news = RedisNews(f"unix://{place}")
    async with news.hearing("a") as told:
        with redis.running() as url:
            place.symlink_to(url.removeprefix("unix://"))
            await news._listening.wait()
            await news.publish(["a"])
            await told.wait()
            await news.close()


async def test_a_store_is_opened_with_the_password_of_the_environment(
    postgres: Postgres, address: str
) -> None:
    environ = {"REDIS_PASSWORD": PASSWORD}
    kept = open_store(await postgres.database(), Keeping(), environ, address)
    assert isinstance(kept, PostgresStore)
    await kept._news.publish(["a"])
    await kept.close()


def test_an_address_that_is_none_is_not_repeated() -> None:
    with pytest.raises(StoreError, match="no URL") as caught:
        open_store("postgresql:///x", Keeping(), {}, f"rediss//:{PASSWORD}@x")
    assert PASSWORD not in str(caught.value)


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "redis.asyncio")
    monkeypatch.delitem(sys.modules, "dragoman.stores.redis_news")
    with pytest.raises(StoreError, match=r'pip install "dragoman\[redis\]"'):
        open_store("postgresql:///", Keeping(), {}, "redis://x")


def test_both_protocols_of_redis_are_read() -> None:
    entry = (b"1-0", {b"name": b"a"})
    assert _entries([[STREAM, [entry]]]) == [[entry]]
    assert _entries({STREAM: [[entry]]}) == [[entry]]
    assert _entries(None) == _entries({}) == []
