"""`dragoman log` and `dragoman tail`, of a store that a server wrote."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from dragoman.cli import main
from dragoman.cli.chat import lines
from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.interfaces import Secret
from dragoman.core.item import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Unknown,
)
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.server.auth import tenant_of
from dragoman.server.state.history import History, answered, asked, exported, name
from dragoman.stores.base import Record
from dragoman.stores.memory import MemoryStore
from dragoman.stores.retention import Retention
from dragoman.stores.sqlite import SqliteStore
from tests.server.state.storing import storing
from tests.server.stubs import OPENING, Call, Stub, saying, word


async def remember(
    folder: Path, *texts: str, cues: tuple[Any, ...] = (), stream: bool = False
) -> list[str]:
    """Have these texts asked and stored; the ids of the answers."""
    async with storing(Stub(*cues), SqliteStore(folder / "store.db")) as server:
        for text in texts:
            await server.ask(input=text, stream=stream)
        found = {asked(each): each async for each in History(server.memory.store).records()}
        return [name(found[text]) for text in texts]


def where(folder: Path) -> tuple[str, str]:
    return "--store", f"sqlite:{folder / 'store.db'}"


def test_log_lists_requests_newest_first(tmp_path, capsys) -> None:
    ids = asyncio.run(remember(tmp_path, "one", "two\n\x1b[31mthree"))
    assert main(["log", *where(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {text.split("  ")[1]: text for text in lines}
    assert list(shown) == ids[::-1]  # of one second, too
    assert shown[ids[0]].endswith("completed  stub  one → Hello, world")
    assert shown[ids[1]].endswith("two [31mthree → Hello, world")
    assert main(["log", "--limit", "1", *where(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_on_a_terminal_the_texts_have_a_line_of_their_own(tmp_path, capsys, monkeypatch) -> None:
    (id,) = asyncio.run(remember(tmp_path, "What did I ask?"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["log", *where(tmp_path)]) == 0
    head, texts = capsys.readouterr().out.splitlines()
    assert id in head
    assert texts.strip() == "What did I ask? → Hello, world"


def test_what_is_not_stored_is_explained_where_nothing_is_found(tmp_path, capsys) -> None:
    asyncio.run(remember(tmp_path, "one"))
    assert main(["log", "--search", "two", *where(tmp_path)]) == 1
    assert "chat completions only with `store: true`" in capsys.readouterr().err


def test_reading_creates_no_store(tmp_path, capsys) -> None:
    for words in (["log"], ["tail", "resp_1"]):
        assert main([*words, *where(tmp_path)]) == 1
        assert f"There is no store at {tmp_path / 'store.db'}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_log_is_searched(tmp_path, capsys) -> None:
    ids = asyncio.run(remember(tmp_path, "a blue sky", "a green field"))
    assert main(["log", "--search", "BLUE", *where(tmp_path)]) == 0
    assert ids[0] in (out := capsys.readouterr().out)
    assert ids[1] not in out
    assert main(["log", "--search", "nothing like it", *where(tmp_path)]) == 1
    nothing = capsys.readouterr().err
    assert "nothing was found" in nothing
    assert "--key-env" in nothing


def test_the_log_is_exported_as_lines_of_json(tmp_path, capsys) -> None:
    async def ask() -> None:
        async with storing(Stub(), SqliteStore(tmp_path / "store.db")) as server:
            await server.ask(input="Hi", metadata={"k": "v"})
            messages = [{"role": "user", "content": "Hi"}]
            body = {"model": "stub", "messages": messages, "store": True}
            await Call(server.app, body=body)()

    asyncio.run(ask())
    assert main(["log", "--export", *where(tmp_path)]) == 0
    entries = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    of = {entry["wire"]: entry for entry in entries}
    assert of["responses"]["response"]["id"] == of["responses"]["id"]
    assert of["responses"]["metadata"] == {"k": "v"}
    assert of["responses"]["request"]["input"][0]["content"] == "Hi"
    openai.types.responses.Response.model_validate(of["responses"]["response"])
    assert of["chat"]["request"]["messages"][0]["content"] == "Hi"
    assert of["chat"]["response"]["choices"][0]["message"]["content"] == "Hello, world"


def test_tail_replays_an_answer(tmp_path, capsys) -> None:
    (id,) = asyncio.run(remember(tmp_path, "one"))
    assert main(["tail", id, *where(tmp_path)]) == 0
    assert capsys.readouterr().out == "Hello, world\n"
    assert main(["tail", "resp_nothing", *where(tmp_path)]) == 1
    assert "no response 'resp_nothing'" in capsys.readouterr().err


def test_tail_reports_a_failure(tmp_path, capsys) -> None:
    failed = Fault("overloaded", "Too much.", "server")
    (id,) = asyncio.run(remember(tmp_path, "one", cues=(*OPENING, word("Hel"), Failed(failed))))
    assert main(["tail", id, *where(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == "Hel\n"
    assert "Too much." in said.err
    assert main(["log", *where(tmp_path)]) == 0
    assert "one → Too much." in capsys.readouterr().out


async def test_tail_follows_a_running_response(tmp_path) -> None:
    go = asyncio.Event()
    *events, last = saying("Hello", ", world")
    path = tmp_path / "store.db"
    async with storing(Stub(*events, go, last), SqliteStore(path)) as server:
        answer = await server.sdk.responses.create(model="stub", input="Hi", background=True)
        reader = SqliteStore(path)
        seen = []
        async for batch in History(reader).events(answer.id):
            seen += batch
            if len(seen) == len(events):
                go.set()
        assert len(seen) == len(events) + 1
        await reader.close()


async def test_expired_events_are_reported(tmp_path, capsys) -> None:
    (id,) = await remember(tmp_path, "one", stream=True)
    store = SqliteStore(tmp_path / "store.db", Retention(max_log_age=0.0))
    await store.sweep(time.time() + 5)
    await store.close()
    assert await asyncio.to_thread(main, ["tail", id, *where(tmp_path)]) == 1
    assert "no longer stored" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["none", "memory"])
def test_store_without_history_is_an_error(word, capsys) -> None:
    Path("dragoman.toml").write_text(f'[server]\nstore = "{word}"\n')
    assert main(["log"]) == 1
    assert f"The store '{word}' has nothing" in capsys.readouterr().err


def test_key_selects_its_tenant(tmp_path, monkeypatch, capsys) -> None:
    async def keep() -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.begin(record(tenant=tenant_of(Secret("sesame"), store.secret)))
        await store.close()

    asyncio.run(keep())
    assert main(["log", *where(tmp_path)]) == 1
    assert main(["log", "--key-env", "KEY", *where(tmp_path)]) == 1
    assert "variable KEY should hold" in capsys.readouterr().err
    monkeypatch.setenv("KEY", "sesame")
    assert main(["log", "--key-env", "KEY", *where(tmp_path)]) == 0
    assert "resp_a" in capsys.readouterr().out
    Path("dragoman.toml").write_text('[server]\napi_key_env = ["KEY", "OTHER"]\n')
    for words in (["log"], ["tail", "resp_a"]):
        assert main([*words, *where(tmp_path)]) == 1
        assert "is theirs: --key-env KEY or OTHER shows it" in capsys.readouterr().err
    assert main(["log", "--key-env", "KEY", *where(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def record(**fields: Any) -> Record:
    asked = Request(model="m", items=(Message("user", "ask"),))
    given = {"id": "a", "tenant": "", "wire": "responses", "created_at": 50, "request": asked}
    return Record(dialect="openai", **(given | fields))


async def test_search_finds_calls_and_outputs_on_all_pages() -> None:
    items = (
        FunctionCall("c1", "look_up", '{"q": "moon"}'),
        FunctionCallOutput("c1", "cheese"),
        CustomToolCall("c2", "run", "print(1)"),
        CustomToolCallOutput("c2", "one"),
        Unknown("responses", "other", {}),
    )
    request = Request(model="m", items=items)
    store = MemoryStore()
    for place in range(250):
        await store.begin(record(id=f"r{place}", created_at=place))
    await store.begin(record(id="calls", created_at=0, request=request))
    for words in ("moon", "CHEESE", "print(1)", "one"):
        found = [each.id async for each in History(store).records(words)]
        assert found == ["calls"]
    assert len([each async for each in History(store).records()]) == 251


def test_a_line_is_cut_to_the_terminal() -> None:
    for text in lines(
        record(request=Request(model="m" * 80, items=(Message("user", "w" * 80),))), 30
    ):
        assert len(text) == 30
        assert text.endswith("…")
    assert asked(record(request=Request(model="m", items=()))) == ""
    assert answered(record()) == ""
    assert json.loads(exported(record()))["response"] is None
    done = Response(id="a", created_at=50, model="m", status="completed", output=())
    assert answered(record(response=done, status="completed")) == ""
