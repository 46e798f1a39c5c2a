"""Upstreams that think before they call a tool, and refuse a call without what led to it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dragoman.core.item import JSON
from dragoman.engines.remote import Remote
from dragoman.stores.sql import Store
from tests.mock import (
    Asked,
    Mock,
    Reply,
    chunk,
    completion,
    message,
    mock,
    plain,
    response,
    said,
    stream,
)
from tests.server.state.storing import Server, storing
from tests.server.stubs import Call

SEALED = "reasoning.encrypted_content"
BLOB = "gAAAAAB-seal/+=é"
THOUGHT = "I need a clock; \\u00e9 or é."
DETAILS: list[JSON] = [
    {"type": "reasoning.text", "text": THOUGHT, "signature": "c2ln/+==", "format": "x", "index": 0}
]
ASK = "What is the time in Rome?"
ARGUMENTS = '{"city": "Rome"}'
RESPONSES_TOOL = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}

REASONING = {
    "type": "reasoning",
    "id": "rs_thought",
    "summary": [{"type": "summary_text", "text": "Hm."}],
}
SEALED_REASONING = {**REASONING, "encrypted_content": BLOB}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "clock",
    "arguments": ARGUMENTS,
    "status": "completed",
}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "12:00"}

CHAT_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "clock", "arguments": ARGUMENTS},
}
CHAT_SAID = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
CHAT_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}


def over_responses(asked: Asked) -> Reply:
    """Keeps nothing, seals what it thinks if it is asked to, and wants all of it back."""
    body = asked.json
    assert body["store"] is False
    items = body["input"] if isinstance(body["input"], list) else []
    for place, item in enumerate(items):
        if item.get("type") == "reasoning" and item.get("encrypted_content") != BLOB:
            return _refusal(f"Item with id '{item.get('id')}' not found, as `store` is false.")
        if item.get("type") == "function_call":
            before = items[place - 1] if place else {}
            if (before.get("type"), before.get("id")) != ("reasoning", "rs_thought"):
                return _refusal("Function call was provided without its required 'reasoning' item")
    thought = SEALED_REASONING if SEALED in body.get("include", ()) else REASONING
    answered = any(item.get("type") == "function_call_output" for item in items)
    last = CALL if body.get("tools") and not answered else said("It is noon.")
    whole = response(thought, last)
    if not body.get("stream"):
        return plain(200, whole)
    begun = {**whole, "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate((thought, last)):
        for kind in ("added", "done"):
            told = {"type": f"response.output_item.{kind}", "output_index": place, "item": item}
            events.append(told)
    return stream(*events, {"type": "response.completed", "response": whole})


def over_chat(asked: Asked) -> Reply:
    """Demands the words and the signature that it gave, before every call."""
    body = asked.json
    for turn in body["messages"]:
        if turn.get("tool_calls"):
            given = turn.get("reasoning_content"), turn.get("reasoning_details")
            if given != (THOUGHT, DETAILS):
                return _refusal("The reasoning_content in the thinking mode must be passed back.")
    thought = {"reasoning_content": THOUGHT, "reasoning_details": DETAILS}
    if any(turn["role"] == "tool" for turn in body["messages"]):
        answer, finish = {**thought, "content": "It is noon."}, "stop"
    else:
        answer, finish = {**thought, "content": None, "tool_calls": [CHAT_CALL]}, "tool_calls"
    if not body.get("stream"):
        return plain(200, completion(answer, finish))
    calls = [{"index": 0, **call} for call in answer.pop("tool_calls", ())]
    return stream(chunk({**answer, "tool_calls": calls} if calls else answer), chunk({}, finish))


SIGNED = {"type": "thinking", "thinking": THOUGHT, "signature": "c2ln/+=="}
TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "clock", "input": json.loads(ARGUMENTS)}


def over_messages(asked: Asked) -> Reply:
    """Demands the thinking that it signed, before every call."""
    body, answered = asked.json, False
    for turn in body["messages"]:
        blocks = turn["content"] if isinstance(turn["content"], list) else []
        kinds = [block["type"] for block in blocks]
        answered = answered or "tool_result" in kinds
        if "tool_use" in kinds and blocks[0] != SIGNED:
            return _refusal("Expected `thinking`, but found `tool_use`, as the first block.")
    noon = {"type": "text", "text": "It is noon."}
    given = (SIGNED, noon) if answered else (SIGNED, TOOL_USE)
    stop = "end_turn" if answered else "tool_use"
    if not body.get("stream"):
        return plain(200, message(*given, stop=stop))
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message()}]
    for number, block in enumerate(given):
        place = {"index": number}
        events.append({"type": "content_block_start", **place, "content_block": block})
        events.append({"type": "content_block_stop", **place})
    end = {"type": "message_delta", "delta": {"stop_reason": stop}}
    return stream(*events, end, {"type": "message_stop"}, done=False)


OVER = {"chat": over_chat, "responses": over_responses, "messages": over_messages}


def _refusal(problem: str) -> Reply:
    return plain(400, {"error": {"message": problem, "type": "invalid_request_error"}})


@asynccontextmanager
async def thinking(wire: str) -> AsyncIterator[Mock]:
    """The upstream of this wire."""
    async with mock(OVER[wire]) as up:
        yield up


@asynccontextmanager
async def before(up: Mock, wire: str, store: Store | None = None) -> AsyncIterator[Server]:
    """A new server before an upstream that speaks this wire."""
    profile = "deepseek" if wire == "chat" else None
    async with storing(Remote(up.base_url, wire=wire, profile=profile), store) as server:
        yield server


async def chat(server: Server, *messages: Any, **fields: Any) -> Call:
    """Ask over Chat, to be stored."""
    body = {"model": "m", "messages": [*messages], "tools": [CHAT_TOOL], "store": True, **fields}
    call = await Call(server.app, "/v1/chat/completions", body)()
    assert call.status == 200, call.body
    return call


async def ask(server: Server, given: Any = ASK, **fields: Any) -> Call:
    """Ask over Responses, to be stored unless said otherwise."""
    call = await server.ask(input=given, **{"model": "m", "tools": [RESPONSES_TOOL], **fields})
    assert call.status == 200, call.body
    return call


def thoughts(asked: Asked) -> list[str]:
    """The seals and signatures that an upstream got, as they were written."""
    body = asked.json
    found = [item.get("encrypted_content") for item in body.get("input", ()) if "type" in item]
    found += [json.dumps(said.get("reasoning_details")) for said in body.get("messages", ())]
    return [each for each in found if each and each != "null"]
