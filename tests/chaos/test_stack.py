"""Every row of the table through the whole server, over each protocol, and through the engine.

What is asserted is what a client sees: a good answer word for word; a failure as the status it
is, or, where a stream had begun, as its protocol's error and nothing that looks like an end.
"""

from __future__ import annotations

import asyncio
import json
import re
from itertools import product
from typing import Any

import pytest

from dragoman.engines.remote import Remote
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.wire.protocol import STANDARD
from dragoman.wire.registry import WIRES as REGISTERED
from tests.chaos.cases import WIRES, Case, Expected, load
from tests.chaos.received import Received, read_answer
from tests.chaos.stage import WARM_UP, Stage, asking, named, stage
from tests.chaos.stage import perform as perform_engine
from tests.server.stubs import PATHS, Call

DEADLINE = 10.0
"""Seconds for a row."""
NOTHING = {"messages": {"input_tokens": 0, "output_tokens": 0}}
"""What the usage is where the server reported none, on wires that cannot do without."""
OWN_STATUS = {("messages", "overloaded"): 529}
"""Statuses that are not those of the table, by wire and code."""


def body(protocol: str, text: str, *, stream: bool) -> bytes:
    """A request of a protocol that every row can be the answer to."""
    return REGISTERED[protocol].encode_request(asking(text, stream=stream), STANDARD)[0]


async def post(app: App, protocol: str, body: bytes) -> Received:
    """What a client understands of the answer to a request."""
    call = await Call(app, PATHS[protocol], body)()
    assert call.whole
    return read_answer(protocol, call.status, call.headers, call.body)


async def perform(stage: Stage, case: Case, app: App, protocol: str, *, stream: bool) -> None:
    """Play a row through the server and check every word of what its client hears."""
    if case.warm:
        await post(app, protocol, body(protocol, WARM_UP, stream=False))
    stage.play(case)
    received = await post(app, protocol, body(protocol, "Go.", stream=stream))
    assert len(stage.mock.asked) == case.expected.asks
    if case.expected.good:
        check_good(protocol, case.expected, received)
    elif stream and case.expected.begun:
        check_cut(protocol, case.expected, received)
    else:
        check_refused(protocol, case.expected, received)


def check_good(protocol: str, expected: Expected, received: Received) -> None:
    assert received.status == 200
    assert received.error is None
    assert received.finish == finish(protocol, expected)
    check_content(protocol, expected, received)
    if expected.usage is None:
        assert received.usage == NOTHING.get(protocol)
    else:
        for name in ("input_tokens", "output_tokens"):
            assert received.usage[name] == expected.usage[name]


def finish(protocol: str, expected: Expected) -> str | None:
    """Only Chat has a word for calls that end with "stop"; elsewhere the calls tell it."""
    if protocol != "chat" and expected.calls and expected.finish == "stop":
        return "tool_calls"
    return expected.finish


def check_content(protocol: str, expected: Expected, received: Received) -> None:
    chat = protocol == "chat"
    tagged = expected.chat_text != expected.text
    text, refusal = expected.chat_text if chat else expected.text, expected.refusal
    bare = received.id.partition("-" if chat else "_")[2]
    calls: Any = named(expected.calls, bare)
    if protocol == "messages":
        text, refusal = text + refusal, ""  # it has no refusals
        whole = [isinstance(input, dict) for *_, input in received.calls]
        calls = [as_used(*call, parsed) for call, parsed in zip(calls, whole, strict=True)]
    assert received.text == text
    assert received.reasoning == ("" if chat and tagged else expected.reasoning)
    assert received.refusal == refusal
    assert [tuple(call) for call in received.calls] == list(calls)


def as_used(id: str, name: str, arguments: str, parsed: bool) -> tuple[str, str, Any]:
    """A call as Messages has it: with an id of few characters, and with an object as its input."""
    id = re.sub("[^A-Za-z0-9_-]", "_", id)
    if not parsed:  # of a stream, where the text is no JSON
        return id, name, arguments
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        value = arguments
    return id, name, value if isinstance(value, dict) else {"input": value}


def check_cut(protocol: str, expected: Expected, received: Received) -> None:
    """A stream that had begun: 200, what came before, and then the protocol's error."""
    assert received.status == 200
    check_content(protocol, expected, received)
    assert expected.says in received.error["message"]
    assert received.finish is None
    if protocol != "responses":
        assert not received.done


def check_refused(protocol: str, expected: Expected, received: Received) -> None:
    """Nothing had begun, or the answer is plain: the status, and an error object."""
    assert received.status == OWN_STATUS.get((protocol, expected.code), expected.status)
    assert expected.says in received.error["message"]
    assert "<" not in received.error["message"]
    assert received.retry_after == expected.retry_after


async def play(stage: Stage, case: Case, protocol: str | None, *, stream: bool) -> None:
    """Play a row to a client of a protocol or, where that is None, to the engine alone, of which
    the exact answer is expected, in a legal order."""
    engine = Remote(stage.base_url, wire=case.wire, key="k")
    app = None if protocol is None else App(engine, Settings())
    try:
        async with asyncio.timeout(DEADLINE):
            if protocol is None:
                await perform_engine(stage, case, engine, stream=stream)
            else:
                await perform(stage, case, app, protocol, stream=stream)
    finally:
        await (app or engine).close()


@pytest.mark.parametrize("case", load(), ids=lambda case: case.name)
async def test_every_client_and_the_engine_get_what_the_row_expects(case) -> None:
    """One test a row: as one for each protocol, there were thousands that did little."""
    failures = []
    async with stage() as upstream:
        for protocol, stream in product([*WIRES, None], [True, False]):
            try:
                await play(upstream, case, protocol, stream=stream)
            except Exception as error:
                error.add_note(f"{protocol or 'engine'}, {'streamed' if stream else 'plain'}")
                failures.append(error)
    if failures:
        raise ExceptionGroup(case.name, failures)
