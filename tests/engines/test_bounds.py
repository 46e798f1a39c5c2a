"""Bounds of repetition of which a server makes no grammar: left out of schemas, and reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.interfaces import Caller
from dragoman.core.request import CustomTool, FunctionTool, JSONSchema, Namespace
from dragoman.engines.bounds import without_bounds
from dragoman.wire.registry import WIRES
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, remote
from tests.engines.test_effort import lost, refused
from tests.mock import Asked, Reply

SCRIPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "script": {"type": "string", "maxLength": 524_288, "minLength": 1},
        "files": {"type": "array", "maxItems": 256, "items": {"maxLength": 2000}},
        "maxLength": {"type": "integer", "default": {"maxLength": 9_999}},
        "enum": {"anyOf": [{"maxProperties": 3_000.0}, {"maxLength": 1_999}]},
    },
    "maxItems": 10**400,
}
FITTING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "script": {"type": "string", "minLength": 1},
        "files": {"type": "array", "maxItems": 256, "items": {}},
        "maxLength": {"type": "integer", "default": {"maxLength": 9_999}},
        "enum": {"anyOf": [{}, {"maxLength": 1_999}]},
    },
}
WORKFLOW = FunctionTool("Workflow", "Runs a script.", SCRIPT)


def llama_server(asked: Asked) -> Reply:
    """It makes one grammar of all tools, or of the format."""
    schemas = [each["function"].get("parameters") for each in asked.json.get("tools", ())]
    format = asked.json.get("response_format", {}).get("json_schema", {})
    if "524288" in json.dumps([schemas, format]):
        return refused("Failed to initialize samplers: failed to parse grammar")
    return HELLO_STREAM if asked.json.get("stream") else HELLO


@pytest.mark.parametrize("profile", ["llama.cpp", "lmstudio"])
@pytest.mark.parametrize("stream", [False, True])
async def test_bounds_of_tools_beyond_a_grammar_are_left_out_and_reported(stream, profile) -> None:
    small = FunctionTool("Read", None, {"properties": {"path": {"maxLength": 1_999}}})
    request = asking(tools=(WORKFLOW, small), stream=stream)
    async with remote(llama_server, profile=profile, wire="chat") as (engine, up):
        for _ in range(2):
            answer = await ask(engine, request)
            assert (answer.text, lost(answer)) == ("Hello", [("tools[*].parameters", "dropped")])
        for asked in up.asked:
            workflow, read = [each["function"]["parameters"] for each in asked.json["tools"]]
            assert workflow == FITTING
            assert read["properties"] == small.parameters["properties"]
        answer = await ask(engine, asking(tools=(small,)))
        assert answer.losses == ()
    assert SCRIPT["properties"]["script"]["maxLength"] == 524_288, "the request's own is unchanged"


async def test_bounds_of_a_format_are_left_out_and_reported() -> None:
    request = asking(format=JSONSchema("x", SCRIPT))
    async with remote(llama_server, profile="llama.cpp") as (engine, up):
        answer = await ask(engine, request)
        assert lost(answer) == [("format.schema", "dropped")]
        assert answer.guarantee == "best-effort"
        (asked,) = up.asked
        assert asked.json["response_format"]["json_schema"]["schema"] == FITTING
        fitting = replace(request, format=JSONSchema("x", FITTING))
        assert (await ask(engine, fitting)).losses == ()
        assert (await ask(engine, asking(format=JSONSchema("x")))).losses == ()


async def test_other_servers_get_every_bound() -> None:
    for profile in ("vllm", "ollama", None):
        async with remote(lambda asked: HELLO, profile=profile, wire="chat") as (engine, up):
            answer = await ask(engine, asking(tools=(WORKFLOW,)))
            assert answer.losses == ()
            assert "524288" in up.asked[0].body.decode()


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_clients_of_every_wire_are_answered(wire) -> None:
    function = {"name": "Workflow", "parameters": SCRIPT | {"maxItems": 2_000}}
    given = {
        "chat": {"type": "function", "function": function},
        "responses": {"type": "function", **function},
        "messages": {"name": "Workflow", "input_schema": function["parameters"]},
    }[wire]
    words = [{"role": "user", "content": "Go."}]
    said = {"input" if wire == "responses" else "messages": words}
    body = {"model": "m", "tools": [given], **said}
    if wire == "messages":
        body["max_tokens"] = 9
    request = WIRES[wire].decode_request(json.dumps(body).encode())
    async with remote(llama_server, profile="llama.cpp") as (engine, _):
        answer = await ask(engine, request, Caller(wire=wire))
        assert answer.text == "Hello"
        assert ("tools[*].parameters", "dropped") in lost(answer)


async def test_tools_of_other_kinds_stay_as_they_are() -> None:
    tools = (CustomTool("c"), FunctionTool("f"), Namespace("n", (WORKFLOW,)))
    async with remote(llama_server, profile="llama.cpp") as (engine, up):
        assert (await ask(engine, asking(tools=tools))).text == "Hello"
        assert len(up.asked[0].json["tools"]) == 3


def test_a_schema_of_other_values_is_passed_on() -> None:
    for schema in (True, None, {"maxLength": "9999", "items": [True, None]}, {"maxLength": True}):
        assert without_bounds(schema, 1_999) == schema
