"""What can be read off an answer."""

from typing import Any

import pytest

from dragoman.client import Answer, Spent, arguments
from dragoman.client.answer import spent
from dragoman.core.error import Fault, FaultError
from dragoman.core.item import FunctionCall, Message, Reasoning, Refusal, Text, Thought
from dragoman.core.response import Response, Status, Usage

CALL = FunctionCall("c", "f", '{"a": 1}')


def answer(status: Status = "completed", *output: Any, **rest: Any) -> Answer:
    response = Response(id="r", created_at=0, model="m", status=status, output=output, **rest)
    return Answer(response, Spent())


def test_r1_5_an_answer_is_text_calls_reasoning_refusal_and_usage() -> None:
    said = answer(
        "completed",
        Reasoning((Thought("hm"),)),
        Message("assistant", (Text("Hi"), Refusal("no"))),
        CALL,
    )
    assert (said.text, said.reasoning, said.refusal, said.calls) == ("Hi", "hm", "no", (CALL,))
    assert (said.output, said.status, said.error) == (said.response.output, "completed", None)


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (answer(reasons=("stop",)), "stop"),
        (answer(), "stop"),
        (answer(reasons=("a word nobody knows",)), "stop"),
        (answer("incomplete", reasons=("length",)), "length"),
        (answer("incomplete", reasons=("content_filter",)), "content_filter"),
        (answer("completed", CALL, reasons=("tool_calls",)), "tool_calls"),
        (answer("completed", Message("assistant", (Refusal("no"),)), reasons=("stop",)), "refused"),
        (answer("failed", error=Fault("upstream_cut", "x")), "truncated"),
        (answer("failed", error=Fault("internal", "x")), "error"),
        (answer("cancelled"), "cancelled"),
        (answer("in_progress"), "unfinished"),
    ],
)
def test_r1_w11_every_end_has_its_name(said: Answer, end: str) -> None:
    assert said.end == end


def test_json_is_parsed_when_it_is_asked_for() -> None:
    assert answer("completed", Message("assistant", '{"a": [1]}')).json() == {"a": [1]}
    with pytest.raises(FaultError, match="The answer: 'oops' is not valid JSON"):
        answer("completed", Message("assistant", "oops")).json()


@pytest.mark.parametrize(
    ("text", "value"), [("", {}), (" \n", {}), ("{}", {}), ('{"a":1}', {"a": 1})]
)
def test_r1_7_arguments_are_an_object(text: str, value: Any) -> None:
    assert arguments(FunctionCall("c", "f", text)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{oops", "The arguments of f: '{oops' is not valid JSON"),
        ("[1]", "The arguments of f are an array"),
        ("x" * 1000, "xxx…'"),
    ],
)
def test_r1_7_arguments_that_are_none_are_a_fault_that_quotes_them(text: str, problem: str) -> None:
    with pytest.raises(FaultError) as raised:
        arguments(FunctionCall("c", "f", text))
    assert problem in raised.value.fault.message
    assert len(raised.value.fault.message) < 400


def test_p30_unreported_usage_is_none_and_zero_is_zero() -> None:
    assert spent(None, None, 0.5) == Spent(latency=0.5)
    total = spent(Usage(0, output_tokens=2, extra={"chat": {"x": 1}}), 0.1, 0.5)
    assert (total.input_tokens, total.output_tokens, total.total_tokens) == (0, 2, None)
    assert (total.round_trips, total.time_to_first_token, total.latency) == (1, 0.1, 0.5)
    assert total.extra == {"chat": {"x": 1}}
