"""A model's server that misbehaves costs the request that asked it, and nobody else."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from functools import cache, partial

import pytest

from dragoman.core.error import LONGEST_NAME, Fault, FaultError
from dragoman.core.event import Delta
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import Message
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.engines import remote, upstream
from dragoman.engines.remote import Remote
from dragoman.net.threads import MUCH
from dragoman.server.app import App
from dragoman.server.limits import values_in
from dragoman.server.settings import Settings
from dragoman.wire import embeddings, error
from dragoman.wire import json as wire_json
from dragoman.wire import sse as sse_wire
from dragoman.wire.protocol import Dialect
from dragoman.wire.registry import WIRES
from dragoman.wire.responses.items import decode_tokens
from tests.cost import is_square
from tests.engines.receiving import Receiver
from tests.hostile.stage import gateway, watched
from tests.mock import Asked, Reply, chunk, completion, head, message, mock, plain, response
from tests.mock import said as saying
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
def test_an_answer_that_is_too_large_is_refused_and_blocks_no_others(server, name, stream) -> None:
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


@pytest.mark.uncounted
@pytest.mark.parametrize("name", FLOODS)
def test_four_times_as_many_events_do_not_cost_sixteen_times_as_much(name) -> None:
    wire, event = FLOODS[name]
    sent = {count: [event(n, count) for n in range(count)] for count in (1_000, 4_000)}

    def read(count: int) -> None:
        decoder, fold = WIRES[wire].decoder(Turn("1", 0, "m")), Fold()
        for piece in sent[count]:
            fold.feed_all(decoder.feed(piece))
        assert fold.response

    assert not is_square(read, 1_000)


@pytest.mark.parametrize("asked", ["1" + "0" * 20, "1e20", "inf", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_retry_after_is_a_day_at_the_most(asked) -> None:
    async with mock(plain(429, {"error": {"message": "no"}}, f"retry-after: {asked}")) as up:
        app = App(Remote(up.base_url, wire="chat"), Settings())
        call = await Call(app, body=asking())()
        assert (call.status, call.headers["retry-after"]) == (429, "86400")
        await app.close()


# ---- what is no answer ---------------------------------------------------------------------


def failed(wire: str, data: bytes) -> str:
    """What is wrong with a stream that has this before its end, fed as it comes."""
    decoder, fold = WIRES[wire].decoder(Turn("1", 0, "m")), Fold()
    for at in range(0, len(data), 32_768):
        fold.feed_all(decoder.feed(data[at : at + 32_768]))
    fold.feed_all(decoder.close())
    assert fold.response
    assert fold.response.error
    return fold.response.error.message


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_u2_an_event_has_so_many_lines_at_the_most(wire) -> None:
    said = failed(wire, b"data:\n" * (sse_wire.MAX_LINES + 10_000))
    assert f"more than {sse_wire.MAX_LINES} lines" in said


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("between", [b"\n", b"\n\n"], ids=["U2 lines", "L2 events"])
def test_lines_that_are_no_json_are_tried_so_often_at_the_most(wire, between, monkeypatch) -> None:
    tried = []
    load = wire_json.load
    monkeypatch.setattr(wire_json, "load", lambda data: tried.append(data) or load(data))
    assert "JSON" in failed(wire, (b"data: x" + between) * 5_000 + b"\n" + WORD)
    assert len(tried) < 2 * error.MAX_GARBLED + 32_768 // len(b"data: x" + between)


def test_a_long_event_of_a_stream_with_few_lines_is_read_in_pieces() -> None:
    """The lines of an event that is whole do not count for the next one."""
    decoder = sse_wire.SSEDecoder()
    half = b": x\n" * (sse_wire.MAX_LINES // 2 - 10)
    for _ in range(3):
        assert decoder.feed(half) == []
        assert decoder.feed(half + b"data: 1\n\n") == [("", b"1")]


def test_u1_what_a_long_answer_without_vectors_says_is_not_looked_for(monkeypatch) -> None:
    built = []
    monkeypatch.setattr(wire_json, "load", built.append)
    long = b'{"datb":[' + b"[]," * (error.LONGEST // 3) + b"1]}"
    for said in (long, long[:-1]):
        with pytest.raises(FaultError, match="no vectors"):
            embeddings.decode_response(said)
    assert not built


async def test_u1_vectors_are_held_for_the_caller_while_they_come() -> None:
    said = b'{"data":[' + b"[]," * 60_000 + b"1]}"
    held: list[int] = []
    async with mock(Reply([head(200, f"content-length: {len(said)}"), said])) as up:
        engine = Remote(up.base_url, wire="chat")
        request = {"model": "m", "input": "hi"}
        answer = await engine.embed(request, Caller(count=held.append))
        assert wire_json.dump(answer) == said
        assert sum(held) == len(said)
        full = FaultError(Fault("overloaded", "No room."))
        with pytest.raises(FaultError, match="No room"):
            await engine.embed(request, Caller(count=lambda _: (_ for _ in ()).throw(full)))
        await engine.close()


async def test_u5_large_answers_are_decoded_one_at_a_time() -> None:
    engine = Remote("http://127.0.0.1:1/v1", wire="chat")
    at_work, most = 0, 0

    def work(more: int) -> int:
        nonlocal at_work, most
        at_work += more
        most = max(most, at_work)
        time.sleep(0.002)
        at_work -= more
        return more

    assert (
        await asyncio.gather(*(engine.upstream.apart("", 1, work, 1) for _ in range(8))) == [1] * 8
    )
    assert most == 1
    await engine.close()


async def test_an_answer_does_not_wait_for_much_larger_ones() -> None:
    engine = Remote("http://127.0.0.1:1/v1", wire="chat")
    apart, leave = engine.upstream.apart, threading.Event()
    larger = [asyncio.ensure_future(apart("a", MUCH + 1, leave.wait, 30)) for _ in range(9)]
    async with asyncio.timeout(10):
        assert await apart("b", MUCH, lambda: 1) == 1
    assert not any(each.done() for each in larger)
    leave.set()
    larger.pop().cancel()
    await asyncio.wait(larger)
    await engine.close()


async def test_values_of_an_answer_in_many_lines_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(remote, "MAX_VALUES", 50_000)
    said = b'{"choices":[\n' + b"{},\n" * 100_000 + b"1]}"
    async with mock(Reply([head(200, f"content-length: {len(said)}"), said])) as up:
        app = App(Remote(up.base_url, wire="chat"), Settings())
        call = await Call(app, body=asking())()
        assert call.status == 502
        assert b"more than 50000 values in one" in call.body
        await app.close()


async def test_l3_what_is_large_after_the_end_is_not_waited_for() -> None:
    """Each piece of it was decoded in a thread, after which the wait for late usage began anew."""
    beside = b": " + b"x" * remote.LARGE + b"\n\n"
    sent: list[int] = []
    more = (sent.append(n) or beside for n in range(100))
    pieces = itertools.chain([head(200), WORD + END + beside], more)
    async with mock(Reply(pieces, pause=0.02)) as up:
        app = App(Remote(up.base_url, wire="chat"), Settings())
        call = await Call(app, body=asking())()
        assert call.status == 200
        assert b"word" in call.body
        await app.close()
        await up.asked[0].gone
    assert len(sent) < 50


# ---- questions beside the answers ----------------------------------------------------------


MANY = b'{"data":[{"id":"m"}],"input_tokens":3,"x":[' + b"{}," * upstream.MAX_VALUES + b"1]}"
LISTED = plain(200, {"data": [{"id": "m"}]})


async def test_u3_listing_has_so_many_values_at_the_most() -> None:
    reply = Reply([head(200, f"content-length: {len(MANY)}"), MANY])
    async with mock(plain(500, b""), probed=reply) as up:
        engine = Remote(up.base_url, wire="chat")
        with pytest.raises(FaultError, match=f"more than {upstream.MAX_VALUES} values"):
            await engine.models()
        await engine.close()


async def test_names_and_times_that_are_none_are_not_listed() -> None:
    names = ["", "a" * (LONGEST_NAME + 1), None, "m", "n"]
    large = {"created": 10**30, "context_length": 10**30}
    listed = [{"id": name, **large, "created": -5} for name in names[:4]] + [{"id": "n", **large}]
    async with mock(plain(500, b""), probed=plain(200, {"data": listed})) as up:
        engine = Remote(up.base_url, wire="chat")
        models = await engine.models()
        assert [(each.id, each.created) for each in models] == [("m", 0), ("n", 0)]
        assert not [each for each in models if "context_window" in each.extra["models"]]
        await engine.close()


async def test_u3_c1_listing_is_asked_for_once_however_many_want_it(monkeypatch) -> None:
    async with mock(plain(500, b""), probed=LISTED) as up:
        engine = Remote(up.base_url, wire="chat", pass_client_key=True)
        one, other = Caller(key=Secret("one")), Caller(key=Secret("other"))
        listings = await asyncio.gather(*(engine.models(one) for _ in range(5)))
        assert [[model.id for model in each] for each in listings] == [["m"]] * 5
        await engine.models(one)
        assert len(up.probes) == 1
        await engine.models(other)  # who may see others
        assert len(up.probes) == 2
        monkeypatch.setattr(upstream, "MOST_FRESH", 2)
        for _ in range(2):
            await engine.models(Caller(key=Secret("third")))
        assert len(up.probes) == 4
        monkeypatch.setattr(upstream, "FRESH", 0.0)
        engine.upstream._listings.clear()
        for _ in range(2):
            await engine.models(one)
        assert len(up.probes) == 6
        await engine.close()


async def test_why_there_is_no_listing_is_as_fresh_and_one_who_leaves_does_not_end_it() -> None:
    came = asyncio.Event()

    async def refused(asked: Asked) -> Reply:
        came.set()
        await asyncio.sleep(0.02)
        return plain(404, b"")

    async with mock(plain(500, b""), probed=refused) as up:
        engine = Remote(up.base_url, wire="chat")
        leaves = asyncio.ensure_future(engine.models())
        await came.wait()
        leaves.cancel()
        for _ in range(2):
            with pytest.raises(FaultError, match="no model listing"):
                await engine.models()
        assert len(up.probes) == 1
        await engine.close()


async def test_abandoned_listing_ends_with_its_engine() -> None:
    came = asyncio.Event()

    async def silent(asked: Asked) -> Reply:
        came.set()
        return Reply([], hang=True)

    async with mock(plain(500, b""), probed=silent) as up:
        engine = Remote(up.base_url, wire="chat")
        waits = asyncio.ensure_future(engine.models())
        await came.wait()
        await engine.close()
        with pytest.raises(asyncio.CancelledError):
            await waits


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        (b'{"input_tokens":7}', 7),
        (b'{"input_tokens":true}', None),
        (b'{"input_tokens":-5}', None),
        (b'{"input_tokens":1%s}' % (b"0" * 30), None),
        (MANY, None),
    ],
    ids=["a count", "true", "negative", "huge", "many values"],
)
async def test_u6_count_is_a_count(said, tokens) -> None:
    async with mock(Reply([head(200, f"content-length: {len(said)}"), said])) as up:
        engine = Remote(up.base_url, wire="messages")
        assert await engine.count(Request(model="m", items=(Message("user", "hi"),))) == tokens
        await engine.close()


def test_u4_logprob_is_a_number() -> None:
    (token,) = decode_tokens([{"token": "a", "logprob": True, "top_logprobs": [{"logprob": -1}]}])
    assert (token.logprob, token.top[0].logprob) == (None, -1)


# ---- what is repeated, and many at a time --------------------------------------------------

NAME = "m" * 100_000
ENCLOSED = {
    "model": ("chat", [sse({"model": NAME, "choices": []})]),
    "system_fingerprint": ("chat", [sse({"system_fingerprint": NAME, "choices": []})]),
    "a field nobody knows": ("chat", [sse({"vendor": NAME, "choices": []})]),
    "model of a response": ("responses", [of_responses("created", response={"model": NAME})]),
    "id of an item": (
        "responses",
        [of_responses("output_item.added", item={"type": "message", "id": NAME})],
    ),
    "id of a call": (
        "responses",
        [
            of_responses(
                "output_item.added",
                item={"type": "function_call", "id": NAME, "call_id": "c", "name": "f"},
            )
        ],
    ),
}
PIECES = {
    "message": of_responses("output_text.delta", delta="word"),
    "function_call": of_responses("function_call_arguments.delta", delta="word"),
}


@pytest.mark.parametrize("to", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("name", ENCLOSED)
def test_what_an_upstream_says_once_is_not_repeated_with_each_piece(name, to) -> None:
    wire, first = ENCLOSED[name]
    piece = of_chat({"content": "word"})
    if wire == "responses":
        piece = PIECES["function_call" if "call" in name else "message"]
    turn = Turn("1", 0, "m")
    decoder = WIRES[wire].decoder(turn)
    encoder = WIRES[to].encoder(Request(model="m", items=(), stream=True), Dialect())
    events = decoder.feed(b"".join([*first, *[piece] * 200]))
    assert len([event for event in events if isinstance(event, Delta)]) == 200
    assert len(encoder.feed(events)) < 4 * len(NAME)


def test_many_unknown_fields_are_in_the_first_chunk() -> None:
    decoder = WIRES["chat"].decoder(Turn("1", 0, "m"))
    encoder = WIRES["chat"].encoder(Request(model="m", items=(), stream=True), Dialect())
    first = sse({"vendor": NAME, "choices": [{"index": 0, "delta": {"content": "a"}}]})
    chunks = encoder.feed([*decoder.feed(first + END), *decoder.close()]).split(b"\n\n")
    assert [NAME.encode() in each for each in chunks] == [True] + [False] * (len(chunks) - 1)


@pytest.mark.parametrize("wire", WIRES)
def test_names_of_models_have_a_length(wire) -> None:
    body = {"prompt": "hi"} if wire == "completions" else asking(wire)
    decode = WIRES[wire].decode_request
    longest = {**body, "model": "m" * LONGEST_NAME}
    assert decode(json.dumps(longest).encode(), wire_json.LIMITS).model == longest["model"]
    with pytest.raises(FaultError, match=f"^model: has more than {LONGEST_NAME} characters"):
        decode(json.dumps(longest | {"model": "m" + longest["model"]}).encode(), wire_json.LIMITS)


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize("count", [-5, 10**30, -1.5, float("1e300")])
def test_counts_that_are_none_are_left_out(wire, count) -> None:
    turn = Turn("1", 0, "m")
    decoder, fold = WIRES[wire].decoder(turn), Fold()
    names = ("prompt", "completion") if wire == "chat" else ("input", "output")
    usage = {f"{names[0]}_tokens": 3, f"{names[1]}_tokens": count}
    whole = {
        "chat": completion({"content": "a"}, usage=usage),
        "responses": response(saying("a"), usage=usage),
        "messages": message({"type": "text", "text": "a"}) | {"usage": usage},
    }[wire]
    fold.feed_all([*decoder.feed(json.dumps(whole).encode()), *decoder.close()])
    counted = fold.response.usage
    assert (counted.input_tokens, counted.output_tokens) == (3, None)


async def test_u5_pieces_of_large_answers_take_turns() -> None:
    """All of them were decoded in one turn of the event loop, where many came together."""
    engine = Remote("http://127.0.0.1:1/v1", wire="chat")
    loop, done, turns = asyncio.get_running_loop(), [], []

    def look() -> None:
        turns.append(len(done))
        if len(done) < 20:
            loop.call_soon(look)

    for number in range(10):
        # Each has a second piece, for which it queues again.
        work = partial(engine.upstream.take_turns, partial(done.append, 10 + number))
        engine.upstream.take_turns(lambda n=number, more=work: (done.append(n), more()))
    look()
    while len(done) < 20:
        await asyncio.sleep(0)
    assert done == list(range(20))
    grown = [after - before for before, after in itertools.pairwise([0, *turns])]
    assert max(grown) == upstream.PIECES == 1  # four of many calls each took 0.1 s
    await engine.close()


async def test_u5_no_piece_of_a_large_answer_is_decoded_before_its_turn(monkeypatch) -> None:
    waiting: list[Callable[[], None]] = []
    told = json.dumps(completion({"content": "a" * 500_000})).encode()
    async with mock(Reply([head(200, f"content-length: {len(told)}") + told])) as up:
        engine = Remote(up.base_url, wire="chat")
        monkeypatch.setattr(engine.upstream, "take_turns", waiting.append)
        events = engine.stream(Request(model="m", items=(Message("user", "hi"),)))
        first = asyncio.ensure_future(anext(events))
        while not waiting:
            await asyncio.sleep(0.001)
        taken = 0
        while not first.done():
            assert len(waiting) <= 1  # and nothing is read meanwhile
            while waiting:
                waiting.pop()()
                taken += 1
            await asyncio.sleep(0.001)
        assert taken >= len(told) // remote.PIECE
        await events.aclose()
        await engine.close()


async def test_u5_an_answer_queues_once_however_often_its_client_stops_and_goes_on(
    monkeypatch,
) -> None:
    """Each time that it went on, it had one place more, for as long as there was more to read."""
    waiting: list[Callable[[], None]] = []
    told = json.dumps(completion({"content": "a" * 500_000})).encode()
    async with mock(Reply([head(200, f"content-length: {len(told)}") + told])) as up:
        engine = Remote(up.base_url, wire="chat")
        monkeypatch.setattr(engine.upstream, "take_turns", waiting.append)
        receiver = Receiver()
        receiver.start(engine, Request(model="m", items=(Message("user", "hi"),)))
        while not waiting:
            await asyncio.sleep(0.001)
        for _ in range(5):
            receiver.handle.pause()
            receiver.handle.resume()
        assert len(waiting) == 1
        receiver.cancel()
        await engine.close()


PARTS = [{"type": "text", "text": f"{number} "} for number in range(10_000)]


@pytest.mark.parametrize("whole", [False, True])
async def test_events_of_one_large_piece_take_turns(whole) -> None:
    """All that one event of a server stood for was encoded and stored in one turn."""
    told = json.dumps(completion({"content": PARTS})).encode()
    reply = Reply([head(200, f"content-length: {len(told)}") + told])
    async with mock(reply if whole else Reply([events(), block({"content": PARTS}) + END])) as up:
        engine, paused = Remote(up.base_url, wire="chat"), []

        def stop(batch: list[object]) -> None:
            if not paused and any(type(event) is Delta for event in batch):
                paused.append(len(receiver.batches))
                receiver.handle.pause()

        receiver = Receiver(stop)
        receiver.start(engine, Request(model="m", items=(Message("user", "hi"),)))
        while not paused:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(receiver.batches) == paused[0]
        receiver.handle.resume()
        while not receiver.ended:
            await asyncio.sleep(0.001)
        said = [event.data for event in receiver.events if type(event) is Delta]
        assert "".join(said) == "".join(part["text"] for part in PARTS)
        assert max(map(len, receiver.batches)) <= remote.EVENTS
        assert receiver.events[-1].status == "completed"
        await engine.close()


async def test_an_answer_may_be_cancelled_between_such_turns() -> None:
    async with mock(Reply([events(), block({"content": PARTS}) + END])) as up:
        engine = Remote(up.base_url, wire="chat")
        receiver = Receiver(lambda _: receiver.cancel())
        receiver.start(engine, Request(model="m", items=(Message("user", "hi"),)))
        while not receiver.batches:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(receiver.batches) == 1
        await engine.close()


def test_annotations_count_as_tokens_where_a_batch_is_judged() -> None:
    """60,000 of them in one event were encoded on the event loop, several times."""
    notes = [{"type": "url_citation", "url_citation": {"url": "u"}}] * 50
    decoder, fold = WIRES["chat"].decoder(Turn("1", 0, "m")), Fold()
    read = [*decoder.feed(block({"content": "a"}) + block({"annotations": notes}) + END)]
    fold.feed_all(read)
    assert 50 <= values_in(fold.response.output, 1000) < 60
    assert 100 <= values_in(read, 1000) < 110  # at the end of the part, and of its item


async def test_chunk_extensions_are_bounded() -> None:
    """They are no part of the body, whose bytes are counted."""
    chunk = b"1;" + b"x" * 60_000 + b"\r\n:\r\n"
    pieces = [head(200, "transfer-encoding: chunked"), *[chunk] * 100]
    async with mock(Reply(pieces)) as up:
        engine = Remote(up.base_url, wire="chat", answer_limit=1_000_000)
        app = App(engine, Settings())
        call = await Call(app, body=asking())()
        assert call.status == 502
        assert b"or 1000000 around its chunks" in call.body
        await app.close()
