"""Conversations, made and used by the official SDK."""

from typing import Any

import openai
import pytest

from dragoman.core.event import Finished
from dragoman.core.interfaces import Caller
from dragoman.net.threads import reading
from dragoman.stores.sql import Store
from dragoman.stores.sqlite import SqliteStore
from tests.server.state.storing import Server, storing
from tests.server.stubs import Call, Stub


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text, **fields}


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


async def test_a_conversation_is_made_labelled_and_forgotten(server: Server) -> None:
    talk = await server.sdk.conversations.create(metadata={"k": "v"}, items=[said("Hi")])
    assert talk.id.startswith("conv_")
    again = await server.sdk.conversations.retrieve(talk.id)
    assert again.to_dict() == talk.to_dict()
    labelled = await server.sdk.conversations.update(talk.id, metadata={"k": "w"})
    assert labelled.metadata == {"k": "w"}
    gone = await server.sdk.conversations.delete(talk.id)
    assert (gone.id, gone.deleted) == (talk.id, True)
    with pytest.raises(openai.NotFoundError):
        await server.sdk.conversations.retrieve(talk.id)


async def test_writes_wait_among_those_of_their_own_key(server: Server, monkeypatch) -> None:
    monkeypatch.setattr(server.app, "_caller", lambda _: Caller("key"))
    store, lines = server.memory.store, list[str]()

    def noted(write: Any) -> Any:
        return lambda *given: lines.append(reading.get()) or write(*given)

    for name in ("_transact", "_write"):
        monkeypatch.setattr(store, name, noted(getattr(store, name)))
    talk = await server.sdk.conversations.create(items=[said("a", id="msg_a")])
    await server.sdk.conversations.items.create(talk.id, items=[said("b")])
    await server.sdk.conversations.items.delete("msg_a", conversation_id=talk.id)
    await server.sdk.conversations.delete(talk.id)
    assert set(lines) == {"key"}  # and not that of the upkeep, with all others


async def test_an_empty_conversation_needs_no_body(server: Server) -> None:
    call = await Call(server.app, "/v1/conversations", b"")()
    assert (call.status, call.json["metadata"]) == (200, {})


async def test_items_are_added_listed_read_and_removed(server: Server) -> None:
    items = server.sdk.conversations.items
    talk = await server.sdk.conversations.create(items=[said("a", id="msg_a")])
    added = await items.create(talk.id, items=[said("b"), said("c", id="msg_c")])
    assert texts(added.data) == ["b", "c"]
    listed = [item async for item in items.list(talk.id, order="asc", limit=2)]
    assert texts(listed) == ["a", "b", "c"]
    one = await items.retrieve("msg_c", conversation_id=talk.id)
    assert texts([one]) == ["c"]
    assert (await items.list(talk.id, after="msg_c", order="asc")).data == []
    await items.delete("msg_c", conversation_id=talk.id)
    for cursor in ("msg_c", "msg_nothing"):
        with pytest.raises(openai.BadRequestError) as refused:
            await items.list(talk.id, after=cursor, order="asc")
        assert refused.value.param == "after"
    with pytest.raises(openai.NotFoundError):
        await items.retrieve("msg_c", conversation_id=talk.id)
    with pytest.raises(openai.NotFoundError):
        await items.delete("msg_c", conversation_id=talk.id)


async def test_responses_are_added_to_their_conversation(server: Server) -> None:
    talk = await server.sdk.conversations.create(items=[said("a")])
    for word in ("b", "c"):
        answer = await server.sdk.responses.create(model="stub", input=word, conversation=talk.id)
        assert answer.conversation.id == talk.id
    engine: Any = server.app._engine
    assert [item.text for item in engine.asked[-1][0].items] == ["a", "b", "Hello, world", "c"]
    listed = [item async for item in server.sdk.conversations.items.list(talk.id, order="asc")]
    assert texts(listed) == ["a", "b", "Hello, world", "c", "Hello, world"]
    assert len({item.id for item in listed}) == 5
    call = await server.ask(previous_response_id=answer.id, input="d")
    assert call.status == 200
    whole = ["a", "b", "Hello, world", "c", "Hello, world", "d"]
    assert [item.text for item in engine.asked[-1][0].items] == whole


