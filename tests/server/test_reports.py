"""What clients are told of what became of their fields, in their own words."""

from typing import get_args

import pytest

from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.engines.pocket import pocket
from dragoman.formats.markup.format import Markup
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from dragoman.wire.chat import CHAT
from dragoman.wire.json import dump
from dragoman.wire.messages import MESSAGES
from dragoman.wire.protocol import STANDARD
from dragoman.wire.registry import spell_losses
from dragoman.wire.responses.response import Include
from tests.server.stubs import PATHS, Call, Stub, asking

LOSS = "x-dragoman-loss"
CHATTING = {"model": "pocket", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
NEW = {"functions": [{"name": "f", "parameters": {"type": "object", "properties": {}}}]}
FORM = {"response_format": {"type": "json"}}


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        pytest.param(NEW, None, id="M6"),
        pytest.param({"max_output_tokens": 5}, "dropped: max_output_tokens", id="M7"),
        pytest.param(
            {"format": "x", "instructions": "x"}, "dropped: format, instructions", id="M7"
        ),
    ],
)
async def test_fields_of_chat_are_reported_as_the_client_calls_them(fields, lost) -> None:
    app = App(pocket(), Settings())
    call = await Call(app, PATHS["chat"], CHATTING | {"max_tokens": 1} | fields)()
    assert (call.status, call.headers.get(LOSS)) == (200, lost)
    await app.close()


async def test_m15_an_unknown_form_of_an_answer_lists_the_known_ones() -> None:
    app = App(pocket(), Settings())
    call = await Call(app, PATHS["chat"], CHATTING | FORM)()
    problem = call.json["error"]["message"]
    assert call.status == 400
    assert "'json' is not known here; use text, json_object, json_schema, regex or gr" in problem
    await app.close()


async def test_the_form_of_chat_in_responses_is_refused_with_the_right_field() -> None:
    app = App(pocket(), Settings())
    asked = {"model": "pocket", "input": "?", "response_format": {"type": "json_object"}}
    call = await Call(app, PATHS["responses"], asked)()
    assert call.status == 400
    assert call.json["error"]["message"].endswith(
        "is 'json_object' as in Chat; Responses has it in text.format"
    )
    await app.close()


@pytest.mark.parametrize(
    ("thinking", "losses"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, [("thinking", "emulated")]),
        ({"type": "adaptive"}, [("thinking", "dropped")]),
    ],
)
def test_m8_a_budget_of_thinking_is_emulated_by_an_effort(thinking, losses) -> None:
    request = MESSAGES.decode_request(dump(asking("messages") | {"thinking": thinking}))
    body, lost = CHAT.encode_request(request, STANDARD)
    assert (b'"reasoning_effort":"low"' in body) is (thinking["type"] == "enabled")
    spelt = spell_losses(lost, request, "messages")
    assert [(loss.field, loss.action) for loss in spelt] == losses


# ---- prefills --------------------------------------------------------------------------------

PREFILLED = [
    {"role": "user", "content": "Count to five."},
    {"role": "assistant", "content": "1, 2, 3"},
]


async def test_m5_a_last_message_of_the_assistant_is_continued() -> None:
    app = App(pocket(), Settings())
    body = {"model": "pocket", "max_tokens": 20, "temperature": 0, "messages": PREFILLED}
    call = await Call(app, PATHS["messages"], body)()
    assert call.json["content"][0]["text"] == ", 4, 5."
    assert LOSS not in call.headers
    whole = await Call(app, PATHS["chat"], body | {"continue_final_message": True})()
    assert whole.json["choices"][0]["message"]["content"] == ", 4, 5."
    form = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    call = await Call(app, PATHS["messages"], body | form)()
    assert (call.status, call.json["error"]["type"]) == (400, "invalid_request_error")
    assert "messages: the answer has begun" in call.json["error"]["message"]
    tools = {"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]}
    assert (await Call(app, PATHS["messages"], body | tools)()).status == 200
    await app.close()


def test_m5_a_prefill_is_reported_where_a_server_may_not_continue_it() -> None:
    request = MESSAGES.decode_request(dump({"model": "m", "messages": PREFILLED}))
    spelt = spell_losses(CHAT.encode_request(request, STANDARD)[1], request, "messages")
    assert [(loss.field, loss.action) for loss in spelt] == [("messages[1]", "emulated")]
    assert MESSAGES.encode_request(request, STANDARD)[1] == ()


def test_m5_a_family_without_a_template_leaves_the_last_message_open() -> None:
    items = Message("user", "Hi"), Message("assistant", "1, ", status="in_progress")
    prompt = Markup("hermes").render(Request(model="m", items=items))
    assert prompt.text.endswith("assistant\n1, ")


# ---- what is asked of the store --------------------------------------------------------------


async def test_m14_unknown_fields_of_a_conversation_are_reported() -> None:
    app = App(Stub(), Settings(), Memory(MemoryStore()))
    made = await Call(app, "/v1/conversations", {"itmes": []})()
    assert (made.status, made.headers[LOSS]) == (200, "dropped: itmes")
    assert LOSS not in (await Call(app, "/v1/conversations", {"metadata": {}})()).headers
    await app.close()


@pytest.mark.parametrize(
    ("query", "param", "words"),
    [
        (
            "include=nope",
            "include",
            f"is 'nope', and must be one of {', '.join(get_args(Include))}",
        ),
        ("order=up", "order", "is 'up', and must be one of asc, desc"),
        ("limit=0", "limit", "must be at least 1"),
        ("limit=x", "limit", "is a string, and must be an integer"),
    ],
)
async def test_m14_a_query_that_makes_no_sense_is_refused_in_plain_words(
    query, param, words
) -> None:
    app = App(Stub(), Settings(), Memory(MemoryStore()))
    made = await Call(app, "/v1/conversations", {})()
    call = Call(app, f"/v1/conversations/{made.json['id']}/items", method="GET")
    call._scope["query_string"] = query.encode()
    error = (await call()).json["error"]
    assert (call.status, error["message"].partition(": ")[2]) == (400, words)
    assert error["param"].startswith(param)
    await app.close()


@pytest.mark.parametrize(
    ("wire", "body", "words"),
    [
        ("responses", {"model": "m", "input": []}, "input: is missing or empty"),
        (
            "responses",
            {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
            "input: is missing or empty; `messages` is what /v1/chat/completions takes",
        ),
        (
            "chat",
            {"model": "m", "input": "Hi"},
            "messages: is missing; `input` is what /v1/responses takes",
        ),
        (
            "responses",
            {"model": "m", "input": "Hi", "background": True},
            "background: needs a store",
        ),
    ],
)
async def test_fields_of_another_protocol_are_distinguished(wire, body, words) -> None:
    call = await Call(App(Stub(), Settings()), PATHS[wire], body)()
    assert call.status == 400
    assert call.json["error"]["message"].startswith(words)
