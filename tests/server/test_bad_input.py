"""Bad input: a 4xx in the protocol's shape that names the field; never a 500, never a hang."""

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.app import App
from dragoman.server.settings import Settings
from tests.server.stubs import PATHS, Call, Stub, asking


async def send(wire: str, body: Any, stub: Stub | None = None) -> Call:
    call = Call(App(stub or Stub(), Settings()), PATHS[wire], body)
    return await asyncio.wait_for(call(), 60)


def refused(call: Call) -> dict[str, Any]:
    """The error object of a refusal that has the protocol's shape."""
    assert 400 <= call.status < 500, call.body[:500]
    error = call.json["error"]
    if call.json.get("type") == "error":  # Messages names the field in the message alone
        error["param"] = error["message"].partition(":")[0]
    else:
        assert set(error) >= {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


NOT_JSON = {
    "empty": b"",
    "malformed": b'{"model": "m", ',
    "bare word": b"hello",
    "single quotes": b"{'model': 'm'}",
    "two values": b"{} {}",
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "half a character": b'{"model": "\xe2\x82"}',
    "UTF-16": '{"model": "m"}'.encode("utf-16"),
    "NUL": b"\0",
    "NUL inside": b'{"model"\0: "m"}',
    "control character": b'{"model": "a\x01b"}',
    "NaN": b'{"model": NaN}',
    "infinity": b'{"temperature": -Infinity}',
    "10,000 deep": b'{"input":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "10,000 open": b"[" * 10_000,
    "10,000 objects deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "100,000 deep": b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "300 deep in a field nobody knows": b'{"model":"m","x":' + b"[" * 300 + b"]" * 300 + b"}",
    "10 MB of garbage": random.Random(7).randbytes(10_000_000),
    "10 MB of brackets": b"[{" * 5_000_000,
    "10 MB of quotes": b'"' * 10_000_000,
    "10 MB of backslashes": b'{"a":"' + b"\\" * 10_000_000,
}


@pytest.mark.parametrize("name", NOT_JSON)
async def test_r4_8_invalid_json_is_a_400(wire: str, name) -> None:
    error = refused(await send(wire, NOT_JSON[name]))
    assert error["message"].startswith("The body ")


@pytest.mark.parametrize("body", [[], "text", 1, None, True, [{"model": "m"}]])
async def test_r4_8_json_that_is_no_object_is_a_400(wire: str, body) -> None:
    refused(await send(wire, json.dumps(body).encode()))


@pytest.mark.parametrize("field", ["model", "messages"])
async def test_r4_8_missing_field_is_named(wire: str, field) -> None:
    body = asking(wire)
    if field not in body:
        field = "input"
    for absent in ({k: v for k, v in body.items() if k != field}, {**body, field: None}):
        call = await send(wire, absent)
        assert call.status == 400
        assert refused(call)["param"] == field


@pytest.mark.parametrize(
    ("wire", "field", "value"),
    [
        *((wire, "model", "") for wire in PATHS),
        *((wire, "stream", "yes") for wire in PATHS),
        *((wire, "temperature", 9) for wire in PATHS),
        *((wire, "tools", [{}]) for wire in PATHS),
        *((wire, "tool_choice", "required") for wire in PATHS),
        ("chat", "messages", [{"role": "alien", "content": "x"}]),
        ("chat", "n", 1000),
        ("responses", "input", [{"role": "user", "content": 1}]),
        ("responses", "text", {"format": {"type": "json_schema"}}),
    ],
)
async def test_a_field_of_the_wrong_kind_is_named(wire, field, value) -> None:
    stub = Stub()
    call = await send(wire, {**asking(wire), field: value}, stub)
    assert call.status == 400
    assert str(refused(call)["param"]).startswith(field)
    assert not stub.asked


ORPHANS = {
    "chat": {"messages": [{"role": "tool", "tool_call_id": "nobody", "content": "42"}]},
    "responses": {"input": [{"type": "function_call_output", "call_id": "nobody", "output": "42"}]},
    "messages": {
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "nobody"}]}
        ]
    },
}


async def test_an_output_for_a_call_that_was_never_made_is_named(wire: str) -> None:
    call = await send(wire, asking(wire, **ORPHANS[wire]))
    assert call.status == 400
    assert str(refused(call)["param"]).startswith(next(iter(ORPHANS[wire])))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = [
    *("model", "messages", "input", "stream", "tools", "tool_choice", "temperature", "stop", "n"),
    *("text", "response_format", "reasoning", "include", "metadata", "instructions", "audio"),
    *("modalities", "stream_options", "prediction", "store", "conversation", "background"),
    "vendor",
]


@pytest.mark.parametrize("wire", PATHS)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4))
def test_any_values_are_answered_or_refused(wire, changes) -> None:
    call = asyncio.run(send(wire, {**asking(wire), **changes}))
    assert call.status == 200 or refused(call)
    assert call.whole


@pytest.mark.parametrize("wire", PATHS)
@given(data=st.data())
def test_any_damage_to_a_good_body_is_answered_or_refused(wire, data) -> None:
    body = bytearray(json.dumps(asking(wire, stream=data.draw(st.booleans()))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    call = asyncio.run(send(wire, bytes(body)))
    assert call.status == 200 or refused(call)
