"""What is in a body, and how large it is, costs the client that sends it, and no other."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.interfaces import ANYONE, Caller, Secret
from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.cancellation import InFlight
from dragoman.server.limits import Budget, Gate
from dragoman.server.responder import Service
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores import sql
from dragoman.stores.memory import MemoryStore
from dragoman.wire.chat import response as chat_response
from dragoman.wire.json import VALUE, Limits, check_size, marks
from dragoman.wire.registry import WIRES
from tests.hostile.stage import cpu, gateway, watched
from tests.mock import Asked, Reply, chunk, completion, mock, plain, stream
from tests.product import Product, configured
from tests.samples import samples
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, closing

PATHS = {**PATHS, "completions": "/v1/completions", "embeddings": "/v1/embeddings"}
HI = b'"messages":[{"role":"user","content":"hi"}]'
ASKS = b'"store":false,"input":"hi"'
MEGABYTES = samples(3, 16)


def filled(start: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    """A body with as many of these units as there is room for."""
    return start + b",".join([unit] * (size // (len(unit) + 1))) + end


def named(start: bytes, value: bytes, end: bytes, size: int) -> bytes:
    """A body with as many fields of different names."""
    fields = [b'"k%d":%b' % (number, value) for number in range(size // (len(value) + 10))]
    return start + b",".join(fields) + end


def called(size: int) -> bytes:
    """A function's call and its output, again and again."""
    call = (
        '{"type":"function_call","call_id":"c%d","name":"f","arguments":"{}"},'
        '{"type":"function_call_output","call_id":"c%d","output":"x"}'
    )
    return b",".join([(call % (n, n)).encode() for n in range(size // 130)])


M = b'{"model":"m",'
MESSAGE = b'{"role":"user","content":"a"}'
MANY = {
    "2c.02 messages": ("chat", "messages", M + b'"messages":[', MESSAGE, b"]}"),
    "2c.03 items": ("responses", "input", M + b'"store":false,"input":[', MESSAGE, b"]}"),
    "2c.04 stored items": ("responses", "input", M + b'"input":[', MESSAGE, b"]}"),
    "2c.05 parts": (
        *("chat", "messages", M + b'"messages":[{"role":"user","content":['),
        *(b'{"type":"text","text":"a"}', b"]}]}"),
    ),
    "2c.06 tools": (
        *("chat", "tools", M + HI + b',"tools":['),
        *(b'{"type":"function","function":{"name":"f"}}', b"]}"),
    ),
    "2c.07 empty arrays": ("chat", "x", M + HI + b',"x":[', b"[]", b"]}"),
    "2c.09 last byte": ("chat", "messages", M + b'"messages":[', MESSAGE, b"]}x"),
    "2c.10 lone surrogate": (
        *("chat", "messages", M + b'"messages":[', MESSAGE),
        b'],"user":"\\ud800"}',
    ),
    "2c.14 quotes": (
        "chat",
        "messages",
        M + b'"messages":[' + b"[" * 300,
        b'""',
        b"]" * 301 + b"}",
    ),
    "2c.16 stop strings": ("chat", "stop", M + HI + b',"stop":[', b'"a"', b"]}"),
    "2c.18 embeddings": ("embeddings", "input", M + b'"input":[', b'"a"', b"]}"),
    "2c.19 prompts": ("completions", "prompt", M + b'"prompt":[', b'"a"', b"]}"),
    "messages of Messages": ("messages", "messages", M + b'"messages":[', MESSAGE, b"]}"),
    "blocks": (
        *("messages", "messages", M + b'"messages":[{"role":"user","content":['),
        *(b'{"type":"text","text":"a"}', b"]}]}"),
    ),
}
BODIES: dict[str, tuple[str, str, Callable[[int], bytes]]] = {
    name: (wire, param, lambda size, row=row: filled(*row, size))
    for name, (wire, param, *row) in MANY.items()
} | {
    "2c.08 objects": (
        *("responses", "metadata"),
        lambda size: named(M + ASKS + b',"metadata":{', b"{}", b"}}", size),
    ),
    "2c.15 outputs": (
        *("responses", "input"),
        lambda size: M + b'"store":false,"input":[' + called(size) + b"]}",
    ),
    "2c.17 biases": (
        *("chat", "logit_bias"),
        lambda size: named(M + HI + b',"logit_bias":{', b"1", b"}}", size),
    ),
}


def reply(asked: Asked) -> Reply:
    if b'"slow"' in asked.body[:100]:
        return stream(*[chunk({"content": "x"})] * 2000, pause=0.02)
    return plain(200, completion({"content": "ok"}))


# ---- one server, all bodies ------------------------------------------------------------------


class Listener:
    """Another client, whose stream goes on: `pause` is the longest that it waited, in seconds or in
    those of the server's CPU, where they are fewer."""

    def __init__(self, server: Product) -> None:
        self.pause = 0.0
        self._server, self._done = server, threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._begun = threading.Event()

    def __enter__(self) -> Listener:
        self._thread.start()
        assert self._begun.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _listen(self) -> None:
        asked = {"model": "slow", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=60) as connection:
            before, ending = None, b"[DONE]"
            while not self._done.is_set():
                if b"[DONE]" in ending:  # as it will where others take the machine for long
                    connection.sendall(post(self._server, "chat", json.dumps(asked).encode()))
                    before, ending = None, b""
                received = connection.recv(65536)
                if not received:
                    break
                ending = ending[-20:] + received
                now = time.monotonic(), cpu(self._server.process.pid)
                if before is not None:
                    self.pause = max(self.pause, min(now[0] - before[0], now[1] - before[1]))
                    self._begun.set()
                before = now


def post(server: Product, wire: str, body: bytes, length: int | None = None) -> bytes:
    head = (
        f"POST {PATHS[wire]} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.fixture(scope="module")
def server() -> Iterator[Product]:
    with gateway(reply) as (running, _), Listener(running) as other:
        yield running
        # The target is 0.05 s.
        assert other.pause < 0.5


@pytest.mark.parametrize("name", BODIES)
def test_2c_a_body_of_many_values_is_refused_by_its_field_and_blocks_no_others(
    server: Product, name: str
) -> None:
    wire, param, made = BODIES[name]
    body = made(MEGABYTES * 1_000_000)
    with watched(server) as cost:
        answer = server.request("POST", PATHS[wire], body)
    assert answer.status == 400, answer.body
    error = answer.json["error"]
    assert error["message"].startswith(f"{param}: has more than "), error
    assert error.get("param", param) == param
    assert (answer.json.get("type") == "error") == (wire == "messages")
    assert cost.pause < 1  # a tenth of a second, ten times
    assert cost.grown < 5 * MEGABYTES + 60


@pytest.mark.parametrize(
    ("wire", "start", "unit", "end"),
    [
        ("chat", M + b'"messages":[', MESSAGE, b"]}"),
        ("responses", M + b'"input":[', MESSAGE, b"]}"),
        ("messages", M + b'"messages":[', MESSAGE, b"]}"),
    ],
)
def test_2f_04_a_large_body_within_the_limits_blocks_no_others(
    server: Product, wire: str, start: bytes, unit: bytes, end: bytes
) -> None:
    with watched(server) as cost:
        answer = server.request("POST", PATHS[wire], filled(start, unit, end, 280_000))
    assert answer.status == 200, answer.body
    assert cost.pause < 1


NUMBERS: list[tuple[str, Callable[[int], bytes], int]] = [
    ("2c.20 10,000 digits", lambda size: b"1" * 10_000, 400),
    ("2c.21 one long number", lambda size: b"1" * size, 400),
    ("2c.22 one long float", lambda size: b"0." + b"1" * size, 400),
    ("2c.22 one long exponent", lambda size: b"1e" + b"9" * size, 400),
]


@pytest.mark.parametrize(
    ("made", "status"), [row[1:] for row in NUMBERS], ids=[row[0] for row in NUMBERS]
)
@pytest.mark.parametrize("field", [b"temperature", b"x"])
def test_a_number_is_read_in_the_time_of_its_length(
    server: Product, made: Callable[[int], bytes], status: int, field: bytes
) -> None:
    body = M + HI + b',"' + field + b'":' + made(MEGABYTES * 1_000_000) + b"}"
    with watched(server) as cost:
        answer = server.request("POST", PATHS["chat"], body)
    assert answer.status == status, answer.body[:300]
    assert len(answer.body) < 1_000
    assert cost.pause < 1
    assert cost.grown < 12 * MEGABYTES + 60


def test_2c_01_one_long_text_is_answered_and_leaves_nothing(server: Product) -> None:
    body = M + b'"messages":[{"role":"user","content":"' + b"x" * (MEGABYTES * 1_000_000) + b'"}]}'
    with watched(server) as cost:
        for _ in range(5):
            assert server.request("POST", PATHS["chat"], body).status == 200
    assert cost.pause < 1
    assert cost.grown < 12 * MEGABYTES + 60


# ---- limits, by name -------------------------------------------------------------------------

FUNCTION = {"type": "function", "function": {"name": "f"}}
TOOL = {"type": "function", "name": "f"}
TEXT = {"type": "text", "text": "a"}
USER = {"role": "user", "content": "a"}
METADATA = {str(number): "a" for number in range(4)}
OVER: list[tuple[str, str, dict[str, Any], str]] = [
    ("chat", "max_items", {"messages": [USER] * 4}, "messages"),
    (
        "chat",
        "max_parts",
        {"messages": [USER, {**USER, "content": [TEXT] * 4}]},
        "messages[1].content",
    ),
    ("chat", "max_tools", {"messages": [USER], "tools": [FUNCTION] * 4}, "tools"),
    ("chat", "max_tools", {"messages": [USER], "functions": [{"name": "f"}] * 4}, "functions"),
    ("chat", "max_stop", {"messages": [USER], "stop": ["a"] * 4}, "stop"),
    (
        "chat",
        "max_logit_bias",
        {"messages": [USER], "logit_bias": dict.fromkeys("1234", 1)},
        "logit_bias",
    ),
    ("chat", "max_choices", {"messages": [USER], "n": 4}, "n"),
    ("chat", "max_metadata", {"messages": [USER], "metadata": METADATA}, "metadata"),
    ("responses", "max_items", {"input": [USER] * 4}, "input"),
    ("responses", "max_items", {"input": [{**USER, "x": 1}] * 4}, "input"),
    ("responses", "max_items", {"input": "a", "instructions": [USER] * 4}, "instructions"),
    (
        *("responses", "max_parts"),
        {"input": [{**USER, "content": [{"type": "input_text", "text": "a"}] * 4}]},
        "input[0].content",
    ),
    ("responses", "max_tools", {"input": "a", "tools": [TOOL] * 4}, "tools"),
    ("responses", "max_stop", {"input": "a", "stop": ["a"] * 4}, "stop"),
    ("responses", "max_metadata", {"input": "a", "metadata": METADATA}, "metadata"),
    ("messages", "max_items", {"messages": [USER] * 4}, "messages"),
    (
        "messages",
        "max_parts",
        {"messages": [{**USER, "content": [TEXT] * 4}]},
        "messages[0].content",
    ),
    (
        *("messages", "max_tools"),
        {"messages": [USER], "tools": [{"name": "f", "input_schema": {}}] * 4},
        "tools",
    ),
    ("messages", "max_stop", {"messages": [USER], "stop_sequences": ["a"] * 4}, "stop_sequences"),
    ("messages", "max_metadata", {"messages": [USER], "metadata": METADATA}, "metadata"),
    ("completions", "max_inputs", {"prompt": ["a"] * 4}, "prompt"),
    ("completions", "max_stop", {"prompt": "a", "stop": ["a"] * 4}, "stop"),
    ("embeddings", "max_inputs", {"input": ["a"] * 4}, "input"),
]


@pytest.mark.parametrize(("wire", "setting", "fields", "param"), OVER)
async def test_a_limit_is_a_setting_and_names_its_field(
    wire: str, setting: str, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "stub", **fields}
    for most, refused in ((3, True), (4, False)):
        app = App(Stub(), replace(Settings(), **{setting: most}))
        call = await Call(app, PATHS[wire], body)()
        if refused:
            assert call.status == 400, call.json
            assert call.json["error"]["message"].startswith(f"{param}: ")
            assert setting in call.json["error"]["message"]
        else:
            assert setting not in json.dumps(call.json)


# ---- counting before anything is built ---------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.integers() | st.text('ab,:[]{}"\\', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('a,"\\', max_size=3), inner)
    ),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """Commas, colons and brackets of a value, but for those in its texts."""
    match value:
        case list():
            return 1 + max(0, len(value) - 1) + sum(map(counted, value))
        case dict():
            return 1 + max(0, 2 * len(value) - 1) + sum(map(counted, value.values()))
        case _:
            return 0


@given(st.dictionaries(st.text('ab"', max_size=3), VALUES), st.booleans())
def test_values_are_counted_exactly_whatever_is_in_texts(value: dict[str, Any], wide: bool) -> None:
    data, exact = json.dumps(value, indent=1 if wide else None).encode(), counted(value)
    assert marks(data) >= exact
    check_size(data, Limits(max_json_values=max(1, exact)))
    if exact > 1:
        with pytest.raises(FaultError, match="max_json_values"):
            check_size(data, Limits(max_json_values=exact - 1))


@pytest.mark.parametrize("size", [1, 7, 64])
def test_values_are_counted_alike_however_the_body_is_sliced(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.wire.json._SLICE", size)
    value = {'a\\"': ["\\\\", '"', "\\", ",,,"] * 9, "b": {"c": [{}]}}
    data, exact = json.dumps(value).encode(), counted(value)
    check_size(data, Limits(max_json_values=exact))
    with pytest.raises(FaultError) as raised:
        check_size(data, Limits(max_json_values=exact - 1))
    assert raised.value.fault.param == "b"
    with pytest.raises(FaultError, match="The body has more than 1 JSON"):
        check_size(b"[[],[]]", Limits(max_json_values=1))


def test_text_with_commas_is_no_number_of_values() -> None:
    data = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "a,b:[c]{" * 90_000}]}
    )
    check_size(data.encode(), Limits(max_json_values=20))


