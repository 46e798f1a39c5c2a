"""What a body takes once it is decoded is counted for as long as its request lives."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from dragoman.server.app import App
from dragoman.server.limits import Budget, weigh
from dragoman.server.settings import Settings
from dragoman.wire.json import load
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, closing, exchange, post, served

CLOSING = ("content-type: application/json", "connection: close")


def dense(size: int, value: str = "[]", **fields: Any) -> bytes:
    """A question of about this size, nearly all of it such values in a field that is not known."""
    values = "[" + ",".join([value] * (size // (len(value) + 1))) + "]"
    return json.dumps(fields).encode()[:-1] + f',"x":{values}}}'.encode()


@pytest.mark.parametrize("value", ["[]", "{}", '"a"', '{"a":0}', '{"a":[]}', "1e9", "[[[[]]]]"])
def test_4_10_values_take_no_more_than_they_weigh(value: str) -> None:
    data = dense(10_000, value, model="m")
    tracemalloc.start()
    try:
        decoded = load(data)
        took = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert decoded
    assert took < 1.2 * weigh(data)


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize("size", [18_000, 60_000, 100_000], ids=["light", "heavy", "large"])
async def test_4_09_values_are_counted_while_a_request_lives(wire: str, size: int) -> None:
    go, body = asyncio.Event(), dense(size, **asking(wire))
    weight = weigh(body)
    app = App(Stub(*OPENING, go, *closing("")), Settings(memory=3 * weight + 1))
    async with served(app) as port:
        asked = [
            asyncio.ensure_future(exchange(port, post(port, body, PATHS[wire], CLOSING)))
            for _ in range(4)
        ]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        while app.budget.held < 3 * weight:
            await asyncio.sleep(0.001)
        assert [one.done() for one in asked].count(True) == 1
        go.set()
        answers = sorted([answer[9:12] for answer in await asyncio.gather(*asked)])
        assert answers == [b"200"] * 3 + [b"529" if wire == "messages" else b"503"]
        assert app.budget.held == 0


@pytest.mark.parametrize("words", ["Hi", "a, " * 200, "x" * 50_000, "a, " * 15_000])
async def test_4_09_an_ordinary_question_is_not_counted(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, held = App(Stub(*OPENING, *closing("")), Settings()), list[int]()
    monkeypatch.setattr(Budget, "take", lambda self, tenant, more: held.append(more))
    body = asking(messages=[{"role": "user", "content": words}])
    async with served(app) as port:
        answer = await exchange(port, post(port, body, headers=CLOSING))
    assert answer[9:12] == b"200"
    assert (sum(held), bool(held)) == (0, len(words) == 45_000)  # many commas are looked at


async def test_2d_15_what_can_never_fit_is_too_large() -> None:
    app = App(Stub(), Settings(memory=1_000, body_limit=900_000))
    call = await Call(app, PATHS["chat"], asking(), headers={"content-length": "600000"})()
    assert call.status == 413
    assert "memory" in call.json["error"]["message"]
