"""Sealed reasoning of answers that are stored: asked for by us, kept, brought back, and shown only
to clients that ask to see it."""

import json
from typing import Any

import pytest

from tests.server.state.storing import all_ended, frames, identity, opened
from tests.server.state.thinking import (
    ASK,
    BLOB,
    RESULT,
    SEALED,
    ask,
    before,
    chat,
    thinking,
    thoughts,
)
from tests.server.stubs import Call

INCLUDE = f"include[]={SEALED}"


def blob(data: bytes) -> bool:
    """Whether the seal is in what a client got, however it was written."""
    return any(
        json.dumps(BLOB, ensure_ascii=plain)[1:-1].encode() in data for plain in (True, False)
    )


async def answer_id(call: Call, *, stream: bool) -> str:
    return identity(call) if stream else str(call.json["id"])


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_p9_stored_chain_keeps_encrypted_reasoning_hidden_from_its_client(
    stream, tools, tmp_path
) -> None:
    fields: dict[str, Any] = {"stream": stream} if tools else {"stream": stream, "tools": []}
    async with thinking("responses") as up:
        async with before(up, "responses", opened("sqlite", tmp_path)) as server:
            first = await ask(server, **fields)
            id = await answer_id(first, stream=stream)
        async with before(up, "responses", opened("sqlite", tmp_path)) as server:
            more = [RESULT] if tools else "And now?"
            last = await ask(server, more, previous_response_id=id, **fields)
            told = last.headers.get("x-dragoman-loss")
            for call in (first, last):
                assert not blob(call.body)
                assert "encrypted" not in str(call.headers) + call.body.decode()
            assert told is None
            second = await answer_id(last, stream=stream)
            for path in (f"/{id}", f"/{second}", f"/{second}/input_items"):
                assert not blob((await server.get(path)).body)
                assert blob((await server.get(f"{path}?{INCLUDE}")).body)
                assert blob((await server.get(f"{path}?include={SEALED}")).body)
    assert [each.json["include"] for each in up.asked] == [[SEALED]] * 2
    assert thoughts(up.asked[1]) == [BLOB]
    sent = up.asked[1].json["input"][1]
    assert (sent["id"], sent["encrypted_content"]) == ("rs_thought", BLOB)


@pytest.mark.parametrize("include", [(), (SEALED,)])
async def test_p9_log_with_encrypted_reasoning_replays_byte_for_byte(include, tmp_path) -> None:
    async with thinking("responses") as up:
        async with before(up, "responses", opened("sqlite", tmp_path)) as server:
            live = await ask(server, stream=True, include=list(include))
            seen, id = frames(live.body), identity(live)
            assert blob(live.body) is bool(include)
        async with before(up, "responses", opened("sqlite", tmp_path)) as server:
            for place in range(-1, len(seen) - 2):
                rest = await server.get(f"/{id}?stream=true&starting_after={place}")
                assert frames(rest.body) == seen[place + 1 :]
            whole = await server.get(f"/{id}?stream=true&{INCLUDE}")
            assert blob(whole.body)
            assert len(frames(whole.body)) == len(seen)


async def test_p9_background_run_requests_encrypted_reasoning(tmp_path) -> None:
    async with (
        thinking("responses") as up,
        before(up, "responses", opened("sqlite", tmp_path)) as server,
    ):
        first = await ask(server, background=True)
        await all_ended(server)
        found = await server.get(f"/{first.json['id']}")
        assert found.json["status"] == "completed"
        assert not blob(found.body)
        await ask(server, [RESULT], previous_response_id=first.json["id"])
        assert thoughts(up.asked[1]) == [BLOB]


async def test_p9_include_or_store_false_returns_reasoning_unchanged() -> None:
    async with thinking("responses") as up, before(up, "responses") as server:
        assert blob((await ask(server, include=[SEALED])).body)
        assert blob((await ask(server, include=[SEALED], store=False)).body)
        await ask(server, store=False)
    assert [each.json.get("include") for each in up.asked] == [[SEALED], [SEALED], None]


async def test_p9_conversation_shows_encrypted_reasoning_on_request() -> None:
    async with thinking("responses") as up, before(up, "responses") as server:
        talk = await server.sdk.conversations.create()
        await ask(server, conversation=talk.id)
        items = await server.sdk.conversations.items.list(talk.id, order="asc")
        assert "encrypted" not in items.to_json()
        shown = await server.sdk.conversations.items.list(talk.id, order="asc", include=[SEALED])
        thought = shown.data[1]
        assert thought.type == "reasoning"
        assert thought.encrypted_content == BLOB
        path = f"/v1/conversations/{talk.id}/items/rs_thought"
        for query, seen in (("", False), (INCLUDE, True)):
            call = Call(server.app, path, None, method="GET")
            call._scope["query_string"] = query.encode()
            assert blob((await call()).body) is seen
        await ask(server, [RESULT], conversation=talk.id)
        assert thoughts(up.asked[1]) == [BLOB]


async def test_p9_chat_upstream_is_not_asked_for_encrypted_reasoning() -> None:
    async with thinking("chat") as up, before(up, "chat") as server:
        first = await ask(server)
        assert "include" not in first.headers.get("x-dragoman-loss", "")
        await ask(server, [RESULT], previous_response_id=first.json["id"])
        stored = await chat(server, {"role": "user", "content": ASK})
        assert "include" not in stored.headers.get("x-dragoman-loss", "")
    assert all("include" not in each.json for each in up.asked)
