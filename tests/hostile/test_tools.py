"""Requests that make hosted tools, choices and searches of files work more than they say."""

import asyncio
import json
from functools import partial
from typing import Any

import openai
import pytest

from dragoman.agent import loop
from dragoman.agent.hosted import HostedTools
from dragoman.core import tools
from dragoman.core.error import FaultError
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import Unknown
from dragoman.core.request import AllowedTools, FunctionTool, NamedTool, Namespace, UnknownTool
from dragoman.core.tools import ToolFilter
from dragoman.server.state import files as library_module
from dragoman.server.state.files import AT_ONCE, COUNT
from dragoman.stores import files as store_files
from dragoman.stores.base import Room
from dragoman.tools import chunks, files, web
from dragoman.tools.mcp import LIST, MOST_KNOWN, Server, _known
from dragoman.tools.run import MOST_WRITTEN, ToolError
from dragoman.tools.web import KIND, Browser, options_of
from dragoman.wire.files import MOST_CONDITIONS, decode_search
from dragoman.wire.json import LIMITS
from dragoman.wire.registry import WIRES
from tests.agent.hosting import mcp, python, search, wants
from tests.agent.stage import Model
from tests.server.state.storing import storing
from tests.server.test_files import Embedder, filing, library
from tests.tools.mcp_fake import listed, opened

FUNCTION = {"type": "function", "name": "f"}


def test_arguments_of_many_values_are_not_decoded() -> None:
    written = json.dumps({"queries": ["a", *[""] * MOST_WRITTEN]})
    for read in (files._queries, partial(web._arguments, "search")):
        with pytest.raises(ToolError, match="more than 100000 values"):
            read(written)
    long = json.dumps({"queries": ["a"], "a": [10**101] * 3_000})
    with pytest.raises(ToolError, match="more than 100 digits"):
        files._queries(long)


# ---- choices ---------------------------------------------------------------------------------


def test_n3_a_choice_of_many_looks_at_each_tool_a_few_times(monkeypatch) -> None:
    looked = 0
    key = tools._key

    def counted(entry: Any) -> Any:
        nonlocal looked
        looked += 1
        return key(entry)

    monkeypatch.setattr(tools, "_key", counted)
    offered = tuple(FunctionTool(f"f{n}") for n in range(500))
    allowed = ToolFilter(
        AllowedTools("auto", tuple(NamedTool(f"f{n % 500}") for n in range(2_000))), offered
    )
    assert looked == 2_000
    assert [tool for _, tool in allowed.tools] == [*offered]
    assert [each.name for each in allowed.expanded] == [tool.name for tool in offered]


def test_n3_a_choice_of_many_tools_of_other_kinds_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(tools, "MAX_COMPARED", 10)
    entry = UnknownTool("responses", "mcp", {"server_label": "b"})
    offered = tuple(UnknownTool("responses", "mcp", {"server_label": x}) for x in "abc")
    group = Namespace("n", (FunctionTool("f"), offered[0]))
    found = ToolFilter(AllowedTools("auto", (entry,)), (*offered, group))
    assert found.tools == [(1, offered[1])]
    with pytest.raises(FaultError, match="too many"):
        ToolFilter(AllowedTools("auto", (entry,) * 3), (*offered, group))


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (
            "responses",
            {
                "input": "x",
                "tools": [FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [FUNCTION] * 1_025,
                },
            },
        ),
        (
            "chat",
            {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "f"}}] * 1_025,
                    },
                },
            },
        ),
    ],
)
def test_n3_a_choice_has_no_more_entries_than_there_may_be_tools(wire, body) -> None:
    with pytest.raises(FaultError, match=r"tool_choice: .*max_tools"):
        WIRES[wire].decode_request(json.dumps({"model": "m", **body}).encode(), LIMITS)


# ---- hosted tools ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "asked"),
    [
        (search, [{"type": "web_search"}] * 2),
        (python, [{"type": "code_interpreter"}] * 2),
        (mcp, [{"type": "mcp", "server_label": "shop"}] * 2),
    ],
)
async def test_h2_a_tool_that_is_named_twice_is_opened_for_none(tool, asked) -> None:
    hosted = tool()
    async with storing(HostedTools(Model(), [hosted])) as server:
        refused = await server.ask(tools=asked)
        assert refused.status == 400
        assert "tools[1]: brings what tools[0] brings" in refused.json["error"]["message"]
    assert hosted.asked == []


async def test_h1_a_cursor_is_not_looked_for_among_all(monkeypatch) -> None:
    item = Unknown("responses", KIND, {"action": {"type": "search", "query": "q"}})
    browser = Browser(Any, options_of({}), [item] * 3, ANYONE)
    monkeypatch.setattr(browser, "_views", {0: browser._view(0)})
    assert browser._next() == 3


