"""A model's server that misbehaves costs the request that asked it, and nobody else."""

from __future__ import annotations

import gzip
import itertools
import json
import time
import zlib
from collections.abc import Iterable
from functools import cache

import pytest

from dragoman.core.fold import Fold
from dragoman.core.turn import Turn
from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.wire.registry import WIRES
from tests.hostile.stage import gateway, watched
from tests.mock import Asked, Reply, chunk, completion, head, mock, plain
from tests.product import configured
from tests.server.stubs import Call, asking

LIMIT = 2 * 1024 * 1024
"""The server's `answer_limit` here."""
WORD = b"data: " + json.dumps(chunk({"content": "word "})).encode() + b"\n\n"
END = b"data: " + json.dumps(chunk(finish="stop")).encode() + b"\n\ndata: [DONE]\n\n"
GZIP = "content-encoding: gzip"


def events(*fields: str) -> bytes:
    return head(200, "connection: close", *fields)


def endless(piece: bytes) -> Iterable[bytes]:
    return itertools.chain([events()], itertools.repeat(piece))


@cache
def bomb(size: int, piece: bytes = WORD) -> bytes:
    """An event stream of this size, compressed."""
    return gzip.compress(piece * (size // len(piece)), 9, mtime=0)


@cache
def zeros(size: int) -> bytes:
    return gzip.compress(b"\0" * size, 9, mtime=0)


def block(fields: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk(fields)).encode() + b"\n\n"


ATTACKS = {
    "2b.01 zeros": lambda: [events(GZIP), zeros(50_000_000)],
    "2b.03 deflate": lambda: [
        events("content-encoding: deflate"),
        zlib.compress(b" " * 50_000_000, 9),
    ],
    "2b.05 twice": lambda: [
        events("content-encoding: gzip, gzip"),
        gzip.compress(zeros(50_000_000), mtime=0),
    ],
    "2b.07 one event": lambda: [events(GZIP), bomb(50_000_000, b"data: " + b"a" * 1_000_000)],
    "2b.09 events": lambda: [events(GZIP), bomb(50_000_000)],
    "members without content": lambda: [events(GZIP), gzip.compress(b"", mtime=0) * 100_000],
    "codings over codings": lambda: [events("content-encoding: " + "gzip," * 50), zeros(1_000)],
    "2b.15 endless line": lambda: endless(b"data: " + b"a" * 65_536),
    "2b.19 endless comment": lambda: endless(b": " + b"a" * 65_536),
    "2b.20 endless blank": lambda: endless(b"\n" * 65_536),
    "2b.21, 2f.03 endless words": lambda: endless(WORD * 200),
    "endless reasoning": lambda: endless(block({"reasoning_content": "Hm "}) * 200),
    "endless arguments": lambda: endless(
        block({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "[1,"}}]}) * 200
    ),
    "endless unknown fields": lambda: endless(block({"vendor": [1, 2]}) * 200),
    "endless JSON": lambda: endless(b'{"choices":[' + b"[]," * 20_000),
    "2b.17 endless headers": lambda: itertools.chain(
        [b"HTTP/1.1 200 OK\r\n"], itertools.repeat(b"x-more: y\r\n" * 5_000)
    ),
    "2b.18 many informational answers": lambda: itertools.repeat(
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000
    ),
    "an endless refusal": lambda: itertools.chain(
        [head(500, "connection: close")], itertools.repeat(b"no " * 20_000)
    ),
    "an endless answer after its end": lambda: itertools.chain(
        [events(), WORD + END], itertools.repeat(WORD * 200)
    ),
}


def reply(asked: Asked) -> Reply:
    """What the model's name asks for."""
    name = asked.json["model"]
    if name == "ok":
        return plain(200, completion({"content": "ok"}))
    return Reply(ATTACKS[name](), pause=0)  # pieces may have no end


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("upstreams")
    words = configured(folder, f"[server]\nanswer_limit = {LIMIT}\nstore = 'memory'\n")
    with gateway(reply, *words) as (running, _):
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ATTACKS)
def test_an_answer_that_is_too_much_is_refused_and_nobody_else_waits(server, name, stream) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    with watched(server) as cost:
        answer = server.post("chat", body)
    assert cost.pause < 0.5
    assert cost.grown < 120
    if name.endswith("after its end"):
        assert answer.status == 200
        return
    text = answer.body.decode()
    assert "model's server" in text, text[:500]
    if answer.status == 200:  # it had begun
        assert stream
        assert '"error"' in text
    else:
        assert answer.status == (500 if "refusal" in name else 502), text[:500]


