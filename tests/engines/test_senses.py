"""What a server's listing says of a model's senses: a model without eyes is sent no picture."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.item import Audio, Image, Message, Text
from dragoman.core.request import Request
from tests.engines.asking import HELLO, ask, remote
from tests.mock import Reply, plain

PIXEL = Image("data:image/png;base64,iVBORw0KGgo=")
BEEP = Audio("UklGRg==", "wav")


def listing(**senses: list[str] | None) -> Reply:
    """A model listing; a model of which nothing is said has None."""
    data: list[dict[str, Any]] = []
    for name, taken in senses.items():
        told = {} if taken is None else {"architecture": {"input_modalities": taken}}
        data.append({"id": name, "owned_by": "me", **told})
    return plain(200, {"object": "list", "data": data})


def showing(model: str, *parts: Image | Audio) -> Request:
    return Request(model=model, items=(Message("user", (Text("Look."), *parts)),))


async def sent(models: Reply, request: Request) -> list[str]:
    """The types of the parts that such a server is sent."""
    async with remote(HELLO, probed=models, wire="auto") as (engine, up):
        answer = await ask(engine, request)
        (asked,) = up.asked
    content = asked.json["messages"][0]["content"]
    kinds = [part["type"] for part in content]
    assert len(answer.losses) == kinds.count("text") - 1
    return kinds


@pytest.mark.parametrize(
    ("models", "model", "kinds"),
    [
        (listing(m=["text"]), "m", ["text", "text", "text"]),
        (listing(m=["text", "image"]), "m", ["text", "image_url", "text"]),
        (listing(m=["text", "audio"]), "m", ["text", "text", "input_audio"]),
        (listing(m=["text"], n=None), "n", ["text", "image_url", "input_audio"]),
        (listing(m=["text"]), "any name", ["text", "text", "text"]),
        (listing(m=["text"], n=["text"]), "any name", ["text", "image_url", "input_audio"]),
        (plain(404, b""), "m", ["text", "image_url", "input_audio"]),
    ],
)
async def test_a_model_is_shown_only_what_it_can_take(
    models: Reply, model: str, kinds: list[str]
) -> None:
    assert await sent(models, showing(model, PIXEL, BEEP)) == kinds


async def test_the_capabilities_say_so() -> None:
    async with remote(HELLO, probed=listing(m=["text", "image"])) as (engine, _):
        before = await engine.capabilities("m")
        await engine.models()
        after = await engine.capabilities("m")
    assert (before.images, before.audio) == (None, None)
    assert (after.images, after.audio) == (True, False)
