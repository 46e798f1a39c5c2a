"""What passes through passes unchanged and whole, and how it ended is known."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.wire import sse
from dragoman.wire.chat.stream import LAST, Passing, passes, whole
from dragoman.wire.dialect import Dialect

CUT = Fault("upstream_cut", "cut")
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
SHORT = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
COUNTED = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
ERROR = b'data: {"error":{"message":"no"}}\n\n'
USAGE = Usage(input_tokens=3, output_tokens=2)


def through(*pieces: bytes) -> tuple[bytes, Finished | Failed]:
    """What a client gets, and how it ended."""
    passing = Passing()
    got = b"".join(map(passing.feed, pieces))
    rest, end = passing.close(CUT)
    return got + rest, end


@given(st.lists(st.sampled_from([TEXT, COUNTED, b": alive\n\n"]), max_size=4), st.data())
def test_in_any_pieces_the_same_bytes_pass(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events) + END + sse.DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    bounds = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(bounds)]
    counted = USAGE if COUNTED in events else None
    assert through(*pieces) == (stream, Finished("completed", ("stop",), counted))


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_byte_by_byte_nothing_but_whole_events_passes(ends: bytes) -> None:
    stream = (TEXT + END + sse.DONE).replace(b"\n", ends)
    passing = Passing()
    for number in range(len(stream)):
        passed = passing.feed(stream[number : number + 1])
        assert not passed or passed.endswith(ends * 2)
        assert passing.ended == (number == len(stream) - 1)
    assert passing.close(CUT)[0] == b""


@pytest.mark.parametrize(
    ("stream", "client", "end"),
    [
        (TEXT + END, TEXT + END + sse.DONE, Finished("completed", ("stop",))),
        (TEXT + SHORT, TEXT + SHORT + sse.DONE, Finished("incomplete", ("length",))),
        (TEXT + sse.DONE, TEXT + sse.DONE, Finished("completed", ())),
        (TEXT, TEXT, Failed(CUT)),
        (TEXT + END[:-9], TEXT, Failed(CUT)),
        (TEXT + END[:-2], TEXT + END + sse.DONE, Finished("completed", ("stop",))),
        (TEXT + END + sse.DONE[:-2], TEXT + END + sse.DONE, Finished("completed", ("stop",))),
        (TEXT + ERROR, TEXT + ERROR, Finished("failed", ())),
        (TEXT + COUNTED, TEXT + COUNTED, Failed(CUT, USAGE)),
        (b"", b"", Failed(CUT)),
        (b"data: oops\n\ndata: []\n\n", b"data: oops\n\ndata: []\n\n", Failed(CUT)),
        (b'data: {"choices":[1]}\n\n', b'data: {"choices":[1]}\n\n', Failed(CUT)),
        (b'data: {"choices":1}\n\n', b'data: {"choices":1}\n\n', Failed(CUT)),
    ],
)
def test_what_is_missing_is_added_and_half_an_event_is_not_passed(
    stream: bytes, client: bytes, end: Finished | Failed
) -> None:
    assert through(stream) == (client, end)
    assert through(*(stream[n : n + 1] for n in range(len(stream)))) == (client, end)


def test_the_word_in_a_text_is_no_end() -> None:
    passing = Passing()
    said = {"choices": [{"index": 0, "delta": {"content": "data: [DONE]"}}]}
    assert passing.feed(b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n")
    assert not passing.ended


def test_of_a_long_stream_only_the_end_is_kept() -> None:
    passing = Passing()
    for _ in range(3 * LAST // len(TEXT)):
        passing.feed(TEXT)
    passing.feed(COUNTED + END)
    assert len(passing._last) == LAST
    assert passing.close(CUT) == (sse.DONE, Finished("completed", ("stop",), USAGE))


def test_an_event_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 10)
    with pytest.raises(ValueError, match="larger than 10"):
        Passing().feed(b"data: 0123456789")


# ---- what may pass -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "dialect", "may"),
    [
        (b'{"model":"m"}', Dialect(), True),
        (b'{"model":"m"}', Dialect(drop=frozenset({"seed"})), False),
        (b'{"model":"a","model":"m"}', Dialect(), False),
        (b'{"\\u006dodel":"m"}', Dialect(), False),
    ],
)
def test_a_body_passes_that_says_what_we_would(body: bytes, dialect: Dialect, may: bool) -> None:
    assert passes(Request(model="m"), body, dialect) is may


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_passes_under_the_name_the_server_knows(name: str) -> None:
    asked = Request(model="m", max_output_tokens=3)
    body = b'{"model":"m","%b":3}' % name.encode()
    assert passes(asked, body, Dialect(max_tokens=name))
    assert not passes(asked, body.replace(name.encode(), b"other"), Dialect(max_tokens=name))


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"choices":[]}', b'{"error":{}}'])
def test_what_is_no_answer_is_known(body: bytes) -> None:
    assert whole(body) is None


def test_a_whole_answer_is_known_with_what_it_counted() -> None:
    counts = b'{"prompt_tokens":3,"completion_tokens":2}'
    assert whole(b'{"choices":[{}],"usage":%b}' % counts) == Finished("completed", (), USAGE)
