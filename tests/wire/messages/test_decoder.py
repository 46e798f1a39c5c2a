"""What servers send for a Messages answer, streamed and whole, and what is made of it."""

import json
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.core.event import Event, Failed
from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall
from dragoman.core.lifecycle import check
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.wire import sse
from dragoman.wire.json import LARGE
from dragoman.wire.messages import MESSAGES
from dragoman.wire.messages.stream import MOST_COUNTS
from dragoman.wire.protocol import STANDARD
from tests.cases import cases
from tests.cost import is_square
from tests.samples import samples
from tests.wire.messages.gathering import ASKED, gathered
from tests.wire.messages.schema import check_answer

ANSWERS = cases(__file__, "answers")
STREAMS = [case for case in ANSWERS if "events" in case]
BY_NAME = {"ids": lambda case: case["name"]}


def data_of(case: Any) -> bytes:
    """The bytes of a case: events, one JSON body, or whatever else a server sends. A string among
    the events stands as the line it is."""
    if "events" in case:
        given = (each if isinstance(each, str) else _frame(each) for each in case["events"])
        return "\n\n".join((*given, "")).encode("utf-8", "surrogatepass")
    return json.dumps(case["body"]).encode() if "body" in case else str(case["raw"]).encode()


def _frame(event: dict[str, Any]) -> str:
    return f"event: {event.get('type')}\ndata: {json.dumps(event)}"


def hear(*pieces: bytes) -> list[Event]:
    """The events of an answer that came in these pieces; they are legal, or the test fails."""
    decoder = MESSAGES.decoder(Turn("R", 5, "m", think=None))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check(events)
    assert decoder.ended
    return events


def described(events: list[Event]) -> dict[str, Any]:
    """The answer as the corpus writes it down."""
    response = to_builtins(fold(events))
    names = ("model", "status", "output", "reasons", "usage", "error", "extra", "stop_sequence")
    return json.loads(json.dumps({name: response[name] for name in names if name in response}))


def without_upstream(response: Response) -> Response:
    """The answer without the upstream's own id, which is never encoded again."""
    extra = {wire: fields for wire, fields in (response.extra or {}).items() if wire != "upstream"}
    return replace(response, extra=extra or None)


@pytest.mark.parametrize("case", ANSWERS, **BY_NAME)
def test_answer_is_decoded_as_expected_in_any_pieces_and_encoded_the_same_again(case) -> None:
    data = data_of(case)
    events = hear(data)
    assert described(events) == case["expect"]
    assert hear(*(data[n : n + 1] for n in range(len(data)))) == events
    if isinstance(events[-1], Failed):
        return
    response = without_upstream(fold(events))
    stream = MESSAGES.encoder(ASKED, STANDARD).feed(events)
    whole = MESSAGES.encode_response(response, ASKED, STANDARD)
    check_answer(json.loads(whole))
    assert gathered(stream) == json.loads(whole)
    cut = any(isinstance(i, FunctionCall) and i.status == "incomplete" for i in response.output)
    for form in (stream,) if cut else (stream, whole):  # half of an object is none
        again = without_upstream(fold(hear(form)))
        assert said(again) == said(response)
        assert (again.reasons, again.extra) == (response.reasons, response.extra)
        assert again.stop_sequence == response.stop_sequence


def said(response: Response) -> list[Any]:
    """What an answer says, without the ids of its items; what is empty is not said again."""
    items = json.loads(json.dumps(to_builtins(response.output)))
    for item in items:
        for name in ("id", "status"):
            item.pop(name, None)
        if item["type"] == "message":
            item["content"] = [part for part in item.get("content", ()) if part["text"]]
    return [item for item in items if item.get("content") != []]


@pytest.mark.parametrize("case", STREAMS, **BY_NAME)
def test_stream_cut_at_any_byte_fails_or_completes(case) -> None:
    data = data_of(case)
    whole = hear(data)
    allowed = {
        "upstream_cut",
        "upstream_error",
        getattr(whole[-1], "fault", None) and "upstream_refused",
    }
    for place in range(0, len(data), samples(23, 1)):
        last = hear(data[:place])[-1]
        if isinstance(last, Failed):
            assert last.fault.code in allowed, place
        else:
            ends = (b"message_delta", b"message_stop", sse.END)
            assert any(end in data[:place] for end in ends), place