def test_h4_a_list_of_more_tools_than_a_server_has_is_not_used() -> None:
    def listed(count: int) -> Unknown:
        tools = [{"name": f"t{n}", "input_schema": {}} for n in range(count)]
        return Unknown("responses", LIST, {"server_label": "x", "tools": tools})

    assert _known([listed(MOST_KNOWN + 1)], "x") is None
    assert len(_known([listed(2), listed(MOST_KNOWN + 1)], "x") or ()) == 2


async def test_a_list_in_the_conversation_that_is_too_long_is_not_counted_whole(caplog) -> None:
    items = [listed(*[{"input_schema": {"x": "x" * 750_000}}] * 3)]
    async with opened(Server(name="s", url="http://127.0.0.1:1"), items=items) as session:
        assert session.tools == ()
    assert "has 3 tools of 15" in caplog.text  # as large as two of them


# ---- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["\u0301\u0316" * 4_000, "\u0301\uff9e" * 4_000])
def test_f2_accents_are_not_put_in_order_by_the_thousand(run, monkeypatch) -> None:
    seen: list[str] = []
    normalize = chunks.unicodedata.normalize
    monkeypatch.setattr(
        chunks.unicodedata,
        "normalize",
        lambda form, text: normalize(form, seen.append(text) or text),
    )
    assert chunks.find_words(f"one {run} two")[:: len(chunks.find_words(f"one {run} two")) - 1] == [
        "one",
        "two",
    ]
    assert max(map(len, seen)) < 50
    assert chunks.find_words("e\u0301te\u0301") == ["\u00e9t\u00e9"]


def test_f3_a_text_is_no_longer_than_it_may_be_once_it_is_normalised() -> None:
    """Three hundred chunks of a letter that stands for eighteen took a search five seconds."""
    assert chunks.find_words("\u337f") == ["株式", "式会", "会社"]
    assert len(chunks.find_words("\ufdfa" * 5_000)) * 18 / 4 < 2 * 5_000 + chunks.GROWTH + 18
    assert chunks.find_words("\ufdfa" * 50 + " end")[-1] == "end"


def test_f6_each_value_of_a_list_is_a_condition() -> None:
    def search(count: int, **more: Any) -> Any:
        listed = {"type": "in", "key": "k", "value": [*range(count)]}
        filters = {"type": "and", "filters": [listed, {"type": "in", "key": "k", "value": []}]}
        return decode_search(json.dumps({"query": "x", "filters": filters}).encode())

    assert search(MOST_CONDITIONS - 2).condition is not None
    with pytest.raises(FaultError, match="more than 1000 conditions"):
        search(MOST_CONDITIONS - 1)