def test_a_body_of_backslashes_is_refused() -> None:
    with pytest.raises(FaultError, match="more than 4000000 backslashes"):
        check_size(b'{"a":"' + b"\\n" * 4_000_001 + b'"}', Limits())


def test_lone_surrogates_of_a_large_body_are_replaced() -> None:
    pad = "x" * 1_100_000
    text = pad + "\\ud83d\\ude00 \\ud83d \\\\ud83d \\udc00\\n"
    body = f'{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}'
    request = WIRES["chat"].decode_request(body.encode())
    (item,) = request.items
    assert getattr(item, "text", "") == pad + "\U0001f600 \ufffd \\ud83d \ufffd\n"
    with pytest.raises(FaultError, match="is not valid JSON"):
        WIRES["chat"].decode_request(body.encode() + b"x")


# ---- threads ---------------------------------------------------------------------------------


def service(**settings: Any) -> Service:
    return Service(
        Stub(),
        replace(Settings(), **settings),
        InFlight(),
        Gate(8, 8, 1.0),
        Gate(1, 8, 1.0),
        Budget(1 << 28),
    )


def no_count(more: int) -> None:
    """Nothing is counted."""


def thread_of(body: bytes, limits: Limits) -> int:
    return threading.get_ident()


@pytest.mark.parametrize(
    ("body", "heavy"),
    [
        (b"x" * 64 * 1024, False),
        (b"[" * 10_000, False),
        (b"[" * 60_000, True),
        (b"x" * 900_000, False),
        (b"x" * 1_100_000, True),
        (b"[1]" * 22_000, True),
    ],
    ids=["small", "small but dense", "small and dense", "text", "much text", "dense"],
)
async def test_2f_04_what_takes_long_is_decoded_in_a_thread(body: bytes, heavy: bool) -> None:
    counted = list[int]()
    found = await service().decoded(body, ANYONE, thread_of, counted.append)
    assert (found != threading.get_ident()) == heavy
    assert counted == [VALUE * marks(body)]


