"""Files and databases written by earlier versions are migrated with all that they hold."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta, Event, Finished, Started
from dragoman.core.item import FunctionCall, Item, Message, Reasoning
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.stores.base import (
    Conversation,
    LogSegment,
    OutboxMessage,
    Paging,
    Record,
    StoredAnswer,
    call_digest,
    tenant_name,
)
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.schema import POSTGRES, SQLITE
from dragoman.stores.serialize import pack, unpack
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from tests.postgres import Postgres

VERSION = 3
"""Steps that the last version took which packed records whole and gave them random ids."""
CALL = FunctionCall("call_1", "clock", "{}", id="fc_1")
DROPPED = Loss("store", "dropped", 'none here, "action": "told"')
EVENTS: tuple[Event, ...] = (
    Started("f0", 50, "m", (DROPPED,)),
    Delta(0, 0, "text", "half"),
    Delta(0, 0, "text", "whole"),
    Finished("completed"),
)


def record(id: str, created_at: int, **fields: object) -> Record:
    items = (Message("user", f"ask {id}", id=f"msg_{id}_in0"),)
    given = {
        "tenant": "t",
        "wire": "responses",
        "request": Request(model="m", items=items),
        "owner": "me",
    }
    return Record(id=id, created_at=created_at, lease=90.0, **(given | fields))


def answer(id: str, *items: Item) -> Response:
    losses = (DROPPED,)
    return Response(
        id=id, created_at=50, model="m", status="completed", output=items, losses=losses
    )


# In the order of their ids they are not in the order of their times.
FIRST = record("f0", 50, status="completed", response=answer("f0", Reasoning(id="rs_1"), CALL))
SECOND = record(
    "a1", 60, previous="f0", status="failed", response=replace(answer("a1"), status="failed")
)
LIVE = record("c2", 70, status="queued", conversation="v", metadata={"k": "w"}, background=True)
TALK = Conversation(id="v", tenant="t", created_at=50, metadata={"k": "v"})
SAID = Message("user", "said", id="msg_said")
MESSAGE = OutboxMessage(id="evt_1", target="http://x", body=b"{}", due=10.0)

Statement = tuple[str, list[object]]


def packed(value: object) -> bytes:
    """A value as the first version packed it, which had another name for a dropped field."""
    data = pack(value)
    return data.replace(b"\xa7dropped", b"\xa4told").replace(b': "dropped"', b': "told"')


def _response(record: Record, length: int) -> Statement:
    bare = replace(record, status="in_progress", response=None, metadata=None)
    values: list[object] = [record.id, record.tenant, record.wire, record.created_at]
    values += [record.status, record.running, record.previous, record.conversation]
    values += [record.owner, record.lease, length, packed(bare)]
    values += [
        None if record.response is None else packed(record.response),
        packed(record.metadata),
    ]
    if record.running:
        values[-3] = packed(replace(bare, status=record.status))
    return (
        """INSERT INTO responses (id, tenant, wire, created_at, status, running, previous,
            conversation, owner, lease, length, record, response, metadata, model) VALUES
            ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 'm')""",
        values,
    )


def _segment(id: str, first: int, *events: Event) -> Statement:
    return "INSERT INTO stretches VALUES ($1, $2, 50, $3)", [id, first, packed(events)]


WRITTEN: list[Statement] = [
    _response(FIRST, 4),
    _response(SECOND, 0),
    _response(LIVE, 1),
    _segment("f0", 0, *EVENTS[:2]),
    _segment("f0", 2, *EVENTS[2:]),
    _segment("c2", 0, Started("c2", 70, "m")),
    ("INSERT INTO homes VALUES ('t', $1, $2)", ["msg_f0_in0", "f0"]),
    ("INSERT INTO homes VALUES ('t', $1, $2)", ["rs_1", "f0"]),
    ("INSERT INTO calls VALUES ('t', $1, $2)", [call_digest(CALL), "f0"]),
    ("INSERT INTO conversations VALUES ('v', 't', 50, $1)", [pack(TALK)]),
    ("INSERT INTO items VALUES ('v', 0, 'msg_said', $1)", [pack(SAID)]),
    ("INSERT INTO letters VALUES ('evt_1', 'http://x', $1, 10.0, 0)", [b"{}"]),
]


def _as_of_step(version: int) -> list[Statement]:
    """What a file of that step holds: the outbox came with step 2, models and calls with step 3."""
    later = {1: ("INTO calls", "INTO letters"), 2: ("INTO calls",), 3: ()}[version]
    held = [(text, values) for text, values in WRITTEN if not any(each in text for each in later)]
    if version < 3:
        held = [
            (text.replace(", model)", ")").replace(", 'm')", ")"), values) for text, values in held
        ]
    return held


def _earlier_file(path: Path, version: int = VERSION) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for step in SQLITE[:version]:
            connection.executescript(step)
        connection.execute(f"PRAGMA user_version = {version}")
        for statement, values in _as_of_step(version):
            named = {str(place): value for place, value in enumerate(values, 1)}
            connection.execute(statement, named)


async def _earlier_database(address: str, version: int = VERSION) -> None:
    connection = await asyncpg.connect(address, server_settings={"search_path": "dragoman"})
    await connection.execute("CREATE SCHEMA dragoman; CREATE TABLE steps (step INTEGER)")
    for number, step in enumerate(POSTGRES[:version], 1):
        await connection.execute(step)
        await connection.execute("INSERT INTO steps VALUES ($1)", number)
    for statement, values in _as_of_step(version):
        await connection.execute(statement, *values)
    await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "sqlite":
        _earlier_file(tmp_path / "store.db")
        opened = SqliteStore(tmp_path / "store.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        address = await server.database()
        await _earlier_database(address)
        opened = PostgresStore(address)
    await opened.ready()
    yield opened
    await opened.close()


def name(store: Store) -> str:
    """The tenant of the rows, as the store calls it now."""
    return tenant_name(store.secret, "t")


def read(record: Record, store: Store) -> Record:
    """A record as it is read now: with the items of its request as they were given."""
    items = tuple(replace(item, id=None) for item in record.request.items)
    asked = replace(record.request, items=items)
    return replace(record, request=asked, tenant=name(store))


def ended(record: Record, store: Store) -> Record:
    return replace(read(record, store), owner="", lease=0.0)


def test_text_that_is_no_unicode_of_the_first_version_is_read() -> None:
    odd = replace(FIRST, metadata={"half": "\ud83d"})
    assert packed(odd)[:1] == b"j"
    assert unpack(packed(odd), Record) == odd


async def test_store_of_an_earlier_version_is_read_listed_and_deleted(store: Store) -> None:
    assert await store.get(name(store), "f0") == ended(FIRST, store)
    assert await store.get(name(store), "c2") == read(LIVE, store)
    assert await store.chain(name(store), "a1") == (ended(FIRST, store), ended(SECOND, store))
    assert (await store.find_items(name(store), ("msg_f0_in0",)))[
        "msg_f0_in0"
    ] == FIRST.request.items[0]
    assert (await store.find_items(name(store), ("rs_1",)))["rs_1"] == Reasoning(id="rs_1")
    (found,) = await store.find_answers(name(store), [call_digest(CALL)])
    assert isinstance(FIRST.response, Response)
    assert found == StoredAnswer("m", FIRST.response)
    for first in range(len(EVENTS) + 1):
        log = await store.log("f0", first)
        assert tuple(event for segment in log for event in segment.events) == EVENTS[first:]
    assert await store.log("a1") == ()  # it was swept, and is not made up from the response
    assert await store.get_conversation(name(store), "v") == replace(TALK, tenant=name(store))
    assert await store.get_item(name(store), "v", "msg_said") == SAID
    assert await store.take_due("http://x", 10.0, 20.0) == (replace(MESSAGE, due=20.0, attempts=1),)
    await store.put(
        record("018f", 80, tenant=name(store), status="completed", response=answer("018f"))
    )
    page = await store.list_responses(name(store), None, Paging())
    assert [each.id for each in page.items] == ["018f", "c2", "a1", "f0"]
    assert await store.delete(name(store), "f0")
    assert await store.log("f0") == ()
    assert not await store.find_items(name(store), ("rs_1",))
    assert await store.find_answers(name(store), [call_digest(CALL)]) == ()
    assert await store.chain(name(store), "a1") == ()


async def test_live_run_of_an_earlier_version_continues(store: Store) -> None:
    assert await store.renew_leases("me", ["c2", "f0"], 99.0) == {"f0": True}
    with pytest.raises(Exception, match="gap"):
        await store.append("c2", LogSegment(2, EVENTS[1:2], "me"))
    await store.append("c2", LogSegment(1, EVENTS[1:2], "me"))
    (orphan,) = [run async for run in store.take_orphans("you", 100.0, 130.0)]
    assert orphan == replace(read(LIVE, store), owner="you", lease=130.0)
    assert await store.finish("c2", answer("c2"), items=[Message("user", "new", id="msg_said")])
    page = await store.list_items(name(store), "v")
    assert [item.id for item in page.items] == ["msg_said", "msg_said_1"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_store_of_the_first_steps_takes_all_that_follow(
    request, tmp_path, kind, version
) -> None:
    store: Store
    if kind == "sqlite":
        _earlier_file(tmp_path / "store.db", version)
        store = SqliteStore(tmp_path / "store.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        address = await server.database()
        await _earlier_database(address, version)
        store = PostgresStore(address)
    await store.ready()
    assert await store.get(name(store), "c2") == read(LIVE, store)
    assert await store.chain(name(store), "a1") == (ended(FIRST, store), ended(SECOND, store))
    assert (await store.find_items(name(store), ("rs_1",)))["rs_1"] == Reasoning(id="rs_1")
    assert await store.find_answers(name(store), [call_digest(CALL)]) == ()
    assert sum(len(segment.events) for segment in await store.log("f0")) == len(EVENTS)
    assert await store.get_item(name(store), "v", "msg_said") == SAID
    assert len(await store.take_due("http://x", 10.0, 20.0)) == version - 1
    await store.append("c2", LogSegment(1, EVENTS[1:2], "me"))
    assert await store.finish("c2", answer("c2", CALL), messages=[MESSAGE] if version < 2 else [])
    await store.put(
        record("018f", 80, tenant=name(store), status="completed", response=answer("018f"))
    )
    page = await store.list_responses(name(store), None, Paging())
    assert [each.id for each in page.items] == ["018f", "c2", "a1", "f0"]
    await store.close()
