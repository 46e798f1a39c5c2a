"""Many at once and much at once: ten streams side by side, and prompts of 800 kB."""

from __future__ import annotations

import asyncio
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


def asking(wire: str, text: str) -> dict[str, Any]:
    """The fields that ask this."""
    if wire == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"input": text}


def told(wire: str, events: list[Any]) -> str:
    """The text of a stream."""
    if wire == "chat":
        return "".join(each.choices[0].delta.content or "" for each in events)
    return str(events[-1].response.output_text)


@WIRES
def test_ten_streams_side_by_side_each_say_their_own(rehearsal: Product, wire: str) -> None:
    def ask(last: int) -> str:
        question = f"Count to {last}."
        if wire == "responses":
            events = sdk.responses.create(model="script", input=question, stream=True)
            return "".join(e.delta for e in events if e.type == "response.output_text.delta")
        messages: Any = [{"role": "user", "content": question}]
        create: Any = sdk.chat.completions.create
        chunks = create(model="script", messages=messages, stream=True)
        return "".join(each.choices[0].delta.content or "" for each in chunks)

    with (
        openai.OpenAI(base_url=rehearsal.base_url, api_key="none", max_retries=0) as sdk,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        answers = list(pool.map(ask, range(20, 20 + STREAMS)))
    assert answers == [numbers(20 + n) for n in range(STREAMS)]


@WIRES
async def test_no_stream_waits_for_another_to_end(wire: str) -> None:
    """The model's server says nothing to anybody until it has been asked by all."""
    together = asyncio.Barrier(STREAMS)

    async def answer(asked: Asked) -> Reply:
        await together.wait()
        said = asked.json["messages"][0]["content"]
        return stream(chunk({"content": said}), chunk(finish="stop"))

    async with behind(answer) as server, asyncio.timeout(60):
        heard = await asyncio.gather(
            *(server.raw(wire, **asking(wire, f"Say {n}.")) for n in range(STREAMS))
        )
    assert [told(wire, events) for events in heard] == [f"Say {n}." for n in range(STREAMS)]


@WIRES
@pytest.mark.parametrize("upstream", ["chat", "responses"])
async def test_a_long_prompt_arrives_whole_and_is_answered(upstream: str, wire: str) -> None:
    assert len(BIG.encode()) > 800_000
    yes = {
        "chat": stream(chunk({"content": "Yes."}), chunk(finish="stop")),
        "responses": answering(message("Yes.")),
    }
    async with behind(yes[upstream], wire=upstream) as server:
        _, final = await server.streamed(wire, **asking(wire, BIG))
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
    assert told(wire, heard) == "".join(words)
