"""A server without a memory: what it declines and tells, and what it refuses by name."""

from typing import Any

import pytest

from dragoman.core.item import ItemReference, Message
from dragoman.core.request import Request
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.resolve import without_store
from tests.server.stubs import PATHS, Call, Stub, asking


async def ask(wire: str = "responses", stub: Stub | None = None, **fields: Any) -> Call:
    return await Call(App(stub or Stub(), Settings()), PATHS[wire], asking(wire, **fields))()


@pytest.mark.parametrize("wire", ["chat", "responses"])  # Messages has no such field
@pytest.mark.parametrize("store", [True, False, None])
async def test_store_is_accepted_and_answered_with_false(wire: str, store) -> None:
    stub = Stub()
    call = await ask(wire, stub, store=store)
    assert call.status == 200
    assert call.json.get("store") is (False if wire == "responses" else None)
    assert stub.asked[0][0].store is (None if store is None else False)
    assert ("store" in call.headers.get("x-dragoman-loss", "")) is (store is True)


async def test_encrypted_reasoning_request_is_reported_as_dropped() -> None:
    call = await ask(include=["reasoning.encrypted_content"])
    assert call.status == 200
    assert "include[reasoning.encrypted_content]" in call.headers["x-dragoman-loss"]
    call = await ask(include=["message.output_text.logprobs"])
    assert "x-dragoman-loss" not in call.headers


async def test_a_response_that_is_not_stored_is_not_found() -> None:
    call = await ask(previous_response_id="resp_123")
    assert call.status == 400
    error = call.json["error"]
    assert error["code"] == "previous_response_not_found"
    assert error["param"] == "previous_response_id"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"background": True}, "background"),
        (
            {"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "x"}]},
            "input[1]",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_field_that_needs_a_store_is_refused_by_name(fields, param, stream) -> None:
    call = await ask(**fields, stream=stream)
    assert call.status == 400
    assert call.json["error"]["param"] == param


async def test_request_without_store_fields_is_unchanged() -> None:
    request = Request(model="m", items=(Message("user", "hi"),), background=False)
    assert without_store(request) == (request, ())
    with pytest.raises(Exception, match=r"input\[0\]"):
        without_store(Request(model="m", items=(ItemReference("x"),)))
