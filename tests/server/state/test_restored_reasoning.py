"""What led to a call is found again in the store: after a restart, and by any other server."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dragoman.stores.base import StoreError
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from tests.mock import Mock, completion, message, plain, response, said
from tests.postgres import Postgres
from tests.server.state.storing import Server, opened
from tests.server.state.thinking import (
    ASK,
    BLOB,
    CALL,
    CHAT_RESULT,
    CHAT_SAID,
    DETAILS,
    RESULT,
    SEALED,
    SEALED_REASONING,
    SIGNED,
    THOUGHT,
    ask,
    before,
    chat,
    thinking,
    thoughts,
)
from tests.server.stubs import Call
from tests.wire.messages.gathering import gathered

USER = {"role": "user", "content": ASK}
OWN_CALL = {name: CALL[name] for name in ("type", "call_id", "name", "arguments")}
Stores = Callable[[], Store]


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request, tmp_path) -> Stores:
    """Opens the same store again and again."""
    if request.param == "sqlite":
        return lambda: opened("sqlite", tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return lambda: PostgresStore(server.address, schema=tmp_path.name)


def given_back(up: Mock) -> Any:
    """The reasoning that came back to an upstream with the second request, as JSON."""
    body = up.asked[1].json
    if "messages" in body:
        (turn,) = (message for message in body["messages"] if message["role"] == "assistant")
        if isinstance(turn.get("content"), list):
            return turn["content"][0]
        return turn["reasoning_content"], turn["reasoning_details"]
    place = next(n for n, item in enumerate(body["input"]) if item["type"] == "function_call")
    return body["input"][place - 1]


GIVEN = {"chat": (THOUGHT, DETAILS), "responses": SEALED_REASONING, "messages": SIGNED}
WIRES = pytest.mark.parametrize("upstream", GIVEN)


def same(up: Mock, wire: str) -> bool:
    expected = GIVEN[wire]
    back = given_back(up)
    return back == expected if wire != "responses" else {**back, **SEALED_REASONING} == back


# ---- after a restart, and elsewhere ----------------------------------------------------------


@WIRES
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", ["chat", "responses"])
async def test_p9_reasoning_of_calls_is_restored_after_a_restart(
    client, upstream: str, stream, stores: Stores
) -> None:
    async with thinking(upstream) as up:
        async with before(up, upstream, stores()) as server:
            first = chat(server, USER, stream=stream) if client == "chat" else None
            await (first or ask(server, stream=stream))
        async with before(up, upstream, stores()) as server:
            if client == "chat":
                last = await chat(server, USER, CHAT_SAID, CHAT_RESULT, stream=stream)
            else:
                last = await ask(server, [USER, OWN_CALL, RESULT], stream=stream)
        assert b"It is noon." in last.body
        assert same(up, upstream)


@WIRES
async def test_p9_chain_continues_from_items_without_reasoning(
    upstream: str, stores: Stores
) -> None:
    """What was put back is no part of what the client asked: it is found once more."""
    async with thinking(upstream) as up:
        async with before(up, upstream, stores()) as server:
            await ask(server)
            second = (await ask(server, [USER, OWN_CALL, RESULT])).json["id"]
        async with before(up, upstream, stores()) as server:
            third = (await ask(server, "And now?", previous_response_id=second)).json["id"]
            listed = (await server.get(f"/{third}/input_items?order=asc")).json["data"]
    kinds = [item["type"] for item in listed]
    assert kinds.index("function_call") == 1  # as it was brought


@WIRES
async def test_p21_reasoning_is_shared_between_servers(
    upstream: str, postgres: Postgres, tmp_path
) -> None:
    async with thinking(upstream) as up, AsyncExitStack() as stack:
        here, there = [
            await stack.enter_async_context(
                before(up, upstream, PostgresStore(postgres.address, schema=tmp_path.name))
            )
            for _ in range(2)
        ]
        await chat(here, USER)
        await chat(there, USER, CHAT_SAID, CHAT_RESULT)
        assert same(up, upstream)
        up.forget()
        first = (await ask(there)).json["id"]
        await ask(here, [RESULT], previous_response_id=first)
        assert same(up, upstream)


@WIRES
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_messages_client_that_sends_its_answer_back_restores_the_reasoning(
    upstream: str, stream: bool
) -> None:
    """It has thinking without a signature of this server, or none; the call says what led to it."""
    tool = {"name": "clock", "input_schema": {"type": "object"}}
    asked = {"model": "m", "max_tokens": 100, "tools": [tool], "stream": stream}
    async with thinking(upstream) as up, before(up, upstream) as server:
        first = await Call(server.app, "/v1/messages", {**asked, "messages": [USER]})()
        given = gathered(first.body) if stream else first.json
        assert given["stop_reason"] == "tool_use"
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "12:00"}
        turns = [
            {"role": "assistant", "content": given["content"]},
            {"role": "user", "content": [result]},
        ]
        last = await Call(server.app, "/v1/messages", {**asked, "messages": [USER, *turns]})()
        assert (last.status, b"It is noon." in last.body) == (200, True), last.body
        assert same(up, upstream)


# ---- whose it is -----------------------------------------------------------------------------


@pytest.fixture
async def restarted(tmp_path) -> AsyncIterator[tuple[Server, Mock]]:
    """A server that was started again, before a Chat server that gave it a call."""
    async with thinking("chat") as up:
        async with before(up, "chat", opened("sqlite", tmp_path)) as server:
            await chat(server, USER)
        async with before(up, "chat", opened("sqlite", tmp_path)) as server:
            yield server, up


async def test_another_call_with_the_same_id_restores_nothing(
    restarted: tuple[Server, Mock],
) -> None:
    server, _ = restarted
    other = {"name": "clock", "arguments": '{"city": "Oslo"}'}
    said = {**CHAT_SAID, "tool_calls": [{"id": "call_1", "type": "function", "function": other}]}
    with pytest.raises(AssertionError, match="must be passed back"):
        await chat(server, USER, said, CHAT_RESULT)
    await chat(server, USER, CHAT_SAID, CHAT_RESULT)


async def test_the_same_call_of_another_conversation_restores_nothing(
    restarted: tuple[Server, Mock],
) -> None:
    """Some servers count the ids of their calls from 0 in every conversation."""
    server, _ = restarted
    another = {"role": "user", "content": "I am Bob. What is the time?"}
    with pytest.raises(AssertionError, match="must be passed back"):
        await chat(server, another, CHAT_SAID, CHAT_RESULT)
    await chat(server, USER, CHAT_SAID, CHAT_RESULT)


@WIRES
async def test_p13_another_model_gets_no_encrypted_content_after_a_restart(
    upstream: str, stores: Stores
) -> None:
    async with thinking(upstream) as up:
        async with before(up, upstream, stores()) as server:
            first = (await ask(server)).json["id"]
        noon = {
            "chat": completion({"content": "Noon."}),
            "responses": response(said("Noon.")),
            "messages": message({"type": "text", "text": "Noon."}),
        }
        up.handler = lambda asked: plain(200, noon[upstream])
        async with before(up, upstream, stores()) as server:
            chained = await ask(server, [RESULT], previous_response_id=first, model="other")
            own = await ask(server, [USER, OWN_CALL, RESULT], model="other")
        for call, asked in zip((chained, own), up.asked[1:], strict=True):
            assert SEALED in call.headers["x-dragoman-loss"]
            assert not thoughts(asked)
            words = {"chat": THOUGHT, "responses": "Hm.", "messages": None}[upstream]
            if words is None:  # Messages takes no thinking without its signature
                assert SIGNED["signature"] not in json.dumps(asked.json)
            else:
                assert json.dumps(words) in json.dumps(asked.json)


# ---- what leaves no trace --------------------------------------------------------------------


async def test_p9_store_false_leaves_no_trace_on_disk(tmp_path) -> None:
    async with thinking("responses") as up:
        async with before(up, "responses", opened("sqlite", tmp_path)) as server:
            await ask(server, store=False)
            await ask(server, store=False, include=[SEALED])
            await ask(server, [USER, OWN_CALL, RESULT], store=False)
            await chat(server, USER, store=False)
            await chat(server, USER, CHAT_SAID, CHAT_RESULT, store=False)
            written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        written += b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert len(written) > 1_000  # the tables are there
    for trace in (BLOB, "Hm.", "rs_thought", "call_1", "clock", "Rome", "noon"):
        assert trace.encode() not in written, trace
    assert len(up.asked) == 5


async def test_p9_request_with_store_false_reads_no_store(tmp_path) -> None:
    class Deaf(SqliteStore):
        async def find_answers(self, tenant: str, digests: Any, room: Any) -> Any:
            raise AssertionError("nobody should ask")

    store = Deaf(tmp_path / "store.db")
    async with thinking("chat") as up, before(up, "chat", store) as server:
        await chat(server, USER, store=False)
        await chat(server, USER, CHAT_SAID, CHAT_RESULT, store=False)
        assert same(up, "chat")  # out of this process


async def test_a_store_that_fails_costs_the_past_and_not_the_answer(tmp_path) -> None:
    class Failing(SqliteStore):
        async def find_answers(self, tenant: str, digests: Any, room: Any) -> Any:
            raise StoreError("The disk is gone.")

    store = Failing(tmp_path / "store.db")
    async with thinking("chat") as up, before(up, "chat", store) as server:
        await chat(server, USER)
        await chat(server, USER, CHAT_SAID, CHAT_RESULT)
        assert same(up, "chat")
