"""What servers send for a Responses answer, and what is made of it.

The corpus has a row for everything that servers do; each is heard whole, byte by byte, and with
every one of its events torn in two.
"""

import json
from typing import Any

import pytest

from dragoman.core.event import Delta, Event, Failed, Finished, Progress, Started
from dragoman.core.fold import fold
from dragoman.core.item import (
    Annotation,
    Compaction,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Text,
    Token,
    Unknown,
)
from dragoman.core.lifecycle import check
from dragoman.core.response import Response, Usage
from dragoman.core.turn import Turn
from dragoman.wire import sse
from dragoman.wire.responses import RESPONSES
from dragoman.wire.responses.decode import ItemState
from tests.cases import cases

ROWS = cases(__file__, "upstreams")


def stream_of(row: Any) -> bytes:
    if "raw" in row:
        return str(row["raw"]).encode()
    said = (each if isinstance(each, str) else json.dumps(each) for each in row["stream"])
    return b"".join(sse.frame(each.encode()) for each in said)


def hear(*pieces: bytes) -> list[Event]:
    decoder = RESPONSES.decoder(Turn("1", 0, "m"))
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()


def heard(*events: Any) -> list[Event]:
    return hear(b"".join(sse.frame(json.dumps(event).encode()) for event in events))


@pytest.mark.parametrize("name", ROWS)
def test_stream_of_a_server_is_decoded_as_expected_in_any_pieces(name) -> None:
    stream = stream_of(ROWS[name])
    events = hear(stream)
    check(events)
    assert hear(*(stream[n : n + 1] for n in range(len(stream)))) == events
    assert _says(fold(events)) == ROWS[name]["says"]
    end = ROWS[name]["ends"]
    assert _ends(events[-1])[: len(end)] == end


def _says(response: Response) -> list[str]:
    return [_brief(item) for item in response.output]


def _brief(item: Item) -> str:
    status = getattr(item, "status", None)
    short = "" if status in (None, "completed") else f" {status}"
    match item:
        case Message():
            refused = "".join(getattr(part, "text", "") for part in item.parts)
            return (f"text {item.text}" if item.text else f"refusal {refused}") + short
        case Reasoning(summary=()):
            return f"thought {item.text}{short}"
        case Reasoning():
            return f"summary {item.text} {item.encrypted or ''}".rstrip()
        case FunctionCall():
            return f"call {item.name} {item.call_id} {item.arguments}"
        case CustomToolCall():
            return f"custom {item.name} {item.call_id} {item.input}"
        case FunctionCallOutput():
            return f"output {item.call_id}"
        case Compaction():
            return f"compaction {item.encrypted}"
        case Unknown():
            return item.kind
        case _:
            return repr(item)


def _ends(event: Event) -> str:
    if isinstance(event, Failed):
        fault = event.fault
        words = (fault.code, fault.upstream_code, fault.message)
        return "failed " + " ".join(word for word in words if word)
    return event.reasons[0] if event.status != "cancelled" else "cancelled"


# ---- what a response says of itself ------------------------------------------------------


def test_model_and_unknown_fields_are_taken_from_the_upstream() -> None:
    created = {"id": "resp_9", "created_at": 5, "model": "up-1", "tool_usage": {"n": 1}}
    again = {**created, "service_tier": "flex", "moderation": None, "status": "completed"}
    events = heard(
        {"type": "response.created", "response": created},
        {"type": "response.in_progress", "response": created},
        {"type": "response.completed", "response": {**again, "completed_at": 9.0}},
    )
    upstream = {"id": "resp_9", "created_at": 5}
    extra = {"responses": {"tool_usage": {"n": 1}}, "upstream": upstream}
    assert events == [
        Started("1", 0, "up-1", extra=extra),
        Finished("completed", completed_at=9, extra={"responses": {"service_tier": "flex"}}),
    ]


@pytest.mark.parametrize(("said", "usage"), cases(__file__, "usage"))
def test_usage_is_what_was_reported(said, usage) -> None:
    last = heard({"type": "response.completed", "response": {"usage": said}})[-1]
    assert last == Finished("completed", usage=None if usage is None else Usage(**usage))


def test_usage_reported_before_a_failure_is_in_the_failed_event() -> None:
    said = {"usage": {"input_tokens": 1, "output_tokens": 0}}
    last = heard({"type": "response.in_progress", "response": said}, {"type": "error"})[-1]
    assert isinstance(last, Failed)
    assert last.usage == Usage(1, 0, 1)


# ---- beside the protocol -----------------------------------------------------------------


def test_progress_of_hosted_tools_is_decoded() -> None:
    at = {"item_id": "ws_1", "output_index": 0, "sequence_number": 7}
    item = {"type": "web_search_call", "id": "ws_1"}
    picture = "response.image_generation_call.partial_image"
    events = heard(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.web_search_call.searching", **at},
        {"type": "response.web_search_call.weighing", **at},
        {"type": picture, **at, "b64": "QQ=="},
        {"type": "vendor.news", "n": 1},
        {"type": "response.completed", "response": {}},
    )
    told = [event for event in events if isinstance(event, Progress)]
    raw = {"item_id": "ws_1", "output_index": 0}
    assert told == [
        Progress(0, "searching"),
        Progress(0, "raw", {"responses": {"type": "response.web_search_call.weighing", **raw}}),
        Progress(0, "raw", {"responses": {"type": picture, **raw, "b64": "QQ=="}}),
        Progress(None, "raw", {"responses": {"type": "vendor.news", "n": 1}}),
    ]


