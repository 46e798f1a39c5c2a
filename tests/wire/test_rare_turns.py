"""Turns of the codecs that generated values take only now and then, taken here every time."""

from __future__ import annotations

import json

import pytest

from dragoman.core.item import Refusal, Summary, Text, Thought, UnknownPart
from dragoman.wire.chat import CHAT
from dragoman.wire.chat.stream import learn
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.items import encode_part


@pytest.mark.parametrize(
    "entry",
    [
        {"index": 0, "type": "custom", "function": {"arguments": "{"}},
        {"index": 0, "vendor": 1, "function": {"arguments": "{"}},
        {"index": 0, "id": "call", "function": {"arguments": "{"}},
        {"index": 0, "function": {"name": "f", "arguments": "{"}},
    ],
)
def test_arguments_with_news_beside_them_take_the_long_way(entry: dict[str, object]) -> None:
    value = {"choices": [{"index": 0, "delta": {"tool_calls": [entry]}}]}
    assert learn(json.dumps(value).encode(), value) is None


def test_a_turn_of_everything_is_heard() -> None:
    message = {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "Yes.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}},
            {"id": "c", "type": "vendor", "vendor": {}},
        ],
    }
    results = [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in "abc"]
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}, message, *results]}
    items = CHAT.decode_request(json.dumps(body).encode()).items
    kinds = [type(item).__name__ for item in items]
    assert kinds[:4] == ["Message", "Reasoning", "Message", "FunctionCall"]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "web_search"},
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
    ],
)
def test_a_choice_among_tools_that_are_there_is_taken(choice: object) -> None:
    body = {"model": "m", "input": "?", "tools": [{"type": "function", "name": "f"}]}
    request = RESPONSES.decode_request(json.dumps({**body, "tool_choice": choice}).encode())
    assert request.tool_choice is not None


def test_every_kind_of_part_is_said() -> None:
    assert encode_part(Text("a", tokens=()), full=True) == {
        "type": "input_text",
        "text": "a",
        "logprobs": [],
    }
    assert encode_part(Text("a")) == {"type": "input_text", "text": "a"}
    assert encode_part(Refusal("no")) == {"type": "refusal", "refusal": "no"}
    assert encode_part(Thought("hm")) == {"type": "reasoning_text", "text": "hm"}
    assert encode_part(Summary("s")) == {"type": "summary_text", "text": "s"}
    assert encode_part(UnknownPart("chat", {"type": "video_url"})) is None
