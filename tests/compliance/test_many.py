"""Many at once and much at once: ten streams side by side, and prompts of 800 kB."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.mock import Asked, Reply, chunk, stream
from tests.product import Product, dragoman
from tests.sdk.behind import behind
from tests.sdk.speaking import answering, message

WIRES = pytest.mark.parametrize("wire", ["chat", "responses"])
STREAMS = 10
BIG = "Zürich, 東京 🌍. " * 40_000
"""800 kB and more, as UTF-8."""


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Product]:
    with dragoman("script") as product:
        yield product


def numbers(last: int) -> str:
    return ", ".join(map(str, range(1, last + 1))) + "."


@WIRES
def test_ten_streams_side_by_side_each_say_their_own(rehearsal: Product, wire: str) -> None:
    """They are paced by the word: one after the other they would take ten times as long."""

    def ask(last: int) -> tuple[str, float, float]:
        question = f"Count to {last}."
        began = time.monotonic()
        if wire == "responses":
            events = sdk.responses.create(model="script", input=question, stream=True)
            said = [e.delta for e in events if e.type == "response.output_text.delta"]
        else:
            messages: Any = [{"role": "user", "content": question}]
            create: Any = sdk.chat.completions.create
            chunks = create(model="script", messages=messages, stream=True)
            said = [each.choices[0].delta.content or "" for each in chunks]
        return "".join(said), began, time.monotonic()

    with (
        openai.OpenAI(base_url=rehearsal.base_url, api_key="none", max_retries=0) as sdk,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        answers = list(pool.map(ask, range(20, 20 + STREAMS)))
    assert [said for said, _, _ in answers] == [numbers(20 + n) for n in range(STREAMS)]
    assert max(began for _, began, _ in answers) < min(ended for *_, ended in answers)


@WIRES
@pytest.mark.parametrize("upstream", ["chat", "responses"])
async def test_a_long_prompt_arrives_whole_and_is_answered(upstream: str, wire: str) -> None:
    assert len(BIG.encode()) > 800_000
    yes = {
        "chat": stream(chunk({"content": "Yes."}), chunk(finish="stop")),
        "responses": answering(message("Yes.")),
    }
    asked = {"chat": {"messages": [{"role": "user", "content": BIG}]}, "responses": {"input": BIG}}
    async with behind(yes[upstream], wire=upstream) as server:
        _, final = await server.streamed(wire, **asked[wire])
        (body,) = (asked.json for asked in server.up.asked)
    assert "Yes." in str(final.to_dict())
    (said,) = body.get("messages") or body["input"]
    content = said["content"]
    assert content == BIG or content == [{"type": "input_text", "text": BIG}]


@WIRES
async def test_a_long_answer_arrives_whole(wire: str) -> None:
    words = [f"{number:07d} " for number in range(5_000)]

    def answer(asked: Asked) -> Reply:
        said = stream(*(chunk({"content": word}) for word in words), chunk(finish="stop"))
        head, *events = said.pieces
        return Reply([head, b"".join(events)])

    async with behind(answer) as server:
        heard = await server.raw(wire)
    if wire == "chat":
        text = "".join(each.choices[0].delta.content or "" for each in heard)
    else:
        text = heard[-1].response.output_text
    assert text == "".join(words)