async def test_a_response_keeps_what_stood_before_it_in_its_conversation(store: Store) -> None:
    engine = Stub()
    async with storing(engine, store) as server:
        sdk = server.sdk

        async def listed(id: str) -> list[str]:
            return texts([item async for item in sdk.responses.input_items.list(id, order="asc")])

        async def read(id: str) -> list[str]:
            assert (await server.ask(previous_response_id=id, input="on")).status == 200
            return [item.text for item in engine.asked[-1][0].items]

        async def forget(word: str) -> None:
            async for item in sdk.conversations.items.list(talk.id):
                if texts([item]) == [word]:
                    await sdk.conversations.items.delete(item.id, conversation_id=talk.id)

        talk, whole, answer = await sdk.conversations.create(), engine.cues, "Hello, world"
        a = (await server.ask(conversation=talk.id, input="a")).json["id"]
        engine.cues = (*whole[:-1], Finished("incomplete", reasons=("length",)))
        b = (await server.ask(conversation=talk.id, input="b")).json[
            "id"
        ]  # of which nothing is added
        engine.cues = whole
        c = (await server.ask(conversation=talk.id, input="c")).json["id"]
        assert await listed(a) == ["a"]
        assert await listed(b) == ["a", answer, "b"]
        assert await listed(c) == ["a", answer, "c"]
        assert await read(a) == ["a", answer, "on"]
        assert await read(b) == ["a", answer, "b", answer, "on"]
        await forget("a")
        await forget("c")
        assert await listed(a) == ["a"]
        assert await read(a) == ["a", answer, "on"]
        assert await listed(c) == [answer, "c"]
        assert await read(c) == [answer, "c", answer, "on"]
        await forget(answer)  # which c came after, too
        assert await listed(c) == ["c"]
        await sdk.conversations.delete(talk.id)
        for id, word in ((a, "a"), (b, "b"), (c, "c")):
            assert await listed(id) == [word]
        assert await read(a) == ["a", answer, "on"]  # it was the first there
        for id in (b, c):
            asked, before = await server.ask(previous_response_id=id, input="on"), len(engine.asked)
            assert (asked.status, asked.json["error"]["param"]) == (400, "previous_response_id")
            assert "conversation" in asked.json["error"]["message"]
            assert len(engine.asked) == before


async def test_a_chain_reads_what_its_conversation_referred_to(server: Server) -> None:
    first = await server.ask(input="a")
    said = {"type": "item_reference", "id": first.json["output"][0]["id"]}
    talk = await server.sdk.conversations.create()
    await server.ask(conversation=talk.id, input=[said])
    second = (await server.ask(conversation=talk.id, input="b")).json["id"]
    assert (await server.ask(previous_response_id=second, input="c")).status == 200
    engine: Any = server.app._engine
    answer = "Hello, world"
    read = [item.text for item in engine.asked[-1][0].items]
    assert read == [answer, answer, "b", answer, "c"]


async def test_a_conversation_that_is_not_stored_does_not_grow(server: Server) -> None:
    talk = await server.sdk.conversations.create(items=[said("a")])
    await server.ask(conversation={"id": talk.id}, store=False)
    listed = [item async for item in server.sdk.conversations.items.list(talk.id)]
    assert texts(listed) == ["a"]


