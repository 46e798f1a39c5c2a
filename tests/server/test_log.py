"""The log of requests: one line each, off by default, and nothing of what was said in it."""

import asyncio
import re
from typing import Any

import pytest

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.interfaces import Secret
from dragoman.core.response import Usage
from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import OPENING, PATHS, STARTED, Call, Stub, asking, closing, word

LOUD = Settings(request_log=True)
ANSWER = (*OPENING, word("secret words"), *closing("secret words")[:-1])
CUT = Fault("upstream_cut", "It broke off.", "upstream")


def counted(**tokens: int) -> Stub:
    return Stub(*ANSWER, Finished("completed", usage=Usage(**tokens)))


async def lines(
    capsys: pytest.CaptureFixture[str], stub: Stub, path: str = PATHS["chat"], **options: Any
) -> list[str]:
    """The lines that one request leaves, without their milliseconds and their id."""
    body = options.pop("body", asking())
    settings = options.pop("settings", LOUD)
    await Call(App(stub, settings), path, body, **options)()
    written = capsys.readouterr().err.splitlines()
    return [re.sub(r"\b\d+ ms\b", "… ms", line).removesuffix(" req_1") for line in written]


ID = {"x-request-id": "req_1"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_request_leaves_one_line(
    wire: str, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = counted(input_tokens=12, output_tokens=34)
    body = asking(wire, stream=stream)
    (line,) = await lines(capsys, stub, PATHS[wire], body=body, headers=ID)
    assert line == f"POST {PATHS[wire]} 200 … ms stub 12+34 tokens"


async def test_completions_leave_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"model": "stub", "prompt": "Once"}
    (line,) = await lines(capsys, Stub(), "/v1/completions", body=body, headers=ID)
    assert line == "POST /v1/completions 400 unsupported … ms stub"


async def test_log_is_off_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await lines(capsys, counted(), settings=Settings()) == []


LINES: dict[str, tuple[Stub, str]] = {
    "tokens that nobody counted": (Stub(*ANSWER, Finished("completed")), "200 … ms stub"),
    "tokens half counted": (counted(input_tokens=3), "200 … ms stub 3+? tokens"),
    "a failure at once": (Stub(Failed(CUT)), "502 upstream_cut … ms stub"),
    "a failure in a stream": (Stub(STARTED, Failed(CUT)), "200 upstream_cut … ms stub"),
}


@pytest.mark.parametrize("name", LINES)
async def test_outcome_is_logged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    stub, end = LINES[name]
    (line,) = await lines(capsys, stub, body=asking(stream=True), headers=ID)
    assert line == f"POST {PATHS['chat']} {end}"


async def test_refused_request_is_logged_without_a_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = await lines(capsys, Stub(), "/nowhere\nforged 200", method="GET", headers=ID)
    assert line == "GET /nowhere?forged 200 404 … ms"
    (line,) = await lines(capsys, Stub(), body=b"{", headers=ID)
    assert line == f"POST {PATHS['chat']} 400 … ms"


@pytest.mark.parametrize(("stream", "status"), [(False, 499), (True, 200)])
async def test_disconnect_is_logged(
    stream: bool, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = Stub(*OPENING, word("Hello"), asyncio.Event())
    call = Call(App(stub, LOUD), body=asking(stream=stream), headers=ID)
    task = asyncio.ensure_future(call())
    await stub.begun.wait()
    if stream:
        await call.until(lambda: b"Hello" in call.body)
    call.hang_up()
    await task
    line = capsys.readouterr().err
    assert line.startswith(f"POST {PATHS['chat']} {status} cancelled ")


async def test_p45_neither_keys_nor_words_are_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(request_log=True, keys=(Secret("canary"),))
    headers = {"authorization": "Bearer canary", **ID}
    (line,) = await lines(capsys, counted(), headers=headers, settings=settings)
    assert line == f"POST {PATHS['chat']} 200 … ms stub ?+? tokens"
    (line,) = await lines(capsys, counted(), headers={"x-api-key": "canary2"}, settings=settings)
    assert " 401 " in line
    assert "canary" not in line