async def test_4_10_commas_in_a_large_text_weigh_nothing() -> None:
    counted = list[int]()
    body = json.dumps({"a": ["b,c:[{" * 200_000]}).encode()
    await service().decoded(body, ANYONE, thread_of, counted.append)
    assert counted == [VALUE * 3]


async def test_2f_04_one_large_body_is_decoded_at_a_time_the_tenants_in_turn() -> None:
    made, order, running = service(), list[str](), list[int]()

    def decode(name: str) -> Callable[[bytes, Limits], None]:
        def slow(body: bytes, limits: Limits) -> None:
            running.append(1)
            time.sleep(0.01)
            order.append(name)
            assert len(running) == 1
            running.pop()

        return slow

    heavy = b"x" * 1_100_000
    asked = [Caller(tenant="a")] * 4 + [Caller(tenant="b")]
    await asyncio.gather(
        *[made.decoded(heavy, each, decode(each.tenant), no_count) for each in asked]
    )
    assert order.index("b") <= 2


async def test_a_decoder_whose_client_left_is_waited_for() -> None:
    made, go = service(), threading.Event()
    heavy = b"x" * 1_100_000
    left = asyncio.ensure_future(made.decoded(heavy, ANYONE, lambda *_: go.wait(10), no_count))
    await asyncio.sleep(0.05)
    left.cancel()
    after = asyncio.ensure_future(made.decoded(heavy, ANYONE, thread_of, no_count))
    await asyncio.sleep(0.05)
    assert not after.done()
    go.set()
    assert await asyncio.wait_for(after, 10)