async def test_unknown_conversation_is_refused_by_name(server: Server) -> None:
    call = await server.ask(conversation="conv_nothing")
    assert (call.status, call.json["error"]["param"]) == (404, "conversation")
    talk = await server.sdk.conversations.create()
    both = await server.ask(conversation=talk.id, previous_response_id="resp_1")
    assert (both.status, both.json["error"]["param"]) == (400, "conversation")
    for method, path in (
        ("GET", "/conv_nothing"),
        ("GET", "/conv_nothing/items"),
        ("GET", f"/{talk.id}/nothing"),
        ("GET", f"/{talk.id}/items/a/b"),
        ("DELETE", "/conv_nothing"),
        ("DELETE", f"/{talk.id}/nothing"),
    ):
        call = await Call(server.app, f"/v1/conversations{path}", b"", method=method)()
        assert call.status == 404
    for path, body in (
        ("/conv_nothing", {"metadata": {}}),
        ("/conv_nothing/items", {"items": []}),
        (f"/{talk.id}/nothing", {}),
    ):
        call = await Call(server.app, f"/v1/conversations{path}", body)()
        assert call.status == 404


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": "a"}, "items"),
        ("", {"items": [said("a")] * 21}, "items"),
        ("", {"items": [said("a", id="1"), said("b", id="1")]}, "items[1].id"),
        ("", {"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ("/ID", {}, "metadata"),
        ("/ID/items", {}, "items"),
        ("/ID/items", {"items": [said("b", id="taken")]}, "items"),
    ],
)
async def test_invalid_conversation_field_is_named(server: Server, path, body, param) -> None:
    talk = await server.sdk.conversations.create(items=[said("a", id="taken")])
    call = await Call(server.app, f"/v1/conversations{path}".replace("ID", talk.id), body)()
    assert (call.status, call.json["error"]["param"]) == (400, param)


async def test_an_item_of_a_response_is_added_by_reference(server: Server) -> None:
    first = await server.sdk.responses.create(model="stub", input="Hi")
    talk = await server.sdk.conversations.create(
        items=[{"type": "item_reference", "id": first.output[0].id}]
    )
    await server.sdk.responses.create(model="stub", input="Go on", conversation=talk.id)
    asked = server.app._engine.asked[-1][0]
    assert [item.text for item in asked.items] == ["Hello, world", "Go on"]


async def test_what_was_referred_to_is_there_when_its_response_is_deleted(server: Server) -> None:
    engine: Any = server.app._engine
    first = (await server.ask(input="a")).json
    answer, reference = "Hello, world", {"type": "item_reference", "id": first["output"][0]["id"]}
    talk = await server.sdk.conversations.create(items=[reference])
    items = server.sdk.conversations.items
    with pytest.raises(openai.BadRequestError):  # it is there already
        await items.create(talk.id, items=[reference])
    other = await server.sdk.conversations.create()
    await items.create(other.id, items=[reference])
    for _ in range(2):  # the second has another id there
        asked = await server.ask(conversation=talk.id, input=[reference, said("b")])
    alone = (await server.ask(input=[reference, said("c")])).json["id"]
    await server.sdk.responses.delete(first["id"])
    for id, read in (
        (talk.id, [answer, *[answer, "b", answer] * 2, "d"]),
        (other.id, [answer, "d"]),
    ):
        assert (await server.ask(conversation=id, input="d")).status == 200
        assert [item.text for item in engine.asked[-1][0].items] == read
        assert [item.type async for item in items.list(id)] == ["message"] * (len(read) + 1)
    page = await server.sdk.responses.input_items.list(asked.json["id"], order="asc")
    assert texts(page.data) == [answer, answer, "b", answer, answer, "b"]
    assert (await server.ask(previous_response_id=alone, input="d")).status == 200
    assert [item.text for item in engine.asked[-1][0].items] == [answer, "c", answer, "d"]


async def test_unknown_item_is_not_added_by_reference(server: Server) -> None:
    talk = await server.sdk.conversations.create()
    body = {"items": [said("a"), {"type": "item_reference", "id": "msg_nothing"}]}
    for path in ("", f"/{talk.id}/items"):
        call = await Call(server.app, f"/v1/conversations{path}", body)()
        assert (call.status, call.json["error"]["param"]) == (404, "items[1].id")


async def test_an_item_given_twice_hides_nothing_before_a_response(server: Server) -> None:
    talk = await server.sdk.conversations.create()
    answers = []
    for _ in range(2):
        call = await server.ask(conversation=talk.id, input=[said("a", id="msg_a"), said("b")])
        answers.append(call.json)
    await server.sdk.conversations.items.delete(
        answers[0]["output"][0]["id"], conversation_id=talk.id
    )
    page = await server.sdk.responses.input_items.list(answers[1]["id"], order="asc")
    assert texts(page.data) == ["a", "b", "a", "b"]


