"""Answers are encoded chunk by chunk: role, content, calls, tokens, finish reason, failures."""

from typing import Any

import pytest
from msgspec import convert, to_builtins
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.item import FunctionCall, Message, Text
from dragoman.core.request import Request
from dragoman.core.response import Response, Usage
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from tests.cases import cases
from tests.wire.chat.answering import ASKED, WITH_USAGE, body, chunks, deltas, tell, told

STARTED = Started("R", 5, "m")
SAID = Message("assistant", (Text("Hello"),), "msg", "completed")


CASES = cases(__file__, "encoded")
"""Answers as events, or whole, with the chunks and the body that they become."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_answer_is_encoded_as_expected_streamed_and_whole(case) -> None:
    request = convert(to_builtins(ASKED) | case.get("asked", {}), Request)
    dialect = convert(case.get("dialect", {}), Dialect)
    if "events" in case:
        stream = tell(convert(case["events"], list[Event]), request, dialect)
    else:
        response = convert(case["response"], Response)
        stream = told(response, request, dialect)
        assert body(response, request, dialect) == case["body"]
    assert chunks(stream) == case["chunks"]


def test_plain_answer_is_one_write_for_each_event() -> None:
    events = [
        STARTED,
        ItemAdded(0, Message("assistant", (), "msg", "in_progress")),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", "Hel"),
        Delta(0, 0, "text", 'l"o\n'),
        PartDone(0, 0, Text('Hell"o\n')),
        ItemDone(0, SAID),
        Finished("completed", ("stop",), Usage(1, 2, 3)),
    ]
    envelope = {"id": "chatcmpl-R", "object": "chat.completion.chunk", "created": 5, "model": "m"}

    def said(delta: Any, finish: Any = None) -> Any:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**envelope, "choices": [choice]}

    role = {"role": "assistant", "content": "", "refusal": None}
    expected = [
        said(role),
        said({"content": "Hel"}),
        said({"content": 'l"o\n'}),
        said({}, "stop"),
        "[DONE]",
    ]
    assert chunks(tell(events)) == expected
    # Nothing is said before there is something to say, and every event is one write.
    encoder = CHAT.encoder(ASKED, STANDARD)
    writes = [encoder.feed((event,)) for event in events]
    assert [len(chunks(write)) for write in writes] == [0, 0, 1, 1, 1, 0, 0, 2]
    assert all(write.endswith(b"\n\n") and b"\r" not in write for write in writes if write)


def test_interleaved_calls_are_encoded_one_after_the_other_each_as_soon_as_it_may() -> None:
    """Some readers take a call for complete when the next one begins."""
    encoder = CHAT.encoder(ASKED, STANDARD)
    calls = [FunctionCall(f"c{n}", "f", "{}", id=f"fc{n}", status="completed") for n in range(3)]
    events = [
        STARTED,
        *(ItemAdded(n, replace(call, arguments="")) for n, call in enumerate(calls)),
        Delta(2, 0, "arguments", "{}"),
        ItemDone(2, calls[2]),
        Delta(1, 0, "arguments", "{"),
        Delta(0, 0, "arguments", "{}"),
        ItemDone(0, calls[0]),
        Delta(1, 0, "arguments", "}"),
        ItemDone(1, calls[1]),
    ]
    indices = []
    for event in events:
        said = [d["tool_calls"] for d in deltas(encoder.feed((event,))) if "tool_calls" in d]
        indices.append([fragment["index"] for (fragment,) in said])
    assert indices == [[], [0], [], [], [], [], [], [0], [1, 1], [1], [2, 2]]


def test_p27_a_heartbeat_is_a_comment_or_an_empty_chunk_and_only_during_an_answer() -> None:
    encoder = CHAT.encoder(WITH_USAGE, STANDARD)
    assert encoder.heartbeat() == encoder.heartbeat(data=True) == b""
    encoder.feed([STARTED])
    assert encoder.heartbeat() == b": alive\n\n"
    (said,) = chunks(encoder.heartbeat(data=True))
    assert said["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert (said["id"], said["usage"]) == ("chatcmpl-R", None)
    encoder.feed([Finished("completed")])
    assert encoder.heartbeat() == encoder.heartbeat(data=True) == b""
    broken = CHAT.encoder(ASKED, STANDARD)
    broken.feed([STARTED])
    broken.feed([Failed(Fault("internal", "x"))])
    assert broken.heartbeat() == b""


def test_progress_is_encoded_on_its_own_wire_only() -> None:
    raw = {"index": 0, "delta": {"vendor": 1}, "filter": {"x": 1}}
    encoder = CHAT.encoder(ASKED, STANDARD)
    encoder.feed([STARTED])
    (said,) = chunks(encoder.feed([Progress(None, "raw", {"chat": {"choices": [raw]}})]))
    assert said["choices"][0] == {**raw, "logprobs": None, "finish_reason": None}
    for other in (
        Progress(None, "raw", {"responses": {}}),
        Progress(None, "raw"),
        Progress(None, "queued"),
    ):
        assert encoder.feed([other]) == b""
