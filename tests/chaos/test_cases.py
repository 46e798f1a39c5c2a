"""The table of cases: there are enough of them, and none leaves open what it expects."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.chaos.cases import CaseError, load, parse

GOOD = {
    "name": "n",
    "wire": "chat",
    "script": "done",
    "end": "completed",
    "text": "x",
    "finish": "stop",
    "usage": "absent",
}
BAD = {
    "name": "n",
    "wire": "chat",
    "script": "",
    "end": "failed:upstream_cut",
    "text": "",
    "status": 502,
    "begun": False,
    "says": "cut",
}


def test_the_table_has_rows_enough_over_both_wires() -> None:
    cases = load()
    wires = [case.wire for case in cases]
    assert len(cases) >= 55
    assert min(wires.count("chat"), wires.count("responses")) >= 20
    ends = {case.expected.end for case in cases}
    assert {"completed", "incomplete", "failed:upstream_cut", "failed:upstream_error"} <= ends


@pytest.mark.parametrize("key", ["end", "text", "finish", "usage", "script", "wire"])
def test_successful_row_declares_all_expectations(key: str) -> None:
    assert parse(GOOD).expected.good
    with pytest.raises(CaseError):
        parse({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize("key", ["end", "text", "status", "begun", "says"])
def test_failing_row_declares_all_expectations(key: str) -> None:
    assert parse(BAD).expected.code == "upstream_cut"
    with pytest.raises(CaseError):
        parse({k: v for k, v in BAD.items() if k != key})


@pytest.mark.parametrize(
    "change",
    [
        {"end": "any"},
        {"text": "any"},
        {"usage": "any"},
        {"usage": "some"},
        {"end": ""},
        {"finish": ""},
        {"end": "failed"},
        {"wire": "any"},
        {"body": "two bodies"},
        {"splitt": 1},
        {"says": "of a good end"},
        {"script": "shout {}"},
    ],
)
def test_a_row_that_leaves_something_open_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CaseError):
        parse({**GOOD, **change})


def test_a_row_becomes_the_bytes_it_describes() -> None:
    row = {
        **GOOD,
        "script": 'delta {"content":"\\ud83d"}\nhalf data abcd\nraw \\r\\n\\xff',
        "transfer": "chunked",
        "cut": "fin",
    }
    head, delta, half, raw = parse(row).pieces
    assert head.startswith(b"HTTP/1.1 200 X\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b'"choices":[{"index":0,"delta":{"content":"\\ud83d"},"finish_reason":null}]' in delta
    assert (half, raw) == (b"6\r\ndata: \r\n", b"3\r\n\r\n\xff\r\n")


def test_coding_splitting_and_filling() -> None:
    row = {key: value for key, value in GOOD.items() if key != "script"}
    pieces = parse({**row, "body": "x<fill>", "fill": ["ab", 3], "coding": "gzip"}).pieces
    assert gzip.decompress(pieces[1]) == b"xababab"
    split = parse({**GOOD, "split": 5}).pieces
    assert {len(piece) for piece in split[:-1]} == {5}
    assert b"".join(split).endswith(b"\r\n\r\ndata: [DONE]\n\n")
