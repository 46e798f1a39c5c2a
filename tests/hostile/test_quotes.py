"""Errors quote what a client or an upstream sent, which may be of any length: a little of it."""

from __future__ import annotations

import ast
import json
import logging

import pytest

from dragoman.core.error import MAX_FIELD, MAX_MESSAGE, Fault, bad_request, quoted
from dragoman.server.app import App
from dragoman.server.log import MOST, ErrorFormat
from dragoman.server.settings import Settings
from dragoman.wire import error
from tests.architecture.tree import PACKAGE
from tests.server.stubs import PATHS, Call, Stub, asking, exchange, served

LONG = "\U000e0001" * 20_000  # each is ten characters in quotes
HI = {"model": "m", "input": "Hi"}
TOLD = {"role": "tool", "tool_call_id": LONG, "content": "x"}
RESULT = [{"type": "tool_result", "tool_use_id": LONG, "content": "x"}]
OUTPUT = {"type": "function_call_output", "call_id": LONG, "output": "x"}
BODIES = [
    ("responses", HI | {"conversation": LONG}),
    ("responses", HI | {"previous_response_id": LONG}),
    ("responses", HI | {"input": [{"type": "item_reference", "id": LONG}]}),
    ("responses", HI | {"input": [{"role": LONG, "content": "x"}]}),
    ("responses", HI | {"input": [{"role": "user", "content": [{"type": LONG}]}]}),
    ("responses", HI | {"input": [OUTPUT]}),
    ("responses", HI | {"tool_choice": {"type": "function", "name": LONG}}),
    ("chat", asking(messages=[TOLD])),
    ("chat", asking(messages=[{"role": LONG, "content": "x"}])),
    ("chat", asking(tool_choice={"type": "function", "function": {"name": LONG}})),
    ("messages", asking(max_tokens=1, messages=[{"role": "user", "content": RESULT}])),
    ("messages", asking(max_tokens=1, tool_choice={"type": "tool", "name": LONG})),
]


@pytest.mark.parametrize(("wire", "body"), BODIES)
async def test_6_what_a_client_sent_is_quoted_in_part(wire, body) -> None:
    call = await Call(App(Stub(), Settings()), PATHS[wire], body=body)()
    assert 400 <= call.status < 500
    assert len(call.body) < 20_000


@pytest.mark.parametrize("make", [bad_request, lambda p, f: Fault("not_found", p, "client", f)])
def test_7_a_fault_is_short_whatever_it_says(make) -> None:
    fault = make(LONG, LONG)
    assert len(fault.message) == MAX_MESSAGE
    assert fault.param is not None
    assert len(fault.param) == MAX_FIELD
    given = {"message": LONG, "code": LONG, "type": LONG, "more": LONG}
    body = error.encode(error.decode(500, json.dumps({"error": given}).encode()))
    assert len(body) < 64 * 1024
    assert len(quoted(LONG)) < 2000


def test_7_what_is_quoted_is_cut_first() -> None:
    """`!r` of a text that a client may send makes ten characters of one. What is left has a bound
    of its own: a constant, or what is a setting."""
    ours = {"wire": PACKAGE / "wire", "state": PACKAGE / "server" / "state"}
    found = {
        ast.unparse(node.value)
        for folder in ours.values()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r")
    }
    assert found <= {"_kind(block)", "address"}


@pytest.mark.parametrize("as_json", [False, True])
def test_8_an_error_in_the_log_is_cut(as_json) -> None:
    record = logging.LogRecord("dragoman", logging.ERROR, "", 0, "first " + LONG, (), None)
    line = ErrorFormat(as_json=as_json).format(record)
    assert len(line) < MOST + 200
    assert "first" in line


async def test_8_what_cannot_be_refused_is_logged_by_its_request(monkeypatch, caplog) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(LONG)

    monkeypatch.setattr("dragoman.server.app._refuse", broken)
    body = json.dumps(HI | {"conversation": "none"}).encode()
    head = f"POST {PATHS['responses']} HTTP/1.1\r\nhost: localhost\r\nx-request-id: req_mine\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    async with served(App(Stub(), Settings())) as port:
        # The body comes later, so that there is a task.
        assert await exchange(port, head.encode() + b"\r\n", body) == b""
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.request == "req_mine"
    assert len(record.getMessage()) < MOST + 200
