"""Answers of any engine, encoded for Messages clients: streamed one block at a time, and whole."""

import json
from typing import Any

import pytest

from dragoman.core.error import Fault
from dragoman.core.event import Event, Progress
from dragoman.core.fold import fold, unfold
from dragoman.core.interfaces import Model
from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.lifecycle import check
from dragoman.core.response import Usage
from dragoman.core.turn import Turn
from dragoman.wire.messages import MESSAGES
from dragoman.wire.protocol import STANDARD
from tests.answers import answer
from tests.cases import cases
from tests.wire.messages.gathering import ASKED, frames, gathered
from tests.wire.messages.schema import (
    Count,
    ErrorBody,
    Models,
    check_answer,
    check_event,
)
from tests.wire.messages.schema import Model as ModelSchema
from tests.wire.messages.schema import check as check_schema

ERRORS = cases(__file__, "errors")


def whole(*items: Item, **fields: Any) -> Any:
    """The whole answer, which is also what its stream adds up to."""
    response = answer(*items, **fields)
    body = json.loads(MESSAGES.encode_response(response, ASKED, STANDARD))
    check_answer(body)
    stream = MESSAGES.encoder(ASKED, STANDARD).feed(list(unfold(response)))
    assert gathered(stream) == body
    return body


def content(*items: Item, **fields: Any) -> Any:
    return whole(*items, **fields)["content"]


def streamed(turn: Turn) -> Any:
    """The message that the events of a turn add up to, one by one and all at once."""
    events = turn.take()
    check(events)
    encoder = MESSAGES.encoder(ASKED, STANDARD)
    stream = b"".join(encoder.feed((event,)) for event in events)
    message = gathered(stream)
    assert gathered(MESSAGES.encoder(ASKED, STANDARD).feed(events)) == message
    assert encoder.heartbeat() == b""
    if "error" not in message:
        body = json.loads(MESSAGES.encode_response(fold(events), ASKED, STANDARD))
        check_answer(body)
        assert message == body
    return message


# ---- items of other engines --------------------------------------------------------------


def call(number: int, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"c{number}", "name": "f", "input": arguments}


def test_interleaved_calls_come_one_after_the_other() -> None:
    turn = Turn("R", 0, "m")
    first, second = (turn.open(FunctionCall(f"c{n}", "f", "")) for n in range(2))
    for index, piece in ((first, '{"a"'), (second, '{"b"'), (second, ":2}"), (first, ":1}")):
        turn.write(index, "arguments", piece)
    turn.close(second)
    turn.complete("completed", ("tool_calls",))
    message = streamed(turn)
    assert message["content"] == [call(0, {"a": 1}), call(1, {"b": 2})]
    assert message["stop_reason"] == "tool_use"


def test_white_space_before_the_arguments_of_a_call_is_not_sent() -> None:
    """Anthropic's SDK reads what it has of them after each piece, and raises for nothing else."""
    turn = Turn("R", 0, "m")
    index = turn.open(FunctionCall("c0", "f", ""))
    for piece in ("\n", " ", ' {"a"', ":1}"):
        turn.write(index, "arguments", piece)
    turn.complete("completed", ("tool_calls",))
    events = turn.take()
    deltas = [
        frame["delta"]["partial_json"]
        for frame in frames(MESSAGES.encoder(ASKED, STANDARD).feed(events))
        if frame["type"] == "content_block_delta"
    ]
    assert [piece for piece in deltas if piece] == [' {"a"', ":1}"]


def test_parts_side_by_side_come_one_after_the_other() -> None:
    turn = Turn("R", 0, "m")
    thought, message = turn.open(Reasoning()), turn.open(Message("assistant"))
    for part, piece in ((1, "b"), (0, "a"), (1, "B"), (0, "A")):
        turn.write(message, "text", piece, part)
    turn.write(thought, "reasoning", "hm", 0)
    turn.write(thought, "reasoning", "so", 1)
    turn.complete("completed", ("stop",))
    assert streamed(turn)["content"] == [
        {"type": "thinking", "thinking": "hm\n\nso", "signature": ""},
        {"type": "text", "text": "bB"},
        {"type": "text", "text": "aA"},
    ]


