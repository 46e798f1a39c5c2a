"""A server of Anthropic's Messages behind Dragoman: its content, to clients of OpenAI's protocols.

The server refuses every request that does not fit the published schema.
"""

import json
from typing import Any

import openai
import pytest

from tests.mock import Asked, Reply
from tests.sdk.behind import Behind, Face, behind, timeless
from tests.sdk.blocks import blocks, refusal, text, thinking, tool_use
from tests.sdk.scenes import WEATHER, tools
from tests.sdk.test_reasoning import one_turn

JSON = Any
ANTHROPIC: dict[str, str] = {"wire": "messages", "profile": "anthropic"}
SIGNATURES = ("EqMBCkYIBBgCKkDw+/==", "Er0BCkYIBxgCKkA-_==")
ENCRYPTED = "reasoning.encrypted_content"
CALL = tool_use("weather", {"city": "Zürich", "days": [1.0, 2]})
ARGUMENTS = {"city": "Zürich", "days": [1.0, 2]}

CONTENTS = {
    "text": [text("Grüße, "), text("🌍!")],
    "thinking": [thinking("First this.", SIGNATURES[0]), text("Yes.")],
    "redacted": [{"type": "redacted_thinking", "data": "EmwK"}, text("Yes.")],
    "calls": [text("Let me see."), CALL, tool_use("weather", {}, 2)],
}


@pytest.mark.parametrize("face", ["async", "sync"])
@pytest.mark.parametrize("name", CONTENTS)
async def test_chat_client_gets_the_content_streamed_and_whole(name: str, face: Face) -> None:
    fields = tools(WEATHER)["chat"]
    reason = "tool_use" if name == "calls" else "end_turn"
    async with behind(blocks(*CONTENTS[name], reason=reason), face=face, **ANTHROPIC) as server:
        whole = await server.whole("chat", **fields)
        asked = {**fields, "stream_options": {"include_usage": True}}
        _, final = await server.streamed("chat", **asked)
    assert timeless(whole)["usage"] == timeless(final)["usage"]
    assert (whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (16, 2)
    for answer in (whole, final):
        (choice,) = answer.choices
        said = "".join(block.get("text", "") for block in CONTENTS[name])
        thought = "".join(block.get("thinking", "") for block in CONTENTS[name])
        assert (choice.message.content, choice.finish_reason) == (
            said,
            "tool_calls" if name == "calls" else "stop",
        )
        assert getattr(choice.message, "reasoning_content", "") == thought
        calls = [call.function for call in choice.message.tool_calls or ()]
        given = [json.loads(call.arguments) for call in calls]
        assert given == ([ARGUMENTS, {}] if name == "calls" else [])


@pytest.mark.parametrize("name", CONTENTS)
async def test_responses_client_gets_the_content_streamed_and_whole(name) -> None:
    async with behind(blocks(*CONTENTS[name]), **ANTHROPIC) as server:
        whole = await server.whole("responses", **tools(WEATHER)["responses"])
        events, final = await server.streamed("responses", **tools(WEATHER)["responses"])
    assert timeless(whole) == timeless(final)
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    kinds = {"text": ["message"], "calls": ["message", "function_call", "function_call"]}
    assert [i.type for i in whole.output] == kinds.get(name, ["reasoning", "message"])
    assert whole.output_text == "".join(block.get("text", "") for block in CONTENTS[name])


# ---- tools, and the thinking that led to them --------------------------------------------


def working(asked: Asked) -> Reply:
    """Two calls, each after signed thinking, and then an answer."""
    said = asked.json["messages"]
    turn = sum(
        block["type"] == "tool_result"
        for message in said
        if isinstance(message["content"], list)
        for block in message["content"]
    )
    if turn == 2:
        return blocks(text("Noon."))(asked)
    content = [thinking(f"Thought {turn}.", SIGNATURES[turn])]
    content += [text("One moment.")] if turn == 0 else []
    call = tool_use("clock", {"zone": "CET"}, turn)
    return blocks(*content, call, reason="tool_use")(asked)


def sent_thinking(server: Behind) -> list[tuple[str, str]]:
    """The thinking in the last request that the server got."""
    messages = server.up.asked[-1].json["messages"]
    content = [message["content"] for message in messages if message["role"] == "assistant"]
    found = [block for each in content if isinstance(each, list) for block in each]
    return [(b["thinking"], b["signature"]) for b in found if b["type"] == "thinking"]


THOUGHTS = [(f"Thought {n}.", SIGNATURES[n]) for n in range(2)]


@pytest.mark.parametrize(("streamed", "shown"), [(False, True), (True, False)])
async def test_signed_thinking_is_restored_for_a_chat_client(streamed, shown) -> None:
    async with behind(working, **ANTHROPIC) as server:
        messages: list[JSON] = [{"role": "user", "content": "What is the time?"}]
        for _ in range(3):
            said = await one_turn(server, messages, streamed=streamed, shown=shown)
        assert said.content == "Noon."
        assert sent_thinking(server) == THOUGHTS
        asked = [each.json["messages"] for each in server.up.asked]
    assert asked[-1][: len(asked[1])] == asked[1]  # what is cached stays
    roles = [message["role"] for message in asked[-1]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert [block["type"] for block in asked[-1][1]["content"]] == ["thinking", "text", "tool_use"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_signed_thinking_is_carried_by_a_responses_client_without_a_store(streamed) -> None:
    tool = {"type": "function", "name": "clock", "parameters": {}, "strict": False}
    fields: JSON = {"tools": [tool], "store": False, "include": [ENCRYPTED]}
    async with behind(working, **ANTHROPIC) as first:
        items: list[JSON] = [{"role": "user", "content": "What is the time?"}]
        for _ in range(3):
            fields["input"] = items
            if streamed:
                _, answer = await first.streamed("responses", **fields)
            else:
                answer = await first.whole("responses", **fields)
            items += [item.to_dict() for item in answer.output]
            called = [item.call_id for item in answer.output if item.type == "function_call"]
            items += [
                {"type": "function_call_output", "call_id": c, "output": "12"} for c in called
            ]
        assert answer.output_text == "Noon."
        assert sent_thinking(first) == THOUGHTS
    async with behind(working, **ANTHROPIC) as other:  # which has another key, and no cache
        await other.whole("responses", **fields)
        assert sent_thinking(other) == []


async def test_signature_of_another_model_is_not_sent() -> None:
    async with behind(working, **ANTHROPIC) as server:
        messages: list[JSON] = [{"role": "user", "content": "What is the time?"}]
        await one_turn(server, messages, streamed=False)
        assert messages[1]["tool_calls"]
        tool = {"type": "function", "function": {"name": "clock", "parameters": {}}}
        fields: JSON = {"model": "other", "messages": messages, "tools": [tool]}
        await server.whole("chat", **fields)
        assert sent_thinking(server) == []
        await server.whole("chat", **{**fields, "model": "mock"})
        assert sent_thinking(server) == THOUGHTS[:1]


UNSIGNED: list[tuple[str, JSON]] = [
    (
        "chat",
        {
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
                {"role": "user", "content": "And?"},
            ]
        },
    ),
    (
        "responses",
        {
            "store": False,
            "input": [
                {"role": "user", "content": "?"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "Hm."}],
                    "encrypted_content": "gAAAAABseal+/=",
                },
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "And?"},
            ],
        },
    ),
]