def work_in_turn(server: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that the store has run in its turn of large work."""
    taken: list[str] = []
    take = server.store.turns.take

    async def counted(work: Any, *given: Any) -> Any:
        taken.append(getattr(work, "func", work).__name__)
        return await take(work, *given)

    monkeypatch.setattr(server.store.turns, "take", counted)
    return taken


async def test_f1_f5_what_takes_long_of_a_search_is_done_in_threads(monkeypatch) -> None:
    async with filing() as server:
        id, _ = await library(server.ada, **{f"n{n}": b"word" for n in range(65)})
        taken = work_in_turn(server, monkeypatch)
        search = server.ada.vector_stores.search
        await search(id, query="word")
        assert taken == []
        await search(id, query="word", filters={"type": "ne", "key": "k", "value": 1})
        assert taken == ["_meant"]
        await search(id, query="word " * 800)
        assert taken == ["_meant", "_some"]  # the words of the question
        await search(
            id, query=["word " + " ".join(f"w{n * m}" for n in range(600)) for m in (1, 7, 9, 11)]
        )
        assert taken[2:] == ["_some", *["_some"] * 4]  # and the scores for each of them


async def test_others_have_their_turn_between_the_steps_of_a_search(monkeypatch) -> None:
    """Three hundred large chunks in one turn held other large work up for seconds."""
    monkeypatch.setattr(store_files, "SLICE", 0.0)
    async with filing() as server:
        large: Any = {"max_chunk_size_tokens": 4_096, "chunk_overlap_tokens": 0}
        id, _ = await library(server.ada)
        file = await server.ada.files.create(
            file=("a.txt", b"word " * 20_000), purpose="assistants"
        )
        await server.ada.vector_stores.files.create(
            id, file_id=file.id, chunking_strategy={"type": "static", "static": large}
        )
        taken = work_in_turn(server, monkeypatch)
        unlike = " ".join(f"w{n}" for n in range(600))
        monkeypatch.setattr("dragoman.stores.sql.APART", 4_096)
        await server.ada.vector_stores.search(id, query="word " + unlike)
        question, pieces, none_left = 1, 7, 1
        assert len(taken) == question + 2 * pieces + 3 * none_left


async def test_words_of_chunks_are_counted_where_a_question_has_them(monkeypatch) -> None:
    """Those of three hundred large chunks took 160 MB, whatever was asked."""
    counted: list[int] = []

    def search(asked: list[str], text: str) -> int:
        matches = chunks.Matches(asked)
        matches.add(text)
        return sum(len(counts) for _, counts in matches._texts)

    text = " ".join(f"w{n}" for n in range(5_000))
    assert search(["w1", "w2", "other"], text) == 2
    asked = " ".join(f"w{n}" for n in range(900))
    async with filing() as server:
        id, _ = await library(server.ada, **{f"n{n}": f"w1 {text}"[:3_000].encode() for n in "ab"})
        monkeypatch.setattr(Room, "hold", lambda _, size: counted.append(size))
        await server.ada.vector_stores.search(id, query=asked[:4_000])
    words = len(chunks.asked_words(asked[:4_000]))
    assert COUNT * 2 * words in counted


async def test_files_are_read_and_their_words_found_in_threads_some_at_a_time(monkeypatch) -> None:
    async with filing() as server:
        taken = work_in_turn(server, monkeypatch)
        await library(server.ada, short=b"word " * 400)
        assert taken == []
        id, _ = await library(server.ada, long="\ufdfa".encode() * 2_100)  # eighteen letters each
        assert taken == ["_some", "whole_text", "_some", "_some"]  # the last: none are left
        await server.ada.vector_stores.search(id, query="word \ufdfa")
        assert taken[4:] == ["_some"]
        taken.clear()
        large: Any = {"max_chunk_size_tokens": 4_096, "chunk_overlap_tokens": 2_048}
        monkeypatch.setattr(library_module, "TOKENS", 8_192)
        data = b"word " * 13_000  # eight chunks
        file = await server.ada.files.create(file=("a.txt", data), purpose="assistants")
        await server.ada.vector_stores.files.create(
            id, file_id=file.id, chunking_strategy={"type": "static", "static": large}
        )
        assert taken[:2] == ["_some", "whole_text"]
        assert len(taken) >= 2 + 5  # two of them each, and none are left


async def test_few_searches_read_at_a_time(monkeypatch) -> None:
    async with filing(Embedder("x"), embedding_model="small") as server:
        id, _ = await library(server.ada, cat=b"a cat")
        reading = most = 0
        vectors = server.store.vectors

        async def counted(*given: Any) -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0.005)
            reading -= 1
            return await vectors(*given)

        monkeypatch.setattr(server.store, "vectors", counted)
        search = server.ada.vector_stores.search
        await asyncio.gather(*[search(id, query="cat") for _ in range(12)])
        assert most == AT_ONCE // 2  # the share of one key


@pytest.mark.parametrize("sizes", [(0, 0), (3, 4), (16_385, 16_385)])
async def test_f8_f9_vectors_of_odd_sizes_are_refused(sizes) -> None:
    engine = Embedder("x")
    async with filing(engine, embedding_model="small") as server:
        id, _ = await library(server.ada, cat=b"a cat")
        engine.broken = [{"index": n, "embedding": [1.0] * size} for n, size in enumerate(sizes)]
        with pytest.raises(openai.InternalServerError, match="at most 16384") as raised:
            await server.ada.vector_stores.search(id, query=["a", "b"])
        assert raised.value.status_code == 502


@pytest.mark.parametrize("limit", ["MAX_ITEMS", "MOST_ADDED", "LARGE"])
async def test_l1_l3_what_the_rounds_of_an_answer_add_is_bounded(limit, monkeypatch) -> None:
    monkeypatch.setattr(loop, limit, 3 if limit == "MAX_ITEMS" else 2_000)
    model = Model(*[[wants("python", id=f"c{n}", code="1")] for n in range(5)], "Done.")
    sizes: list[int] = []
    stream = model.stream

    def sized(request: Any, caller: Any = ANYONE) -> Any:
        sizes.append(caller.size)
        return stream(request, caller)

    monkeypatch.setattr(model, "stream", sized)
    async with storing(HostedTools(model, [python()])) as server:
        answer = await server.ask(tools=[{"type": "code_interpreter"}])
    if limit == "LARGE":
        assert sizes[0] == 0
        assert sizes[-1] > sizes[-2] > 2_000
    else:
        assert answer.json["error"]["code"] == "upstream_error"
        assert "The rounds of this answer" in answer.json["error"]["message"]
        assert len(sizes) < 5