def test_a_name_that_would_break_out_of_its_line_is_not_repeated() -> None:
    events = heard({"type": "x\ndata: {}"}, {"type": "response.completed", "response": {}})
    assert not any(isinstance(event, Progress) for event in events)


def test_annotations_and_log_probabilities_are_decoded() -> None:
    odd = [{"token": "x", "logprob": "?", "bytes": [300]}, 5, {"token": "y", "bytes": "?"}]
    note = {"type": "url_citation", "url": "u", "title": 5, "start_index": True, "end_index": 2}
    events = heard(
        {"type": "response.output_text.delta", "delta": "xy", "logprobs": odd},
        {"type": "response.output_text.annotation.added", "annotation": note},
        {"type": "response.completed", "response": {}},
    )
    deltas = [event for event in events if isinstance(event, Delta)]
    assert deltas[0].tokens == (Token("x"), Token("y"))
    assert deltas[1].data == Annotation(
        "url_citation", end=2, url="u", extra={"responses": {"title": 5, "start_index": True}}
    )


# ---- the end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "ended"),
    [
        (b'{"type": "response.created", "response": {}}', False),
        (b'{"type": "response.completed", "response": {}}', True),
        (b'{"type": "error", "message": "x"}', True),
        (b"[DONE]", True),
    ],
)
def test_decoder_has_ended_after_a_terminal_event(data, ended) -> None:
    decoder = RESPONSES.decoder(Turn("1", 0, "m"))
    assert decoder.ended is False
    decoder.feed(sse.frame(data))
    assert decoder.ended is ended


def test_an_event_that_is_too_large_ends_the_answer() -> None:
    decoder = RESPONSES.decoder(Turn("1", 0, "m"))
    decoder.feed(b'data: {"type":"response.created"}\n\ndata: "')
    events = decoder.feed(b"x" * sse.MAX_EVENT) + decoder.close()
    check([Started("1", 0, "m"), *events])
    assert events[-1].fault.code == "upstream_error"


def test_call_without_a_name_has_no_parts() -> None:
    turn = Turn("1", 0, "m")
    heard = ItemState(turn, FunctionCall("", "", ""), 0)
    heard.part(Text("x"), 0, done=False)
    heard.annotate(Annotation("file_path"), 0)
    heard.part(Text("x"), 0, done=True)
    assert turn.take() == []


def delta(text: str, number: int, **fields: Any) -> bytes:
    kind = "response.output_text.delta"
    place = {"type": kind, "item_id": "msg_1", "output_index": 0, "content_index": 0}
    return json.dumps({**place, "sequence_number": number, "delta": text, **fields}).encode()


LOGPROBS = [{"token": "c", "logprob": -1.0, "bytes": [99], "top_logprobs": []}]
RUNS: list[list[bytes]] = [
    [delta(c, n) for n, c in enumerate("abcdef")],
    [delta(c, n, obfuscation="x" * n, logprobs=[]) for n, c in enumerate("ab")],
    [delta("a", 0), delta("b", 1), delta("c", 2, logprobs=LOGPROBS), delta("d", 3)],
    [
        delta("a", 0),
        *(delta(c, n, content_index=1) for n, c in ((1, "b"), (2, "c"))),
        delta("d", 3),
    ],
    [delta("a", 0), b'{"type": broken', delta("b", 2)],
    [delta("a", 0), delta("b", 1).replace(b", ", b",\ndata: "), delta("c", 2)],
    [delta("a", 0), rb'{"type": "response.output_text.delta", "delta": "\ud83d"}'],
    [delta("a", 0), b'{"type": "response.unheard_of", "delta": "x"}'],
]


@pytest.mark.parametrize("run", RUNS, ids=range(len(RUNS)))
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_deltas_read_at_once_are_those_read_one_by_one(run, ends) -> None:
    stream = b"".join(sse.frame(each, "response.output_text.delta") for each in run)
    stream = stream.replace(b"\n", ends)
    byte_by_byte = hear(*(stream[n : n + 1] for n in range(len(stream))))
    assert hear(stream) == byte_by_byte
    for cut in range(0, len(stream), 7):
        assert hear(stream[:cut], stream[cut:]) == byte_by_byte
    frames = [frame + ends + ends for frame in stream.split(ends + ends)[:-1]]
    assert hear(*frames) == byte_by_byte


def test_an_answer_that_is_no_stream_has_a_limit(monkeypatch) -> None:
    monkeypatch.setattr("dragoman.wire.json.MAX_ANSWER", 10)
    (failed,) = hear(b'{"output": [1, 2, 3]}')[-1:]
    assert "larger than 10 bytes" in failed.fault.message


def test_more_for_an_id_goes_to_the_last_open_item_that_has_it() -> None:
    item = {"type": "message", "id": "m", "role": "assistant", "content": []}
    heard = hear(
        event("response.output_item.added", item=item),
        event("response.output_item.added", item=item, output_index=1),
        event("response.output_item.done", item=item, output_index=1),
        event("response.output_text.delta", item_id="m", delta="a"),
    )
    assert [each.index for each in heard if isinstance(each, Delta)] == [0]


def test_progress_is_of_the_item_at_its_place() -> None:
    item = {"type": "web_search_call", "id": "w", "status": "in_progress"}
    heard = hear(
        event("response.output_item.added", item=item, output_index=4),
        event("response.web_search_call.searching", output_index=4),
        event("response.web_search_call.searching", output_index=5),
    )
    assert [each.index for each in heard if isinstance(each, Progress)] == [0, None]


def event(type: str, **fields: Any) -> bytes:
    return sse.frame(json.dumps({"type": type, **fields}).encode())