async def test_2d_14_a_refused_body_is_let_go_at_once() -> None:
    made = service(max_json_values=1)

    class Body(bytes):
        gone = 0

        def __del__(self) -> None:
            Body.gone += 1

    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(FaultError):
                await made.decoded(
                    Body(b'{"a":[1,2,"' + b"x" * 1_100_000 + b'"]}'),
                    *(ANYONE, thread_of, no_count),
                )
        await asyncio.sleep(0)
        assert Body.gone >= 2  # the last is known to what was raised last
    finally:
        gc.enable()


async def test_2f_04_a_large_request_is_encoded_and_packed_in_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, packed = threading.get_ident(), list[bool]()
    inserts = sql.inserts_of

    def noted(record: Any) -> Any:
        packed.append(threading.get_ident() != here)
        return inserts(record)

    monkeypatch.setattr(sql, "inserts_of", noted)
    store = Memory(MemoryStore())
    app = App(Stub(*OPENING, *closing("")), Settings(), store)
    for size in (10, 1_100_000):
        for streamed in (False, True):
            body = {"model": "stub", "input": "x" * size, "stream": streamed}
            call = await asyncio.wait_for(Call(app, PATHS["responses"], body)(), 20)
            assert call.status == 200
    await app.close()
    assert packed == [False, False, True, True]

    encoded = list[bool]()
    remote = Remote("http://127.0.0.1:9/v1", wire="chat", profile="generic")
    prepare = remote._prepare
    monkeypatch.setattr(
        remote,
        "_prepare",
        lambda *asked: encoded.append(threading.get_ident() != here) or prepare(*asked),
    )
    request = WIRES["chat"].decode_request(json.dumps({"model": "m", "messages": [USER]}).encode())
    for size in (0, 1_100_000):
        async for _ in remote.stream(request, Caller(size=size)):
            pass
    await remote.close()
    assert encoded == [False, True]


