"""Many at once and much at once: ten streams side by side, and prompts of 800 kB."""

import asyncio
from typing import Any

import pytest

from tests.mock import Asked, Reply, chunk, stream
from tests.sdk import blocks
from tests.sdk.behind import behind
from tests.sdk.speaking import answering, message

WIRES = pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
STREAMS = 10
BIG = "Zürich, 東京 🌍. " * 40_000
"""800 kB and more, as UTF-8."""


def asking(wire: str, text: str) -> dict[str, Any]:
    """The fields that ask this."""
    if wire == "responses":
        return {"input": text}
    return {"messages": [{"role": "user", "content": text}]}


def text_of(wire: str, events: list[Any]) -> str:
    """The text of a stream."""
    if wire == "chat":
        return "".join(each.choices[0].delta.content or "" for each in events)
    if wire == "messages":
        return "".join(each.delta.text for each in events if each.type == "content_block_delta")
    return str(events[-1].response.output_text)


@WIRES
async def test_streams_run_side_by_side(wire: str) -> None:
    """The upstream answers no request before it has got them all."""
    together = asyncio.Barrier(STREAMS)

    async def answer(asked: Asked) -> Reply:
        await together.wait()
        said = asked.json["messages"][0]["content"]
        return stream(chunk({"content": said}), chunk(finish="stop"))

    async with behind(answer) as server, asyncio.timeout(60):
        heard = await asyncio.gather(
            *(server.raw(wire, **asking(wire, f"Say {n}.")) for n in range(STREAMS))
        )
    assert [text_of(wire, events) for events in heard] == [f"Say {n}." for n in range(STREAMS)]


@WIRES
@pytest.mark.parametrize("upstream", ["chat", "responses", "messages"])
async def test_prompt_of_800_kb_reaches_the_upstream_whole(upstream, wire: str) -> None:
    assert len(BIG.encode()) > 800_000
    yes = {
        "chat": stream(chunk({"content": "Yes."}), chunk(finish="stop")),
        "responses": answering(message("Yes.")),
        "messages": blocks.blocks(blocks.text("Yes.")),
    }
    async with behind(yes[upstream], wire=upstream) as server:
        heard = await server.raw(wire, **asking(wire, BIG))
        (body,) = (asked.json for asked in server.up.asked)
    assert text_of(wire, heard) == "Yes."
    (said,) = body.get("messages") or body["input"]
    content = said["content"]
    assert content == BIG or content == [{"type": "input_text", "text": BIG}]


@WIRES
async def test_answer_of_2000_chunks_reaches_the_client_whole(wire: str) -> None:
    words = [f"{number:07d} " for number in range(2_000)]

    def answer(asked: Asked) -> Reply:
        said = stream(*(chunk({"content": word}) for word in words), chunk(finish="stop"))
        head, *events = said.pieces
        return Reply([head, b"".join(events)])

    async with behind(answer) as server:
        heard = await server.raw(wire)
    assert text_of(wire, heard) == "".join(words)
