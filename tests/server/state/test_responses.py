"""Stored responses: kept, chained, listed, replayed, stopped, forgotten; asked by the official SDK
where it has words for it."""

import json
from typing import Any

import pytest

from dragoman.server.settings import Settings
from dragoman.stores.base import Paging
from dragoman.stores.retention import Retention
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from tests.server.state.storing import Server, frames, identity, opened, storing
from tests.server.stubs import Call, Stub


def asked(server: Server) -> Any:
    """What the engine was asked last, as role and text."""
    stub = server.app._engine
    return [(item.role, item.text) for item in stub.asked[-1][0].items]


async def test_response_is_stored_as_it_was_answered(server: Server) -> None:
    answer = await server.sdk.responses.create(model="stub", input="Hi", metadata={"k": "v"})
    assert answer.store is True
    again = await server.sdk.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    assert again.output_text == "Hello, world"
    assert again.metadata == {"k": "v"}


async def test_credentials_for_mcp_servers_are_used_and_not_stored(server: Server) -> None:
    url = "https://mcp.test/"
    mcp = {"type": "mcp", "server_label": "s", "server_url": url, "authorization": "secret"}
    for more in ({}, {"stream": True}, {"background": True}):
        call = await server.ask(tools=[{**mcp, "headers": {"x": "secret"}}], **more)
        assert b"secret" not in call.body
        request = server.app._engine.asked[-1][0]
        assert request.tools[0].value["authorization"] == "secret"
    page = await server.memory.store.list_responses("", "responses", Paging())
    assert len(page.items) == 3
    for record in page.items:
        assert record.request.tools[0].value == {"server_label": "s", "server_url": url}


async def test_chat_is_stored_on_request_only(server: Server) -> None:
    body = {"model": "stub", "messages": [{"role": "user", "content": "Hi"}]}
    await Call(server.app, body=body)()
    page = await server.memory.store.list_responses("", "chat", Paging())
    assert page.items == ()
    await Call(server.app, body={**body, "store": True})()
    page = await server.memory.store.list_responses("", "chat", Paging())
    assert len(page.items) == 1


async def test_r4_21_stored_response_outlives_the_server(tmp_path) -> None:
    async with storing(Stub(), opened("sqlite", tmp_path)) as first:
        answer = await first.sdk.responses.create(model="stub", input="Hi")
    async with storing(Stub(), opened("sqlite", tmp_path)) as second:
        again = await second.sdk.responses.retrieve(answer.id)
        assert again.to_dict() == answer.to_dict()
        more = await second.sdk.responses.create(
            model="stub", input="More", previous_response_id=answer.id
        )
        assert more.previous_response_id == answer.id
        assert asked(second) == [("user", "Hi"), ("assistant", "Hello, world"), ("user", "More")]


async def test_r4_22_chain_has_all_inputs_and_outputs(server: Server) -> None:
    previous = None
    for turn in ("one", "two", "three", "four"):
        call = await server.ask(input=turn, previous_response_id=previous)
        previous = call.json["id"]
    said = ("assistant", "Hello, world")
    expected = [("user", "one"), said, ("user", "two"), said, ("user", "three"), said]
    assert asked(server) == [*expected, ("user", "four")]


async def test_r4_23_instructions_are_not_inherited_unless_set(store: Store) -> None:
    for inherit in (False, True):
        async with storing(Stub(), inherit_instructions=inherit) as server:
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


async def test_r4_25_r4_w11_unknown_previous_response_is_refused(server: Server) -> None:
    deleted = (await server.ask()).json["id"]
    await server.sdk.responses.delete(deleted)
    not_stored = (await server.ask(store=False)).json["id"]
    answered = len(server.app._engine.asked)
    for previous in ("resp_nothing", "nothing", deleted, not_stored):
        for fields in ({}, {"stream": True}, {"store": False}, {"background": True}):
            call = await server.ask(previous_response_id=previous, **fields)
            assert call.status == 400, (previous, fields)
            error = call.json["error"]
            assert error["code"] == "previous_response_not_found"
            assert error["param"] == "previous_response_id"
            assert previous in error["message"]
    assert len(server.app._engine.asked) == answered


async def test_chain_without_a_link_says_that_this_was_deleted(server: Server) -> None:
    first = (await server.ask()).json["id"]
    last = (await server.ask(previous_response_id=first)).json["id"]
    await server.sdk.responses.delete(first)
    error = (await server.ask(previous_response_id=last)).json["error"]
    assert error["code"] == "previous_response_not_found"
    assert f"a response that '{last}' goes on from was deleted" in error["message"]


async def test_r4_26_response_names_its_previous_response(server: Server) -> None:
    first = await server.ask(instructions="Be brief.")
    assert first.json["instructions"] == "Be brief."
    second = await server.ask(previous_response_id=first.json["id"])
    assert second.json["previous_response_id"] == first.json["id"]


