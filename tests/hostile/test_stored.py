"""What is stored is counted before it is read, and so is what is collected of an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.fold import unfold
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.limits import Budget
from dragoman.server.settings import Settings
from dragoman.server.state import handlers
from dragoman.server.state.run import Runs
from dragoman.server.state.service import ENCODER_VERSION, Memory
from dragoman.server.websocket import Connection
from dragoman.stores import serialize
from dragoman.stores.base import Conversation, LogSegment, Record
from dragoman.stores.memory import MemoryStore
from dragoman.wire.responses import RESPONSES
from tests.hostile.test_bodies import service
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
    assert max(map(abs, taken)) < 100  # the body
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
        assert app.budget.held == held.size
        held.close()
        answered = await called(app, "POST", PATHS["chat"], asking("chat", stream=streamed))
        assert answered.status == 200
        assert len(answered.body) > SIZE
        assert app.budget.held == 0
        await app.close()


async def test_2e_03_what_a_connection_remembers_counts_with_its_answers() -> None:
    made, runs = service(), Runs(MemoryStore(), upkeep=False)
    nothing: Any = None
    connection = Connection(made, runs, nothing, ANYONE, nothing, nothing)
    for n in range(3):
        await connection._remember(record(f"r{n}"), (), ())
    assert 3 * SIZE < made.budget.held < 3.1 * SIZE
    connection._forget("r1")
    await connection._remember(record("r3", said="ok"), (), ())
    assert 2 * SIZE < made.budget.held < 2.1 * SIZE