@pytest.mark.parametrize(("wire", "fields"), UNSIGNED, ids=["chat", "responses"])
async def test_reasoning_without_a_signature_is_not_sent(wire, fields) -> None:
    async with behind(blocks(text("Yes.")), **ANTHROPIC) as server:
        await server.whole(wire, **fields)
        (asked,) = server.up.asked
    assert sent_thinking(server) == []
    assert b"Hm." not in asked.body
    assert b"gAAA" not in asked.body


# ---- the request, and its errors ---------------------------------------------------------


async def test_request_has_what_the_server_demands() -> None:
    """Its objects must be closed, limits in a schema are refused, and most of its models refuse
    system messages behind others."""
    limited = {"type": "string", "description": "A", "maxLength": 3}
    maps = {"type": "object", "additionalProperties": {"type": "string"}}
    given = {
        "type": "object",
        "properties": {"minimum": limited, "b": {"anyOf": [{"type": "object"}, {"not": maps}]}},
        "$defs": {"c": {"type": "array", "items": {"type": "object"}, "maxItems": 3}, "d": True},
    }
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": given}}
    shut = {"type": "object", "additionalProperties": False}
    told = {"type": "string", "description": "A\n\n{maxLength: 3}"}
    schema = {
        **shut,
        "properties": {"minimum": told, "b": {"anyOf": [shut, {"not": maps}]}},
        "$defs": {"c": {"type": "array", "items": shut, "description": "{maxItems: 3}"}, "d": True},
    }
    said = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Where?"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "On."},
    ]
    key: JSON = {"api_key": "sk-ant-1", "pass_client_key": True}
    async with behind(blocks(text("{}")), **ANTHROPIC, **key) as server:
        await server.whole(
            "chat",
            messages=said,
            **tools(WEATHER)["chat"],
            tool_choice="required",
            parallel_tool_calls=False,
            response_format=format,
            stop="END",
            temperature=1.5,
        )
        (asked,) = server.up.asked
    mark = {"type": "ephemeral"}
    assert asked.path == "/v1/messages"
    assert asked.headers["anthropic-version"] == "2023-06-01"
    assert asked.headers["x-api-key"] == "sk-ant-1"
    tool = {"name": "weather", "input_schema": WEATHER["parameters"], "strict": True}
    assert asked.json == {
        "model": "mock",
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": mark}],
        "messages": [said[0], said[1], said[3]],
        "tools": [tool],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "stop_sequences": ["END"],
        "temperature": 1,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "cache_control": mark,
    }


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_refusal_of_the_server_becomes_the_sdks_exception(wire) -> None:
    given = refusal(400, "invalid_request_error", "messages.0: No, thank you.")
    async with behind(given, **ANTHROPIC) as server:
        for ask in (server.whole, server.raw):
            with pytest.raises(openai.BadRequestError, match="No, thank you") as caught:
                await ask(wire)
            assert caught.value.type == "invalid_request_error"