def test_answer_that_is_over_takes_no_more() -> None:
    case = next(case for case in STREAMS if case["name"] == "text")
    decoder = MESSAGES.decoder(Turn("R", 5, "m"))
    assert not decoder.ended
    decoder.feed(data_of(case))
    assert decoder.ended
    assert decoder.feed(b"data: more\n\n") == decoder.close() == []


def test_answer_has_a_limit(monkeypatch) -> None:
    monkeypatch.setattr("dragoman.wire.json.MAX_ANSWER", 10)
    (failed,) = hear(b'{"content": [1, 2, 3]}')[-1:]
    assert "more than 10 bytes" in failed.fault.message


def test_event_has_a_limit() -> None:
    (failed,) = hear(b'data: "', b"x" * sse.MAX_EVENT)[-1:]
    assert "larger than" in failed.fault.message


def test_reason_of_another_type_is_no_reason() -> None:
    said = {"stop_reason": [1], "stop_sequence": 2, "stop_details": "x", "content": "y", "id": 3}
    given = [
        {"type": "message_start", "message": {}},
        {"type": "message_delta", "delta": said, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    events = hear("".join(f"data: {json.dumps(event)}\n\n" for event in given).encode())
    message = gathered(MESSAGES.encoder(ASKED, STANDARD).feed(events))
    check_answer(message)
    assert message["content"] == []
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)


def test_counts_of_many_names_are_no_longer_added_but_those_known_still_grow() -> None:
    many = {f"x{number}": 1 for number in range(MOST_COUNTS)}
    given = [
        {"type": "message_start", "message": {"usage": {"output_tokens": 1, **many}}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7, "input_tokens": 3}},
        {"type": "message_stop"},
    ]
    usage = fold(hear("".join(f"data: {json.dumps(each)}\n\n" for each in given).encode())).usage
    assert (usage.output_tokens, usage.input_tokens) == (7, None)


def test_citation_has_a_limit_of_depth() -> None:
    deep = b"[" * 300 + b"]" * 300
    delta = b'{"type": "citations_delta", "citation": {"type": "x", "y": ' + deep + b"}}"
    event = b'data: {"type": "content_block_delta", "index": 0, "delta": ' + delta + b"}\n\n"
    (failed,) = hear(event)[-1:]
    assert isinstance(failed, Failed)


@pytest.mark.parametrize(
    ("kind", "delta"),
    [
        ("tool_use", {"partial_json": "x" * 200}),
        ("server_tool_use", {"partial_json": "x" * 200}),
        ("thinking", {"signature": "x" * 200}),
    ],
)
@pytest.mark.uncounted
def test_many_small_pieces_cost_no_square(kind, delta) -> None:
    block = {"type": kind, "id": "a", "name": "f"}
    opening = {"type": "content_block_start", "index": 0, "content_block": block}
    piece = {"type": "content_block_delta", "index": 0, "delta": delta}
    first, data = (f"data: {json.dumps(each)}\n\n".encode() for each in (opening, piece))

    def read(count: int) -> None:
        decoder = MESSAGES.decoder(Turn("R", 5, "m"))
        decoder.feed(first)
        for _ in range(count):
            decoder.feed(data)

    assert not is_square(read, 4_000)


@pytest.mark.parametrize(("size", "kind"), [(100, dict), (LARGE, str)])
def test_long_input_of_a_hosted_tool_stays_a_text(size, kind) -> None:
    """It comes in small pieces, and all of it was read at once, on the event loop."""
    text = json.dumps({"a": "x" * size})
    block = {"type": "server_tool_use", "id": "a", "name": "f", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": text}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ]
    (item,) = fold(hear(*(f"{_frame(each)}\n\n".encode() for each in events))).output
    assert item.value["input"] == (text if kind is str else json.loads(text))


@pytest.mark.parametrize("content", ["They said hello.", None])
def test_summary_of_a_compaction_is_the_one_that_its_delta_brings(content) -> None:
    opened = {"type": "compaction", "content": None}
    delta = {"type": "compaction_delta", "content": content, "encrypted_content": "gAAA"}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": opened},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_stop"},
    ]
    answer = fold(hear(*(f"{_frame(each)}\n\n".encode() for each in events)))
    whole = {"type": "compaction", "content": content, "encrypted_content": "gAAA"}
    assert json.loads(MESSAGES.encode_response(answer, ASKED, STANDARD))["content"] == [whole]