# ---- memory ----------------------------------------------------------------------------------


def test_a_budget_counts_what_is_held_and_gives_it_back() -> None:
    budget = Budget(100, 60)
    first, second = budget.hold("a"), budget.hold("a")
    first.resize(40)
    with pytest.raises(FaultError) as raised:
        second.resize(30)
    assert (raised.value.fault.code, raised.value.fault.retry_after) == ("rate_limited", "1")
    assert (second.size, budget.held) == (0, 40)
    other = budget.hold("b")
    with pytest.raises(FaultError) as raised:
        other.resize(61)
    assert raised.value.fault.code == "too_large"
    other.resize(60)
    second.resize(0)
    with pytest.raises(FaultError) as raised:
        second.resize(1)
    assert (raised.value.fault.code, raised.value.fault.retry_after) == ("overloaded", "1")
    first.resize(10)
    second.resize(1)
    for hold in (first, second, other, other):
        hold.close()
    assert (budget.held, budget.tenants) == (0, {})


ROOM = "[server]\nmemory = 8_000_000\nbody_limit = 4_000_000\n"


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "in chunks"])
def test_2d_01_unfinished_bodies_are_bounded_and_their_memory_comes_back(
    tmp_path: Path, chunked: bool
) -> None:
    piece = b"x" * 2_900_000
    with gateway(reply, *configured(tmp_path, ROOM)) as (server, _):
        connections = []
        for _ in range(10):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            head = post(server, "chat", b"", length=3_000_000)
            if chunked:
                head = head.replace(b"content-length: 3000000", b"transfer-encoding: chunked")
                connection.sendall(head + b"%x\r\n" % len(piece))
            else:
                connection.sendall(head)
            connections.append(connection)
        with watched(server) as cost:
            refused = 0
            for connection in connections:
                connection.settimeout(1)
                try:
                    connection.sendall(piece)
                    answer = connection.recv(4096)
                except TimeoutError:
                    continue
                except OSError:  # refused before all was sent
                    answer = b" 503 "
                refused += 1
                assert b" 503 " in answer
        assert refused == 8
        assert cost.grown < 40
        for connection in connections:
            connection.close()
        asked = {"model": "m", "messages": [{"role": "user", "content": "x" * 3_000_000}]}
        for _ in range(5):  # each has let go of what it held
            assert eventually(lambda: server.post("chat", asked).status) == 200


