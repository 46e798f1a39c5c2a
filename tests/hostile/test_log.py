"""The log says what happened, when and to whom, in one line each; nothing that is quoted in it can
pass for a line of its own, command a terminal, or show a key."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from dragoman.core.event import Finished
from dragoman.core.interfaces import Secret
from dragoman.core.response import Usage
from dragoman.engines.function import Function
from dragoman.engines.remote import Remote, UpstreamRequest
from dragoman.engines.router import Route, Router
from dragoman.engines.token import TokenEngine, from_next_token, from_step, from_stream
from dragoman.server import log
from dragoman.server.app import App
from dragoman.server.auth import tenant_of
from dragoman.server.log import ErrorFormat, Lines, log_errors
from dragoman.server.settings import Settings
from dragoman.server.state.service import Memory
from dragoman.stores.memory import MemoryStore
from dragoman.wire.registry import WIRES
from tests.engines.token.plain import TOY, Plain
from tests.mock import completion, mock, plain
from tests.product import SOURCE
from tests.server.stubs import (
    OPENING,
    PATHS,
    Call,
    Stub,
    asking,
    closing,
    exchange,
    served,
    word,
)

CHAT, RESPONSES = PATHS["chat"], PATHS["responses"]
KEY = "canary-7f3a9c51"
ID = {"x-request-id": "req_mine"}
ENDS = ("response.completed", "response.failed", "error")


def fields(line: str) -> dict[str, Any]:
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert isinstance(found.pop("ms", 0), int)
    return found


async def logged(capsys, app: App, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    await Call(app, *arguments, **options)()
    return [fields(line) for line in capsys.readouterr().err.splitlines()]


LOUD = Settings(request_log=True, log_format="json")
FAULTS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("400", CHAT, {"body": b"{"}, 400, "invalid_request"),
    ("401", CHAT, {"body": asking(), "headers": {"x-api-key": "wrong"}}, 401, "authentication"),
    ("404", "/nowhere", {"method": "GET"}, 404, "not_found"),
    ("405", CHAT, {"method": "PUT"}, 405, "method_not_allowed"),
    ("413", CHAT, {"headers": {"content-length": str(1 << 40)}}, 413, "too_large"),
    ("415", CHAT, {"headers": {"content-type": "text/plain"}}, 415, "unsupported_media_type"),
]


@pytest.mark.parametrize(
    ("path", "options", "status", "code"), [row[1:] for row in FAULTS], ids=[r[0] for r in FAULTS]
)
async def test_n6_a_refused_request_has_the_code_of_its_fault(
    path, options, status, code, capsys
) -> None:
    needed = (
        LOUD
        if code != "authentication"
        else Settings(request_log=True, log_format="json", keys=(Secret(KEY),))
    )
    (line,) = await logged(capsys, App(Stub(), needed), path, **options)
    assert (line["status"], line["fault"]) == (status, code)


async def test_n6_a_head_that_cannot_be_read_has_a_line(capsys) -> None:
    async with served(App(Stub(), LOUD)) as port:
        await exchange(port, b"GET / HTTP/3.3\r\n\r\n")
    (line,) = map(fields, capsys.readouterr().err.splitlines())
    assert (line["method"], line["status"], line["fault"]) == ("-", 400, "invalid_request")


async def test_n6_a_line_has_the_names_of_key_and_upstream(capsys) -> None:
    settings = Settings(
        request_log=True,
        log_format="json",
        keys=(Secret(KEY), Secret("b" * 9)),
        api_key_env=("TEAM",),
    )
    router = Router([Route(Stub(), ("stub",), {"alias": "stub"}, "gpus"), Route(Stub(), ("x",))])
    app = App(router, settings)
    for key, name in ((KEY, "key-1"), ("b" * 9, "TEAM")):
        for model in ("stub", "alias"):
            (line,) = await logged(
                capsys, app, body=asking(model=model), headers={"x-api-key": key, **ID}
            )
            assert (line["key"], line["upstream"]) == (name, "gpus")
            assert line["request"] == "req_mine"
            assert key not in json.dumps(line)
    (line,) = await logged(capsys, app, body=asking(model="x"), headers={"x-api-key": KEY})
    assert "upstream" not in line


async def test_keys_that_are_passed_on_are_called_by_their_tenant(capsys) -> None:
    app = App(Stub(), LOUD, memory := Memory(MemoryStore()))
    (line,) = await logged(capsys, app, body=asking(), headers={"x-api-key": KEY})
    assert line["key"] == tenant_of(Secret(KEY), memory.store.secret)[:8]
    (line,) = await logged(capsys, app, body=asking())
    assert "key" not in line


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("stream", [False, True])
async def test_1_30_and_1_31_a_line_shows_no_key_and_commands_no_terminal(
    format, stream, capsys
) -> None:
    settings = Settings(request_log=True, log_format=format, keys=(Secret(KEY),))
    app = App(Stub(), settings)
    evil = f"m\x1b]52;c;x\x07\r\n2026 forged \x9b31m{KEY}"
    paths = [(CHAT, asking(model=evil, stream=stream)), (f"/v1/{evil}", asking())]
    for path, body in paths:
        await Call(app, path, body, headers={"x-api-key": KEY, **ID})()
    said = capsys.readouterr().err
    assert len(said.splitlines()) == len(paths)
    assert all(char.isprintable() for char in said.replace("\n", ""))
    assert KEY not in said


@pytest.mark.parametrize("stream", [False, True])
async def test_n6_a_background_run_has_a_line_at_its_end(stream, capsys) -> None:
    go = asyncio.Event()
    usage = Usage(input_tokens=3, output_tokens=4)
    end = Finished("completed", usage=usage)
    stub = Stub(*OPENING, word("Hi"), go, *closing("Hi")[:-1], end)
    app = App(stub, LOUD, memory := Memory(MemoryStore()))
    call = Call(app, RESPONSES, asking("responses", background=True, stream=stream), headers=ID)
    task = asyncio.ensure_future(call())
    if stream:
        await call.until(lambda: b"Hi" in call.body)
        call.hang_up()
    await task
    (line,) = map(fields, capsys.readouterr().err.splitlines())
    assert "fault" not in line  # its client left, or has its answer: nothing is wrong
    assert "output_tokens" not in line
    go.set()
    (run,) = memory.runs.live.values()
    await run.finished()
    for _ in range(3):
        await asyncio.sleep(0)
    (line,) = map(fields, capsys.readouterr().err.splitlines())
    assert (line["method"], line["status"]) == ("RUN", "completed")
    assert (line["input_tokens"], line["output_tokens"]) == (3, 4)
    assert line["request"] == f"resp_{run.record.id}"
    await app.close()


TURNS: list[tuple[Stub, list[dict[str, Any]], list[tuple[int, str]]]] = [
    (Stub(), [{}, {"model": "x"}], [(200, ""), (200, "")]),
    (Stub(*OPENING, KeyError("x")), [{}], [(200, "internal")]),
    (Stub(KeyError("x")), [{}], [(500, "internal")]),
    (Stub(), [{"type": "nonsense"}], [(400, "invalid_request")]),
    (Stub(), [{"previous_response_id": "resp_x"}], [(400, "previous_response_not_found")]),
]


@pytest.mark.parametrize(("stub", "frames", "ends"), TURNS)
async def test_n6_a_turn_of_a_socket_has_a_line(stub, frames, ends, capsys) -> None:
    settings = Settings(request_log=True, log_format="json", keys=(Secret(KEY),))
    router = Router([Route(stub, ("stub", "x"), {}, "gpus")])
    async with served(App(router, settings)) as port:
        headers = {"x-api-key": KEY, **ID}
        async with connect(f"ws://127.0.0.1:{port}{RESPONSES}", additional_headers=headers) as one:
            for frame in frames:
                create = {"type": "response.create", **asking("responses"), **frame}
                await one.send(json.dumps(create))
                while json.loads(await one.recv())["type"] not in ENDS:
                    pass
    lines = [fields(line) for line in capsys.readouterr().err.splitlines() if "TURN" in line]
    assert [(line["status"], line.get("fault", "")) for line in lines] == ends
    for line, frame in zip(lines, frames, strict=True):
        assert (line["key"], line["request"], line["path"]) == ("key-1", "req_mine", RESPONSES)
        if "type" not in frame:
            assert (line["model"], line["upstream"]) == (frame.get("model", "stub"), "gpus")


async def test_n6_a_turn_that_is_left_and_those_behind_it_have_lines(capsys) -> None:
    stub = Stub(*OPENING, asyncio.Event())
    async with served(App(stub, LOUD)) as port:
        async with connect(f"ws://127.0.0.1:{port}{RESPONSES}") as one:
            for _ in range(2):
                await one.send(json.dumps({"type": "response.create", **asking("responses")}))
            await one.recv()
        await asyncio.wait_for(stub.cancelled.wait(), 20)
    lines = [fields(line) for line in capsys.readouterr().err.splitlines()]
    assert sorted((line["status"], line["fault"]) for line in lines) == [
        (200, "cancelled"),
        (499, "cancelled"),
    ]


async def test_n6_a_handshake_that_is_refused_has_a_line(capsys) -> None:
    settings = Settings(
        request_log=True, log_format="json", keys=(Secret(KEY),), max_sockets_per_key=1
    )
    async with served(App(Stub(), settings)) as port:
        place, refused = f"ws://127.0.0.1:{port}{RESPONSES}", []
        mine = {"x-api-key": KEY, **ID}
        async with connect(place, additional_headers=mine):
            for headers in ({"x-api-key": "wrong", **ID}, mine):
                with pytest.raises(InvalidStatus) as error:
                    await connect(place, additional_headers=headers)
                refused.append(error.value.response)
        async with connect(place, additional_headers=mine):  # there is room again
            pass
    assert [answer.status_code for answer in refused] == [401, 429]
    said = json.loads(refused[1].body or b"")["error"]
    assert said["code"] == "rate_limit_exceeded"
    assert "max_sockets_per_key" in said["message"]
    lines = [fields(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["status"], line["fault"], line.get("key")) for line in lines] == [
        (401, "authentication", None),
        (429, "rate_limited", "key-1"),
    ]


# ---- engines that raise --------------------------------------------------------------------------


def broken(*_: Any, **__: Any) -> Any:
    raise KeyError("what is missing")


async def broken_later(*_: Any, **__: Any) -> Any:
    raise KeyError("what is missing")
    yield 1


def broken_chunks(**_: Any) -> Any:
    yield "a"
    raise KeyError("what is missing")


class Unsealed(Stub):
    """An engine without the contract, as users write them."""

    def __init__(self) -> None:
        super().__init__(*OPENING, KeyError("what is missing"))


async def broken_token(ids: list[int], sampling: Any) -> int:
    raise KeyError("what is missing")


def toy(model: Any) -> TokenEngine:
    return TokenEngine(Plain(), model, TOY, name="stub")


ENGINES: list[tuple[str, Any]] = [
    ("a function", lambda: Function(broken)),
    ("a generator", lambda: Function(broken_chunks)),
    ("an asynchronous generator", lambda: Function(broken_later)),
    ("an engine of one's own", Unsealed),
    ("next token", lambda: toy(from_next_token(broken))),
    ("next token, asynchronous", lambda: toy(from_next_token(broken_token))),
    ("steps", lambda: toy(from_step(broken))),
    ("a stream of tokens", lambda: toy(from_stream(broken_later))),
]


def errors(caplog) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make", [row[1] for row in ENGINES], ids=[row[0] for row in ENGINES])
async def test_n3_what_an_engine_raises_is_logged_with_traceback_and_request(
    make, stream, caplog
) -> None:
    app = App(engine := make(), Settings())
    call = await Call(app, body=asking(stream=stream), headers=ID)()
    assert b"KeyError" in call.body
    assert b"missing" not in call.body
    (record,) = errors(caplog)
    assert record.request == "req_mine"
    said = record.getMessage()
    assert " for req_mine\nTraceback" in said
    assert "KeyError" in said
    assert "in broken" in said or isinstance(engine, Stub)
    # What a model of tokens says may quote a prompt.
    assert ("KeyError: 'what" in said) is not isinstance(engine, TokenEngine)
    await engine.close()


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("authorization", "Bearer "),
        ("x-api-key", ""),
        ("sec-websocket-protocol", "realtime, openai-insecure-api-key."),
    ],
)
async def test_35_a_key_is_no_request_id(name: str, prefix: str) -> None:
    value = f"{prefix}sk-of-a-client"
    app = App(Stub(*OPENING, *closing("")), Settings())
    headers = {name: value, "x-request-id": "sk-of-a-client"}
    answer = await Call(app, body=asking(), headers=headers)()
    assert answer.headers["x-request-id"].startswith("req_")


async def test_n3_so_is_what_raises_while_an_upstream_is_read(caplog, monkeypatch) -> None:
    """Two requests share a connection, whose callbacks know only the first of them."""
    async with mock(plain(200, completion({"content": "ok"}))) as up:
        app = App(Remote(up.base_url, wire="chat"), Settings())
        assert (
            await Call(app, body=asking(), headers={"x-request-id": "req_first"})()
        ).status == 200
        monkeypatch.setattr(UpstreamRequest, "restored", broken)
        monkeypatch.setattr("dragoman.engines.remote.receive_last", lambda *_: None)
        task = asyncio.ensure_future(Call(app, body=asking(), headers=ID)())
        while not errors(caplog):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len({asked.connection for asked in up.asked}) == 1
        assert {record.request for record in errors(caplog)} == {"req_mine"}
        await app.close()


def test_an_error_in_the_log_has_its_time_and_no_lines_of_others() -> None:
    text = "err_1: an engine raised\nTraceback:\n\tKeyError: 'a\x1b[2J'\r\n2026 forged\x07"
    record = logging.LogRecord("dragoman", logging.ERROR, "", 0, "%s", (text,), None)
    record.created, record.request = 1_700_000_000.25, "req_1"
    lines = ErrorFormat(as_json=False).format(record).split("\n")
    assert lines[0] == "2023-11-14T22:13:20.250Z ERROR err_1: an engine raised"
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    (line,) = ErrorFormat(as_json=True).format(record).splitlines()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "ERROR",
        "message": text,
        "request": "req_1",
    }


@pytest.mark.parametrize("format", ["text", "json"])
def test_errors_of_a_running_server_have_their_time(format, tmp_path) -> None:
    config = tmp_path / "dragoman.toml"
    config.write_text('[server]\nstore = "sqlite:store.db"\n')
    words = ["serve", "script", "--port", "0", "--log-format", format, "--config", str(config)]
    environ = {**os.environ, **SOURCE}
    command = [sys.executable, "-m", "dragoman", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stdout is not None
            place = re.search(r"http://127.0.0.1:(\d+)/v1", process.stdout.readline())
            assert place is not None
            for file in tmp_path.glob("store.db*"):
                file.unlink(missing_ok=True)  # a reader that ends takes its own away
            connection = http.client.HTTPConnection("127.0.0.1", int(place[1]), timeout=60)
            headers = {"content-type": "application/json"}
            body = json.dumps(asking("responses", model="script"))
            connection.request("POST", RESPONSES, body, headers)
            status = connection.getresponse().status
            connection.close()
        finally:
            process.terminate()
            said = process.communicate(timeout=30)[1]
    assert status == 200
    (line,) = [line for line in said.splitlines() if "was deleted or replaced" in line]
    moment = json.loads(line)["time"] if format == "json" else line.split()[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)


def test_e1_unread_lines_block_nothing_and_are_counted(monkeypatch, caplog) -> None:
    monkeypatch.setattr(log, "WAITING", 50)
    reading, writing = os.pipe()
    lines, given = Lines(), [f"{number:03d} {'x' * 2_000}\n" for number in range(200)]
    with os.fdopen(writing, "w") as stuck, os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stderr", stuck)
        for line in given:
            lines.write(line)
        lines.wait(0)
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.extend(pipe))
        reader.start()
        lines.wait(60)
        lines.write("last\n")
        lines.wait(60)
        stuck.close()
        reader.join(60)
    assert found[-1] == "last\n"
    assert found[:-1] == sorted(found[:-1])
    assert 50 < len(found) <= 150
    assert set(found[:-1]) < set(given)
    counts = [record.args[0] for record in caplog.records]
    assert sum(counts) == len(given) - (len(found) - 1)


async def test_e1_a_request_does_not_wait_for_the_readers_of_the_log(monkeypatch, caplog) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as full, os.fdopen(reading, "rb") as pipe:
        os.set_blocking(writing, False)  # a write that would wait is an error
        os.set_blocking(reading, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(65_536))
        monkeypatch.setattr(sys, "stderr", full)
        call = Call(App(Stub(*OPENING, word("Hi"), *closing("Hi")), LOUD), body=asking())
        await call()
        assert call.status == 200
        log.LINES.wait(60)
        pipe.read()
        log.LINES.write("again\n")
        log.LINES.wait(60)
        assert pipe.read() == b"again\n"
    (record,) = caplog.records
    assert record.getMessage() == "lines of the log left out, as stderr took no more: 1"


def test_e1_errors_are_written_by_the_same_thread(monkeypatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    log_errors(as_json=True)
    (handler,) = root.handlers
    assert handler.stream is log.LINES


async def test_l11_a_request_that_memory_has_no_room_for_is_overload(capsys, monkeypatch) -> None:
    def read(self: Any, *arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(type(WIRES["chat"]), "decode_request", read)
    (line,) = await logged(capsys, App(Stub(), LOUD), body=asking())
    assert (line["status"], line["fault"]) == (503, "overloaded")
