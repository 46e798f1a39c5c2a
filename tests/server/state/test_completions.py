"""Stored chat completions, asked for by the official SDK."""

from typing import Any

import openai
import pytest

from dragoman.stores.base import Page, Record
from dragoman.stores.sql import Store
from tests.server.state.storing import Server
from tests.server.stubs import Call


async def stored(server: Server, text: str = "Hi", **fields: Any) -> Any:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return await server.sdk.chat.completions.create(
        model="stub", messages=messages, store=True, **fields
    )


async def test_a_stored_completion_reads_as_it_was_answered(server: Server) -> None:
    answer = await stored(server, metadata={"k": "v"})
    again = await server.sdk.chat.completions.retrieve(answer.id)
    assert again.to_dict() == {**answer.to_dict(), "metadata": {"k": "v"}}


async def test_a_streamed_one_is_stored_too(server: Server) -> None:
    chunks = [chunk async for chunk in await stored(server, stream=True)]
    again = await server.sdk.chat.completions.retrieve(chunks[0].id)
    assert again.choices[0].message.content == "Hello, world"


async def test_stored_completions_are_listed_in_pages(server: Server) -> None:
    ids = sorted([(await stored(server)).id for _ in range(3)])
    listed = [one.id async for one in server.sdk.chat.completions.list(limit=2)]
    assert sorted(listed) == ids
    none = [one.id async for one in server.sdk.chat.completions.list(model="other")]
    assert none == []
    assert (await server.sdk.chat.completions.list(after=listed[-1])).data == []
    response = await server.sdk.responses.create(model="stub", input="Hi")
    await server.sdk.chat.completions.delete(ids[0])
    for cursor in (ids[0], "chatcmpl-nothing", response.id):
        with pytest.raises(openai.BadRequestError) as refused:
            await server.sdk.chat.completions.list(after=cursor)
        assert refused.value.param == "after"
    messages = server.sdk.chat.completions.messages
    with pytest.raises(openai.BadRequestError):
        await messages.list(ids[1], after="nothing")


async def test_list_whose_cursor_is_deleted_while_it_is_read_is_an_error_and_no_end(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await stored(server)).id for _ in range(3)]
    listed = store.list_responses

    async def late(tenant: str, *given: Any) -> Page[Record]:
        assert await store.delete(tenant, ids[0].removeprefix("chatcmpl-"))
        return await listed(tenant, *given)

    monkeypatch.setattr(store, "list_responses", late)
    with pytest.raises(openai.BadRequestError) as refused:
        await server.sdk.chat.completions.list(after=ids[0], order="asc")
    assert refused.value.param == "after"


async def test_completions_with_a_label_are_listed_wherever_they_stand(server: Server) -> None:
    labels = [{"k": "v", "n": str(place)} for place in range(5)]
    labels[1] = labels[2] = labels[3] = {"k": "other"}
    for metadata in labels:
        await stored(server, metadata=metadata)
    completions = server.sdk.chat.completions
    listed = [one.metadata async for one in completions.list(limit=1, metadata={"k": "v"})]
    assert sorted(str(one) for one in listed) == [str(labels[0]), str(labels[4])]
    query = {"model": "stub", "metadata": {"k": "v", "n": "4"}}
    assert [one.metadata async for one in completions.list(limit=1, **query)] == [labels[4]]


async def test_their_messages_are_listed(server: Server) -> None:
    answer = await stored(server)
    listed = [
        (one.role, one.content)
        async for one in server.sdk.chat.completions.messages.list(answer.id, limit=1)
    ]
    assert listed == [("system", "Be brief."), ("user", "Hi")]


async def test_stored_completions_are_labelled_and_deleted(server: Server) -> None:
    answer = await stored(server)
    labelled = await server.sdk.chat.completions.update(answer.id, metadata={"k": "w"})
    assert labelled.metadata == {"k": "w"}
    gone = await server.sdk.chat.completions.delete(answer.id)
    assert (gone.id, gone.deleted) == (answer.id, True)
    with pytest.raises(openai.NotFoundError):
        await server.sdk.chat.completions.retrieve(answer.id)


async def test_unknown_completion_is_404(server: Server) -> None:
    plain = await server.sdk.chat.completions.create(
        model="stub", messages=[{"role": "user", "content": "Hi"}]
    )
    answer, response = await stored(server), await server.ask()
    path = "/v1/chat/completions"
    for method, rest in (
        ("GET", f"/{plain.id}"),
        ("GET", f"/{response.json['id']}"),
        ("GET", f"/{answer.id}/nothing"),
        ("POST", f"/{answer.id}/nothing"),
        ("DELETE", f"/{answer.id}/nothing"),
    ):
        assert (await Call(server.app, path + rest, b"", method=method)()).status == 404