def test_deltas_are_sent_at_once_where_nothing_is_before_them() -> None:
    encoder = MESSAGES.encoder(ASKED, STANDARD)
    assert encoder.heartbeat() == b""
    turn = Turn("R", 0, "m")
    turn.header()
    sent = []
    for piece in "ab":
        turn.text(piece)
        sent.append([frame["type"] for frame in frames(encoder.feed(turn.take()))])
    assert sent == [
        ["message_start", "content_block_start", "content_block_delta"],
        ["content_block_delta"],
    ]
    (ping,) = frames(encoder.heartbeat(data=True))
    assert ping == {"type": "ping"}


def test_custom_call_is_an_object_with_one_string() -> None:
    given = CustomToolCall("c0", "f", '*** "Begin"\n\U0001f600\\')
    assert content(given) == [call(0, {"input": given.input})]
    turn = Turn("R", 0, "m")
    index = turn.open(CustomToolCall("c0", "f", ""))
    for piece in ('"a', "\n", "\\b"):
        turn.write(index, "input", piece)
    turn.complete("completed", ("stop",))
    message = streamed(turn)
    assert message["content"] == [call(0, {"input": '"a\n\\b'})]
    assert message["stop_reason"] == "tool_use"  # an answer with calls waits for their results


ODD: list[tuple[Item, list[dict[str, Any]]]] = [
    (Message("assistant", (Text(""), Text("a"))), [{"type": "text", "text": "a"}]),
    (Message("assistant", (Refusal("No."),)), [{"type": "text", "text": "No."}]),
    (Message("assistant", (Audio("QQ==", "wav", "hi"),)), [{"type": "text", "text": "hi"}]),
    (Message("assistant", (Audio("QQ==", "wav"),)), []),
    (Message("assistant", (UnknownPart("chat", {"type": "x"}),)), []),
    (Message("assistant", (UnknownPart("messages", {"type": "x_y"}),)), [{"type": "x_y"}]),
    (
        Message("assistant", (Text("a", (Annotation("url_citation", url="u"),)),)),
        [{"type": "text", "text": "a"}],
    ),
    (
        Reasoning((Thought("a"),), (Summary("s"),)),
        [{"type": "thinking", "thinking": "s\n\na", "signature": ""}],
    ),
    (
        Reasoning((Thought(""), Thought("a"), Thought(""), Thought("b")), (Summary(""),)),
        [{"type": "thinking", "thinking": "a\n\nb", "signature": ""}],
    ),
    (Reasoning((Thought(""), Thought("")), encrypted="gAAA"), []),
    (Reasoning(), []),
    (Compaction("gAAA"), []),
    (Unknown("responses", "web_search_call", {}), []),
    (Unknown("messages", "x_block", {"a": 1}), [{"type": "x_block", "a": 1}]),
]


@pytest.mark.parametrize(("item", "blocks"), ODD, ids=range(len(ODD)))
def test_item_of_another_engine_is_streamed_as_it_is_given_whole(item, blocks) -> None:
    assert content(item) == blocks


def test_only_the_first_choice_is_sent() -> None:
    turn = Turn("R", 0, "m", think=None)
    for choice, piece in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        turn.text(piece, choice)
    turn.finish("stop", 0)
    turn.finish("tool_calls", 1)
    turn.end(complete=True)
    events = turn.take()
    message = gathered(MESSAGES.encoder(ASKED, STANDARD).feed(events))
    assert message["content"] == [{"type": "text", "text": "ab"}]
    assert message["stop_reason"] == "end_turn"


def test_progress_is_not_sent() -> None:
    events: list[Event] = [*unfold(answer(Message("assistant", "a")))]
    plain = MESSAGES.encoder(ASKED, STANDARD).feed(events)
    events.insert(2, Progress(0, "searching"))
    assert MESSAGES.encoder(ASKED, STANDARD).feed(events) == plain