async def test_pages_of_items_that_were_given_twice_end(server: Server) -> None:
    talk = await server.sdk.conversations.create(items=[said("a", id="msg_a")])
    call = await server.ask(conversation=talk.id, input=[said("b", id="msg_a"), said("c")])
    lists = server.sdk.responses.input_items
    for limit in (1, 2, 3):
        listed: list[Any] = []
        async for item in lists.list(call.json["id"], limit=limit, order="asc"):
            assert len(listed) < 3  # it would find the first again and again
            listed.append(item)
        assert texts(listed) == ["a", "b", "c"]
        assert len({item.id for item in listed}) == 3


async def test_pages_end_whatever_ids_a_client_has_chosen(server: Server) -> None:
    given = [said("a", id="m"), said("b", id="m_2"), said("c", id="m"), said("d", id="m_2")]
    first = (await server.ask(input=[*given, said("e")])).json["id"]
    lists = server.sdk.responses.input_items
    unnamed = (await lists.list(first, limit=1)).data[0].id
    reference = {"type": "item_reference", "id": unnamed}
    second = (await server.ask(previous_response_id=first, input=[reference])).json["id"]
    for id, words in ((first, "abcde"), (second, "abcde!e")):
        listed: list[Any] = []
        async for item in lists.list(id, limit=1, order="asc"):
            assert len(listed) < len(words)
            listed.append(item)
        assert texts(listed) == [{"!": "Hello, world"}.get(word, word) for word in words]
    assert [item.id for item in listed[:5]] == ["m", "m_2", "m_2_2", "m_2_3", unnamed]


async def test_what_a_turn_names_twice_is_in_its_conversation_once(server: Server) -> None:
    engine: Any = server.app._engine
    first = (await server.ask(input=[said("a")])).json["id"]
    (named,) = (await server.sdk.responses.input_items.list(first)).data
    talk = await server.sdk.conversations.create()
    reference = {"type": "item_reference", "id": named.id}
    given = [reference, said("b"), reference, said("b")]
    second = (await server.ask(conversation=talk.id, input=given)).json["id"]
    assert [item.text for item in engine.asked[-1][0].items] == ["a", "b", "a", "b"]
    page = await server.sdk.conversations.items.list(talk.id, order="asc")
    assert texts(page.data) == ["a", "b", "b", "Hello, world"]
    page = await server.sdk.responses.input_items.list(second, order="asc")
    assert texts(page.data) == ["a", "b", "a", "b"]
    await server.ask(previous_response_id=second, input="c")
    asked = [item.text for item in engine.asked[-1][0].items]
    assert asked == ["a", "b", "a", "b", "Hello, world", "c"]


async def test_items_of_a_turn_get_ids_that_are_free(server: Server) -> None:
    before = [said("", id=id) for id in ("m", "m_3", "m_3_3")]
    talk = await server.sdk.conversations.create(items=before)
    await server.ask(conversation=talk.id, input=[said("a", id="m"), said("b", id="m")])
    listed = [item async for item in server.sdk.conversations.items.list(talk.id, order="asc")]
    assert listed[4].id == "m_4"
    assert listed[3].id.startswith("m_")
    assert len({item.id for item in listed}) == len(listed)
    assert texts(listed[3:]) == ["a", "b", "Hello, world"]


async def test_a_turn_is_answered_where_its_conversation_can_only_be_read(tmp_path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    async with storing(Stub(), store) as server:
        talk = await server.sdk.conversations.create(items=[said("a" * 10_000)])
        store._writing.execute("PRAGMA query_only = ON")  # as if the disk were full
        call = await server.ask(conversation=talk.id, input="b")
        store._writing.execute("PRAGMA query_only = OFF")
    assert (call.status, call.headers["x-dragoman-loss"]) == (200, "dropped: store")
