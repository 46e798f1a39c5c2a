"""A raw completion server behind the formats that have a name: calls, reasoning and ends."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.item import FunctionCall, Message, Reasoning
from dragoman.core.request import FunctionTool, Request
from dragoman.core.response import Response
from dragoman.engines.completions import CompletionServer
from dragoman.engines.find_format import NAMES
from tests.engines.stage import answered
from tests.mock import mock, stream

ADD = FunctionTool(
    "add", "Adds.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}
)
CALLS = {
    "harmony": "<|channel|>analysis<|message|>Adding.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}',
    "hermes": '<think>Adding.</think>\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n'
    "</tool_call>",
    "qwen-xml": "<think>Adding.</think>\n<tool_call>\n<function=add>\n<parameter=a>\n1\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama": '{"type": "function", "name": "add", "parameters": {"a": 1}}',
    "llama4": "<|python_start|>[add(a=1)]<|python_end|>",
    "mistral": '[TOOL_CALLS]add[ARGS]{"a": 1}',
}
"""A call as each family writes it, without the marker that ends it: that was a stop string."""
THOUGHT = {"harmony", "hermes", "qwen-xml"}


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "x", "choices": [{"text": text, "index": 0, "finish_reason": finish}]}


async def ask(format: str, text: str, size: int) -> tuple[Response, dict[str, Any]]:
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    request = Request(model="m", items=(Message("user", "Add."),), tools=(ADD,), stream=True)
    async with mock(stream(*map(piece, cut), piece("", "stop"))) as up:
        engine = CompletionServer(up.base_url, format=format)
        response = await answered(engine, request)
        await engine.close()
    body: dict[str, Any] = up.asked[0].json
    return response, body


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("format", CALLS)
async def test_a_call_comes_out_of_the_text_of_each_family(format: str, size: int) -> None:
    response, body = await ask(format, CALLS[format], size)
    calls = [item for item in response.output if isinstance(item, FunctionCall)]
    assert [(call.name, call.arguments.replace(" ", "")) for call in calls] == [("add", '{"a":1}')]
    assert response.reasons == ("tool_calls",)
    assert response.text.strip() == ""
    thoughts = [item.text.strip() for item in response.output if isinstance(item, Reasoning)]
    assert thoughts == (["Adding."] if format in THOUGHT else [])
    assert "add" in body["prompt"]
    assert body["stop"]


@pytest.mark.parametrize("format", NAMES)
async def test_plain_text_is_a_message_in_every_format(format: str) -> None:
    text = "<|channel|>final<|message|>Hello." if format == "harmony" else "Hello."
    response, body = await ask(format, text, 3)
    assert (response.text, response.status) == ("Hello.", "completed")
    assert "Add." in body["prompt"]