# ---- ends --------------------------------------------------------------------------------


def test_failed_answer_closes_what_is_open_and_tells_the_error() -> None:
    turn = Turn("R", 0, "m")
    first, second = turn.open(Reasoning()), turn.open(FunctionCall("c0", "f", ""))
    turn.write(first, "reasoning", "hm")
    turn.write(second, "arguments", '{"a"')
    turn.fail(Fault("overloaded", "Later."))
    message = streamed(turn)
    assert message["error"] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Later."},
    }
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "end_turn"),  # there is no call
        ("anything", "end_turn"),
    ],
)
def test_stop_reason_is_that_of_the_protocol(reason, told) -> None:
    assert whole(Message("assistant", "a"), reasons=(reason,))["stop_reason"] == told
    assert whole(Message("assistant", "a"), reasons=())["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stop_sequence": "END"}, ("stop_sequence", "END")),
        ({"stop_sequence": "eos"}, ("end_turn", None)),  # which the request did not ask for
        ({"stop_sequence": "END", "reasons": ("length",)}, ("max_tokens", None)),
    ],
)
def test_stop_string_of_the_request_is_named(fields, told) -> None:
    message = whole(Message("assistant", "a"), **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == told


def test_answer_with_a_call_waits_for_it_though_a_stop_string_ended_it() -> None:
    message = whole(FunctionCall("c0", "f", "{}"), stop_sequence="END")
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (None, {"input_tokens": 0, "output_tokens": 0}),
        (Usage(), {"input_tokens": 0, "output_tokens": 0}),
        (Usage(5, 2), {"input_tokens": 5, "output_tokens": 2}),
        (
            Usage(10, 2, cached_tokens=6, cache_write_tokens=1, reasoning_tokens=1),
            {
                "input_tokens": 3,
                "cache_creation_input_tokens": 1,
                "cache_read_input_tokens": 6,
                "output_tokens": 2,
                "output_tokens_details": {"thinking_tokens": 1},
            },
        ),
        (
            Usage(5, 2, cached_tokens=9),  # an engine that counts them beside
            {"input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 2},
        ),
    ],
)
def test_usage_counts_what_no_cache_had_a_part_in(usage, told) -> None:
    assert whole(Message("assistant", "a"), usage=usage)["usage"] == told


# ---- errors, models and counts -----------------------------------------------------------


@pytest.mark.parametrize(("fault", "status", "kind"), ERRORS)
def test_fault_has_the_status_and_the_type_of_the_protocol(fault, status, kind) -> None:
    given = Fault(**{"message": "Why.", **fault})
    found, body = MESSAGES.encode_error(given, "req_1")
    value = json.loads(body)
    check_schema(value, ErrorBody)
    assert found == status
    assert (value["error"]["type"], value["error"]["message"]) == (kind, "Why.")
    assert value["request_id"] == "req_1"
    check_event({"type": "error", "error": value["error"]})


MODELS = (Model("a", created=1_767_225_599), Model("b"), Model("c", created=951_782_400))
DATES = ("2025-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2000-02-29T00:00:00Z")


def test_models_are_listed_on_one_page() -> None:
    listing = json.loads(MESSAGES.encode_models(MODELS))
    check_schema(listing, Models)
    assert [model["created_at"] for model in listing["data"]] == list(DATES)
    assert (listing["first_id"], listing["last_id"], listing["has_more"]) == ("a", "c", False)
    for model, told in zip(MODELS, listing["data"], strict=True):
        assert json.loads(MESSAGES.encode_model(model)) == told
        check_schema(told, ModelSchema)
    none = json.loads(MESSAGES.encode_models(()))
    check_schema(none, Models)
    assert none == {"data": [], "has_more": False, "first_id": None, "last_id": None}


def test_count_is_one_number() -> None:
    count = json.loads(MESSAGES.encode_count(7))
    check_schema(count, Count)
    assert count == {"input_tokens": 7}
