"""What a body takes once it is decoded is counted for as long as its request lives."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any
from unittest.mock import Mock

import pytest

from dragoman.core.error import FaultError
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.request import Request
from dragoman.server.app import App
from dragoman.server.limits import Budget, measured, weigh, widened
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from dragoman.wire.json import LIMITS, check_size, load, marks
from dragoman.wire.json import encode as json_encode
from tests.hostile.test_bodies import counted, no_count, service, thread_of
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


def test_long_numbers_are_refused_and_digits_in_texts_are_not_counted() -> None:
    many, few = (f"[{','.join(['9' * digits] * 3_000)}]" for digits in (101, 100))
    for body in (many, f"[0.{'9' * 300_000}]", f'["\\"", {many}]', f"{few[:-1]},{'9' * 101}]"):
        with pytest.raises(FaultError, match="a number of more than 100 digits"):
            check_size(body.encode(), LIMITS)
        with pytest.raises(ValueError, match="a number of more than 100 digits"):
            load(body)
    for body in (few, f'["{many}"]', f'["\\"{many}", {few}]', f"[{'9' * 4_000}]"):
        check_size(body.encode(), LIMITS)
        assert load(body)


TEXTS = {
    "plain": "x" * 9_000,
    "one letter": "x" * 9_000 + "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "one sign": "x" * 9_000 + "\N{CHECK MARK}",
    "one face": "x" * 9_000 + "\N{GRINNING FACE}",
    "Chinese": "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 9_000,
    "faces": "\N{GRINNING FACE}" * 9_000,
    "backslashes": "\\u" * 9_000 + "\N{GRINNING FACE}",
    "quotes": '"' * 9_000 + "\N{GRINNING FACE}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("heavy", [False, True])
def test_texts_take_no_more_than_they_weigh(text: str, escaped: bool, heavy: bool) -> None:
    data = json.dumps({"a": [text, "x" * 300_000]}, ensure_ascii=escaped).encode()
    more = measured(data, LIMITS) if heavy else weigh(data) - len(data) + widened(data)
    weight = len(data) + more
    tracemalloc.start()
    try:
        decoded: Any = load(data)
        json_encode(decoded)  # beside each wide text that in UTF-8 is kept
        took = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert took < 1.2 * weight
    if heavy:  # of which each text counts by itself, and no more than it may take
        assert weight < 1.2 * (len(data) + 4 * len(text))


def test_values_are_counted_to_their_end_only_where_texts_have_most_marks() -> None:
    small = [{"type": "text", "text": "a, b", "n": 1}] * 20_000  # in several slices
    data = json.dumps(small).encode()
    assert counted(small) < check_size(data, LIMITS) == marks(data) < 2 * counted(small)
    texts = [{"type": "text", "text": "a, b: c," * 9, "n": 1}] * 4_000
    assert check_size(json.dumps(texts).encode(), LIMITS) == counted(texts)


@pytest.mark.parametrize("sign", ["\N{GRINNING FACE}", "\\ud83d\\ude00"])
@pytest.mark.parametrize("at", [0, 262_140, 262_142, 600_000])
def test_a_text_in_several_slices_is_as_wide_as_its_widest(sign: str, at: int) -> None:
    text = "x" * at + sign + "x" * (600_000 - at)
    data = f'{{"a":["{text}","{"y" * 900_000}"]}}'.encode()
    assert 2_400_000 < measured(data, LIMITS) < 2_401_000


async def test_wide_texts_are_counted_while_a_request_lives() -> None:
    go = asyncio.Event()
    app = App(Stub(*OPENING, go, *closing("")), Settings())
    said = "x" * 100_000 + "\N{GRINNING FACE}"
    body = json.dumps(asking(messages=[{"role": "user", "content": said}]), ensure_ascii=False)
    async with served(app) as port:
        asked = asyncio.ensure_future(
            exchange(port, post(port, body.encode(), PATHS["chat"], CLOSING))
        )
        while app.budget.held < 500_000:
            await asyncio.sleep(0.001)
        go.set()
        assert (await asked)[9:12] == b"200"
    assert app.budget.held == 0


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


async def test_a_thread_that_cannot_be_had_leaves_the_lane(monkeypatch) -> None:
    made, heavy = service(), b"x" * 1_100_000
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "run_in_executor", Mock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            await made.decoded(heavy, ANYONE, thread_of, no_count)
    assert await asyncio.wait_for(made.decoded(heavy, ANYONE, thread_of, no_count), 10)


# ---- what engines know of it ----

COUNTING = "/v1/responses/input_tokens"


class Counting(Stub):
    """A stub that counts tokens, too."""

    async def count(self, request: Request, caller: Caller = ANYONE) -> int:
        self.asked.append((request, caller))
        return 1


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact", COUNTING])
async def test_engines_know_the_size_of_large_requests_to_prepare_them_in_threads(path) -> None:
    stub = Counting()
    app = App(stub, Settings(store="none"))
    for words in (1, 100_000):
        body = json.dumps({"model": "stub", "input": "word " * words}).encode()
        call = Call(app, path, body)
        assert (await call()).status == 200
        ((_, caller),) = stub.asked
        assert caller.size == (len(body) if words > 1 else 0)
        stub.asked.clear()


@pytest.mark.parametrize("path", ["/v1/responses/compact", COUNTING])
async def test_what_is_stored_counts_in_the_size_of_requests(path) -> None:
    stub = Counting()
    app = App(stub, Settings(), Memory(MemoryStore()))
    asked = {"model": "stub", "input": "word " * 100_000}
    first = (await Call(app, "/v1/responses", asked)()).json["id"]
    stub.asked.clear()
    asked = {"model": "stub", "input": "Hi", "previous_response_id": first}
    assert (await Call(app, path, asked)()).status == 200
    ((_, caller),) = stub.asked
    assert caller.size > 100_000
