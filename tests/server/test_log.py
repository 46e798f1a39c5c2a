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

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
LOUD = Settings(request_log=True)
ANSWER = (*OPENING, word("secret words"), *closing("secret words")[:-1])
CUT = Fault("upstream_cut", "It broke off.", "upstream")


def counted(**tokens: int) -> Stub:
    return Stub(*ANSWER, Finished("completed", usage=Usage(**tokens)))


async def lines(
    capsys: pytest.CaptureFixture[str], stub: Stub, path: str = PATHS["chat"], **options: Any
) -> list[str]:
    """The lines that one request leaves, without their time, their milliseconds and their id."""
    body = options.pop("body", asking())
    settings = options.pop("settings", LOUD)
    await Call(App(stub, settings), path, body, **options)()
    written = capsys.readouterr().err.splitlines()
    assert all(TIME.match(line) for line in written)
    bare = [TIME.sub("", line) for line in written]
    return [re.sub(r"\b\d+ ms\b", "… ms", line).removesuffix(" req_1") for line in bare]


ID = {"x-request-id": "req_1"}


CHAT, BARE = f"POST {PATHS['chat']} ", {"model": "stub", "prompt": "Once"}
STREAMED = PATHS["chat"], {"body": asking(stream=True)}
LINES: list[tuple[Stub, str, dict[str, Any], list[str]]] = [
    *(
        (
            counted(input_tokens=12, output_tokens=34),
            path,
            {"body": asking(wire, stream=stream)},
            [f"POST {path} 200 … ms stub 12+34 tokens"],
        )
        for wire, path in PATHS.items()
        for stream in (False, True)
    ),
    (Stub(), "/v1/completions", {"body": BARE}, ["POST /v1/completions 400 unsupported … ms stub"]),
    *(
        (Stub(), path, {"body": body}, [f"POST {path} {end} … ms stub"])
        for path, body, end in (
            ("/v1/embeddings", {"model": "stub", "input": "a"}, "400 unsupported"),
            ("/v1/responses/input_tokens", {"model": "stub", "input": "a"}, "200"),
            ("/v1/responses/compact", {"model": "stub", "input": "a"}, "200"),
        )
    ),
    (counted(), PATHS["chat"], {"settings": Settings()}, []),  # off by default
    (Stub(*ANSWER, Finished("completed")), *STREAMED, [f"{CHAT}200 … ms stub"]),
    (counted(input_tokens=3), *STREAMED, [f"{CHAT}200 … ms stub 3+? tokens"]),
    (Stub(Failed(CUT)), *STREAMED, [f"{CHAT}502 upstream_cut … ms stub"]),
    (Stub(STARTED, Failed(CUT)), *STREAMED, [f"{CHAT}200 upstream_cut … ms stub"]),
    (
        Stub(),
        "/nowhere\nforged 200",
        {"method": "GET"},
        ["GET /nowhere?forged 200 404 not_found … ms"],
    ),
    (Stub(), PATHS["chat"], {"body": b"{"}, [f"{CHAT}400 invalid_request … ms"]),
]


@pytest.mark.parametrize(("stub", "path", "options", "logged"), LINES)
async def test_request_leaves_one_line(stub, path, options, logged, capsys) -> None:
    assert await lines(capsys, stub, path, **options, headers=ID) == logged


@pytest.mark.parametrize(("stream", "status"), [(False, 499), (True, 200)])
async def test_disconnect_is_logged(stream, status, capsys) -> None:
    stub = Stub(*OPENING, word("Hello"), asyncio.Event())
    call = Call(App(stub, LOUD), body=asking(stream=stream), headers=ID)
    task = asyncio.ensure_future(call())
    await stub.begun.wait()
    if stream:
        await call.until(lambda: b"Hello" in call.body)
    call.hang_up()
    await task
    line = TIME.sub("", capsys.readouterr().err)
    assert line.startswith(f"POST {PATHS['chat']} {status} cancelled ")


async def test_p45_neither_keys_nor_words_are_in_a_line(capsys) -> None:
    settings = Settings(request_log=True, keys=(Secret("canary"),))
    headers = {"authorization": "Bearer canary", **ID}
    (line,) = await lines(capsys, counted(), headers=headers, settings=settings)
    assert line == f"POST {PATHS['chat']} 200 … ms stub ?+? tokens key=key-1"
    (line,) = await lines(capsys, counted(), headers={"x-api-key": "canary2"}, settings=settings)
    assert " 401 " in line
    assert "canary" not in line
