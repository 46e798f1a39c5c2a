"""Every field of a request, read and said: what was set, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import Message
from dragoman.core.request import (
    AudioOutput,
    JSONObject,
    JSONSchema,
    ReasoningOptions,
    Request,
    Sampling,
    StreamOptions,
    TextFormat,
)
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from tests.wire.chat.asking import HELLO, PLAIN, USER, hear, losses, lost, refused, tell

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"default": 0}}}

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: (on the wire, as it is read)
    "audio": (
        {"audio": {"voice": {"id": "v"}, "format": "wav", "speed": 2}},
        {"audio": AudioOutput({"id": "v"}, "wav", {"chat": {"speed": 2}})},
    ),
    "frequency_penalty": (
        {"frequency_penalty": -2},
        {"sampling": Sampling(frequency_penalty=-2)},
    ),
    "logit_bias": (
        {"logit_bias": {"50256": -100, "7": 0.5}},
        {"sampling": Sampling(logit_bias={"50256": -100, "7": 0.5})},
    ),
    "logprobs": ({"logprobs": False}, {"sampling": Sampling(logprobs=False)}),
    "max_completion_tokens": ({"max_completion_tokens": 5}, {"max_output_tokens": 5}),
    "metadata": ({"metadata": {"k": "v"}}, {"metadata": {"k": "v"}}),
    "min_p": ({"min_p": 0.1}, {"sampling": Sampling(min_p=0.1)}),
    "modalities": ({"modalities": ["text", "audio"]}, {"modalities": ("text", "audio")}),
    "model": ({"model": "other"}, {"model": "other"}),
    "moderation": ({"moderation": {"level": "x"}}, {"moderation": {"level": "x"}}),
    "n": ({"n": 128}, {"sampling": Sampling(n=128)}),
    "prediction": (
        {"prediction": {"type": "content", "content": "x"}},
        {"prediction": {"type": "content", "content": "x"}},
    ),
    "presence_penalty": ({"presence_penalty": 0}, {"sampling": Sampling(presence_penalty=0)}),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}),
    "prompt_cache_options": (
        {"prompt_cache_options": {"ttl": 1}},
        {"prompt_cache_options": {"ttl": 1}},
    ),
    "prompt_cache_retention": (
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_retention": "24h"},
    ),
    "reasoning": (
        {"reasoning": {"max_tokens": 9}, "reasoning_effort": "low"},
        {"reasoning": ReasoningOptions("low", extra={"chat": {"max_tokens": 9}})},
    ),
    "reasoning_effort": ({"reasoning_effort": "xhigh"}, {"reasoning": ReasoningOptions("xhigh")}),
    "repetition_penalty": (
        {"repetition_penalty": 1.1},
        {"sampling": Sampling(repetition_penalty=1.1)},
    ),
    "response_format text": ({"response_format": {"type": "text"}}, {"format": TextFormat()}),
    "response_format json_object": (
        {"response_format": {"type": "json_object"}},
        {"format": JSONObject()},
    ),
    "response_format json_schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "description": "d", "schema": SCHEMA, "strict": False},
            }
        },
        {"format": JSONSchema("s", SCHEMA, "d", False)},
    ),
    "safety_identifier": ({"safety_identifier": "s"}, {"safety_identifier": "s"}),
    "seed": ({"seed": 0}, {"sampling": Sampling(seed=0)}),
    "service_tier": ({"service_tier": "flex"}, {"service_tier": "flex"}),
    "stop": ({"stop": ["a", "b"]}, {"sampling": Sampling(stop=("a", "b"))}),
    "store": ({"store": False}, {"store": False}),
    "stream": ({"stream": True}, {"stream": True}),
    "stream_options": (
        {
            "stream": True,
            "stream_options": {"include_usage": False, "include_obfuscation": False, "x": 1},
        },
        {"stream": True, "stream_options": StreamOptions(False, False, {"chat": {"x": 1}})},
    ),
    "temperature": ({"temperature": 0}, {"sampling": Sampling(temperature=0)}),
    "top_k": ({"top_k": -1}, {"sampling": Sampling(top_k=-1)}),
    "top_logprobs": (
        {"logprobs": True, "top_logprobs": 20},
        {"sampling": Sampling(logprobs=True, top_logprobs=20)},
    ),
    "top_p": ({"top_p": 1.0}, {"sampling": Sampling(top_p=1.0)}),
    "user": ({"user": "u"}, {"user": "u"}),
    "verbosity": ({"verbosity": "low"}, {"verbosity": "low"}),
    "web_search_options": (
        {"web_search_options": {"search_context_size": "low"}},
        {"web_search": {"search_context_size": "low"}},
    ),
    "unknown": (
        {"vendor": {"a": [1, None]}, "thinking": True},
        {"extra": {"chat": {"vendor": {"a": [1, None]}, "thinking": True}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_r1_w15_every_field_is_read_and_said_again_under_its_name(name: str) -> None:
    wire, read = FIELDS[name]
    request = replace(Request(model="m", items=(HELLO,)), **read)
    assert hear(**wire) == request
    assert tell(request) == {"model": "m", "messages": [USER], **wire}
    assert losses(request) == {}


def test_d8_only_what_was_set_is_said_and_never_a_null() -> None:
    nulls = dict.fromkeys([*FIELDS, "tools", "tool_choice", "functions", "anything"], None)
    nulls = {name: None for name in nulls if " " not in name and name != "model"}
    plain = Request(model="m", items=(HELLO,))
    assert hear(**nulls) == plain
    assert hear(stream=False, tools=[], stop=[]) == plain
    assert tell(plain) == {"model": "m", "messages": [USER]}


def test_r1_w14_no_sampling_value_is_invented() -> None:
    sampled = {*Sampling.__struct_fields__, "max_completion_tokens", "max_tokens"}
    assert not sampled & tell(Request(model="m", items=(HELLO,), stream=True), STANDARD).keys()


# ---- names that differ -------------------------------------------------------------------


def test_r1_w15_the_limit_and_the_penalty_go_by_the_name_the_server_knows() -> None:
    request = hear(max_tokens=5, repeat_penalty=1.5)
    assert (request.max_output_tokens, request.sampling.repetition_penalty) == (5, 1.5)
    other = Dialect(max_tokens="max_tokens", repetition_penalty="repeat_penalty")
    said = tell(request, other)
    assert (said["max_tokens"], said["repeat_penalty"]) == (5, 1.5)
    assert not {"max_completion_tokens", "repetition_penalty"} & said.keys()


def test_a_field_given_under_two_names_is_one_field_or_both_are_kept() -> None:
    same = hear(max_completion_tokens=5, max_tokens=5)
    assert (same.max_output_tokens, same.extra) == (5, None)
    both = hear(max_completion_tokens=5, max_tokens=7, repetition_penalty=1.0, repeat_penalty=2.0)
    assert (both.max_output_tokens, both.sampling.repetition_penalty) == (5, 1.0)
    assert both.extra == {"chat": {"max_tokens": 7, "repeat_penalty": 2.0}}


def test_one_stop_string_and_several() -> None:
    assert hear(stop="x").sampling.stop == ("x",)
    assert hear(stop=["x"] * 5).sampling.stop == ("x",) * 5


@pytest.mark.parametrize(
    ("fields", "effort", "extra"),
    [
        ({"reasoning": {"effort": "high"}}, "high", None),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "high"}, "high", None),
        (
            {"reasoning": {"effort": "high"}, "reasoning_effort": "low"},
            "low",
            {"chat": {"effort": "high"}},
        ),
        (
            {"reasoning": {"effort": 3, "exclude": True}},
            None,
            {"chat": {"effort": 3, "exclude": True}},
        ),
    ],
)
def test_reasoning_options_in_the_form_of_routers(
    fields: dict[str, Any], effort: str | None, extra: Any
) -> None:
    request = hear(**fields)
    assert request.reasoning == ReasoningOptions(effort, extra=extra)
    assert hear(**tell(request)) == request


def test_reasoning_options_that_say_nothing_and_that_are_no_object() -> None:
    assert hear(reasoning={}).reasoning is None
    odd = hear(reasoning=True, reasoning_effort="low")
    assert odd.reasoning == ReasoningOptions("low")
    assert odd.extra == {"chat": {"reasoning": True}}
    assert hear(reasoning=True).reasoning is None


def test_vendor_response_formats_are_kept_and_fields_beside_a_known_one_too() -> None:
    grammar = {"type": "grammar", "grammar": "root ::= x"}
    assert hear(response_format=grammar).extra == {"chat": {"response_format": grammar}}
    loose = {"type": "json_object", "schema": SCHEMA}
    request = hear(response_format=loose)
    assert request.format == JSONObject()
    assert tell(request)["response_format"] == loose
    named = {"type": "json_schema", "json_schema": {"name": "s", "x": 1}, "y": 2}
    request = hear(response_format=named)
    assert request.format == JSONSchema("s", extra={"chat": {"x": 1}})
    assert tell(request)["response_format"] == named


# ---- what is refused ---------------------------------------------------------------------

REFUSED = json.loads(Path(__file__).with_name("cases").joinpath("refused.json").read_text())


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_malformed_or_out_of_range_field_is_refused_by_its_path(
    fields: dict[str, Any], param: str
) -> None:
    """R2 23 among them: an unknown role."""
    fault = refused(**fields)
    assert fault.param == param
    assert fault.message.startswith(param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model":"m"}', b"[" * 9999]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(FaultError) as caught:
        CHAT.decode_request(body)
    assert caught.value.fault.code == "invalid_request"


# ---- what a dialect costs ----------------------------------------------------------------


def test_p29_usage_is_asked_of_every_stream_whatever_the_client_asked() -> None:
    asked = {"include_usage": True}
    assert tell(hear(stream=True), STANDARD)["stream_options"] == asked
    off = hear(stream=True, stream_options={"include_usage": False, "include_obfuscation": False})
    assert tell(off, STANDARD)["stream_options"] == {**asked, "include_obfuscation": False}
    assert "stream_options" not in tell(hear(stream=True), PLAIN)
    assert "stream_options" not in tell(hear(), STANDARD)
    # The request itself still tells what the client asked, for whoever answers it.
    assert off.stream_options == StreamOptions(False, False)


def test_stream_options_without_a_stream_are_told() -> None:
    request = hear(stream_options={"include_usage": True})
    assert tell(request, STANDARD) == {"model": "m", "messages": [USER]}
    assert losses(request) == {"stream_options": "dropped"}


def test_fields_that_choke_a_server_are_dropped_and_told() -> None:
    request = hear(store=True, seed=1, vendor=1, user="u")
    short = Dialect(drop=frozenset({"store", "vendor", "verbosity"}), ask_usage=False)
    assert tell(request, short) == {"model": "m", "messages": [USER], "seed": 1, "user": "u"}
    assert losses(request, short) == {"store": "dropped", "vendor": "dropped"}
    assert all(loss.why for loss in lost(request, short))


def test_log_probabilities_may_be_asked_for_in_another_protocols_way() -> None:
    by_include = Request(model="m", items=(HELLO,), include=("message.output_text.logprobs",))
    assert tell(by_include)["logprobs"] is True
    by_number = Request(model="m", items=(HELLO,), sampling=Sampling(top_logprobs=2))
    assert tell(by_number)["logprobs"] is True
    none = Request(model="m", items=(HELLO,), sampling=Sampling(top_logprobs=0))
    assert tell(none) == {"model": "m", "messages": [USER], "top_logprobs": 0}


def test_instructions_come_first_as_a_system_message() -> None:
    request = Request(model="m", items=(HELLO,), instructions="Be brief.")
    assert tell(request)["messages"] == [{"role": "system", "content": "Be brief."}, USER]
    several = replace(request, instructions=(Message("developer", "a"), Message("user", "b")))
    assert tell(several)["messages"] == [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": "b"},
        USER,
    ]


def test_p37_what_chat_cannot_say_is_told_or_refused() -> None:
    told = Request(model="m", items=(HELLO,), max_tool_calls=3, truncation="auto")
    assert losses(told) == {"max_tool_calls": "dropped", "truncation": "dropped"}
    with pytest.raises(FaultError) as caught:
        tell(Request(model="m", items=(HELLO,), previous_response_id="r"))
    assert caught.value.fault.code == "unsupported"
    assert caught.value.fault.param == "previous_response_id"


def test_p31_the_same_history_gives_the_same_bytes_and_growing_it_the_same_prefix() -> None:
    turn = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "é"}]},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "r",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{ "b":1, "a":2 }'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    more = [{"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]

    def raw(*messages: Any) -> bytes:
        return CHAT.encode_request(hear(*messages), PLAIN)[0]

    assert raw(*turn) == raw(*turn)
    assert raw(*turn, *more).startswith(raw(*turn).removesuffix(b"]}"))
    assert json.loads(raw(*turn, *more))["messages"] == turn + more


# ---- numbers and characters that JSON allows ---------------------------------------------


def test_an_integer_may_be_written_as_a_float() -> None:
    request = hear(max_tokens=4096.0, n=2.0, vendor=1.0)
    assert (request.max_output_tokens, request.sampling.n) == (4096, 2)
    assert request.extra == {"chat": {"vendor": 1.0}}


def test_a_lone_surrogate_is_replaced() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a\\ud83d"}],"n":1.0}'
    request = CHAT.decode_request(body)
    assert request.items == (Message("user", "a\ufffd"),)
    assert request.sampling.n == 1


def test_of_two_fields_with_one_name_the_last_counts() -> None:
    body = b'{"model":"a","model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert CHAT.decode_request(body) == Request(model="m", items=(Message("user", "\U0001f600"),))
