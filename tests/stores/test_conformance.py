"""The contract of `Store`, for every store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta, Finished, Started
from dragoman.core.fold import unfold
from dragoman.core.item import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Thought,
    Token,
)
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import Response
from dragoman.stores.base import (
    Conversation,
    LogSegment,
    OutboxMessage,
    Paging,
    Record,
    Room,
    StoredAnswer,
    StoreError,
    TooMuchError,
    call_digest,
)
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.retention import Retention
from dragoman.stores.serialize import pack
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from tests.postgres import Postgres

RETENTION = Retention(max_age=100.0, max_log_age=10.0, max_responses=3)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore(RETENTION)
    elif request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        opened = PostgresStore(server.address, RETENTION, schema=tmp_path.name)
    else:
        opened = SqliteStore(tmp_path / "deep" / "store.db", RETENTION)
    yield opened
    await opened.close()


def record(id: str, **fields: object) -> Record:
    asked = Request(model="m", items=(Message("user", f"ask {id}", id=f"msg_{id}"),))
    given = {"id": id, "tenant": "t", "wire": "responses", "created_at": 50, "request": asked}
    return Record(**(given | fields))


def answer(id: str, text: str = "said") -> Response:
    said = Message("assistant", text, id=f"msg_{id}_0", status="completed")
    return Response(id=id, created_at=50, model="m", status="completed", output=(said,))


EVENTS = (
    Started("a", 50, "m"),
    Delta(0, 0, "text", "half \ud83d"),
    Delta(0, 0, "annotation", Annotation("url_citation", 0, 4, url="http://x")),
    Finished("completed"),
)


async def test_ready_returns_each_time(store: Store) -> None:
    await store.ready()
    await store.ready()


async def test_begun_response_is_found_only_by_its_tenant(store: Store) -> None:
    await store.begin(record("a", metadata={"k": 10**30}, background=True))
    found = await store.get("t", "a")
    assert found == record("a", metadata={"k": 10**30}, background=True)
    assert await store.get("other", "a") is None
    assert await store.get("t", "b") is None


@pytest.mark.parametrize("id", ["nothing", "", "nul\0", "half \ud83d", "x" * 10_000])
async def test_unknown_id_gives_nothing(store: Store, id) -> None:
    assert await store.get("t", id) is None
    assert await store.chain("t", id) == ()
    assert not await store.find_items("t", (id,))
    assert await store.log(id) == ()
    assert not await store.delete("t", id)
    assert not await store.request_cancel("t", id)
    assert await store.get_conversation("t", id) is None
    assert (await store.list_responses("t", None, Paging(after=id))).items == ()


@pytest.mark.parametrize("id", ["nul\0", "half \ud83d"])
async def test_item_with_odd_id_is_stored_and_found(store: Store, id) -> None:
    said = Message("user", "odd", id=id)
    await store.begin(record("a", request=Request(model="m", items=(said,))))
    assert await store.find_items("t", (id,)) == {id: said}
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50), [said])
    assert await store.get_item("t", "v", id) == said
    page = await store.list_items("t", "v", Paging(after=id))
    assert page.items == ()
    assert await store.remove_item("t", "v", id)


async def test_item_of_two_responses_survives_deletion_of_one(store: Store) -> None:
    said = Message("user", "again", id="msg_x")
    for id in "abc":
        await store.begin(record(id, request=Request(model="m", items=(said,))))
    for id in "ca":
        assert await store.delete("t", id)
        assert (await store.find_items("t", ("msg_x",)))["msg_x"] == said
    assert await store.delete("t", "b")
    assert not await store.find_items("t", ("msg_x",))


async def test_begin_with_taken_id_fails(store: Store) -> None:
    await store.begin(record("a"))
    with pytest.raises(StoreError):
        await store.begin(record("a", tenant="other"))


async def test_log_is_read_in_order_from_any_index(store: Store) -> None:
    await store.begin(record("a"))
    await store.append("a", LogSegment(0, EVENTS[:1]))
    await store.append("a", LogSegment(1, EVENTS[1:3]))
    assert await store.finish("a", answer("a"), LogSegment(3, EVENTS[3:]))
    for first in range(len(EVENTS) + 1):
        log = await store.log("a", first)
        assert tuple(event for stretch in log for event in stretch.events) == EVENTS[first:]
        assert all(stretch.first >= first and stretch.events for stretch in log)
        found = 0  # in pieces, as slow readers take it
        while some := await store.log("a", first + found, 2):
            assert len(some) <= 2
            found += sum(len(stretch.events) for stretch in some)
        assert found == len(EVENTS) - first
    assert await store.log("nothing") == ()


async def test_segment_that_does_not_follow_the_log_is_refused(store: Store) -> None:
    await store.begin(record("a"))
    await store.append("a", LogSegment(0, EVENTS[:2]))
    for first in (0, 1, 3):
        with pytest.raises(StoreError, match="gap"):
            await store.append("a", LogSegment(first, EVENTS[2:3]))
    with pytest.raises(StoreError, match="gap"):
        await store.finish("a", answer("a"), LogSegment(9, EVENTS[3:]))
    found = await store.get("t", "a")
    assert found.running


async def test_segment_that_its_owner_stores_again_replaces_itself(store: Store) -> None:
    await store.begin(record("a"))
    for first, last in ((0, 1), (1, 3), (1, 3), (1, 4)):  # the database's answers were lost
        await store.append("a", LogSegment(first, EVENTS[first:last]))
    for first in (1, 4):  # of a server that has lost the run
        with pytest.raises(StoreError, match="another's"):
            await store.append("a", LogSegment(first, EVENTS[1:], "another"))
    assert await store.finish("a", answer("a"), LogSegment(1, EVENTS[1:]))
    log = [(segment.first, segment.events) for segment in await store.log("a")]
    assert log == [(0, EVENTS[:1]), (1, EVENTS[1:])]


async def test_run_is_finished_once(store: Store) -> None:
    await store.begin(record("a", status="queued"))
    assert await store.finish("a", answer("a"))
    assert not await store.finish("a", answer("a", "other"))
    assert not await store.finish("b", answer("b"))
    found = await store.get("t", "a")
    assert (found.status, found.response) == ("completed", answer("a"))
    with pytest.raises(StoreError, match="No response a"):
        await store.append("a", LogSegment(0, EVENTS[:1]))
    with pytest.raises(StoreError, match="No response b"):
        await store.append("b", LogSegment(0, EVENTS[:1]))


async def test_chain_lists_the_earliest_first_without_copies(store: Store) -> None:
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        await store.begin(record(id, previous=previous))
        await store.finish(id, answer(id))
    assert [found.id for found in await store.chain("t", "c")] == ["a", "b", "c"]
    assert [len(found.request.items) for found in await store.chain("t", "c")] == [1, 1, 1]
    assert await store.chain("other", "c") == ()
    await store.delete("t", "a")
    assert await store.chain("t", "c") == ()


async def test_wait_returns_on_append_on_finish_and_after_its_timeout(store: Store) -> None:
    await store.begin(record("a"))
    await store.wait("a", 0, 0.01)
    waiting = asyncio.create_task(store.wait("a", 0, 30))
    await asyncio.sleep(0)
    assert not waiting.done()
    await store.append("a", LogSegment(0, EVENTS[:1]))
    await waiting
    waiting = asyncio.create_task(store.wait("a", 1, 30))
    await store.finish("a", answer("a"))
    await waiting
    await store.wait("a", 99, 30)
    await store.wait("nothing", 0, 30)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_follow_one_another_without_gaps(store: Store, order) -> None:
    for place, id in enumerate("abcde"):
        await store.begin(record(id, created_at=place // 2))
    await store.begin(record("z", tenant="other"))
    await store.begin(record("y", wire="chat"))
    seen: list[str] = []
    after = None
    while True:
        page = await store.list_responses(
            "t", "responses", Paging(after=after, limit=2, order=order)
        )
        seen += [found.id for found in page.items]
        if not page.more:
            break
        after = seen[-1]
    assert seen == (list("abcde") if order == "asc" else list("edcba"))
    whole = await store.list_responses("t", None, Paging(limit=100))
    assert len(whole.items) == 6
    assert not (await store.list_responses("t", None, Paging(after="nothing"))).items


async def test_set_metadata_changes_only_the_metadata(store: Store) -> None:
    await store.begin(record("a"))
    assert await store.set_metadata("t", "a", {"k": 1})
    assert not await store.set_metadata("other", "a", {"k": 2})
    assert await store.get("t", "a") == record("a", metadata={"k": 1})


async def test_deleted_response_is_gone_with_its_log(store: Store) -> None:
    await store.begin(record("a"))
    await store.append("a", LogSegment(0, EVENTS[:1]))
    assert not await store.delete("other", "a")
    assert await store.delete("t", "a")
    assert not await store.delete("t", "a")
    assert await store.log("a") == ()
    assert await store.renew_leases("", ["a"], 60.0) == {"a": False}


async def test_lease_is_renewed_by_its_owner_until_run_ended_or_was_cancelled(store: Store) -> None:
    for id, owner in ("a", "me"), ("b", "me"), ("c", "me"), ("e", "another"):
        await store.begin(record(id, owner=owner, lease=10.0))
    await store.finish("c", answer("c"))
    assert await store.request_cancel("t", "b")
    assert not await store.request_cancel("other", "a")
    lost = {"b": False, "c": True, "d": False, "e": True}
    assert await store.renew_leases("me", list("abcde"), 20.0) == lost
    assert (await store.get("t", "a")).lease == 20.0


async def test_orphan_is_taken_by_one_server_only(store: Store) -> None:
    await store.begin(record("a", owner="dead", lease=10.0))
    await store.begin(record("b", owner="alive", lease=90.0))
    await store.begin(record("c", owner="me", lease=10.0))
    await store.begin(record("d", owner="dead", lease=10.0))
    await store.finish("d", answer("d"))

    async def taken_by(owner: str) -> list[Record]:
        return [run async for run in store.take_orphans(owner, 50.0, 60.0)]

    first, second = await asyncio.gather(taken_by("me"), taken_by("you"))
    taken = [(found.id, found.lease) for found in (*first, *second)]
    assert sorted(taken) == [("a", 60.0), ("c", 60.0)]  # c: its owner is another to "you"


async def test_sweep_deletes_old_and_surplus_responses_but_not_live_runs(store: Store) -> None:
    await store.begin(record("old", created_at=1))
    await store.finish("old", answer("old"))
    for place, id in enumerate("abcd"):
        await store.begin(record(id, created_at=100 + place))
        await store.append(id, LogSegment(0, EVENTS[:1]))
        if id != "a":
            await store.finish(id, answer(id))
    await store.create_conversation(
        Conversation(id="v", tenant="t", created_at=1), [Message("user", "", id="1")]
    )
    assert await store.sweep(112.5) == 2
    left = await store.list_responses("t", None, Paging(limit=100, order="asc"))
    assert [found.id for found in left.items] == ["a", "c", "d"]
    assert await store.log("a")
    assert await store.log("c") == ()
    assert await store.log("d")
    assert await store.get_conversation("t", "v") is None
    assert await store.sweep(112.5) == 0


async def test_sweeps_at_the_same_time_delete_no_more_than_one(store: Store) -> None:
    for number in range(5):
        await store.begin(record(f"r{number}"))
        await store.finish(f"r{number}", answer(f"r{number}"))
    gone = await asyncio.gather(*[store.sweep(60.0) for _ in range(4)])
    assert sum(gone) == 2
    found = [await store.get("t", f"r{number}") for number in range(5)]
    assert [each is None for each in found] == [True, True, False, False, False]


async def test_conversation_items_are_added_paged_and_removed(store: Store) -> None:
    talk = Conversation(id="v", tenant="t", created_at=50, metadata={"k": "v"})
    said = [Message("user", f"{n}", id=f"m{n}") for n in range(4)]
    await store.create_conversation(talk, said[:1])
    with pytest.raises(StoreError, match="a conversation v already"):
        await store.create_conversation(talk)
    assert await store.add_items("t", "v", said[1:])
    assert await store.get_conversation("t", "v") == talk
    assert await store.get_conversation("other", "v") is None
    found = await store.list_items("t", "v")
    assert (list(found.items), found.more) == (said, False)
    page = await store.list_items("t", "v", Paging(limit=2, order="asc"))
    assert (list(page.items), page.more) == (said[:2], True)
    page = await store.list_items("t", "v", Paging(after="m1", limit=2, order="desc"))
    assert (list(page.items), page.more) == ([said[0]], False)
    assert await store.get_item("t", "v", "m2") == said[2]
    assert await store.get_item("other", "v", "m2") is None
    assert await store.remove_item("t", "v", "m2")
    assert not await store.remove_item("t", "v", "m2")
    assert not await store.remove_item("other", "v", "m1")
    assert await store.set_conversation_metadata("t", "v", {"k": "w"})
    assert await store.get_conversation("t", "v") == replace(talk, metadata={"k": "w"})
    assert await store.delete_conversation("t", "v")
    assert await store.get_conversation("t", "v") is None
    assert await store.list_items("t", "v") is None


async def test_finish_adds_items_to_conversation_and_renames_taken_ids(store: Store) -> None:
    await store.create_conversation(
        Conversation(id="v", tenant="t", created_at=50), [Message("user", "", id="1")]
    )
    await store.begin(record("a", conversation="v"))
    asked, said = Message("user", "ask", id="1"), Message("assistant", "said", id="2")
    assert await store.finish("a", answer("a"), items=[asked, said])
    found = await store.list_items("t", "v")
    assert [item.id for item in found.items] == ["1", "1_1", "2"]
    await store.begin(record("b", conversation="gone"))
    assert await store.finish("b", answer("b"), items=[said])


async def test_input_and_output_items_are_found_by_id(store: Store) -> None:
    await store.begin(record("a"))
    await store.finish("a", answer("a"))
    assert (await store.find_items("t", ("msg_a",)))["msg_a"] == record("a").request.items[0]
    assert (await store.find_items("t", ("msg_a_0",)))["msg_a_0"] == answer("a").output[0]
    assert not await store.find_items("other", ("msg_a",))
    assert not await store.find_items("t", ("nothing",))
    await store.delete("t", "a")
    assert not await store.find_items("t", ("msg_a",))


def called(id: str, *items: Item) -> Response:
    return replace(answer(id), output=items)


THOUGHT = Reasoning((Thought("Hm."),), encrypted="gAAA/+=", extra={"chat": {"x": [1.5, "\ud83d"]}})
CALL = FunctionCall("call_0", "clock", '{"city": "Rome", "at": 1.0}')
OTHER = CustomToolCall("call_1", "sh", "ls \0")


async def test_answer_with_reasoning_is_found_by_its_calls(store: Store) -> None:
    made = called("a", THOUGHT, CALL, OTHER)
    await store.begin(record("a"))
    assert await store.find_answers("t", [call_digest(CALL)]) == ()
    await store.finish("a", made)
    for asked in ([CALL], [OTHER], [OTHER, CALL, CALL], [replace(CALL, call_id="call_9"), CALL]):
        assert await store.find_answers("t", [call_digest(call) for call in asked]) == (
            StoredAnswer("m", made),
        )
    tight = replace(CALL, id="fc", arguments='{"at":1,"city":"Rome"}')
    assert await store.find_answers("t", [call_digest(tight)]) == (StoredAnswer("m", made),)
    others = [
        replace(CALL, call_id="call_9"),
        replace(CALL, name="other"),
        replace(CALL, arguments="{}"),
        replace(CALL, arguments="{" * 100_000),
    ]
    assert await store.find_answers("t", [call_digest(call) for call in others]) == ()
    assert await store.find_answers("other", [call_digest(CALL)]) == ()
    assert await store.find_answers("t", []) == ()


async def test_latest_answer_that_made_a_call_is_found(store: Store) -> None:
    for id in "ab":
        await store.begin(record(id, request=Request(model=f"model {id}", items=())))
        await store.finish(id, called(id, THOUGHT, CALL))
    found = await store.find_answers("t", [call_digest(CALL)])
    assert found == (StoredAnswer("model b", called("b", THOUGHT, CALL)),)
    assert await store.delete("t", "a")
    assert await store.find_answers("t", [call_digest(CALL)]) == found
    assert await store.delete("t", "b")
    assert await store.find_answers("t", [call_digest(CALL)]) == ()


async def test_answers_are_swept_with_their_responses(store: Store) -> None:
    calls = [replace(CALL, call_id=f"call_{number}") for number in range(120)]
    for number, call in enumerate(calls):
        await store.begin(record(f"{number:03}", created_at=50 + number))
        await store.finish(f"{number:03}", called(f"{number:03}", THOUGHT, call))
    wanted = [call_digest(call) for call in calls]
    found = await store.find_answers("t", wanted)
    assert sorted(each.response.id for each in found) == [f"{n:03}" for n in range(120)]
    await store.sweep(100.0)
    found = await store.find_answers("t", wanted)
    assert sorted(each.response.id for each in found) == ["117", "118", "119"]


async def test_answer_without_reasoning_is_not_found_by_its_calls(store: Store) -> None:
    await store.begin(record("a"))
    await store.finish("a", called("a", CALL))
    assert await store.find_answers("t", [call_digest(CALL)]) == ()


async def test_unknown_conversation_is_not_changed(store: Store) -> None:
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50))
    for tenant, id in (("other", "v"), ("t", "w")):
        assert not await store.add_items(tenant, id, [Message("user", "", id="1")])
        assert not await store.set_conversation_metadata(tenant, id, {})
        assert not await store.delete_conversation(tenant, id)
        assert await store.list_items(tenant, id) is None
        assert await store.get_item(tenant, id, "1") is None


async def test_conversation_item_without_unique_id_is_refused(store: Store) -> None:
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50))
    await store.add_items("t", "v", [Message("user", "", id="1")])
    for id in (None, "1"):
        with pytest.raises(StoreError, match="an id of its own"):
            await store.add_items("t", "v", [Message("user", "", id=id)])


async def test_message_is_due_after_finish_until_settled(store: Store) -> None:
    message = OutboxMessage(id="l", target="http://x", body=b"said", due=10.0)
    await store.begin(record("a"))
    assert await store.finish("a", answer("a"), messages=[message])
    again = replace(message, id="m")
    assert not await store.finish("a", answer("a"), messages=[again])
    assert await store.take_due("http://x", 9.0, 20.0) == ()
    assert await store.take_due("http://x", 10.0, 20.0) == (replace(message, due=20.0, attempts=1),)
    assert await store.take_due("http://x", 10.0, 20.0) == ()
    assert await store.take_due("http://x", 20.0, 30.0) == (replace(message, due=30.0, attempts=2),)
    await store.settle("l", 25.0)
    assert await store.take_due("http://x", 25.0, 40.0) == (replace(message, due=40.0, attempts=3),)
    await store.settle("l")
    await store.settle("nothing", 1.0)
    assert await store.take_due("http://y", 99.0, 99.0) == ()
    assert await store.take_due("http://x", 99.0, 99.0) == ()


async def test_message_is_taken_by_one_caller_the_earliest_first(store: Store) -> None:
    messages = [
        OutboxMessage(id=f"l{n}", target="http://x", body=b"", due=float(n)) for n in range(40)
    ]
    await store.begin(record("a"))
    await store.finish("a", answer("a"), messages=messages)
    taken = await asyncio.gather(*(store.take_due("http://x", 99.0, 500.0, 10) for _ in range(6)))
    ids = [message.id for some in taken for message in some]
    assert len(ids) == len(set(ids))
    while more := await store.take_due("http://x", 99.0, 500.0, 10):  # locked rows are passed over
        ids += [message.id for message in more]
    assert sorted(ids) == sorted(message.id for message in messages)
    await store.begin(record("b"))
    await store.finish("b", answer("b"), messages=[replace(messages[0], id="old")])
    await store.sweep(101.0)
    assert await store.take_due("http://x", 99.0, 500.0) == ()


# ---- whole responses -----------------------------------------------------------------------


def whole(id: str, **fields: object) -> Record:
    """A record that has ended."""
    made = answer(id)
    return record(id, **({"status": "completed", "response": made} | fields))


async def test_response_that_is_put_is_read_as_one_that_ended(store: Store) -> None:
    await store.put(whole("a", metadata={"k": "v"}))
    assert await store.get("t", "a") == whole("a", metadata={"k": "v"})
    assert await store.get("other", "a") is None
    assert (await store.find_items("t", ("msg_a_0",)))["msg_a_0"] == answer("a").output[0]
    assert (await store.find_items("t", ("msg_a",)))["msg_a"] == whole("a").request.items[0]
    await store.begin(record("b", previous="a"))
    assert [found.id for found in await store.chain("t", "b")] == ["a", "b"]
    assert await store.renew_leases("", ["a"], 99.0) == {"a": True}
    after = replace(record("b", previous="a"), owner="me", lease=2e10)
    assert [run async for run in store.take_orphans("me", 1e10, 2e10)] == [after]
    assert not await store.finish("a", answer("a", "other"))
    with pytest.raises(StoreError, match="No response a"):
        await store.append("a", LogSegment(0, EVENTS[:1]))
    await store.wait("a", 99, 30)


async def test_log_of_a_put_response_is_its_unfolding_and_lives_as_long(store: Store) -> None:
    await store.put(whole("a", created_at=20))
    events = tuple(unfold(answer("a")))
    for first in range(len(events) + 1):
        log = await store.log("a", first)
        assert tuple(event for segment in log for event in segment.events) == events[first:]
    assert await store.sweep(100.0) == 0  # older than a log may be, and younger than a response
    assert await store.log("a") != ()
    assert await store.sweep(121.0) == 1
    assert await store.log("a") == ()


async def test_put_adds_to_conversation_outbox_and_calls(store: Store) -> None:
    await store.create_conversation(Conversation(id="v", tenant="t", created_at=50))
    message = OutboxMessage(id="l", target="http://x", body=b"said", due=10.0)
    made = called("a", THOUGHT, CALL)
    said = Message("user", "said", id="1")
    await store.put(whole("a", conversation="v", response=made), [said], [message])
    assert await store.get_item("t", "v", "1") == said
    assert await store.take_due("http://x", 10.0, 20.0) == (replace(message, due=20.0, attempts=1),)
    assert await store.find_answers("t", [call_digest(CALL)]) == (StoredAnswer("m", made),)


async def test_id_that_is_taken_fails_one_put_of_many(store: Store) -> None:
    await store.put(whole("r5"))
    results = await asyncio.gather(
        *(store.put(whole(f"r{n}")) for n in range(10)), return_exceptions=True
    )
    assert [n for n, result in enumerate(results) if result is not None] == [5]
    assert isinstance(results[5], StoreError)
    for n in range(10):
        assert await store.get("t", f"r{n}") == whole(f"r{n}")


async def test_record_that_has_not_ended_is_no_whole_response(store: Store) -> None:
    with pytest.raises(ValueError, match="has not ended"):
        await store.put(record("a"))


# ---- large parts ---------------------------------------------------------------------------


TOOLS = (FunctionTool("clock", "Tells the time. " * 200, {"type": "object"}),)
LONG = "Be kind. " * 500


def large(id: str, turns: int, **fields: object) -> Record:
    """A request that sends a whole history again, some items with ids of their own."""
    items = tuple(
        Message("user", f"turn {n} " * 50, id=f"msg_own_{n}" if n % 2 else None)
        for n in range(turns)
    )
    asked = Request(model="m", items=items, tools=TOOLS, instructions=LONG)
    return whole(id, request=asked, **fields)


async def test_large_values_are_counted_before_they_are_read(store: Store) -> None:
    told: list[int] = []

    def refuse(size: int) -> None:
        told.append(size)
        raise TooMuchError

    text = "x" * 100_000
    asked = Request(model="m", items=(Message("user", text, id="msg_own"),))
    await store.put(whole("in", request=asked))
    await store.put(whole("out", response=answer("out", text)))
    await store.begin(record("on"))
    for place in range(5):
        await store.append("on", LogSegment(place, (Delta(0, 0, "text", text),)))
    talk = Conversation(id="v", tenant="t", created_at=1)
    await store.create_conversation(talk, (Message("user", text, id="msg_v"),))
    reads: dict[str, Callable[[Room], Awaitable[object]]] = {
        "request": lambda room: store.get("t", "in", room),
        "response": lambda room: store.get("t", "out", room),
        "chain": lambda room: store.chain("t", "out", room),
        "chain of requests": lambda room: store.chain("t", "in", room),
        "page": lambda room: store.list_responses("t", None, Paging(), room),
        "items": lambda room: store.list_items("t", "v", room=room),
        "item": lambda room: store.get_item("t", "v", "msg_v", room),
        "reference": lambda room: store.find_items("t", ("msg_own",), room),
    }
    for name, read in reads.items():
        with pytest.raises(TooMuchError):
            await read(Room(count=refuse))
        assert 100_000 < told.pop() < 110_000, name
        held: list[int] = []
        assert await read(Room(count=held.append)) == await read(Room()), name
        assert len(held) == (2 if name in ("page", "reference") else 1)
        assert sum(held) == 0 if name == "reference" else sum(held) > 100_000
    size, together = await store.log_size("on", 4)
    assert 500_000 < size < 501_000
    assert 400_000 < await store.size_of_log("on", 0, 4) <= together < 401_000
    assert await store.log_size("out", 4) == (len(pack(answer("out", text))),) * 2
    assert await store.log_size("none", 4) == (0, 0)


async def test_large_requests_come_back_as_they_were(store: Store) -> None:
    odd = Message("user", "half \ud83d " * 1_000, id="msg_odd")
    asked = Request(model="m", items=(odd,), tools=TOOLS, instructions=LONG + "\ud83d")
    strange = whole("b", request=asked, previous="a")
    await store.put(large("a", 40))
    await store.put(strange)
    await store.put(large("c", 300, previous="b"))
    assert await store.get("t", "a") == large("a", 40)
    expected = (large("a", 40), strange, large("c", 300, previous="b"))
    assert await store.chain("t", "c") == expected
    assert (await store.find_items("t", ("msg_own_17",)))["msg_own_17"] == large(
        "a", 40
    ).request.items[17]
    assert (await store.find_items("t", ("msg_c_in20",)))["msg_c_in20"] == large("c", 300).items[20]


async def test_part_outlives_one_of_its_responses_and_not_the_last(store: Store) -> None:
    for id in "abc":
        await store.put(large(id, 40))
    await store.put(large("d", 40, tenant="other"))
    for gone, left in (("a", "bc"), ("c", "b")):
        assert await store.delete("t", gone)
        for id in left:
            assert await store.get("t", id) == large(id, 40)
    assert await store.delete("t", "b")
    assert await store.get("other", "d") == large("d", 40, tenant="other")
    await store.put(large("e", 40))
    assert await store.get("t", "e") == large("e", 40)
    await store.sweep(1e6)
    await store.put(large("f", 40))
    assert await store.get("t", "f") == large("f", 40)


async def test_chain_does_not_cross_tenants(store: Store) -> None:
    await store.put(whole("a", tenant="other"))
    await store.put(whole("b", previous="a"))
    assert await store.chain("t", "b") == ()


async def test_deltas_of_every_kind_come_back_as_they_were(store: Store) -> None:
    words = [Delta(0, 0, "text", word) for word in ("a", "", "half \ud83d", "b")]
    events = (
        *words,
        Delta(0, 0, "text", "c", (Token("c", -0.5),)),
        *words,
        Delta(0, 1, "text", "other part"),
        Delta(1, 1, "text", "other item"),
        Delta(1, 1, "annotation", Annotation("url_citation", 0, 4, url="http://x")),
        Delta(1, 1, "reasoning", "other kind"),
        Delta(1, 1, "text", "and back"),
    )
    await store.begin(record("a"))
    await store.append("a", LogSegment(0, events))
    for first in range(len(events)):
        (segment,) = await store.log("a", first)
        assert segment == LogSegment(first, events[first:])


@pytest.mark.parametrize("lease", [50.0, 52.0])
async def test_run_is_no_orphan_until_its_lease_ends(store: Store, lease) -> None:
    await store.begin(record("a", owner="me", lease=lease))
    assert [run async for run in store.take_orphans("you", 50.0, 99.0)] == []
    await store.begin(record("b", owner="dead", lease=49.0))
    (taken,) = [run async for run in store.take_orphans("you", 50.0, 99.0)]
    assert taken.id == "b"
    (taken,) = [run async for run in store.take_orphans("you", lease + 0.1, 99.0)]
    assert (taken.id, taken.owner, taken.lease) == ("a", "you", 99.0)


async def test_failed_write_leaves_nothing_though_others_beside_it_stand(store: Store) -> None:
    unnamed = [Message("user", "one", id="1"), Message("user", "two", id="1")]
    talks = [Conversation(id=f"v{n}", tenant="t", created_at=50) for n in range(6)]
    results = await asyncio.gather(
        *(
            store.create_conversation(talk, unnamed if n == 3 else unnamed[:1])
            for n, talk in enumerate(talks)
        ),
        return_exceptions=True,
    )
    assert [n for n, result in enumerate(results) if result is not None] == [3]
    for n in range(6):
        page = await store.list_items("t", f"v{n}")
        assert (page is None) == (n == 3)
    await store.create_conversation(talks[3], unnamed[:1])
    with pytest.raises(StoreError, match="an id of its own"):
        await store.add_items("t", "v3", [Message("user", "new", id="9"), unnamed[0]])
    assert await store.get_item("t", "v3", "9") is None


async def test_many_kinds_of_writes_at_once_all_succeed(store: Store) -> None:
    async def live(n: int) -> None:
        await store.begin(record(f"s{n}"))
        assert await store.finish(f"s{n}", answer(f"s{n}"), LogSegment(0, EVENTS))

    await asyncio.gather(
        *(store.put(whole(f"r{n}")) for n in range(100)),
        *(live(n) for n in range(50)),
        *(store.put(large(f"l{n}", 20)) for n in range(20)),
    )
    page = await store.list_responses("t", None, Paging(limit=500))
    assert len(page.items) == 170
    assert all(found.response == answer(found.id) for found in page.items)
