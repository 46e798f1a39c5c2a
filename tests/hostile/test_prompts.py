"""Prompts that are slow to encode: they cost their own request, and nobody else's time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.hostile.stage import watched
from tests.product import Product, dragoman
from tests.samples import samples

SIZE = samples(1_500_000, 12_000_000)

PROMPTS = {
    "F2 letters": "a" * SIZE,
    "F2 dashes": "-" * 100_000,
    "F2 lines": "\n" * 50_000,
    "F2 spaces": " " * 100_000,
    "words": "the quick brown fox " * (SIZE // 20),
    "ideographs": "\u6f22" * (SIZE // 3),
}


@pytest.fixture(scope="module")
def pocket() -> Iterator[Product]:
    with dragoman("pocket") as server:
        yield server


@pytest.mark.parametrize("named", PROMPTS)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_prompt_blocks_no_other_request(pocket, named, role) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": PROMPTS[named]},
    ]
    messages = turns if role == "tool" else [{"role": "user", "content": PROMPTS[named]}]
    with watched(pocket) as cost:
        answer = pocket.post("chat", {"model": "pocket", "messages": messages, "max_tokens": 4})
    assert answer.status == 400
    assert (
        "tokens" in answer.json["error"]["message"] or "in a row" in answer.json["error"]["message"]
    )
    assert cost.pause < 0.5, cost


def test_raw_prompts_are_bounded_alike(pocket) -> None:
    with watched(pocket) as cost:
        answer = pocket.request(
            "POST",
            "/v1/completions",
            json.dumps({"model": "pocket", "prompt": "-" * 100_000}).encode(),
        )
    assert answer.status == 400, answer.body
    assert answer.json["error"]["code"] == "context_length_exceeded"
    assert cost.pause < 0.5, cost
