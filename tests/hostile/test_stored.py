"""What is stored is counted before it is read, and so is what is collected of an answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.fold import unfold
from dragoman.core.item import Item, Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.limits import Budget
from dragoman.server.responder import Responder, Unary
from dragoman.server.settings import Settings
from dragoman.server.state import handlers, resolve
from dragoman.server.state.run import Run, Runs
from dragoman.server.state.service import ENCODER_VERSION, Memory
from dragoman.stores import serialize, sql
from dragoman.stores.base import Conversation, LogSegment, Record, Subscribers
from dragoman.stores.memory import MemoryStore
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.encode import Encoder
from tests.mock import Reply, chunk, completion, mock, plain, stream
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, closing, word
from tests.server.talk import request as asked_for
from tests.server.test_own_host import connected, until

SIZE = 1_000_000
MEMORY = 4_000_000
TEXT = "word " * (SIZE // 5)


def record(id: str, wire: str = "responses", text: str = "Hi", said: str = TEXT) -> Record:
    output = (Message("assistant", said, id=f"msg_{id}_0", status="completed"),)
    made = Response(id=id, created_at=1, model="m", status="completed", output=output)
    return Record(
        id=id,
        tenant="",
        wire=wire,
        created_at=1,
        request=Request(model="m", items=(Message("user", text, id=f"msg_of_{id}"),), store=True),
        status="completed",
        response=made,
        dialect="openai",
        version=ENCODER_VERSION,
    )


class Noting(MemoryStore):
    """Notes the largest value that was read."""

    largest = 0

    async def _read(self, statement: str, *values: object) -> Sequence[Any]:
        rows = await super()._read(statement, *values)
        sizes = [len(v) for row in rows for v in row if isinstance(v, bytes | memoryview)]
        self.largest = max([self.largest, *sizes])
        return rows


async def filled() -> Noting:
    """A store with large responses, one of them with a log, and a large conversation."""
    store = Noting()
    await store.ready()
    await store.put(record("said"))
    await store.put(record("asked", text=TEXT, said="ok"))
    await store.put(record("chat", "chat"))
    await store.put(record("chatted", "chat", text=TEXT, said="ok"))
    logged = record("logged")
    assert logged.response is not None
    await store.begin(replace(logged, status="in_progress", response=None))
    await store.finish("logged", logged.response, LogSegment(0, tuple(unfold(logged.response))))
    await store.begin(replace(record("live"), status="in_progress", response=None))
    await store.append("live", LogSegment(0, (*OPENING, word(TEXT))))
    items = (Message("user", TEXT, id="msg_c"),)
    await store.create_conversation(Conversation(id="c", tenant="", created_at=1), items)
    early = Conversation(id="early", tenant="", created_at=1, metadata={"before": TEXT})
    await store.create_conversation(early)
    store.largest = 0
    return store


RESPOND = PATHS["responses"]
ASKS: dict[str, tuple[str, str, Any]] = {
    "a response": ("GET", f"{RESPOND}/resp_said", None),
    "a response with a log": ("GET", f"{RESPOND}/resp_logged", None),
    "a response that is being made": ("GET", f"{RESPOND}/resp_live", None),
    "a replay": ("GET", f"{RESPOND}/resp_said?stream=true", None),
    "a replay of a log": ("GET", f"{RESPOND}/resp_logged?stream=true", None),
    "its items": ("GET", f"{RESPOND}/resp_asked/input_items", None),
    "its end": ("POST", f"{RESPOND}/resp_said/cancel", None),
    "a completion": ("GET", f"{PATHS['chat']}/chat", None),
    "its messages": ("GET", f"{PATHS['chat']}/chatted/messages", None),
    "its metadata": ("POST", f"{PATHS['chat']}/chat", {"metadata": {"a": "b"}}),
    "all completions": ("GET", PATHS["chat"], None),
    "a conversation's items": ("GET", "/v1/conversations/c/items", None),
    "metadata of before there was a bound": ("GET", "/v1/conversations/early", None),
    "one of them": ("GET", "/v1/conversations/c/items/msg_c", None),
    "a chain": ("POST", RESPOND, asking("responses", previous_response_id="resp_said")),
    "a chain of large requests": (
        "POST",
        RESPOND,
        asking("responses", previous_response_id="resp_asked"),
    ),
    "a conversation": ("POST", RESPOND, asking("responses", conversation="c")),
    "a reference": (
        "POST",
        RESPOND,
        {"model": "m", "input": [{"type": "item_reference", "id": "msg_of_asked"}]},
    ),
}


async def called(app: App, method: str, path: str, body: Any) -> Call:
    place, _, query = path.partition("?")
    call = Call(app, place, body, method=method)
    call._scope["query_string"] = query.encode()
    return await asyncio.wait_for(call(), 20)


@pytest.mark.parametrize("name", ASKS)
async def test_2d_what_is_stored_is_counted_before_it_is_read(name: str) -> None:
    store = await filled()
    memory = Memory(store, upkeep=False)
    app = App(Stub(*OPENING, *closing("")), Settings(memory=MEMORY), memory)
    held = app.budget.hold("other")
    held.resize(MEMORY - SIZE // 2)
    refused = await called(app, *ASKS[name])
    assert refused.status == 503, refused.body[:300]
    assert refused.headers["retry-after"] == "1"
    assert "(memory)" in refused.json["error"]["message"]
    assert store.largest < 100_000
    held.close()
    answered = await called(app, *ASKS[name])
    assert answered.status == 200, answered.body[:300]
    while app.busy:
        await asyncio.sleep(0)
    assert app.budget.held == 0
    await app.close()


async def test_2d_what_is_small_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    await store.put(record("r", said="ok"))
    app = App(Stub(), Settings(), Memory(store, upkeep=False))
    taken: list[int] = []
    monkeypatch.setattr(Budget, "take", lambda *given: taken.append(given[-1]))
    for path in ("resp_r", "resp_r?stream=true", "resp_r/input_items"):
        assert (await called(app, "GET", f"{RESPOND}/{path}", None)).status == 200
    assert (
        await called(app, "POST", RESPOND, asking("responses", previous_response_id="resp_r"))
    ).status == 200
    assert max(map(abs, taken)) < 1_000  # the body, and its values
    await app.close()


async def test_2f_what_is_large_is_unpacked_and_encoded_in_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, apart = threading.get_ident(), list[bool]()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*given: Any) -> Any:
            apart.append(threading.get_ident() != here)
            return work(*given)

        return noting

    encode = noted(RESPONSES.encode_response)
    monkeypatch.setattr(handlers, "RESPONSES", replace(RESPONSES, encode_response=encode))
    monkeypatch.setattr(serialize, "unpack_record", noted(serialize.unpack_record))
    store = MemoryStore()
    await store.put(record("small", said="ok"))
    await store.put(record("large"))
    app = App(Stub(), Settings(), Memory(store, upkeep=False))
    for id in ("small", "large"):
        assert (await called(app, "GET", f"{RESPOND}/resp_{id}", None)).status == 200
    assert apart == [False, False, True, True]
    await app.close()


async def test_a_large_event_that_was_read_holds_nothing() -> None:
    go = asyncio.Event()
    app = App(Stub(*OPENING, word(TEXT), go, *closing("")), Settings(memory=MEMORY))
    protocol, link = connected(app)
    protocol.data_received(asked_for("chat", stream=True))
    await until(link, b"word word")
    assert app.budget.held == 0
    go.set()
    await until(link, b"[DONE]")
    protocol.connection_lost(None)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_counts_while_it_is_collected(streamed: bool) -> None:
    words = [chunk({"content": "word " * 2_000}) for _ in range(SIZE // 10_000)]
    whole = stream(*words, chunk(finish="stop"))
    replies = {"large": plain(200, completion({"content": TEXT})), "stream": whole}

    def reply(asked: Any) -> Reply:
        return replies["stream" if asked.json.get("stream") else "large"]

    async with mock(reply) as model:
        engine = Remote(model.base_url, wire="chat", profile="generic")
        app = App(engine, Settings(memory=MEMORY))
        held = app.budget.hold("other")
        held.resize(MEMORY - SIZE // 2)
        refused = await called(app, "POST", PATHS["chat"], asking("chat", stream=streamed))
        assert b"(memory)" in refused.body
        assert refused.status == (200 if streamed else 503)
        asked = {"model": "m", "input": "Hi"}
        compacted = await called(app, "POST", f"{RESPOND}/compact", asked)
        assert (compacted.status, b"(memory)" in compacted.body) == (503, True)
        assert app.budget.held == held.size
        held.close()
        answered = await called(app, "POST", PATHS["chat"], asking("chat", stream=streamed))
        assert answered.status == 200
        assert len(answered.body) > SIZE
        assert app.budget.held == 0
        await app.close()


@pytest.mark.parametrize(
    "path",
    ["/v1/conversations/c/items", "/v1/chat/completions", f"{RESPOND}/resp_asked/input_items"],
)
async def test_an_empty_cursor_is_none(path: str) -> None:
    app = App(Stub(), Settings(), Memory(await filled(), upkeep=False))
    whole = await called(app, "GET", path, None)
    assert whole.json["data"]
    assert (await called(app, "GET", f"{path}?after=", None)).body == whole.body
    await app.close()


async def test_readers_of_one_run_take_turns() -> None:
    turn, received = 0, Counter[int]()

    class Reader:
        def receive(self, events: list[Any]) -> None:
            received[turn] += 1

    runs = Runs(MemoryStore(), upkeep=False)
    run = Run(replace(record("r"), status="in_progress", response=None), runs)
    run.events, run.visible = [*OPENING, word("Hi")], len(OPENING) + 1
    runs.live["r"] = run
    readers = [runs.send(run.record, Reader(), lambda fault: None) for _ in range(20)]
    while received.total() < len(readers):
        turn += 1
        await asyncio.sleep(0)
    assert max(received.values()) == 1
    for reader in readers:
        reader.cancel()


@pytest.mark.parametrize("name", ["15", "16", "23"])
async def test_looking_whether_a_conversation_is_there_reads_nothing_of_it(name: str) -> None:
    store, path = await filled(), "/v1/conversations/early"
    ways: dict[str, tuple[str, str, Any]] = {
        "15": ("GET", f"{path}/items", None),
        "16": ("POST", RESPOND, asking("responses", conversation="early")),
        "23": ("POST", path, {"metadata": {"a": "b"}}),
    }
    app = App(Stub(*OPENING, *closing("")), Settings(), Memory(store, upkeep=False))
    assert (await called(app, *ways[name])).status == 200
    assert store.largest < 100_000
    await app.close()


MOST = 100
LABELS = {"name": "a" * (MOST - len(json.dumps({"name": ""}, separators=(",", ":"))))}
ROOMY: dict[str, tuple[str, Any]] = {
    "a conversation": ("/v1/conversations", {}),
    "a change of a conversation": ("/v1/conversations/c", {}),
    "a completion": (PATHS["chat"], asking("chat")),
    "a change of a completion": (f"{PATHS['chat']}/chat", {}),
    "a response": (RESPOND, asking("responses")),
    "a message": (PATHS["messages"], asking("messages")),
}


@pytest.mark.parametrize("name", ROOMY)
async def test_15_metadata_has_a_size(name: str) -> None:
    store, (path, body) = await filled(), ROOMY[name]
    settings = Settings(max_metadata_bytes=MOST)
    app = App(Stub(*OPENING, *closing("")), settings, Memory(store, upkeep=False))
    for metadata, status in ((LABELS, 200), ({"name": LABELS["name"] + "a"}, 400)):
        answered = await called(app, "POST", path, {**body, "metadata": metadata})
        assert answered.status == status, answered.body[:300]
    message = "metadata: is more than 100 bytes (max_metadata_bytes)"
    assert answered.json["error"]["message"] == message
    await app.close()


async def test_17_few_of_many_are_found_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "PAGE", 10)
    monkeypatch.setattr(handlers, "PAGES", 2)
    store = Counting()
    for n in range(45):
        await store.put(replace(record(f"r{n}", "chat", said="ok"), metadata={"n": str(n)}))
    app, store.reads = App(Stub(), Settings(), Memory(store, upkeep=False)), 0
    path, after, found = (
        f"{PATHS['chat']}?limit=1&metadata[n]=33",
        "",
        list[tuple[list[str], str]](),
    )
    more = True
    while more:
        page = (await called(app, "GET", path + after, None)).json
        found.append(([each["id"] for each in page["data"]], page["last_id"]))
        more, after = page["has_more"], f"&after={page['last_id']}"
    assert found == [
        ([], "chatcmpl-r19"),
        (["chatcmpl-r33"], "chatcmpl-r39"),
        ([], None),
    ]
    assert store.reads < 12  # each list two pages at the most, and what it is to follow
    whole = (await called(app, "GET", f"{PATHS['chat']}?limit=100&model=m", None)).json
    assert (len(whole["data"]), whole["has_more"]) == (45, False)
    await app.close()


async def test_17_large_completions_are_looked_at_by_few() -> None:
    store = MemoryStore()
    for n in range(6):
        await store.put(record(f"r{n}", "chat"))
    app = App(Stub(), Settings(memory=MEMORY), Memory(store, upkeep=False))
    page = (await called(app, "GET", f"{PATHS['chat']}?limit=1&model=m", None)).json
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (["chatcmpl-r0"], True)
    assert app.budget.held == 0
    await app.close()


async def test_items_may_have_a_slash_in_their_ids() -> None:
    app = App(Stub(), Settings(), Memory(MemoryStore(), upkeep=False))
    items = [{"type": "message", "role": "user", "content": "Hi", "id": "a/b/c"}]
    made = (await called(app, "POST", "/v1/conversations", {"items": items})).json["id"]
    path = f"/v1/conversations/{made}/items/a/b/c"
    assert (await called(app, "GET", path, None)).json["id"] == "a/b/c"
    assert (await called(app, "DELETE", path, None)).status == 200
    assert (await called(app, "GET", path, None)).status == 404
    await app.close()


async def test_an_address_has_a_number_of_parameters() -> None:
    app = App(Stub(), Settings(), Memory(await filled(), upkeep=False))
    path = f"{RESPOND}/resp_said/input_items?include[]=message.output_text.logprobs"
    few, many = "&a=1" * (handlers.PARAMETERS - 1), "&a=1" * handlers.PARAMETERS
    assert (await called(app, "GET", path + few, None)).status == 200
    refused = await called(app, "GET", path + many, None)
    assert (refused.status, "256 parameters" in refused.json["error"]["message"]) == (400, True)
    await app.close()


async def test_keys_of_tools_in_items_are_not_stored() -> None:
    store = MemoryStore()
    stub = Stub(*OPENING, *closing(""))
    app = App(stub, Settings(), Memory(store, upkeep=False))
    tool = {"type": "mcp", "server_label": "s", "server_url": "http://s", "authorization": "sesame"}
    group = {"type": "namespace", "name": "n", "description": "", "tools": [tool, "odd"]}
    offered = {"type": "additional_tools", "role": "developer", "tools": [tool, group]}
    ask = {"model": "m", "input": [{"role": "user", "content": "Hi"}, offered]}
    answer = await called(app, "POST", RESPOND, ask)
    assert answer.status == 200, answer.body[:300]
    assert "sesame" in str(stub.asked[0])
    kept = await store.get("", answer.json["id"].removeprefix("resp_"))
    assert kept is not None
    assert ("sesame" in str(kept.request), "http://s" in str(kept.request)) == (False, True)
    await app.close()


async def test_few_look_for_what_may_be_long_in_coming() -> None:
    looks = 0

    async def never() -> bool:
        nonlocal looks
        looks += 1
        return False

    await Subscribers().wait("r", never, 0.3, 0.001)
    assert looks < 20


class Counting(MemoryStore):
    """Counts what is read; what is read while it is `shut` waits, and tells when it was ended."""

    reads = ended = 0
    shut = False

    async def _read(self, statement: str, *values: object) -> Sequence[Any]:
        self.reads += 1
        if self.shut:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1
        return await super()._read(statement, *values)


LOOKS = [path for method, path, _ in ASKS.values() if method == "GET"]


async def test_18_who_leaves_ends_what_is_looked_up_for_them() -> None:
    store = Counting()
    app = App(Stub(), Settings(), Memory(store, upkeep=False))
    store.shut = True
    for place, path in enumerate(LOOKS):
        protocol, _ = connected(app)
        protocol.data_received(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        while store.reads == place:
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        while app.busy:
            await asyncio.sleep(0)
        assert store.ended == place + 1, path
    assert store.reads == len(LOOKS)
    await app.close()


async def test_17_lists_are_made_one_at_a_time_and_by_turns() -> None:
    class Noting(Counting):
        inside = most = 0

        async def _read(self, statement: str, *values: object) -> Sequence[Any]:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            self.inside -= 1
            return await super()._read(statement, *values)

    store = Noting()
    app = App(Stub(), Settings(queue=8), Memory(store, upkeep=False))
    path = f"{PATHS['chat']}?model=m"
    answers = await asyncio.gather(*[called(app, "GET", path, None) for _ in range(20)])
    assert sorted(answer.status for answer in answers) == [200] * 9 + [429] * 11
    assert store.most == 1
    await app.close()


ITEMS = {"items": [{"type": "message", "role": "user", "content": TEXT}]}
WRITES: list[tuple[str, str, str, Any]] = [
    (name, *ASKS[name]) for name in ("its end", "its metadata")
] + [
    ("items of a conversation", "POST", "/v1/conversations/c/items", ITEMS),
    ("one item less", "DELETE", "/v1/conversations/c/items/msg_c", None),
    ("a conversation", "POST", "/v1/conversations", ITEMS),
    ("a deletion", "DELETE", f"{RESPOND}/resp_said", None),
]


@pytest.mark.parametrize(
    ("method", "path", "body"), [row[1:] for row in WRITES], ids=[row[0] for row in WRITES]
)
async def test_an_answer_for_who_has_left_holds_nothing(
    method: str, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, go = await filled(), asyncio.Event()

    async def later(size: int, work: Callable[..., Any], *given: object) -> Any:
        await go.wait()
        return work(*given)

    monkeypatch.setattr(store, "apart", later)
    app = App(Stub(), Settings(), Memory(store, upkeep=False))
    data = b"" if body is None else json.dumps(body).encode()
    protocol, _ = connected(app)
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
    protocol.data_received(f"{head}content-type: application/json\r\n\r\n".encode() + data)
    for _ in range(5):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    go.set()
    while protocol.tasks:
        await asyncio.sleep(0)
    assert app.budget.held == 0
    await app.close()


async def test_2f_what_is_referred_to_is_measured_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, apart = threading.get_ident(), list[bool]()
    size_of = resolve.size_of

    def noted(value: object) -> int:
        apart.append(threading.get_ident() != here)
        return size_of(value)

    monkeypatch.setattr(resolve, "size_of", noted)
    store = MemoryStore()
    await store.put(record("small", said="ok"))
    await store.put(record("large", text=TEXT))
    app = App(Stub(), Settings(), Memory(store, upkeep=False))
    own = {"type": "message", "role": "user", "content": TEXT, "id": "own"}
    for items in (["msg_of_small"], ["msg_of_large"], [own, "own"]):
        asked = [{"id": i, "type": "item_reference"} if isinstance(i, str) else i for i in items]
        answer = await called(app, "POST", RESPOND, {"model": "m", "input": asked})
        assert answer.status == 200
    assert apart == [False, True, True]
    await app.close()


async def test_2f_long_texts_at_the_end_of_a_stream_are_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, apart = threading.get_ident(), list[bool]()
    feed = Encoder.feed

    def noted(self: Encoder, events: Sequence[Any]) -> bytes:
        apart.append(threading.get_ident() != here)
        return feed(self, events)

    monkeypatch.setattr(Encoder, "feed", noted)
    words = [chunk({"content": "word " * 2_000}) for _ in range(SIZE // 9_000)]
    async with mock(lambda _: stream(*words, chunk(finish="stop"))) as model:
        app = App(Remote(model.base_url, wire="chat", profile="generic"), Settings())
        path = PATHS["responses"]
        answered = await called(app, "POST", path, asking("responses", stream=True))
        assert answered.status == 200
        assert len(answered.body) > 4 * SIZE
        assert (apart[0], apart[-1]) == (False, True), apart
        await app.close()

    apart.clear()
    store = MemoryStore()
    await store.put(record("said", said=TEXT * 2))
    app = App(Stub(), Settings(), Memory(store, upkeep=False))
    assert (await called(app, "GET", f"{RESPOND}/resp_said?stream=true", None)).status == 200
    assert apart
    assert all(apart)
    await app.close()


@pytest.mark.parametrize("way", [{}, {"stream": True}, {"background": True}])
async def test_2f_large_answers_are_packed_and_encoded_in_threads_one_at_a_time(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, apart, packing = threading.get_ident(), list[bool](), set[int]()
    pack, write = serialize.pack_apart, MemoryStore._transact
    made: list[type] = []

    def noted(value: Any, tenant: str, parts: dict[bytes, bytes]) -> bytes:
        data = pack(value, tenant, parts)
        if sum(map(len, parts.values())) > SIZE // 2:
            apart.append(threading.get_ident() != here)
            packing.add(threading.get_ident())
        return data

    async def written(self: MemoryStore, inserts: Any, steps: Any = None) -> Any:
        assert len(packing) <= 1  # that which is written
        done = await write(self, inserts, steps)
        packing.clear()
        return done

    def encoded(self: Responder, make: Any, events: Any) -> None:
        made.append(type(self))
        start(self, make, events)

    start = Responder.apart
    monkeypatch.setattr(Responder, "apart", encoded)
    monkeypatch.setattr(MemoryStore, "_transact", written)
    monkeypatch.setattr("dragoman.server.responder.HEAVY", SIZE // 2)
    for module in (serialize, sql):
        monkeypatch.setattr(module, "pack_apart", noted)
    async with mock(lambda _: plain(200, completion({"content": TEXT}))) as model:
        engine = Remote(model.base_url, wire="chat", profile="generic")
        store = MemoryStore()
        app = App(engine, Settings(), Memory(store, upkeep=False))
        asked = {"model": "m", "input": "Hi", **way}
        ask = partial(called, app, "POST", RESPOND)
        for answer in await asyncio.gather(ask(asked), ask(asked)):
            assert answer.status == 200
        while app.background or app.budget.held:
            await asyncio.sleep(0)
        assert len(apart) >= 2
        assert all(apart)
        assert (Unary in made) is (not way)
        await app.close()


async def test_2f_long_texts_are_written_and_read_in_pieces() -> None:
    store = await filled()
    for id in ("said", "asked", "logged"):
        large = replace(record(f"{id}2"), size=SIZE)
        await store.put(replace(large, request=record("asked", text=TEXT).request))
        store.largest = 0
        assert await store.get("", f"{id}2") is not None
        assert await store.log(f"{id}2")
        assert store.largest <= serialize.LONG < SIZE


def test_2f_only_values_with_long_texts_are_packed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[object] = []
    change = serialize.changed

    def noted(value: Any, make: Any) -> Any:
        walked.append(value)
        return change(value, make)

    monkeypatch.setattr(serialize, "changed", noted)
    history = replace(record("a", said="Hi"), size=SIZE)
    history = replace(history, request=Request(model="m", items=(Message("user", "Hi"),) * 2_000))
    assert serialize.pack_record(history)[0]
    assert not walked  # each field of each item was looked at in Python, 15 ms for 1,600 items
    for last in (Message("user", TEXT), Message("user", "", extra={"chat": {"x": [TEXT]}})):
        items = (*history.request.items, last)
        large = replace(history, request=replace(history.request, items=items))
        _, _, parts = serialize.pack_record(large)
        assert max(map(len, parts.values())) <= serialize.LONG
        assert walked


def test_2f_a_text_may_be_like_the_name_of_a_long_one() -> None:
    long, parts = "a" * (serialize.LONG + 1), dict[bytes, bytes]()
    packed = serialize.pack_apart((long,), "", parts)
    apart = serialize.unpack(b"m" + packed[1:], serialize._Apart)
    value = (apart.name + "0", long, apart.name)
    parts.clear()
    packed = serialize.pack_apart(value, "", parts)
    found = serialize.unpack(packed, tuple, serialize.Parts(parts.items()))
    assert found == value


def test_2f_what_is_long_is_sized_without_being_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "w\u00f6rd" * serialize.LONG
    for text in (wide, "a" * len(wide), "a"):
        value = {"a": [text, 1], "b": text}
        assert abs(serialize.size_of(value) - len(serialize.pack(value))) < 20


def test_2f_wide_numbers_are_packed_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Message("user", "Hi", extra={"chat": {"x": [2**70, -(2**70), 1.5, None]}})
    halves = Message("user", "half \ud83d", extra={"chat": {"x": 2**70}})
    assert serialize.unpack(serialize.pack(halves), Item) == halves
    monkeypatch.setattr(serialize, "json", None)  # which takes four times as long, in one step
    assert serialize.unpack(serialize.pack(value), Item) == value
    assert serialize.pack(value)[:1] == b"j"
