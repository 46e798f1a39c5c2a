"""The short cut through plain requests and answers gives what the long way gives, or nothing."""

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.item import Message, Text
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.core.turn import Turn
from dragoman.wire import json as body
from dragoman.wire.chat import CHAT, request, response, stream
from dragoman.wire.chat import request as plain
from dragoman.wire.dialect import Dialect

DIALECTS = (
    Dialect(),
    Dialect(max_tokens="max_tokens", ask_usage=False),
    Dialect(drop=frozenset({"top_p"})),
)
text = st.text(max_size=5) | st.sampled_from(["", " a", "<think>b</think>c", "<", " ", "é\n"])
odd = st.sampled_from(
    [None, True, 0, 1, 2, 2.0, 2.5, -1, 1e400, "1", "", [], {}, ["a"], {"include_usage": None}]
)


def maybe(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is usual, now and then something odd."""
    return st.one_of(usual, usual, usual, usual, odd)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


# ---- requests ----------------------------------------------------------------------------

messages = st.fixed_dictionaries(
    {"role": maybe(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))},
    optional={"content": maybe(text), "name": odd},
)
bodies = st.fixed_dictionaries(
    {"model": maybe(st.just("m")), "messages": maybe(st.lists(messages, max_size=4))},
    optional={
        "temperature": maybe(st.floats(0, 2)),
        "top_p": maybe(st.floats(0, 1)),
        "max_tokens": maybe(st.integers(0, 9)),
        "max_completion_tokens": maybe(st.integers(0, 9)),
        "stream": maybe(st.booleans()),
        "stream_options": maybe(st.just({"include_usage": True})),
    },
)


def the_long_way(data: bytes) -> Request | None:
    try:
        return request._decode(body.parse(data))
    except FaultError:
        return None


@given(bodies.map(dumped))
def test_a_request_read_by_the_short_cut_is_the_request(data: bytes) -> None:
    short = plain.decode_request(data)
    assert short is None or short == the_long_way(data)


def test_of_two_fields_with_one_name_the_last_counts() -> None:
    data = b'{"model":"a","model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert plain.decode_request(data) == the_long_way(data) is not None


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}']
)
def test_what_is_no_json_is_left_to_the_long_way(data: bytes) -> None:
    assert plain.decode_request(data) is None


def test_a_plain_request_takes_the_short_cut() -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    said |= {"temperature": 1, "stream": True, "stream_options": {"include_usage": True}}
    heard = plain.decode_request(dumped(said))
    assert heard is not None
    assert plain.encode_request(heard, DIALECTS[1]) is not None


spoken = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant"]),
    text | st.just((Text("a"),)),
    id=st.sampled_from([None, None, None, "msg_1"]),
)
requests = st.builds(
    Request,
    model=st.just("m"),
    items=st.lists(spoken, min_size=1, max_size=4).map(tuple),
    instructions=st.sampled_from([None, None, "Be brief.", (Message("system", "a"),)]),
    sampling=st.builds(
        Sampling,
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0, 1),
        seed=st.sampled_from([None, None, None, 7]),
    ),
    max_output_tokens=st.none() | st.integers(1, 9),
    stream=st.booleans(),
    stream_options=st.none()
    | st.builds(StreamOptions, st.none() | st.booleans(), st.sampled_from([None, None, True])),
    store=st.sampled_from([None, None, False]),
    extra=st.sampled_from([None, None, {"chat": {}}, {"chat": {"a": 1}}, {"responses": {"b": 2}}]),
)


@given(requests, st.sampled_from(DIALECTS))
def test_a_request_said_by_the_short_cut_is_the_same_bytes(asked: Request, way: Dialect) -> None:
    short = plain.encode_request(asked, way)
    if short is not None:
        with mock.patch.object(plain, "encode_request", return_value=None):
            assert (short, ()) == CHAT.encode_request(asked, way)


# ---- answers -----------------------------------------------------------------------------

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


def events(data: bytes, think: Any) -> list[Event]:
    reading = CHAT.decoder(Turn("R", 5, "asked", think=think))
    return reading.feed(data) + reading.close()


@given(answers.map(dumped), st.sampled_from(["inline", "reasoning", None]))
def test_an_answer_heard_by_the_short_cut_gives_the_same_events(data: bytes, think: Any) -> None:
    with mock.patch.object(stream, "read_answer", return_value=False):
        the_long_way = events(data, think)
    assert events(data, think) == the_long_way


@given(answers.map(dumped))
def test_an_answer_said_by_the_short_cut_is_the_same_bytes(data: bytes) -> None:
    whole = fold(events(data, "inline"))
    asked = Request(model="m")
    with mock.patch.object(response, "only_text", return_value=None):
        the_long_way = CHAT.encode_response(whole, asked, Dialect())
    assert CHAT.encode_response(whole, asked, Dialect()) == the_long_way


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


def test_a_plain_answer_takes_the_short_cut_both_ways() -> None:
    turn = Turn("R", 5, "asked")
    assert plain.read_answer(dumped(PLAIN), turn)
    whole = fold(turn.take())
    assert plain.only_text(whole) == " a"
    assert plain.only_text(replace(whole, choices=(0,))) is None


def test_an_answer_that_was_begun_while_it_was_waited_for_goes_the_long_way() -> None:
    turn = Turn("R", 5, "asked")
    turn.begin()
    reading = CHAT.decoder(turn)
    begun = turn.take()
    assert fold(begun + reading.feed(dumped(PLAIN)) + reading.close()).text == " a"


def test_a_turn_that_looks_into_its_text_sees_all_of_it() -> None:
    seen: list[str] = []

    class Looking(Turn):
        def text(self, data: str, choice: int = 0, tokens: Any = ()) -> None:
            seen.append(data)
            super().text(data, choice, tokens)

    assert not plain.read_answer(dumped(PLAIN), Looking("R", 5, "m"))
    turn = Looking("R", 5, "m")
    turn.text("a")
    turn.texts(["b", "c"])
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize("size", [1, 2, 20])
def test_texts_in_a_row_are_the_texts_one_by_one(size: int) -> None:
    def said(*, together: bool, open: bool) -> list[Event]:
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
        assert said(together=True, open=open) == said(together=False, open=open)


@pytest.mark.parametrize("before", ["thought", "half"])
def test_texts_that_follow_something_else_are_said_one_by_one(before: str) -> None:
    def said(*, together: bool) -> list[Event]:
        turn = Turn("R", 5, "m", think=None)
        if before == "thought":
            turn.reasoning("hm")
        else:
            turn.text("a\ud83d")
        turn.texts(["a", "b"]) if together else [turn.text(each) for each in "ab"]
        return turn.take()

    assert said(together=True) == said(together=False)


def test_two_turns_of_the_assistant_in_a_row_go_the_long_way() -> None:
    twice = [{"role": "assistant", "content": "a"}] * 2
    assert plain.decode_request(dumped({"model": "m", "messages": twice})) is None


def test_an_answer_may_say_nothing_of_itself() -> None:
    turn = Turn("R", 5, "asked")
    bare = {"message": {"content": "a"}, "finish_reason": "length"}
    assert plain.read_answer(dumped({"choices": [bare]}), turn)
    assert fold(turn.take()).status == "incomplete"


def test_instructions_of_a_request_that_is_not_plain_come_first() -> None:
    asked = Request(model="m", items=(Message("user", "a"),), instructions="Be brief.", store=False)
    body_, _ = CHAT.encode_request(asked, Dialect())
    assert [m["role"] for m in json.loads(body_)["messages"]] == ["system", "user"]
