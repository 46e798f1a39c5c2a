"""Models whose chat templates take alternating roles alone: messages are joined, and reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.interfaces import Caller
from dragoman.core.item import (
    Message,
)
from dragoman.core.request import ReasoningOptions
from dragoman.core.response import Response
from dragoman.engines import again
from dragoman.wire.registry import WIRES
from tests.core.test_roles import CALLED, spoken
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, fault, remote
from tests.engines.test_effort import NO_THINKING, refused
from tests.mock import Asked, Reply, message, plain

DEVSTRAL = (
    "After the optional system message, conversation roles must alternate user and assistant roles "
    "except for tool calls and results."
)
LLAMA_CPP = "\n------------\nWhile executing CallExpression at line 189\nError: Jinja Exception: "
GEMMA = "Conversation roles must alternate user/assistant/user/assistant/..."
AFTER = "Unexpected role 'user' after role 'tool'"
TWICE = asking(items=(Message("user", "<cwd>/tmp</cwd>"), Message("user", "Go.")))


class Strict:
    """A server of Chat whose template takes alternating roles, and perhaps no system message."""

    def __init__(self, words: str = DEVSTRAL, status: int = 400, *, system: bool = True) -> None:
        self.words, self.status, self.system = words, status, system

    def __call__(self, asked: Asked) -> Reply:
        roles = spoken(asked.json["messages"])
        if roles[0] == "system":
            if not self.system:
                return refused("System role not supported")
            del roles[0]
        if roles != (["user", "assistant"] * len(roles))[: len(roles)]:
            return refused(self.words, self.status)
        return HELLO_STREAM if asked.json.get("stream") else HELLO


def sent(up: Any) -> list[list[str]]:
    return [[each["content"] for each in asked.json["messages"]] for asked in up.asked]


def lost(answer: Response) -> list[tuple[str, str]]:
    return [(loss.field, loss.action) for loss in answer.losses]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("words", "status"), [(DEVSTRAL, 400), (LLAMA_CPP + DEVSTRAL, 500), (GEMMA, 400), (AFTER, 400)]
)
async def test_messages_of_one_role_are_joined_reported_and_remembered(
    words, status, stream
) -> None:
    async with remote(Strict(words, status)) as (engine, up):
        for _ in range(2):
            answer = await ask(engine, replace(TWICE, stream=stream))
            assert (answer.text, lost(answer)) == ("Hello", [("items", "emulated")])
        joined = ["<cwd>/tmp</cwd>\n\nGo."]
        assert sent(up) == [["<cwd>/tmp</cwd>", "Go."], joined, joined]
        await ask(engine, replace(TWICE, model="n"))
        await ask(engine, TWICE, Caller(tenant="other"))
        assert [len(each) for each in sent(up)[3:]] == [2, 1] * 2, "what one has says nothing"
        # What alternates is sent as it is, and nothing is reported.
        assert (await ask(engine)).losses == ()


async def test_an_assistant_speaks_between_results_of_tools_and_a_user() -> None:
    """As where somebody stopped an agent amid its work, and goes on."""
    request = asking(items=(Message("user", "Look."), *CALLED, Message("user", "No, stop.")))
    async with remote(Strict(AFTER)) as (engine, up):
        assert (await ask(engine, request)).text == "Hello"
        roles = [each["role"] for each in up.asked[1].json["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize("size", [0, 100_000])
async def test_every_wire_names_its_messages(wire, size) -> None:
    field = "input" if wire == "responses" else "messages"
    words = [{"role": "user", "content": text} for text in ("One." + " " * size, "Two.")]
    asked = {"model": "m", "max_tokens": 9, field: words}
    if wire == "responses":
        del asked["max_tokens"]
    request = WIRES[wire].decode_request(json.dumps(asked).encode())
    async with remote(Strict()) as (engine, _):
        for _ in range(2):
            answer = await ask(engine, request, Caller(wire=wire, size=size))
            assert (field, "emulated") in lost(answer)


async def test_servers_of_other_wires_are_asked_again_too() -> None:
    def reply(asked: Asked) -> Reply:
        if len(asked.json["messages"]) > 1:
            return refused('messages: roles must alternate between "user" and "assistant"')
        return plain(200, message({"type": "text", "text": "Hello"}))

    async with remote(reply, wire="messages") as (engine, _):
        assert (await ask(engine, TWICE)).text == "Hello"


async def test_a_system_message_is_the_users_where_a_model_takes_none() -> None:
    late = Message("system", "Be brief.")
    request = replace(TWICE, instructions="Be kind.", items=(*TWICE.items, late))
    async with remote(Strict(system=False)) as (engine, up):
        for _ in range(2):
            answer = await ask(engine, request)
            fields = [("items", "emulated")] * 2  # they were sent as one before the others, too
            assert (answer.text, lost(answer)) == ("Hello", fields)
        words = ["Be kind.\n\nBe brief.\n\n<cwd>/tmp</cwd>\n\nGo."]
        assert (sent(up)[1:], len(up.asked)) == ([words] * 2, 3)
        alone = replace(request, items=TWICE.items[1:])
        async with remote(Strict(system=False)) as (other, _):
            assert (await ask(other, alone)).text == "Hello", "it is the first request"
        await ask(engine, alone)
        assert sent(up)[3:] == [["Be kind.\n\nGo."]]


async def test_roles_first_then_system_messages_and_an_effort_are_refused() -> None:
    def reply(asked: Asked) -> Reply:
        words = asked.json["messages"]
        if spoken(words[1:]) == ["user"] * 2:
            return refused(GEMMA)
        if words[0]["role"] == "system":
            return refused("Only user, assistant and tool roles are supported, got system")
        return refused(NO_THINKING) if "reasoning_effort" in asked.json else HELLO

    request = replace(TWICE, instructions="Be kind.", reasoning=ReasoningOptions("high"))
    async with remote(reply) as (engine, up):
        fields = [[("reasoning.effort", "dropped"), ("items", "emulated")]]
        assert [lost(await ask(engine, request))] == fields
        assert sorted(lost(await ask(engine, request))) == sorted(fields[0])
        assert len(up.asked) == 5


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (TWICE, refused(DEVSTRAL)),  # also when joined
        (asking(), refused(DEVSTRAL)),  # with nothing to join
        (TWICE, refused(DEVSTRAL, 401)),
        (TWICE, refused("The roles are wrong.")),
    ],
)
async def test_other_refusals_are_passed_on(request_, reply) -> None:
    async with remote(lambda asked: reply) as (engine, up):
        await fault(engine, request_)
        most = 2 if (request_, reply.pieces) == (TWICE, refused(DEVSTRAL).pieces) else 1
        assert len(up.asked) == most
        assert not engine.refusals.seen


async def test_strict_models_are_bounded_and_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(again, "MODELS", 3)
    async with remote(Strict()) as (engine, up):
        for number in range(8):
            await ask(engine, replace(TWICE, model=f"m{number}"))
            assert len(engine.refusals._strict) <= 3
        monkeypatch.setattr(again, "MEMORY", -1.0)
        await ask(engine, replace(TWICE, model="m7"))
        assert [len(each) for each in sent(up)[-2:]] == [2, 1]