def test_an_answer_that_is_stored_has_the_same_bound(server) -> None:
    body = {"model": "2b.21, 2f.03 endless words", "input": "hi", "stream": True}
    with watched(server) as cost:
        answer = server.post("responses", body)
    failed = [event for event in answer.data if event != "[DONE]"][-1]
    assert failed["type"] == "response.failed"
    assert f"more than {LIMIT} bytes (answer_limit)" in failed["response"]["error"]["message"]
    stored = server.request("GET", f"/v1/responses/{failed['response']['id']}").json
    assert stored["status"] == "failed"
    assert len(stored["output"][0]["content"][0]["text"]) < LIMIT
    assert cost.grown < 120


def test_several_choices_have_one_bound_together(server) -> None:
    body = {"model": "2b.21, 2f.03 endless words", "prompt": "hi", "n": 128, "stream": False}
    with watched(server) as cost:
        answer = server.request("POST", "/v1/completions", json.dumps(body).encode())
    assert answer.status == 502
    assert cost.grown < 120


# ---- nothing costs its square --------------------------------------------------------------


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def of_chat(delta: dict[str, object]) -> bytes:
    return sse({"choices": [{"index": 0, "delta": delta}]})


def of_responses(type: str, **fields: object) -> bytes:
    return sse({"type": f"response.{type}", **fields})


def more_of_many(number: int, count: int) -> bytes:
    """Items that stay open, and then more of each in turn."""
    place = number % (count // 2)
    kind = "message" if place % 2 else "reasoning"
    if number < count // 2:
        return of_responses("output_item.added", item={"type": kind, "id": f"m{place}"})
    kind = "output_text" if place % 2 else "reasoning_text"
    return of_responses(f"{kind}.delta", item_id=f"m{place}", delta="a")


def of_nobody(number: int, count: int) -> bytes:
    if number < count // 2:
        return more_of_many(number, count)
    return of_responses("web_search_call.searching", item_id="x")


def done_again(number: int, count: int) -> bytes:
    if number < 100:
        return of_responses("output_text.delta", item_id="m", delta="a" * 10 * count)
    return of_responses("output_text.done", item_id="m", text="a")


def whole_output(number: int, count: int) -> bytes:
    if number < count // 2:
        return more_of_many(number, count)
    if number < count - 1:
        return b""
    output = [{"type": "message", "id": f"x{each}"} for each in range(count // 2)]
    return of_responses("completed", response={"status": "completed", "output": output})


FLOODS = {
    "arguments": (
        "chat",
        lambda *_: of_chat(
            {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a":['}}]}
        ),
    ),
    "parts": ("chat", lambda n, _: of_chat({"content": "a"} if n % 2 else {"refusal": "b"})),
    "usage": ("messages", lambda n, _: sse({"type": "message_delta", "usage": {f"x{n}": n}})),
    "more of many items": ("responses", more_of_many),
    "an item nobody knows": ("responses", of_nobody),
    "the whole of a part again": ("responses", done_again),
    "all items at the end": ("responses", whole_output),
}
LENGTHS = (1_000, 4_000)


def seconds(wire: str, pieces: list[bytes]) -> float:
    """CPU for reading these, the least of some times."""
    costs = []
    for _ in range(2):
        turn = Turn("1", 0, "m")
        decoder, fold, before = WIRES[wire].decoder(turn), Fold(), time.thread_time()
        for piece in pieces:
            fold.feed_all(decoder.feed(piece))
        assert fold.response
        costs.append(time.thread_time() - before)
    return min(costs)


@pytest.mark.parametrize("name", FLOODS)
def test_four_times_as_many_events_do_not_cost_sixteen_times_as_much(name) -> None:
    wire, event = FLOODS[name]
    few, many = ([event(n, count) for n in range(count)] for count in LENGTHS)
    # A machine that does much else may slow down either; a square shows every time.
    assert any(seconds(wire, many) < 9 * seconds(wire, few) for _ in range(5))


@pytest.mark.parametrize("asked", ["1" + "0" * 20, "1e20", "inf", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_clients_are_told_to_wait_a_day_at_the_most(asked) -> None:
    async with mock(plain(429, {"error": {"message": "no"}}, f"retry-after: {asked}")) as up:
        app = App(Remote(up.base_url, wire="chat"), Settings())
        call = await Call(app, body=asking())()
        assert (call.status, call.headers["retry-after"]) == (429, "86400")
        await app.close()
