"""Requests for raw text: what is taken, what is refused, and what is asked of each server."""

from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import Message
from dragoman.core.request import Completion, Request, Sampling, StreamOptions, completion_request
from dragoman.wire import json
from dragoman.wire.completions import decode_request, encode_request
from dragoman.wire.protocol import STANDARD, Dialect


def heard(**fields: Any) -> Completion:
    request = decode_request(json.dump({"model": "m", "prompt": "a", **fields}))
    assert isinstance(request, Completion)
    return request


def asked(dialect: Dialect = STANDARD, **fields: Any) -> dict[str, Any]:
    said, _ = encode_request(Completion(**{"model": "m", "prompts": ("a",), **fields}), dialect)
    found: dict[str, Any] = json.load(said)
    return found


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_a_prompt_is_text_or_ids_or_several(given: Any, prompts: Any) -> None:
    assert heard(prompt=given).prompts == prompts


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "is missing"),
        ({"prompt": []}, "prompt", "is empty"),
        ({"prompt": {"a": 1}}, "prompt", "is an object, and must be"),
        ({"prompt": ["a", 1]}, "prompt[1]", "is a number, and must be"),
        ({"prompt": ["a", []]}, "prompt[1]", "is an empty array"),
        ({"prompt": [1, "a"]}, "prompt[1]", "must be a token id"),
        ({"prompt": [1, -1]}, "prompt[1]", "must be a token id"),
        ({"prompt": [[1, True]]}, "prompt[0][1]", "must be a token id"),
        ({"prompt": ["a"] * 11, "n": 100}, "prompt", "makes 1100 choices"),
        ({"suffix": "end"}, "suffix", "cannot be carried"),
        ({"best_of": 3}, "best_of", "cannot be carried"),
        ({"best_of": 1, "n": 2}, "best_of", "must be at least n, which is 2"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1"),
        ({"max_tokens": -1, "echo": True}, "max_tokens", "at least 0"),
        ({"logprobs": True}, "logprobs", "must be an integer"),
        ({"logprobs": 21}, "logprobs", "must be at most 20"),
        ({"temperature": 9}, "temperature", "must be at most 2"),
        ({"stop": 7}, "stop", "must be a string"),
        ({"stop": ["a", 7]}, "stop[1]", "must be a string"),
        ({"model": ""}, "model", "is empty"),
        ({"stream_options": 7}, "stream_options", "must be an object"),
    ],
)
def test_invalid_or_unsupported_field_is_named(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(FaultError) as caught:
        heard(**fields)
    assert caught.value.fault.param == param
    assert words in caught.value.fault.message


def test_fields_with_neutral_values_are_accepted() -> None:
    request = heard(suffix=None, best_of=2, n=2, stop=[], logprobs=0, repeat_penalty=1.1)
    assert request.sampling == Sampling(n=2, logprobs=True, top_logprobs=0, repetition_penalty=1.1)
    assert heard(suffix="").extra is None
    assert heard(stop="x", echo=True, max_tokens=0).max_output_tokens == 0
    assert heard(logit_bias={"5": 1, "6": None}).sampling.logit_bias == {"5": 1}
    assert heard(grammar="g").extra == {"completions": {"grammar": "g"}}


# ---- R2 1-3 -----------------------------------------------------------------------------------


def test_r2_1_sampling_is_encoded_as_requested() -> None:
    assert asked(sampling=Sampling(temperature=0)) == {
        "model": "m",
        "prompt": "a",
        "temperature": 0,
    }
    said = asked(sampling=Sampling(temperature=0.7, top_p=0.9))
    assert (said["temperature"], said["top_p"]) == (0.7, 0.9)
    assert asked(sampling=Sampling(top_k=40))["top_k"] == 40


def test_r2_2_unset_fields_are_not_encoded() -> None:
    assert asked() == {"model": "m", "prompt": "a"}
    assert heard().sampling == Sampling()
    assert heard().max_output_tokens is None


def test_r2_3_limits_penalties_and_stops_use_the_names_of_the_server() -> None:
    sampling = Sampling(
        repetition_penalty=1.0,
        frequency_penalty=0,
        min_p=0,
        seed=0,
        logit_bias={"5": 1},
        stop=("x",),
    )
    said = asked(sampling=sampling, max_output_tokens=5)
    assert said == {
        "model": "m",
        "prompt": "a",
        "max_tokens": 5,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0,
        "min_p": 0,
        "seed": 0,
        "logit_bias": {"5": 1},
        "stop": ["x"],
    }
    llama = asked(Dialect(repetition_penalty="repeat_penalty"), sampling=sampling)
    assert llama["repeat_penalty"] == 1.0
    assert "repetition_penalty" not in llama
    assert "stop" not in asked(sampling=Sampling(stop=()))
    for limit in (0, -1):
        with pytest.raises(FaultError):
            heard(max_tokens=limit)


def test_the_limit_has_its_old_name_with_every_server() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert asked(Dialect(max_tokens=name), max_output_tokens=5)["max_tokens"] == 5


# ---- the rest ----------------------------------------------------------------------------------


def test_several_prompts_are_a_list() -> None:
    assert asked(prompts=("a", (1, 2)))["prompt"] == ["a", [1, 2]]
    assert asked(prompts=((1, 2),))["prompt"] == [1, 2]


def test_a_stream_asks_for_usage_unless_that_chokes_the_server() -> None:
    assert asked(stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in asked(Dialect(ask_usage=False), stream=True)
    options = StreamOptions(include_obfuscation=False, extra={"completions": {"x": 1}})
    said = asked(Dialect(ask_usage=False), stream=True, stream_options=options)
    assert said["stream_options"] == {"include_obfuscation": False, "x": 1}


def test_field_a_server_refuses_is_dropped_and_reported() -> None:
    request = Completion(
        model="m",
        prompts=("a",),
        sampling=Sampling(top_k=3),
        stream_options=StreamOptions(include_usage=True),
    )
    said, losses = encode_request(request, Dialect(drop=frozenset({"top_k", "min_p"})))
    assert json.load(said) == {"model": "m", "prompt": "a"}
    assert [loss.field for loss in losses] == ["stream_options", "top_k"]


def test_a_conversation_is_no_prompt() -> None:
    with pytest.raises(FaultError) as caught:
        encode_request(Request(model="m", items=(Message("user", "Hi"),)), STANDARD)
    assert caught.value.fault.param == "items"


def test_a_request_is_asked_of_prompts() -> None:
    request = completion_request(Request(model="m", stream=True), ["a", [1]], echo=True)
    assert request == Completion(model="m", prompts=("a", (1,)), echo=True, stream=True)
    assert completion_request(request, ["b"]) == Completion(model="m", prompts=("b",), stream=True)
