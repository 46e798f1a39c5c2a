"""Whole answers: those that are one text are read at once, with the same events as any other."""

import json
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.turn import Turn
from dragoman.wire.chat import CHAT, stream

text = st.text(max_size=5) | st.sampled_from(["", " a", "<think>b</think>c", "<", " ", "é\n"])
odd = st.sampled_from(
    [None, True, 0, 1, 2, 2.0, 2.5, -1, 1e400, "1", "", [], {}, ["a"], {"include_usage": None}]
)


def maybe(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is usual, now and then something odd."""
    return st.one_of(usual, usual, usual, usual, odd)


counts = st.fixed_dictionaries(
    {"prompt_tokens": maybe(st.integers(0, 9))},
    optional={
        "completion_tokens": maybe(st.integers(0, 9)),
        "total_tokens": maybe(st.integers(0, 9)),
        "prompt_tokens_details": maybe(st.just({"cached_tokens": 1, "audio_tokens": None})),
        "completion_tokens_details": maybe(st.just({"reasoning_tokens": 1})),
    },
)
answered = st.fixed_dictionaries(
    {"content": maybe(text)},
    optional={
        "role": maybe(st.just("assistant")),
        "refusal": odd,
        "annotations": odd,
        "reasoning": odd,
    },
)
choices = st.fixed_dictionaries(
    {"message": maybe(answered)},
    optional={
        "finish_reason": maybe(st.sampled_from(["stop", "length"])),
        "index": odd,
        "logprobs": odd,
    },
)
answers = st.fixed_dictionaries(
    {"choices": maybe(st.lists(choices, max_size=2))},
    optional={
        "id": maybe(st.just("chatcmpl-1")),
        "object": maybe(st.just("chat.completion")),
        "created": maybe(st.integers(0, 9)),
        "model": maybe(st.just("m")),
        "usage": maybe(counts),
        "service_tier": maybe(st.just("default")),
        "system_fingerprint": maybe(st.just("fp")),
    },
)


def events(answer: Any, think: Any = "inline") -> list[Event]:
    decoder = CHAT.decoder(Turn("R", 5, "asked", think=think))
    return decoder.feed(json.dumps(answer).encode()) + decoder.close()


def events_of_any_other(answer: Any, think: Any = "inline") -> list[Event]:
    with mock.patch.object(stream, "_answered", side_effect=msgspec.DecodeError):
        return events(answer, think)


@given(answers, st.sampled_from(["inline", "reasoning", None]))
def test_an_answer_of_one_text_gives_the_events_of_any_other(answer, think) -> None:
    expected = events_of_any_other(answer, think)
    assert events(answer, think) == expected


calls = st.fixed_dictionaries(
    {
        "id": maybe(st.sampled_from("ab")),
        "function": maybe(
            st.fixed_dictionaries(
                {
                    "name": maybe(st.just("f")),
                    "arguments": maybe(st.sampled_from(["", "{}", '{"a":1}', "{"])),
                }
            )
        ),
    },
    optional={"type": maybe(st.just("function")), "index": maybe(st.integers(0, 2))},
)


@given(
    maybe(text),
    st.lists(calls, min_size=1, max_size=3),
    st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_an_answer_of_calls_adds_up_to_what_any_other_does(content, calls, reason) -> None:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    assert fold(events(answer)) == fold(events_of_any_other(answer))


PLAIN = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " a", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "service_tier": "default",
}


def test_an_answer_of_one_text_is_not_read_field_by_field() -> None:
    bare = {"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]}
    with mock.patch.object(stream.Decoder, "_read") as read:
        assert fold(events(PLAIN)).text == " a"
        assert fold(events(bare)).status == "incomplete"
    read.assert_not_called()


def test_unknown_counts_of_an_answer_are_passed_on_unless_they_are_nested_too_deeply() -> None:
    answer = {**PLAIN, "usage": {"prompt_tokens": 1, "seconds": {"queue": [0.5]}}}
    assert events(answer) == events_of_any_other(answer)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    failed = fold(events({**PLAIN, "usage": {"x": deep}}))
    assert "nested more than 256 levels deep" in failed.error.message


def test_an_answer_that_was_begun_before_it_came_is_read_into_what_is_open() -> None:
    turn = Turn("R", 5, "asked")
    turn.begin()
    decoder = CHAT.decoder(turn)
    begun = turn.take()
    data = json.dumps(PLAIN).encode()
    assert fold(begun + decoder.feed(data) + decoder.close()).text == " a"


def test_a_turn_that_overrides_text_gets_all_of_it() -> None:
    seen: list[str] = []

    class Overriding(Turn):
        def text(self, data: str, choice: int = 0, tokens: Any = ()) -> None:
            seen.append(data)
            super().text(data, choice, tokens)

    turn = Overriding("R", 5, "m")
    decoder = CHAT.decoder(turn)
    decoder.feed(json.dumps(PLAIN).encode())
    decoder.close()
    turn = Overriding("R", 5, "m")
    turn.text("a")
    turn.texts(["b", "c"])
    assert seen == [" a", "a", "b", "c"]


@pytest.mark.parametrize("size", [1, 2, 20])
def test_texts_in_a_row_are_the_texts_one_by_one(size) -> None:
    def events_of(*, together: bool, open: bool) -> list[Event]:
        turn, pieces = Turn("R", 5, "m"), [f"a{n}é" for n in range(size)]
        if open:
            turn.text("x")
        if together:
            turn.texts(pieces)
        else:
            for piece in pieces:
                turn.text(piece)
        turn.finish("stop")
        turn.end(complete=True)
        return turn.take()

    for open in (True, False):
        assert events_of(together=True, open=open) == events_of(together=False, open=open)


@pytest.mark.parametrize("before", ["thought", "half"])
def test_texts_after_something_else_are_emitted_one_by_one(before) -> None:
    def events_of(*, together: bool) -> list[Event]:
        turn = Turn("R", 5, "m", think=None)
        if before == "thought":
            turn.reasoning("hm")
        else:
            turn.text("a\ud83d")
        turn.texts(["a", "b"]) if together else [turn.text(each) for each in "ab"]
        return turn.take()

    assert events_of(together=True) == events_of(together=False)
