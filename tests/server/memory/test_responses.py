"""Stored responses: kept, chained, listed, replayed, stopped, forgotten; asked by the official SDK
where it has words for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from dragoman.stores.base import Paging, Store
from tests.server.memory.remembering import Server, opened, remembering
from tests.server.stubs import Call, Stub


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return opened(request.param, tmp_path)


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    async with remembering(Stub(), store) as server:
        yield server


def asked(server: Server) -> Any:
    """What the engine was asked last, as role and text."""
    stub = server.app._engine
    return [(item.role, item.text) for item in stub.asked[-1][0].items]


async def test_a_response_is_kept_as_it_was_answered(server: Server) -> None:
    answer = await server.sdk.responses.create(model="stub", input="Hi", metadata={"k": "v"})
    assert answer.store is True
    again = await server.sdk.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    assert again.output_text == "Hello, world"
    assert again.metadata == {"k": "v"}


async def test_what_is_not_to_be_stored_leaves_no_trace(server: Server, tmp_path: Path) -> None:
    secret = "a word nobody else says"
    call = await server.ask(input=secret, store=False)
    assert call.json["store"] is False
    with pytest.raises(openai.NotFoundError):
        await server.sdk.responses.retrieve(call.json["id"])
    await server.memory.store.sweep(0)
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


async def test_chat_is_stored_only_when_asked(server: Server) -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}]}
    await Call(server.app, body=body)()
    page = await server.memory.store.list_responses("", "chat", Paging())
    assert page.records == ()
    await Call(server.app, body={**body, "store": True})()
    page = await server.memory.store.list_responses("", "chat", Paging())
    assert len(page.records) == 1


async def test_r4_21_what_is_stored_outlives_the_server(tmp_path: Path) -> None:
    async with remembering(Stub(), opened("sqlite", tmp_path)) as first:
        answer = await first.sdk.responses.create(model="stub", input="Hi")
    async with remembering(Stub(), opened("sqlite", tmp_path)) as second:
        again = await second.sdk.responses.retrieve(answer.id)
        assert again.to_dict() == answer.to_dict()
        more = await second.sdk.responses.create(
            model="stub", input="More", previous_response_id=answer.id
        )
        assert more.previous_response_id == answer.id
        assert asked(second) == [("user", "Hi"), ("assistant", "Hello, world"), ("user", "More")]


async def test_r4_22_a_chain_is_all_that_was_asked_and_answered(server: Server) -> None:
    previous = None
    for turn in ("one", "two", "three", "four"):
        call = await server.ask(input=turn, previous_response_id=previous)
        previous = call.json["id"]
    said = ("assistant", "Hello, world")
    expected = [("user", "one"), said, ("user", "two"), said, ("user", "three"), said]
    assert asked(server) == [*expected, ("user", "four")]


async def test_r4_23_instructions_are_not_inherited_unless_set(store: Store) -> None:
    for inherit in (False, True):
        async with remembering(Stub(), inherit=inherit) as server:
            first = await server.ask(instructions="Be brief.")
            second = await server.ask(previous_response_id=first.json["id"])
            engine = server.app._engine
            assert engine.asked[-1][0].instructions == ("Be brief." if inherit else None)
            assert second.json["instructions"] is None
            third = await server.ask(previous_response_id=first.json["id"], instructions="Rhyme.")
            assert engine.asked[-1][0].instructions == "Rhyme."
            assert third.json["instructions"] == "Rhyme."
    await store.close()


async def test_r4_24_neither_tools_nor_sampling_are_inherited(server: Server) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    first = await server.ask(tools=tools, temperature=0.5, reasoning={"effort": "low"})
    second = await server.ask(previous_response_id=first.json["id"], model="other")
    request = server.app._engine.asked[-1][0]
    assert (request.tools, request.sampling.temperature, request.reasoning) == ((), None, None)
    assert second.json["model"] == "stub"  # as the engine said it
    assert request.model == "other"


@pytest.mark.parametrize("stream", [False, True])
async def test_r4_25_an_unknown_previous_response_is_refused(server: Server, stream: bool) -> None:
    call = await server.ask(previous_response_id="resp_nothing", stream=stream)
    assert call.status in (400, 404)
    error = call.json["error"]
    assert (error["code"], error["param"]) == (
        "previous_response_not_found",
        "previous_response_id",
    )
    assert "resp_nothing" in error["message"]


async def test_r4_26_the_answer_says_what_it_goes_on_from(server: Server) -> None:
    first = await server.ask(instructions="Be brief.")
    assert first.json["instructions"] == "Be brief."
    second = await server.ask(previous_response_id=first.json["id"])
    assert second.json["previous_response_id"] == first.json["id"]


async def test_an_output_pairs_with_a_call_of_an_earlier_turn_or_is_refused(
    server: Server,
) -> None:
    first = await server.ask(
        input=[
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
        ]
    )
    output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    again = await server.ask(input=[output], previous_response_id=first.json["id"])
    assert again.status == 200
    wrong = await server.ask(
        input=[{**output, "call_id": "c2"}], previous_response_id=first.json["id"]
    )
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "input[0].call_id")


async def test_items_are_found_by_reference(server: Server) -> None:
    first = await server.ask(input=[{"role": "user", "content": "Hi", "id": "msg_own"}])
    said = first.json["output"][0]["id"]
    await server.ask(
        input=[
            {"type": "item_reference", "id": "msg_own"},
            {"type": "item_reference", "id": said},
            {"role": "user", "content": "More"},
        ]
    )
    assert asked(server) == [("user", "Hi"), ("assistant", "Hello, world"), ("user", "More")]
    wrong = await server.ask(input=[{"type": "item_reference", "id": "msg_nothing"}])
    assert (wrong.status, wrong.json["error"]["param"]) == (404, "input[0].id")


async def test_input_items_are_listed_in_pages(server: Server) -> None:
    first = await server.ask(input=[{"role": "user", "content": word} for word in "abc"])
    second = await server.ask(input="d", previous_response_id=first.json["id"])
    texts: list[str] = []
    async for item in server.sdk.responses.input_items.list(
        second.json["id"], limit=2, order="asc"
    ):
        texts.append(item.content[0].text)
    assert texts == ["a", "b", "c", "Hello, world", "d"]
    page = await server.get(f"/{second.json['id']}/input_items?limit=1")
    assert [item["content"][0]["text"] for item in page.json["data"]] == ["d"]
    assert page.json["has_more"] is True
    assert page.json["first_id"] == page.json["last_id"] == page.json["data"][0]["id"]
    assert (await server.get(f"/{second.json['id']}/input_items?after=nothing")).json["data"] == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=--5", "limit=101", "limit=" + "9" * 5000, "order=up"]
)
async def test_a_wrong_page_is_refused_by_name(server: Server, query: str) -> None:
    first = await server.ask()
    call = await server.get(f"/{first.json['id']}/input_items?{query}")
    assert (call.status, call.json["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_response_is_forgotten(server: Server) -> None:
    first = await server.ask()
    await server.sdk.responses.delete(first.json["id"])
    with pytest.raises(openai.NotFoundError):
        await server.sdk.responses.retrieve(first.json["id"])
    with pytest.raises(openai.NotFoundError):
        await server.sdk.responses.delete(first.json["id"])


async def test_what_is_not_there_is_not_found(server: Server) -> None:
    first = (await server.ask()).json["id"]
    for path, method in (
        ("/resp_nothing", "GET"),
        (f"/{first}/nothing", "GET"),
        (f"/{first}/nothing", "POST"),
        (f"/{first}/nothing", "DELETE"),
    ):
        assert (await server.get(path, method)).status == 404
    assert (await server.get(f"/{first}?stream=maybe")).status == 400


async def test_one_tenant_does_not_see_what_another_has(tmp_path: Path) -> None:
    from dragoman.core.interfaces import Secret
    from dragoman.server.app import App
    from dragoman.server.settings import Settings
    from dragoman.server.state.service import Memory

    memory = Memory(opened("sqlite", tmp_path))
    app = App(Stub(), Settings(keys=(Secret("key-one"), Secret("key-two"))), memory)
    one, two = ({"authorization": f"Bearer key-{name}"} for name in ("one", "two"))
    body = {"model": "stub", "input": "Hi"}
    first = (await Call(app, "/v1/responses", body, headers=one)()).json["id"]
    path = f"/v1/responses/{first}"
    assert (await Call(app, path, method="GET", headers=one)()).status == 200
    assert (await Call(app, path, method="GET", headers=two)()).status == 404
    assert (await Call(app, path, method="DELETE", headers=two)()).status == 404
    chained = {**body, "previous_response_id": first}
    assert (await Call(app, "/v1/responses", chained, headers=two)()).status in (400, 404)
    assert (await Call(app, "/v1/responses", chained, headers=one)()).status == 200
    await app.close()
    for file in tmp_path.iterdir():
        assert b"key-one" not in file.read_bytes()


async def test_a_prompt_is_counted_with_all_it_builds_on(server: Server) -> None:
    first = await server.ask(input="12345678" * 20)
    alone = await server.sdk.responses.input_tokens.count(model="stub", input="Hi")
    more = await server.sdk.responses.input_tokens.count(
        model="stub", input="Hi", previous_response_id=first.json["id"]
    )
    assert alone.object == "response.input_tokens"
    assert more.input_tokens > alone.input_tokens + 40
    call = await server.get("/input_tokens", "POST", {"model": "stub", "input": "Hi"})
    assert "input_tokens" in call.headers["x-dragoman-loss"]


async def test_a_conversation_is_compacted_and_gone_on_from(server: Server) -> None:
    first = await server.ask(input="My name is Ada.")
    compacted = await server.sdk.responses.compact(
        model="stub", input="And?", previous_response_id=first.json["id"]
    )
    assert compacted.object == "response.compaction"
    (item,) = compacted.output
    assert item.type == "compaction"
    await server.ask(input=[item.to_dict(), {"role": "user", "content": "Go on."}])
    (_, summary), (_, last) = asked(server)
    assert summary.endswith("Hello, world")
    assert last == "Go on."
    wrong = await server.get("/compact", "POST", {"input": "Hi"})
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "model")


async def test_the_engine_does_not_see_the_ids_that_items_got_here(server: Server) -> None:
    first = await server.ask(input=[{"role": "user", "content": "a"}])
    own = {"type": "message", "role": "user", "content": "b", "id": "msg_mine"}
    await server.ask(input=[own], previous_response_id=first.json["id"])
    items = server.app._engine.asked[-1][0].items
    answered = first.json["output"][0]["id"]
    assert [item.id for item in items] == [None, answered, "msg_mine"]
    assert first.headers.get("x-dragoman-loss") is None
