"""Raw text said to clients: chunk by chunk, and as one object."""

from typing import Any

from dragoman.core.error import Fault
from dragoman.core.event import Delta, Failed, Finished, ItemAdded, PartAdded, Progress, Started
from dragoman.core.item import Message, Refusal, Text, Token
from dragoman.core.response import Usage
from dragoman.wire import json
from dragoman.wire.completions import COMPLETIONS, encode_response
from dragoman.wire.protocol import STANDARD
from tests.answers import answer
from tests.wire.completions.speaking import ALL, ASKED, events

OPENING = (
    Started("x", 5, "m"),
    ItemAdded(0, Message("assistant", (), id="msg_0")),
    PartAdded(0, 0, Text("")),
)


def said(*more: Any, request: Any = ASKED) -> list[Any]:
    encoder = COMPLETIONS.encoder(request, STANDARD)
    return events(encoder.feed([*OPENING, *more]))


def test_each_piece_is_a_chunk() -> None:
    first, last, done = said(Delta(0, 0, "text", "Hi"), Finished("completed"))
    assert first == {
        "id": "cmpl-x",
        "object": "text_completion",
        "created": 5,
        "model": "m",
        "choices": [{"text": "Hi", "index": 0, "logprobs": None, "finish_reason": None}],
    }
    (choice,) = last["choices"]
    assert choice == {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert done == b"[DONE]"


def test_usage_is_a_chunk_of_its_own_when_requested() -> None:
    end = Finished("completed", usage=Usage(input_tokens=1, output_tokens=2))
    assert len(said(end)) == 2
    *chunks, last, _ = said(end, request=ALL)
    assert [chunk["usage"] for chunk in chunks] == [None]
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_tokens_have_their_place_in_the_text() -> None:
    half = Token("�", -2.0, b"\xe2")
    tokens = (Token("Hé", -0.5, top=(Token("Hé", -0.5), half)), Token("!"))
    first, second, *_ = said(
        Delta(0, 0, "text", "Hé!", tokens), Delta(0, 0, "text", "x", (Token("x", -1),))
    )
    assert first["choices"][0]["logprobs"] == {
        "tokens": ["Hé", "!"],
        "token_logprobs": [-0.5, None],
        "top_logprobs": [{"Hé": -0.5, "bytes:\\xe2": -2.0}, None],
        "text_offset": [0, 2],
    }
    assert second["choices"][0]["logprobs"]["text_offset"] == [3]
    assert second["choices"][0]["logprobs"]["top_logprobs"] is None


def test_a_failure_is_an_error_and_nothing_after_it() -> None:
    (only,) = said(Failed(Fault("upstream_cut", "It broke.")))
    assert only["error"]["message"] == "It broke."


def test_events_that_are_no_text_are_not_encoded() -> None:
    alive, raw = Progress(None, "alive"), Progress(None, "raw", {"chat": {"choices": [1]}})
    assert said(Delta(0, 0, "refusal", "No."), alive, raw) == []


def test_unknown_fields_of_this_wire_are_encoded_again() -> None:
    raw = Progress(None, "raw", {"completions": {"choices": [{"index": 0, "x": 1}]}})
    start = Started("x", 5, "m", extra={"completions": {"y": 2, "choices": [{"index": 0, "z": 3}]}})
    encoder = COMPLETIONS.encoder(ASKED, STANDARD)
    end = Finished("completed", extra={"completions": {"late": 4}})
    piece, last, _ = events(encoder.feed([start, raw, end]))
    assert piece["choices"][0]["x"] == 1
    assert (last["y"], last["late"], last["choices"][0]["z"]) == (2, 4, 3)


def test_heartbeat_only_during_an_answer() -> None:
    encoder = COMPLETIONS.encoder(ASKED, STANDARD)
    assert encoder.heartbeat() == b""
    encoder.feed(OPENING[:1])
    assert encoder.heartbeat() == b": alive\n\n"
    (piece,) = events(encoder.heartbeat(data=True))
    assert piece["choices"][0]["text"] == ""
    encoder.feed([Finished("completed")])
    assert encoder.heartbeat() == b""


def test_a_whole_answer_has_a_choice_for_each_reason() -> None:
    said = Message("assistant", (Text("a"), Refusal("no"), Text("b")))
    response = answer(said, status="incomplete", reasons=("length", "stop"))
    value = json.load(encode_response(response, ASKED, STANDARD))
    assert "usage" not in value
    assert [choice["text"] for choice in value["choices"]] == ["ab", ""]
    assert [choice["finish_reason"] for choice in value["choices"]] == ["length", "stop"]
    assert [choice["logprobs"] for choice in value["choices"]] == [None, None]
    asked = json.load(encode_response(response, ALL, STANDARD))
    assert asked["choices"][0]["logprobs"]["tokens"] == []


def test_usage_that_was_not_reported_is_left_out() -> None:
    response = answer(Message("assistant", "Hi."))
    assert response.usage is None
    assert "usage" not in json.load(COMPLETIONS.encode_response(response, ASKED, STANDARD))
