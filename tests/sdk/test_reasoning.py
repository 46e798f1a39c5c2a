"""Reasoning over several turns, with the official SDK in front and a server of either protocol
behind: what its client cannot carry reaches the model all the same."""

from typing import Any

import pytest

from tests.mock import Asked, Reply, chunk, completion, plain, stream
from tests.sdk.behind import Behind, behind
from tests.sdk.speaking import answering, function_call, message, reasoning

JSON = Any
SEALS = ("gAAAAABseal+/==", "gAAAAABother_-=\u00e9")
TOOL = {"name": "clock", "parameters": {"type": "object"}}
CHAT_TOOLS = [{"type": "function", "function": TOOL}]
TOOLS = [{"type": "function", "strict": False, **TOOL}]
ENCRYPTED = "reasoning.encrypted_content"


def thinking(asked: Asked) -> Reply:
    """Two calls, each after a sealed thought, and then an answer; seals only where asked to."""
    turn = sum(item.get("type") == "function_call_output" for item in asked.json["input"])
    if turn == 2:
        return answering(message("Noon."))(asked)
    seal = SEALS[turn] if ENCRYPTED in asked.json.get("include", ()) else None
    thought = {**reasoning(f"Thought {turn}.", seal=seal), "id": f"rs_{turn}"}
    call = function_call("clock", '{"zone": "CET"}', turn)
    said = [message("One moment.")] if turn == 0 else []
    return answering(thought, *said, call)(asked)


async def one_turn(
    server: Behind, messages: list[JSON], *, streamed: bool, shown: bool = False
) -> Any:
    """A turn of a client of Chat, which adds it to its messages. What it keeps of reasoning are
    words, if that."""
    fields = {"messages": messages, "tools": CHAT_TOOLS}
    if streamed:
        _, answer = await server.streamed("chat", **fields)
    else:
        answer = await server.whole("chat", **fields)
    said = answer.choices[0].message
    kept = {"role": "assistant", "content": said.content}
    if shown and getattr(said, "reasoning_content", None):
        kept["reasoning_content"] = said.reasoning_content
    if said.tool_calls:
        kept["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": call.function.arguments,
                },
            }
            for call in said.tool_calls
        ]
    messages.append(kept)
    for call in said.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "12"})
    return said


async def talk(server: Behind, *, streamed: bool, shown: bool) -> str:
    """Two turns of tools and the answer to them."""
    messages: list[JSON] = [{"role": "user", "content": "What is the time?"}]
    for _ in range(3):
        said = await one_turn(server, messages, streamed=streamed, shown=shown)
    return str(said.content)


@pytest.mark.parametrize(("streamed", "shown"), [(False, True), (True, False)])
async def test_p9_encrypted_reasoning_is_restored_for_a_chat_client(streamed, shown) -> None:
    async with behind(thinking, wire="responses") as server:
        answer = await talk(server, streamed=streamed, shown=shown)
        asked = [each.json for each in server.up.asked]
    assert answer == "Noon."
    assert all(ENCRYPTED in each["include"] for each in asked)
    kinds = [item.get("type", "message") for item in asked[-1]["input"]]
    turn = ["reasoning", "function_call", "function_call_output"]
    assert kinds == ["message", "reasoning", "message", *turn[1:], *turn]
    thoughts = [item for item in asked[-1]["input"] if item.get("type") == "reasoning"]
    assert [thought["encrypted_content"] for thought in thoughts] == list(SEALS)
    assert [thought["id"] for thought in thoughts] == ["rs_0", "rs_1"]
    assert [thought["summary"][0]["text"] for thought in thoughts] == ["Thought 0.", "Thought 1."]
    assert asked[-1]["input"][: len(asked[1]["input"])] == asked[1]["input"]  # what is cached stays


# ---- P8: reasoning in words ------------------------------------------------------------------


def wordy(asked: Asked) -> Reply:
    """A server of Chat that refuses calls without the reasoning that led to them."""
    for said in asked.json["messages"]:
        if said["role"] == "assistant" and said.get("tool_calls"):
            if not said.get("reasoning_content"):
                return plain(400, {"error": {"message": "reasoning_content is missing"}})
            if asked.json["messages"][-1]["role"] == "tool":
                return _chat(asked, {"content": f"I thought: {said['reasoning_content']}"}, "stop")
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    thought = {"reasoning_content": "A clock\nis needed."}
    return _chat(asked, {**thought, "tool_calls": [call]}, "tool_calls")


def _chat(asked: Asked, said: JSON, finish: str) -> Reply:
    if not asked.json.get("stream"):
        return plain(200, completion(said, finish))
    calls = [{"index": place, **call} for place, call in enumerate(said.get("tool_calls", ()))]
    pieces = [chunk({name: value}) for name, value in said.items() if name != "tool_calls"]
    return stream(*pieces, *([chunk({"tool_calls": calls})] if calls else []), chunk({}, finish))


@pytest.mark.parametrize("streamed", [False, True])
async def test_p8_required_reasoning_is_restored_for_a_client_that_drops_it(streamed) -> None:
    async with behind(wordy, profile="deepseek") as server:
        messages: list[JSON] = [{"role": "user", "content": "What is the time?"}]
        for _ in range(2):
            said = await one_turn(server, messages, streamed=streamed)
    assert said.content == "I thought: A clock\nis needed."


async def test_p8_missing_required_reasoning_is_a_space_and_reported() -> None:
    call = {"id": "call_x", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_x", "content": "12"},
    ]
    async with behind(wordy, profile="moonshot") as server, server.sdk() as sdk:
        answer = await sdk.chat.completions.with_raw_response.create(
            model="mock", messages=messages, tools=CHAT_TOOLS
        )
        assert server.up.asked[-1].json["messages"][1]["reasoning_content"] == " "
    assert "reasoning" in answer.headers["x-dragoman-loss"]
