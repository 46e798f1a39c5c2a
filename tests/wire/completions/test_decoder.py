"""What servers of raw text answer, in all the ways they have of it."""

import json
from typing import Any

import pytest
from msgspec import to_builtins

from dragoman.core.event import Event, Progress
from dragoman.core.fold import fold
from dragoman.wire import json as body
from dragoman.wire.usage import decode_usage, encode_usage
from tests.cases import cases
from tests.wire.completions.speaking import chunk, failed, hear, heard


def whole(text: str = "Hi", reason: Any = "stop", **more: Any) -> bytes:
    return json.dumps(chunk(text, reason, **more)).encode()


ANSWERS = cases(__file__, "answers")


def described(events: list[Event]) -> Any:
    """The answer as the corpus writes it down, without the upstream's own id and time."""
    response = to_builtins(fold(events))
    names = ("status", "output", "choices", "reasons", "usage", "error", "extra", "stop_sequence")
    found = {"output": []} | {name: response[name] for name in names if name in response}
    extra = {wire: fields for wire, fields in found.pop("extra", {}).items() if wire != "upstream"}
    beside = [event.data["completions"] for event in events if isinstance(event, Progress)]
    more = {name: each for name, each in (("extra", extra), ("beside", beside)) if each}
    return json.loads(json.dumps(found | more))


@pytest.mark.parametrize("case", ANSWERS, ids=lambda case: case["name"])
def test_answer_is_decoded_as_expected_in_any_pieces(case) -> None:
    data = case["raw"].encode()
    events = hear(data)
    assert described(events) == case["expect"]
    assert hear(*(data[n : n + 1] for n in range(len(data)))) == events


@pytest.mark.parametrize(("word", "reason"), cases(__file__, "reasons"))
def test_r2_4_every_finish_word_is_decoded(word, reason) -> None:
    for response in (heard(chunk("Hi"), chunk("", word)), fold(hear(whole(reason=word)))):
        assert response.reasons == (reason,)
        assert response.status == ("completed" if reason == "stop" else "incomplete")
        assert response.text == "Hi"


def test_unknown_counts_are_preserved() -> None:
    given = {
        "prompt_tokens": 1,
        "seconds": 0.5,
        "nothing": None,
        "prompt_tokens_details": {"cached_tokens": 4, "tiles": 2},
        "completion_tokens_details": "odd",
    }
    found = decode_usage(given, "completions")
    assert (found.cached_tokens, found.reasoning_tokens) == (4, None)
    del given["nothing"]
    assert encode_usage(found, "completions") == given
    both = decode_usage({"prompt_tokens": 1, "completion_tokens": 2}, "completions")
    assert both is not None
    assert encode_usage(both, "completions")["total_tokens"] == 3


def test_too_much_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(body, "MAX_ANSWER", 10)
    assert "more than 10 bytes" in failed(b'{"choices": []}').message
    monkeypatch.setattr("dragoman.wire.sse.MAX_EVENT", 100)
    assert "larger than" in failed(b"data: " + b"x" * 200).message
    assert hear(b'{"choices": [' + b" " * 20, b"more") != []
