"""Pub/sub by Redis: it reaches other servers, and without Redis everything still works."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from dragoman.core.event import Delta, Started
from dragoman.stores import redis as redis_pubsub
from dragoman.stores.base import LogSegment, StoreError
from dragoman.stores.factory import open_store
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.redis import STREAM, RedisPubSub, _entries
from dragoman.stores.retention import Retention
from tests import redis
from tests.postgres import Postgres
from tests.stores.test_postgres import record

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with redis.running(PASSWORD) as url:
        yield url


async def test_append_on_one_server_wakes_waiter_on_another(
    postgres: Postgres, address: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(PostgresStore, "POLL", 1_000.0)
    here, there = (
        PostgresStore(postgres.address, schema=tmp_path.name, pubsub=RedisPubSub(address, PASSWORD))
        for _ in range(2)
    )
    await here.begin(record("a"))
    for place in range(20):
        waiting = asyncio.create_task(there.wait("a", place, 60.0))
        event = Started("a", 50, "m") if place == 0 else Delta(0, 0, "text", "x")
        async with there._pubsub.subscribe("a"):
            await there._pubsub._listening.wait()  # subscribing may give up on a slow server
            await here.append("a", LogSegment(place, (event,)))
            await waiting
    await here.close()
    await there.close()


async def test_stream_holds_only_names_and_is_trimmed(address: str, monkeypatch) -> None:
    monkeypatch.setattr(redis_pubsub, "MAX_LENGTH", 500)
    pubsub = RedisPubSub(address, PASSWORD)
    await pubsub.publish([f"name{place}" for place in range(2_000)])
    pubsub.publish_soon("last")
    await pubsub.close()
    pubsub = RedisPubSub(address, PASSWORD)
    assert await pubsub._redis.xlen(STREAM) < 1_000
    (entry,) = await pubsub._redis.xrevrange(STREAM, count=1)
    assert entry[1] == {b"name": b"last"}
    await pubsub.close()


UNUSED = "Redis cannot be used (ConnectionError): servers poll the database meanwhile."


async def test_without_redis_waiters_poll(postgres: Postgres, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(PostgresStore, "POLL", 0.01)
    monkeypatch.setattr(redis_pubsub, "RETRY", 0.01)
    here, there = (
        PostgresStore(
            postgres.address,
            schema=tmp_path.name,
            pubsub=RedisPubSub(f"unix://{tmp_path}/nothing"),
        )
        for _ in range(2)
    )
    await here.begin(record("a"))
    waiting = asyncio.create_task(there.wait("a", 0, 60.0))
    await here.append("a", LogSegment(0, (Started("a", 50, "m"),)))
    await waiting
    with pytest.raises(StoreError, match="Redis failed"):
        await here._pubsub.publish(["a"])
    await here.close()
    await there.close()


async def test_redis_that_starts_later_is_used(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(redis_pubsub, "RETRY", 0.01)
    place = tmp_path / "socket"
    pubsub = RedisPubSub(f"unix://{place}")
    async with pubsub.subscribe("a") as notified:
        await asyncio.sleep(0.1)  # it is tried several times
        assert caplog.messages == [UNUSED]
        with redis.running() as url:
            place.symlink_to(url.removeprefix("unix://"))
            await pubsub._listening.wait()
            await pubsub.publish(["a"])
            await notified.wait()
            assert caplog.messages == [UNUSED, "Redis answers again."]
            await pubsub.close()


async def test_redis_password_is_read_from_the_environment(
    postgres: Postgres, address: str
) -> None:
    environ = {"REDIS_PASSWORD": PASSWORD}
    store = open_store(await postgres.database(), Retention(), environ, address)
    await store._pubsub.publish(["a"])
    await store.close()


def test_invalid_address_is_not_repeated() -> None:
    with pytest.raises(StoreError, match="no URL") as caught:
        open_store("postgresql:///x", Retention(), {}, f"rediss//:{PASSWORD}@x")
    assert PASSWORD not in str(caught.value)


def test_missing_package_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "redis.asyncio")
    monkeypatch.delitem(sys.modules, "dragoman.stores.redis")
    with pytest.raises(StoreError, match=r"pip install '\.\[redis\]'"):
        open_store("postgresql:///", Retention(), {}, "redis://x")


def test_entries_of_both_redis_protocols_are_read() -> None:
    entry = (b"1-0", {b"name": b"a"})
    assert _entries([[STREAM, [entry]]]) == [[entry]]
    assert _entries({STREAM: [[entry]]}) == [[entry]]
    assert _entries(None) == _entries({}) == []


async def test_entries_of_others_are_passed_over(address: str) -> None:
    """Redis may be shared, and its stream have what no server of ours put there."""
    pubsub = RedisPubSub(address, PASSWORD)
    async with pubsub.subscribe("mine") as notified:
        await pubsub._listening.wait()
        for fields in ({"other": "x"}, {"name": b"\xff\xfe"}, {"name": "mine"}):
            await pubsub._redis.xadd(STREAM, fields)
        async with asyncio.timeout(30):
            await notified.wait()
    await pubsub.close()


async def test_an_answer_of_another_kind_does_not_end_reading(monkeypatch) -> None:
    monkeypatch.setattr(redis_pubsub, "RETRY", 0.01)
    pubsub, answers = RedisPubSub("redis://127.0.0.1:1"), iter((5, []))

    async def newest(*_: object, **__: object) -> object:
        return next(answers)

    async def more(*_: object, **__: object) -> object:
        await asyncio.Event().wait()

    monkeypatch.setattr(pubsub._redis, "xrevrange", newest)
    monkeypatch.setattr(pubsub._redis, "xread", more)
    async with asyncio.timeout(10), pubsub.subscribe("a"):
        await pubsub._listening.wait()
    await pubsub.close()