def eventually(ask: Callable[[], int]) -> int:
    """The status, once the server has seen that others left."""
    status = ask()
    for _ in range(50):
        if status != 503:
            break
        time.sleep(0.1)
        status = ask()
    return status


async def test_2d_13_one_key_leaves_room_for_another() -> None:
    keys = (Secret("the-first-of-all-keys"), Secret("the-second-of-all-keys"))
    app = App(Stub(), Settings(keys=keys, memory=2_000_000, body_limit=900_000))

    def body(key: Secret) -> Call:
        headers = {"authorization": f"Bearer {key.reveal()}", "content-length": "600000"}
        call = Call(app, PATHS["chat"], asking(), headers=headers)
        call.unread()
        return call

    calls = [body(keys[0]), body(keys[0]), body(keys[1]), body(keys[1])]
    tasks = [asyncio.ensure_future(call()) for call in calls]
    await asyncio.sleep(0.05)
    assert [call.status if call.sent else 0 for call in calls] == [0, 429, 0, 429]
    assert dict(calls[1].sent[0]["headers"])[b"retry-after"] == b"1"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_2d_13_what_runs_in_the_background_holds_what_it_was_asked() -> None:
    go = asyncio.Event()
    memory = Memory(MemoryStore())
    app = App(Stub(*OPENING, go, *closing("")), Settings(memory=2_000_000), memory)
    body = {"model": "stub", "input": "x" * 900_000, "background": True}
    statuses = [(await Call(app, PATHS["responses"], body)()).status for _ in range(3)]
    assert statuses == [200, 200, 503]
    go.set()
    for _ in range(200):
        if (await Call(app, PATHS["responses"], body)()).status == 200:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("nothing was given back")
    await app.close()


async def test_2c_06_large_tools_and_instructions_are_not_repeated() -> None:
    tool = {"type": "function", "name": "f", "description": "x" * 30_000}
    small = {"type": "function", "name": "f", "description": "short"}
    for tools, instructions in (([tool] * 100, "short"), ([small], "x" * 3_000_000)):
        body = {"model": "stub", "input": "a", "tools": tools, "instructions": instructions}
        app = App(Stub(*OPENING, *closing("")), Settings())
        call = await Call(app, PATHS["responses"], body | {"metadata": {"a": "b"}})()
        assert call.status == 200
        assert len(call.json["tools"]) == (1 if tools == [small] else 0)
        assert call.json["instructions"] == (None if tools == [small] else "short")
        assert call.json["metadata"] == {"a": "b"}


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_2c_many_unknown_fields_of_one_object_are_refused(wire: str) -> None:
    app = App(Stub(), Settings())
    fields = {f"k{n}": 1 for n in range(10_001)}
    call = await Call(app, PATHS[wire], asking(wire, **fields))()
    assert call.status == 400
    assert "more than 10000 fields" in call.json["error"]["message"]
    fields.popitem()
    assert (await Call(app, PATHS[wire], asking(wire, **fields))()).status == 200


async def test_2f_many_log_probabilities_of_a_stream_are_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, apart = threading.get_ident(), list[bool]()
    encode = chat_response.encode_logprobs

    def noted(*given: Any) -> Any:
        apart.append(threading.get_ident() != here)
        return encode(*given)

    monkeypatch.setattr(chat_response, "encode_logprobs", noted)
    first, then = [chunk({"content": text}) for text in ("one", "two")]
    token = {"token": "a", "logprob": -0.5, "bytes": [97]}
    logprobs = {"content": [{**token, "top_logprobs": [token] * 10}] * 1_000}
    first["choices"][0]["logprobs"] = logprobs
    async with mock(lambda _: stream(first, then, chunk(finish="stop"))) as model:
        app = App(Remote(model.base_url, wire="chat", profile="generic"), Settings())
        call = await Call(app, PATHS["chat"], asking(stream=True, logprobs=True))()
        assert apart == [True]
        assert call.body.index(b"one") < call.body.index(b"two") < call.body.index(b"[DONE]")
        assert app.budget.held == 0
        await app.close()
