"""Answers whose most tokens have no room beside the prompt: asked for again, shorter, reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import TOO_LONG, Fault
from dragoman.core.interfaces import Caller
from dragoman.core.request import ReasoningOptions, Sampling
from dragoman.core.response import Response
from dragoman.engines.again import room
from dragoman.wire.registry import WIRES
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, fault, remote
from tests.engines.test_effort import NO_THINKING, refused
from tests.mock import Asked, Reply, message, plain, response, said

LONG = asking(max_output_tokens=32_000)
VLLM = (
    "'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's maximum context "
    "length is {context} tokens and your request has {prompt} input tokens ({most} > {context} - "
    "{prompt}). (parameter=max_tokens, value={most})"
)
OLD = (
    "This model's maximum context length is {context} tokens. However, you requested {total} "
    "tokens ({prompt} in the messages, {most} in the completion). Please reduce the length of the "
    "messages or completion."
)
NEW = (
    "This model's maximum context length is {context} tokens. However, you requested {most} output "
    "tokens and your prompt contains at least {least} input tokens, for a total of at least "
    "{over} tokens. Please reduce the length of the input prompt or the number of requested output "
    "tokens. (parameter=input_tokens, value={least})"
)
CHARACTERS = (
    "This model's maximum context length is {context} tokens. However, you requested {most} output "
    "tokens and your prompt contains 98304 characters (more than 12288 characters, which is the "
    "upper bound for {least} input tokens)."
)
EXACT = (
    "This model's maximum context length is {context} tokens. However, you requested {most} output "
    "tokens and your prompt contains {prompt} input tokens, for a total of {total} tokens."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of {context} tokens. You "
    "requested a total of {total} tokens: {prompt} tokens from the input messages and {most} "
    "tokens for the completion."
)
OPENROUTER = (
    "This endpoint's maximum context length is {context} tokens. However, you requested about "
    "{total} tokens ({prompt} of text input, {most} in the output)."
)
OPENAI = (
    "max_tokens is too large: {most}. This model supports at most {context} completion tokens, "
    "whereas you provided {most}."
)

NIM = (
    "You passed {least} input tokens and requested {most} output tokens. However, the model's "
    "context length is only {context} tokens, resulting in a maximum input length of 768 tokens. "
    "Please reduce the length of the input prompt. (parameter=input_tokens, value={least})"
)
GREATER = (
    "max_tokens={most} cannot be greater than max_model_len=max_total_tokens={context}. Please "
    "request fewer output tokens. (parameter=max_tokens, value={most})"
)
GROQ = (
    "`max_tokens` must be less than or equal to `{context}`, the maximum value for `max_tokens` is "
    "less than the `context_window` for this model"
)
ANTHROPIC = (
    "max_tokens: {most} > {context}, which is the maximum allowed number of output tokens for m"
)
DEEPSEEK = "Invalid max_tokens value, the valid range of max_tokens is [1, {context}]"
DASHSCOPE = (
    "<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be      [1, {context}]"
)
DOUBAO = (
    "The parameter `max_completion_tokens` specified in the request are not valid: integer above "
    "maximum value, expected a value <= {context}, but got {most} instead. Request id: 02177529"
)
AZURE = (
    "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= {context}, but "
    "got {most} instead."
)
BEDROCK = (
    "The maximum tokens you requested exceeds the model limit of {context}. Try again with a "
    "maximum tokens value that is lower than {context}."
)
BESIDE = (
    "input length and `max_tokens` exceed context limit: {prompt} + {most} > {context}, decrease "
    "input length or `max_tokens` and try again"
)


class Small:
    """A server of Chat with a model of this context, and a prompt of so many tokens."""

    def __init__(self, words: str = VLLM, context: int = 40_960, prompt: int = 13_523) -> None:
        self.words, self.context, self.prompt = words, context, prompt

    def __call__(self, asked: Asked) -> Reply:
        sent = asked.json
        most = sent.get("max_tokens") or sent.get("max_completion_tokens") or 0
        if self.prompt + most > self.context:
            return refused(self.refusal(most))
        return HELLO_STREAM if sent.get("stream") else HELLO

    def refusal(self, most: int) -> str:
        return self.words.format(
            most=most,
            context=self.context,
            prompt=self.prompt,
            total=self.prompt + most,
            least=self.context - most + 1,
            over=self.context + 1,
        )


def sent(up: Any) -> list[int | None]:
    bodies = [asked.json for asked in up.asked]
    return [each.get("max_tokens") or each.get("max_completion_tokens") for each in bodies]


def lost(answer: Response) -> list[tuple[str, str]]:
    return [(loss.field, loss.action) for loss in answer.losses]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("profile", ["vllm", None])
@pytest.mark.parametrize("words", [VLLM, OLD, EXACT, SGLANG, OPENROUTER, BESIDE])
async def test_an_answer_is_as_long_as_there_is_room_beside_the_prompt(
    words, profile, stream
) -> None:
    async with remote(Small(words), profile=profile) as (engine, up):
        for _ in range(2):
            answer = await ask(engine, replace(LONG, stream=stream))
            assert (answer.text, lost(answer)) == ("Hello", [("max_output_tokens", "emulated")])
        assert sent(up) == [32_000, 40_960 - 13_523] * 2
        names = ("max_tokens", "max_completion_tokens")
        first, second, *_ = [{**each.json, **dict.fromkeys(names)} for each in up.asked]
        assert first == second, "nothing else is changed"


@pytest.mark.parametrize(
    ("words", "context"), [(NEW, 40_960), (CHARACTERS, 32_768), (NIM, 32_768), (GREATER, 16_384)]
)
async def test_a_quarter_of_the_context_is_asked_for_where_the_prompt_is_not_counted(
    words, context
) -> None:
    async with remote(Small(words, context, prompt=context // 3)) as (engine, up):
        assert (await ask(engine, LONG)).text == "Hello"
        assert sent(up) == [32_000, context // 4]


@pytest.mark.parametrize("words", [GROQ, ANTHROPIC, DEEPSEEK, DASHSCOPE, DOUBAO, AZURE, BEDROCK])
async def test_an_answer_is_no_longer_than_a_server_says_that_any_may_be(words) -> None:
    async with remote(Small(words, 8_192, prompt=0)) as (engine, up):
        assert (await ask(engine, LONG)).text == "Hello"
        assert sent(up) == [32_000, 8_192]


@pytest.mark.parametrize("words", [ANTHROPIC, BESIDE])
async def test_a_wire_that_demands_a_limit_has_less_where_ours_is_refused(words) -> None:
    def reply(asked: Asked) -> Reply:
        most = asked.json["max_tokens"]
        if most > 8_192:
            return refused(
                words.format(most=most, context=98_192, prompt=90_000)
                if words is BESIDE
                else words.format(most=most, context=8_192)
            )
        return plain(200, message({"type": "text", "text": "Hello"}))

    async with remote(reply, wire="messages") as (engine, up):
        assert (await ask(engine, asking())).text == "Hello"
        assert sent(up) == [32_000, 8_192]


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
@pytest.mark.parametrize("size", [0, 100_000])
async def test_every_wire_names_the_most_tokens_as_its_own(wire, size) -> None:
    words = [{"role": "user", "content": "Go." + " " * size}]
    fields = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}
    field = fields.get(wire, "max_tokens")
    asked = {"model": "m", "input" if wire == "responses" else "messages": words, field: 32_000}
    request = WIRES[wire].decode_request(json.dumps(asked).encode())
    async with remote(Small()) as (engine, up):
        answer = await ask(engine, request, Caller(wire=wire, size=size))
        assert (answer.text, lost(answer)) == ("Hello", [(field, "emulated")])
        assert sent(up) == [32_000, 27_437]


async def test_servers_of_other_wires_are_asked_again_too() -> None:
    def responses(asked: Asked) -> Reply:
        most = asked.json["max_output_tokens"]
        if most > 27_437:
            return refused(Small().refusal(most))
        return plain(200, response(said("Hello")))

    def messages(asked: Asked) -> Reply:
        most = asked.json["max_tokens"]
        if most > 27_437:
            return refused(Small().refusal(most))
        return plain(200, message({"type": "text", "text": "Hello"}))

    for wire, reply in (("responses", responses), ("messages", messages)):
        async with remote(reply, wire=wire) as (engine, up):
            answer = await ask(engine, LONG, Caller(wire=wire))
            assert (answer.text, len(answer.losses), len(up.asked)) == ("Hello", 1, 2)


async def test_a_bare_prompt_is_continued_as_far_as_there_is_room() -> None:
    async with remote(Small(OLD)) as (engine, up):
        async for _ in engine.complete("Once", replace(LONG, items=())):
            pass
        assert sent(up) == [32_000, 27_437]


async def test_the_most_that_a_model_supports_is_asked_for() -> None:
    async with remote(Small(OPENAI, 16_384, prompt=0)) as (engine, up):
        assert (await ask(engine, LONG)).text == "Hello"
        assert sent(up) == [32_000, 16_384]


async def test_an_effort_may_be_refused_as_well() -> None:
    def reply(asked: Asked) -> Reply:
        return refused(NO_THINKING) if "reasoning_effort" in asked.json else Small()(asked)

    request = replace(LONG, reasoning=ReasoningOptions("high"))
    async with remote(reply) as (engine, up):
        for _ in range(2):
            assert lost(await ask(engine, request)) == [
                ("reasoning.effort", "dropped"),
                ("max_output_tokens", "emulated"),
            ]
        assert sent(up) == [32_000, 32_000, 27_437, 32_000, 27_437]


@pytest.mark.parametrize(
    ("words", "context", "prompt", "most"),
    [
        (VLLM, 40_960, 40_800, 32_000),  # so little is left that the prompt is to be shortened
        (VLLM, 40_960, 40_000, 32_000),  # and calls of agents would be cut off
        (OLD, 40_960, 50_000, 32_000),
        (NEW, 40_960, 38_000, 8_000),
        (VLLM, 40_960, 40_900, 200),
    ],
)
async def test_without_room_the_prompt_is_too_long(words, context, prompt, most) -> None:
    async with remote(Small(words, context, prompt)) as (engine, up):
        found = await fault(engine, replace(LONG, max_output_tokens=most))
        assert (found.upstream_code, len(up.asked)) == (TOO_LONG, 1)
        assert str(context) in found.message


async def test_a_shorter_answer_is_asked_for_once() -> None:
    """Where the prompt is not counted, a quarter of the context may be too much as well."""
    async with remote(Small(NEW, prompt=36_000)) as (engine, up):
        assert (await fault(engine, LONG)).upstream_code == TOO_LONG
        assert sent(up) == [32_000, 10_240]
    async with remote(lambda asked: refused(Small().refusal(32_000))) as (engine, up):
        await fault(engine, LONG)
        assert sent(up) == [32_000, 27_437]


@pytest.mark.parametrize(
    "reply",
    [
        refused("This model's maximum context length is 40960 tokens. It is too much."),
        refused("max_tokens must be at least 1"),
        refused(Small().refusal(32_000), 500),
        refused(Small().refusal(32_000), 429),
        refused(Small(context=99_999).refusal(32_000)),  # which has room
    ],
)
async def test_other_refusals_are_passed_on_at_once(reply) -> None:
    async with remote(lambda asked: reply) as (engine, up):
        await fault(engine, LONG)
        assert len(up.asked) == 1


async def test_without_a_limit_nothing_is_asked_again() -> None:
    async with remote(lambda asked: refused(Small().refusal(32_000))) as (engine, up):
        await fault(engine, asking())
        assert len(up.asked) == 1


def test_refusals_of_any_length_and_number_are_read() -> None:
    for text in (
        "requested 1 tokens " * 4_000,
        "9" * 4_000,
        f"context length is {'9' * 400} tokens",
    ):
        assert room(Fault("upstream_refused", text, status=400)) is None


def refusing(words: str) -> Any:
    """A server that refuses what `words` is about, for as long as it is sent."""

    def reply(asked: Asked) -> Reply:
        sent = asked.json
        both = "both" in words and {"temperature", "top_p"} <= sent.keys()
        for name in ("temperature", "top_p", "top_k"):
            if both or ("both" not in words and sent.get(name) is not None):
                return refused(words.format(name=name))
        return HELLO_STREAM if sent.get("stream") else HELLO

    return reply


BOTH = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("words", "given", "kept"),
    [
        (BOTH, {"temperature": 0.2, "top_p": 1}, {"temperature": 0.2}),
        (BOTH, {"temperature": 1, "top_p": 0.9, "top_k": 5}, {"top_p": 0.9, "top_k": 5}),
        ("`{name}` is deprecated for this model.", {"temperature": 0, "top_p": 1, "top_k": 5}, {}),
        ("{name}: Extra inputs are not permitted", {"temperature": 0.5}, {}),
        ("Unsupported value: '{name}' does not support 0.2 with this model.", {"top_p": 0.2}, {}),
        ("Unsupported parameter: '{name}' is not supported with this model.", {"top_p": 0.2}, {}),
    ],
)
async def test_sampling_that_a_model_does_not_have_is_left_out_and_reported(
    words, given, kept, stream
) -> None:
    async with remote(refusing(words)) as (engine, up):
        request = asking(sampling=Sampling(**given), stream=stream)
        answer = await ask(engine, request)
        assert answer.text == "Hello"
        assert lost(answer) == [(name, "dropped") for name in given if name not in kept]
        names = ("temperature", "top_p", "top_k")
        assert {name: v for name, v in up.asked[-1].json.items() if name in names} == kept
        assert len(up.asked) == 1 + len(given) - len(kept)


@pytest.mark.parametrize(
    "words",
    [
        "temperature: Input should be less than or equal to 1",
        "`top_k` is not supported",
        f"{BOTH} But there is one.",
    ],
)
async def test_sampling_stays_where_something_else_is_refused(words) -> None:
    async with remote(lambda asked: refused(words)) as (engine, up):
        found = await fault(engine, asking(sampling=Sampling(temperature=0.5)))
        assert (found.message, len(up.asked)) == (words, 1)
