"""What a request goes on from, and past calls in it, have bounds, and hold up nobody."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import FunctionCall, Message, Reasoning
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines import compaction, reasoning_cache
from dragoman.engines.reasoning_cache import ReasoningCache
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.server.state import handlers
from dragoman.server.state.resolve import room_of, understand
from dragoman.server.state.service import Memory
from dragoman.stores import base, sql
from dragoman.stores.base import DIGESTED, SPELLED, call_digest
from dragoman.stores.memory import MemoryStore
from dragoman.wire.protocol import LONGEST_STOP, MOST_STOP
from tests.hostile.test_stored import SIZE, Noting, called, record
from tests.server.state.storing import storing
from tests.server.stubs import OPENING, PATHS, Call, Stub, asking, closing, word

USER = {"role": "user", "content": "a"}


# ---- past calls --------------------------------------------------------------------------------


class Loads:
    """Stands in for `json` where arguments are read, and notes how much, and whether apart."""

    dumps = staticmethod(json.dumps)

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.here: list[int] = []  # of what was read on the event loop
        self._thread = threading.get_ident()

    def loads(self, text: str, **options: Any) -> Any:
        self.sizes.append(len(text))
        if threading.get_ident() == self._thread:
            self.here.append(len(text))
        return json.loads(text, **options)


def digest(arguments: str, name: str = "f") -> str:
    return call_digest(FunctionCall("c", name, arguments))


def test_a_large_float_is_not_written_as_an_integer() -> None:
    assert base._normalized("[1e308, -1e300, 2.5]") == "[1e+308, -1e+300, 2.5]"
    assert base._normalized('{"b":1e3,"a":1.0}') == '{"a": 1, "b": 1000}'
    assert digest("1e999") != digest("1e308")


def test_what_is_long_is_found_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads()
    monkeypatch.setattr(base, "json", loads)
    long = "[" + "1.0," * SPELLED + "0]"
    assert digest(long) == digest(long) != digest(long.replace(",", ", "))
    assert digest("{}", "f" * SPELLED * 2) != digest("{}", "f" * SPELLED * 3)
    assert digest("\ud800" * SPELLED * 2)
    assert max(loads.sizes) == 2
    assert digest("[1.0]") == digest("[ 1 ]")


MANY = 100
EACH = "[" + "1.5," * (SPELLED // 4 - 1) + "0]"
PAST: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": (
        "input",
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": EACH},
    ),
    "chat": (
        "messages",
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": EACH}}
            ],
        },
    ),
}


@pytest.mark.parametrize("wire", PAST)
async def test_past_calls_are_looked_up_in_a_thread_as_many_as_there_is_time_for(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, call = PAST[wire]
    loads = Loads()
    async with storing(Stub()) as server:
        monkeypatch.setattr(base, "json", loads)
        body = {**asking(wire, store=True), field: [call] * MANY + [USER]}
        answer = await Call(server.app, PATHS[wire], body)()
        assert answer.status == 200
        assert DIGESTED - SPELLED < sum(loads.sizes) <= DIGESTED
        assert not loads.here
        assert "dropped: reasoning" in answer.headers["x-dragoman-loss"]
        loads.sizes.clear()
        body[field] = [call, USER]
        answer = await Call(server.app, PATHS[wire], body)()
        assert loads.sizes == loads.here == [len(EACH)]
        assert "x-dragoman-loss" not in answer.headers


async def test_answers_that_made_past_calls_are_counted_and_unpacked_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, apart = threading.get_ident(), list[bool]()
    unpack = sql.unpack_answers

    def noted(rows: Any, parts: Any) -> Any:
        apart.append(threading.get_ident() != here)
        return unpack(rows, parts)

    monkeypatch.setattr(sql, "unpack_answers", noted)
    store, thought = Noting(), Reasoning(encrypted="t" * SIZE)
    calls = [FunctionCall(f"c{n}", "f", "{}") for n in range(3)]
    for n, call in enumerate(calls):
        small = Reasoning(encrypted="t") if n == 0 else thought
        made = Response(
            id=f"r{n}", created_at=1, model="m", status="completed", output=(small, call)
        )
        await store.put(replace(record(f"r{n}"), response=made, place=0))
    settings = Settings(body_limit=SIZE + 100_000, memory=4 * SIZE)
    app = App(Stub(*OPENING, *closing("")), settings, Memory(store, settings, upkeep=False))

    async def ask(count: int) -> Call:
        given = [
            {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"}
            for n in range(count)
        ]
        return await called(app, "POST", PATHS["responses"], {"model": "m", "input": given})

    assert "x-dragoman-loss" not in (await ask(1)).headers
    assert apart == [False]
    assert "x-dragoman-loss" not in (await ask(2)).headers
    assert apart[1:] == [True]
    store.largest = 0
    assert (await ask(3)).headers["x-dragoman-loss"] == "dropped: reasoning"
    held = app.budget.hold("other")
    held.resize(4 * SIZE - SIZE // 2)
    assert (await ask(2)).status == 503
    assert store.largest < 100_000
    assert app.budget.held == held.size
    await app.close()


def test_cached_reasoning_is_found_by_values_of_short_arguments_and_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, thought = ReasoningCache(), Reasoning(encrypted="gAAA")
    cache.store("", "m", (thought, FunctionCall("c", "f", "[1]")))
    loads = Loads()
    monkeypatch.setattr(reasoning_cache, "json", loads)
    other = FunctionCall("c", "f", EACH)
    cache.restore("", "m", (FunctionCall("c", "f", EACH * 2), *[other] * MANY))
    assert max(loads.sizes) == len(EACH)
    assert sum(loads.sizes) < reasoning_cache.READ + 3 * MANY
    tight = FunctionCall("c", "f", "[ 1 ]")
    assert cache.restore("", "m", (tight,))[0] == (thought, tight)


# ---- chains and conversations --------------------------------------------------------------------


async def test_what_a_request_goes_on_from_has_so_many_items() -> None:
    async with storing(Stub(), history_items=10) as server:
        first = (await server.ask(input=[USER] * 4)).json["id"]
        second = (await server.ask(input=[USER] * 4, previous_response_id=first)).json["id"]
        talk = (await Call(server.app, "/v1/conversations", {"items": [USER] * 9})()).json["id"]
        for field, value in (("previous_response_id", second), ("conversation", talk)):
            for path in ("", "/input_tokens", "/compact"):
                body = {"model": "stub", "input": [USER] * 2, field: value}
                refused = await server.get(path, "POST", body)
                assert refused.status == 413, refused.json
                assert refused.json["error"]["param"] == field
                assert "10 items" in refused.json["error"]["message"]
                assert "(history_items)" in refused.json["error"]["message"]
        assert (await server.get(f"/{second}/input_items")).status == 200
        assert (await server.ask(conversation=talk)).status == 200
        assert (await server.ask(input=[USER] * 10)).status == 200


async def test_a_chain_that_went_on_from_a_conversation_counts_all_of_it() -> None:
    async with storing(Stub(), history_items=8) as server:
        talk = (await Call(server.app, "/v1/conversations", {"items": [USER] * 5})()).json["id"]
        first = (await server.ask(conversation=talk)).json["id"]
        assert (await server.ask(previous_response_id=first)).status == 200
        refused = await server.ask(previous_response_id=first, input=[USER] * 2)
        assert refused.status == 413


async def test_a_chain_that_only_a_connection_remembers_has_so_many_items() -> None:
    near = record("r", said="ok")
    near = replace(near, request=replace(near.request, items=near.request.items * 4))
    request = Request(model="m", items=(Message("user", "a"),), previous_response_id="resp_r")
    for most, fits in ((6, True), (5, False)):
        room = room_of(Settings(history_items=most))
        asked = understand(request, MemoryStore(), "", room, recent={"r": near})
        if fits:
            assert len((await asked).whole.items) == most
        else:
            with pytest.raises(FaultError, match="history_items"):
                await asked


async def test_a_page_of_input_items_names_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []

    def naming(item: Any, response: str, place: int) -> str:
        named.append(place)
        return base.input_id(item, response, place)

    monkeypatch.setattr(handlers, "input_id", naming)
    async with storing(Stub()) as server:
        talk = (await Call(server.app, "/v1/conversations", {"items": [USER]})()).json["id"]
        first = (await server.ask(input=[USER] * 50, conversation=talk)).json["id"]
        second = (await server.ask(input=[USER] * 50, previous_response_id=first)).json["id"]
        page = await server.get(f"/{second}/input_items?limit=2&order=asc")
        assert named == [0]
        ids = [item["id"] for item in page.json["data"]]
        after = (await server.get(f"/{second}/input_items?limit=100&order=asc&after={ids[1]}")).json
        ids += [item["id"] for item in after["data"]]
        assert not after["has_more"]
        assert len(set(ids)) == len(ids) == 102
        assert ids[1] == f"msg_{first[5:]}_in0"
        assert ids[-1] == f"msg_{second[5:]}_in49"


async def test_many_items_are_counted_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    here, apart = threading.get_ident(), list[bool]()
    weigh = compaction.weight

    def noting(item: Any) -> int:
        apart.append(threading.get_ident() != here)
        return weigh(item)

    monkeypatch.setattr(compaction, "weight", noting)
    items = (Message("user", "a"),) * (compaction.MANY + 1)
    for number in (1, len(items)):
        request = Request(model="stub", items=items[:number], truncation="auto")
        await compaction.count(Stub(), request)
        assert set(apart) == {number > 1}
        apart.clear()


# ---- deleted while it is read --------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
async def test_a_reader_of_a_deleted_response_gets_an_error(begun: bool) -> None:
    store = MemoryStore()
    cues = (*OPENING, word("Hi"), asyncio.Event(), *closing("Hi")) if begun else (asyncio.Event(),)
    engine = Stub(*cues)
    async with storing(engine, store, header_hold=20) as server:
        id = (await server.ask(background=True)).json["id"]
        while not (await store.log(id[5:]) if begun else engine.asked):
            await asyncio.sleep(0)
        server.memory.runs.live.clear()  # it runs elsewhere
        reader = server.reading(f"/{id}?stream=true")
        reading = asyncio.create_task(reader())
        if begun:
            await reader.until(lambda: b"output_text.delta" in reader.body)
        else:
            while not store._pubsub._subscribers:
                await asyncio.sleep(0)
        await store.delete("", id[5:])
        await asyncio.wait_for(reading, 5)
        assert reader.status == (200 if begun else 404)
        assert b"was deleted" in reader.body
        assert b"broke off" not in reader.body


# ---- stop strings --------------------------------------------------------------------------------


@pytest.mark.parametrize(("wire", "field"), [("chat", "stop"), ("messages", "stop_sequences")])
async def test_a_stop_string_is_no_longer_than_it_may_be(wire: str, field: str) -> None:
    async with storing(Stub()) as server:
        for length, status in ((LONGEST_STOP, 200), (LONGEST_STOP + 1, 400)):
            body = asking(wire, **{field: ["a", "b" * length]})
            answer = await Call(server.app, PATHS[wire], body)()
            assert answer.status == status
            assert (f"{field}: " in answer.json["error"]["message"]) if status == 400 else True


async def test_stop_strings_are_no_longer_together_than_they_may_be() -> None:
    async with storing(Stub()) as server:
        several = ["a" * LONGEST_STOP] * (MOST_STOP // LONGEST_STOP)
        for stop, status in ((several, 200), ([*several, "b"], 400)):
            answer = await Call(server.app, PATHS["chat"], asking("chat", stop=stop))()
            assert answer.status == status
        assert f"more than {MOST_STOP} characters together" in answer.json["error"]["message"]
