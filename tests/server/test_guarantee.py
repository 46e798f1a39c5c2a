"""The header that says how sure an answer is what was demanded."""

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import (
    FINISHED,
    PATHS,
    STARTED,
    Call,
    Stub,
    asking,
    saying,
)

HEADER = "x-dragoman-guarantee"
FORMATS: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_object"}},
    "responses": {"text": {"format": {"type": "json_object"}}},
}


def called(wire: str, stub: Stub, *, stream: bool, bound: bool = True) -> Call:
    body = asking(wire, stream=stream) | (FORMATS[wire] if bound else {})
    return Call(App(stub, Settings()), PATHS[wire], body)


def answering(start: Any, end: Any) -> Stub:
    """An engine that says what it is sure of at its beginning, and at its end."""
    _, *events, _ = saying("{}")
    return Stub(replace(STARTED, guarantee=start), *events, replace(FINISHED, guarantee=end))


@pytest.mark.parametrize("stream", [False, True])
async def test_p34_a_demand_that_was_only_passed_on_is_best_effort(wire: str, stream: bool) -> None:
    call = await called(wire, Stub(*saying("{}")), stream=stream)()
    assert (call.status, call.headers[HEADER]) == (200, "best-effort")


@pytest.mark.parametrize("stream", [False, True])
async def test_p34_what_was_enforced_is_said_before_the_answer(wire: str, stream: bool) -> None:
    call = await called(wire, answering("enforced", "enforced"), stream=stream)()
    assert call.headers[HEADER] == "enforced"
    assert HEADER not in call.body.decode()


async def test_what_was_verified_is_said_when_it_is_known(wire: str) -> None:
    whole = await called(wire, answering(None, "verified"), stream=False)()
    assert whole.headers[HEADER] == "verified"
    streamed = await called(wire, answering(None, "verified"), stream=True)()
    assert streamed.headers[HEADER] == "best-effort"
    assert f": {HEADER}: verified\n" in streamed.body.decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_where_nothing_was_demanded_nothing_is_said(wire: str, stream: bool) -> None:
    call = await called(wire, Stub(), stream=stream, bound=False)()
    assert HEADER not in call.headers
    assert HEADER not in call.body.decode()
