"""What the plain values know about themselves."""

import pickle

import pytest

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.interfaces import Caller, Secret
from dragoman.core.item import (
    FunctionCall,
    Image,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    UnknownPart,
)
from dragoman.core.response import Response


def test_a_message_reads_as_text_and_parts_either_way() -> None:
    assert Message("user", "Hi").parts == (Text("Hi"),)
    assert Message("user", "Hi").text == "Hi"
    assert Message("user", (Text("a"), Image("u"), Text("b"))).text == "ab"
    assert Message("user").parts == ()


def test_reasoning_text_is_the_content_or_else_the_summary() -> None:
    unknown = UnknownPart("responses", {})
    assert Reasoning((Thought("a"), unknown, Thought("b")), (Summary("s"),)).text == "ab"
    assert Reasoning((), (Summary("s"),)).text == "s"


def test_r1_5_a_whole_answer_reads_as_text_calls_reasoning_and_refusal() -> None:
    call = FunctionCall("c", "f", "{}")
    output = (
        Reasoning((Thought("hm"),)),
        Message("assistant", (Text("a"), Refusal("no"))),
        call,
        Message("assistant", "b"),
        Message("assistant", "other"),
    )
    one = Response(id="r", created_at=0, model="m", status="completed", output=output[:4])
    two = Response(
        id="r", created_at=0, model="m", status="completed", output=output, choices=(0, 0, 0, 0, 1)
    )
    for response in (one, two):
        assert (response.text, response.refusal, response.reasoning) == ("ab", "no", "hm")
        assert response.calls == (call,)
    assert (one.choice(1), two.choice(1)) == ((), output[4:])


def test_faults_name_their_field() -> None:
    assert bad_request("is wrong", "n").message == "n: is wrong"
    assert bad_request("is wrong").param is None
    assert unsupported("cannot be", "n").code == "unsupported"
    with pytest.raises(FaultError, match="n: is wrong") as raised:
        raise FaultError(bad_request("is wrong", "n"))
    assert raised.value.fault.param == "n"


def test_p45_a_caller_and_a_secret_do_not_print_keys() -> None:
    canary = "canary-" + "key"
    key = Secret(canary)
    assert key.reveal() == canary
    assert canary not in repr(key) + str(key) + f"{[key]}" + repr(Caller(tenant="t", key=key))
    with pytest.raises(TypeError):
        pickle.dumps(key)
