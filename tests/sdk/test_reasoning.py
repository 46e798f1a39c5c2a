"""Reasoning over several turns, with the official SDK in front and a server of either protocol
behind: what its client cannot carry reaches the model all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.engines.reasoning import ReasoningCipher
from dragoman.server.app import App
from dragoman.server.build import assemble
from dragoman.server.config import Upstream
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from tests.mock import Asked, Reply, chunk, completion, mock, plain, stream
from tests.sdk.behind import Behind, behind
from tests.sdk.speaking import answering, function_call, message, reasoning
from tests.server.stubs import served

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
async def test_p9_encrypted_reasoning_is_restored_for_a_chat_client(
    streamed: bool, shown: bool
) -> None:
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


async def test_p9_model_without_encrypted_reasoning_is_asked_again_without_it() -> None:
    def refusing(asked: Asked) -> Reply:
        if ENCRYPTED in asked.json.get("include", ()):
            words = "Encrypted content is not supported with this model."
            return plain(400, {"error": {"message": words, "type": "invalid_request_error"}})
        return thinking(asked)

    async with behind(refusing, wire="responses") as server:
        assert await talk(server, streamed=True, shown=False) == "Noon."
        assert len(server.up.asked) == 4  # once refused, it is not asked for again


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
async def test_p8_required_reasoning_is_restored_for_a_client_that_drops_it(streamed: bool) -> None:
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


# ---- P12 and our own seals -------------------------------------------------------------------


async def test_p12_undecryptable_reasoning_is_dropped_at_a_second_try_and_reported() -> None:
    def locked(asked: Asked) -> Reply:
        if any(item.get("encrypted_content") for item in asked.json["input"]):
            error = {"message": "It could not be verified.", "code": "invalid_encrypted_content"}
            return plain(400, {"error": {**error, "type": "invalid_request_error", "param": None}})
        return answering(message("Noon."))(asked)

    past = [
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"role": "user", "content": "Go on."},
    ]
    async with behind(locked, wire="responses") as server, server.sdk() as sdk:
        raw = await sdk.responses.with_raw_response.create(model="mock", input=past, store=False)
        assert raw.parse().output_text == "Noon."
        assert ENCRYPTED in raw.headers["x-dragoman-loss"]
        assert [len(each.json["input"]) for each in server.up.asked] == [3, 2]
    off = Settings(reasoning_retry=False)
    async with behind(locked, wire="responses", settings=off) as server:
        with pytest.raises(Exception, match="could not be verified"):
            await server.whole("responses", input=past, store=False)
        assert len(server.up.asked) == 1


@asynccontextmanager
async def storing(handler: Any, wire: str = "chat") -> AsyncIterator[Behind]:
    """Dragoman with a memory and a cipher, before a server."""
    settings = Settings()
    memory = Memory(MemoryStore(), cipher=ReasoningCipher(lambda: bytes(32)))
    async with mock(handler) as up:
        engine = assemble([Upstream(name="mock", url=up.base_url, wire=wire)], (), settings, {})
        async with served(App(engine, settings, memory), settings) as port:
            yield Behind(up, f"http://127.0.0.1:{port}/v1", "async", "none")


@pytest.mark.parametrize("streamed", [False, True])
async def test_p9_with_store_false_encrypted_reasoning_is_accepted_again(streamed: bool) -> None:
    """As coding agents do: store is false, reasoning is asked for sealed, words are not sent."""
    fields = {"tools": TOOLS, "store": False, "include": [ENCRYPTED]}
    ask = [{"role": "user", "content": "What is the time?"}]
    async with storing(wordy) as server, server.sdk() as sdk:
        if streamed:
            _, first = await server.streamed("responses", input=ask, **fields)
        else:
            raw = await sdk.responses.with_raw_response.create(model="mock", input=ask, **fields)
            assert "include" not in raw.headers.get("x-dragoman-loss", "")
            first = raw.parse()
        thought, call = first.output
        assert "clock" not in thought.encrypted_content
        carried = {
            "type": "reasoning",
            "summary": [],
            "encrypted_content": thought.encrypted_content,
        }
        called = {name: getattr(call, name) for name in ("type", "call_id", "name", "arguments")}
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        again = [*ask, carried, called, output]
        second = await server.whole("responses", input=again, **fields)
    assert second.output_text == "I thought: A clock\nis needed."
