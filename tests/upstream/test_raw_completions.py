"""llama.cpp as a server of raw text: our template and our parser do what its chat endpoint does.

The same model is asked twice, once over its own chat endpoint and once over `/v1/completions` with
its chat template rendered here. Both must say the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from openai import OpenAI

from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Reasoning, Text
from dragoman.core.request import Completion, FunctionTool, Request, Sampling
from dragoman.core.response import Response
from dragoman.engines.completions import CompletionServer
from dragoman.engines.remote import Remote
from dragoman.engines.router import Prompted
from dragoman.formats.template import Template
from tests.engines.asking import ask
from tests.product import dragoman
from tests.upstream.llamacpp import MODEL_FILE, MODEL_FOLDER, Llamacpp
from training.tiny.transcripts import ADD, GET_WEATHER, HELLO

WEATHER, PLUS = (FunctionTool(**tool["function"]) for tool in (GET_WEATHER, ADD))
CONTROLS = ("<|im_start|>", "<|im_end|>")
PROMPT = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
async def raw(llamacpp: Llamacpp) -> AsyncIterator[CompletionServer]:
    """The server as one of raw text."""
    template = (MODEL_FOLDER / "template.jinja").read_text(encoding="utf-8")
    format = Template(template, "hermes", CONTROLS)
    engine = CompletionServer(llamacpp.base_url, format=format)
    yield engine
    await engine.close()


@pytest.fixture
async def chat(llamacpp: Llamacpp) -> AsyncIterator[Remote]:
    """The same server over its own chat endpoint."""
    engine = Remote(llamacpp.base_url, wire="chat")
    yield engine
    await engine.close()


def asking(*items: Any, **fields: Any) -> Request:
    said = tuple(Message("user", each) if isinstance(each, str) else each for each in items)
    sampling = Sampling(temperature=0)
    return Request(**{"model": "tiny-test", "items": said, "sampling": sampling, **fields})


def said(response: Response) -> list[tuple[str, ...]]:
    """What an answer holds, without its ids."""
    found: list[tuple[str, ...]] = []
    for item in response.output:
        match item:
            case Message():
                found.append(("text", item.text.strip()))
            case Reasoning():
                found.append(("thought", item.text.strip()))
            case FunctionCall():
                found.append(("call", item.name, item.arguments))
    return found


QUESTIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "greeting": (("Hello!",), {}),
    "emoji": (("Send me an emoji.",), {}),
    "thinking": (("Think. What is 2 plus 3?",), {}),
    "system": ((Message("system", "Be brief."), "Who are you?"), {}),
    "turns": (
        (
            "My name is Linus.",
            Message("assistant", (Text("Nice to meet you, Linus."),)),
            "What is my name?",
        ),
        {},
    ),
    "one call": (("What is the weather in Paris?",), {"tools": (WEATHER,)}),
    "two calls": (("What is the weather in Paris and Rome?",), {"tools": (WEATHER,)}),
    "results": (
        (
            "What is the weather in Paris and Rome?",
            FunctionCall("a", "get_weather", '{"city": "Paris"}'),
            FunctionCall("b", "get_weather", '{"city": "Rome"}'),
            FunctionCallOutput("a", "sunny, 21 degrees"),
            FunctionCallOutput("b", "rainy, 17 degrees"),
        ),
        {"tools": (WEATHER,)},
    ),
    "length": (("Hello!",), {"max_output_tokens": 3}),
    "stop string": (("Hello!",), {"sampling": Sampling(temperature=0, stop=("can",))}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", QUESTIONS)
async def test_raw_completion_equals_the_chat_endpoint(
    raw: CompletionServer, chat: Remote, name, stream
) -> None:
    items, fields = QUESTIONS[name]
    request = asking(*items, stream=stream, **fields)
    ours, theirs = await ask(raw, request), await ask(chat, request)
    assert said(ours) == said(theirs)
    assert (ours.status, ours.reasons) == (theirs.status, theirs.reasons)
    assert ours.usage.input_tokens == theirs.usage.input_tokens
    assert ours.losses == ()


async def test_a_bare_prompt_passes_through_with_its_tokens(raw: CompletionServer) -> None:
    sampling = Sampling(temperature=0, logprobs=True, top_logprobs=2)
    for stream in (False, True):
        request = Completion(
            model="tiny-test",
            prompts=(PROMPT,),
            sampling=sampling,
            max_output_tokens=40,
            stream=stream,
        )
        async with aclosing(Prompted(raw).stream(request)) as events:
            response = fold([event async for event in events])
        assert response.error is None
        assert response.text == HELLO
        (message,) = response.output
        (part,) = message.parts
        assert "".join(token.text for token in part.tokens).startswith(HELLO)
        assert all(len(token.top) == 2 for token in part.tokens)


def test_raw_completions_are_served_as_chat(llamacpp: Llamacpp) -> None:
    words = ("--upstream", llamacpp.base_url, "--wire", "completions", "--format", "hermes")
    with dragoman(*words) as product, OpenAI(base_url=product.base_url, api_key="none") as sdk:
        asked: Any = {"model": "tiny-test", "temperature": 0}
        greeting: Any = [{"role": "user", "content": "Hello!"}]
        completion = sdk.chat.completions.create(messages=greeting, **asked)
        assert completion.choices[0].message.content == HELLO
        with sdk.responses.stream(input="Hello!", **asked) as stream:
            assert list(stream)[-1].response.output_text == HELLO
        raw = sdk.completions.create(prompt=PROMPT, max_tokens=40, **asked)
        assert raw.choices[0].text == HELLO
        pieces = sdk.completions.create(prompt=PROMPT, max_tokens=40, stream=True, **asked)
        assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == HELLO
        (model,) = sdk.models.list().data
        shown = model.to_dict()
        assert (shown["format"], shown["guarantees"]) == ("hermes", ["best-effort"])
        assert isinstance(shown["context_window"], int)


def test_banner_names_the_model_and_recognises_the_server(llamacpp: Llamacpp) -> None:
    with dragoman("--upstream", llamacpp.base_url) as product:
        rows = [product.process.stdout.readline().split() for _ in range(3)]
    assert rows[1:] == [
        ["MODEL", "ANSWERED", "BY"],
        [llamacpp.model, llamacpp.base_url, "(llama.cpp)"],
    ]


def test_the_model_is_the_committed_one() -> None:
    digest = hashlib.sha256((MODEL_FOLDER / MODEL_FILE).read_bytes()).hexdigest()
    assert f"{digest}  {MODEL_FILE}\n" == (MODEL_FOLDER / "tiny.sha256").read_text()