async def test_output_without_a_call_in_the_chain_is_refused(
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


async def test_item_reference_is_resolved(server: Server) -> None:
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
    last = texts and page.json["data"][0]["id"]
    path = f"/{second.json['id']}/input_items?order=asc"
    assert (await server.get(f"{path}&after={last}")).json["data"] == []
    for query in ("after=nothing", "before=nothing"):
        refused = await server.get(f"{path}&{query}")
        field = query.partition("=")[0]
        assert (refused.status, refused.json["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=--5", "limit=101", "limit=" + "9" * 5000, "order=up"]
)
async def test_invalid_page_parameter_is_named(server: Server, query) -> None:
    first = await server.ask()
    call = await server.get(f"/{first.json['id']}/input_items?{query}")
    assert (call.status, call.json["error"]["param"]) == (400, query.partition("=")[0])


async def test_unknown_path_is_404(server: Server) -> None:
    first = (await server.ask()).json["id"]
    for path, method in (
        ("/resp_nothing", "GET"),
        ("/resp_nothing", "DELETE"),
        (f"/{first}/nothing", "GET"),
        (f"/{first}/nothing", "POST"),
        (f"/{first}/nothing", "DELETE"),
    ):
        assert (await server.get(path, method)).status == 404
    assert (await server.get(f"/{first}?stream=maybe")).status == 400


async def test_input_tokens_count_the_chain(server: Server) -> None:
    first = await server.ask(input="12345678" * 20)
    alone = await server.sdk.responses.input_tokens.count(model="stub", input="Hi")
    more = await server.sdk.responses.input_tokens.count(
        model="stub", input="Hi", previous_response_id=first.json["id"]
    )
    assert alone.object == "response.input_tokens"
    assert more.input_tokens > alone.input_tokens + 40
    call = await server.get("/input_tokens", "POST", {"model": "stub", "input": "Hi"})
    assert "input_tokens" in call.headers["x-dragoman-loss"]


async def test_conversation_is_compacted_and_continued(server: Server) -> None:
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


async def test_generated_item_ids_are_not_sent_to_the_engine(server: Server) -> None:
    first = await server.ask(input=[{"role": "user", "content": "a"}])
    own = {"type": "message", "role": "user", "content": "b", "id": "msg_mine"}
    await server.ask(input=[own], previous_response_id=first.json["id"])
    items = server.app._engine.asked[-1][0].items
    answered = first.json["output"][0]["id"]
    assert [item.id for item in items] == [None, answered, "msg_mine"]
    assert first.headers.get("x-dragoman-loss") is None


# ---- what is stored ----------------------------------------------------------------------------


async def kept_bytes(server: Server) -> list[int]:
    """The size of what is kept of each response's input, the earliest first."""
    page = await server.memory.store.list_responses("", None, Paging(limit=100, order="asc"))
    return [sum(len(item.text) for item in record.request.items) for record in page.items]


async def test_o9_turn_is_stored_once(tmp_path) -> None:
    async with storing(Stub(), opened("sqlite", tmp_path)) as server:
        previous = None
        for _ in range(20):
            call = await server.ask(input="x" * 1000, previous_response_id=previous)
            previous = call.json["id"]
        assert len(server.app._engine.asked[-1][0].items) == 39
        assert await kept_bytes(server) == [1000] * 20


async def test_p21_responses_are_stored_on_disk_within_stated_limits(tmp_path) -> None:
    assert Settings().store == "sqlite"
    keeping = Retention(
        max_age=Settings().retention,
        max_log_age=Settings().log_retention,
        max_responses=Settings().max_responses,
    )
    assert keeping == Retention()
    store = SqliteStore(tmp_path / "store.db", Retention(max_responses=3))
    async with storing(Stub(), store) as server:
        ids = [(await server.ask()).json["id"] for _ in range(5)]
        await store.sweep(0)
    async with storing(Stub(), opened("sqlite", tmp_path)) as again:
        found = [(await again.get(f"/{id}")).status for id in ids]
    assert sorted(found) == [200, 200, 200, 404, 404]


async def test_p22_background_stream_resumes_for_the_stated_time(tmp_path) -> None:
    path, keeping = tmp_path / "store.db", Retention(max_log_age=100)
    async with storing(Stub(), SqliteStore(path, keeping)) as server:
        whole = await server.ask(stream=True, background=True)
        id = identity(whole)
    async with storing(Stub(), SqliteStore(path, keeping)) as again:
        seen = frames(whole.body)
        for place in range(len(seen) - 1):
            rest = await again.get(f"/{id}?stream=true&starting_after={place}")
            assert b"".join(seen[: place + 1]) + rest.body == whole.body
        born = (await again.get(f"/{id}")).json["created_at"]
        await again.memory.store.sweep(born + 90)
        assert (await again.get(f"/{id}?stream=true")).status == 200
        await again.memory.store.sweep(born + 200)
        refused = await again.get(f"/{id}?stream=true")
        assert (refused.status, refused.json["error"]["param"]) == (400, "stream")
        kept = await again.get(f"/{id}")
        ended = json.loads(seen[-2].split(b"data: ")[1])["response"]
        assert kept.json == ended
