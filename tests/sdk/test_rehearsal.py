"""The first run as a stranger has it: the command, the rehearsal, the official SDK.

No mock and no shortcut: a process, a port, both protocols. What streams is what is answered whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.product import Product, dragoman
from tests.sdk.behind import timeless
from tests.sdk.scenes import function, tools

MODEL = "script"
TOOLS = tools(function("get_weather", "city"), function("get_time", "zone"))


class Place(BaseModel):
    city: str
    population: int


ASKED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "text": ("Count to five.", {}),
    "calls": ("What are the weather and the time in Rome?", TOOLS),
    "reasoning": (
        "Count to two.",
        {
            "chat": {"reasoning_effort": "high"},
            "responses": {"reasoning": {"effort": "high", "summary": "auto"}},
        },
    ),
    "logprobs": (
        "Count to two.",
        {
            "chat": {"logprobs": True, "top_logprobs": 1},
            "responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
        },
    ),
    "choices": ("Count to two.", {"chat": {"n": 2}}),
    "limit": ("Count to ten.", {"responses": {"max_output_tokens": 6}}),
    "custom": (
        "Apply the patch to Readme.",
        {"responses": {"tools": [{"type": "custom", "name": "apply_patch"}]}},
    ),
}


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Product]:
    with dragoman("script") as product:
        yield product


@pytest.fixture(scope="module")
def sdk(rehearsal: Product) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=rehearsal.base_url, api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.mark.parametrize("name", sorted(ASKED.keys() - {"limit", "custom"}))
def test_chat_is_the_same_streamed_and_whole(sdk: openai.OpenAI, name: str) -> None:
    question, fields = ASKED[name]
    api: Any = sdk.chat.completions
    asked = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
    asked |= fields.get("chat", {})
    whole = api.create(**asked)
    with api.stream(**asked, stream_options={"include_usage": True}) as stream:
        final = stream.until_done().get_final_completion()
    assert _told(whole) == _told(final)
    assert all(choice.finish_reason for choice in whole.choices)


def _told(completion: Any) -> Any:
    """What a completion says, however the SDK writes that there were no annotations."""
    told = timeless(completion)
    for choice in told["choices"]:
        if not choice["message"].get("annotations"):
            choice["message"].pop("annotations", None)
    return told


@pytest.mark.parametrize("name", sorted(ASKED.keys() - {"choices"}))
def test_responses_is_the_same_streamed_and_whole(sdk: openai.OpenAI, name: str) -> None:
    question, fields = ASKED[name]
    api: Any = sdk.responses
    asked = {"model": MODEL, "input": question, **fields.get("responses", {})}
    whole = api.create(**asked)
    with api.stream(**asked) as stream:
        events = list(stream)
    assert timeless(whole) == timeless(events[-1].response)
    assert whole.status == ("incomplete" if name == "limit" else "completed")


def test_what_is_said_is_what_was_asked_for(sdk: openai.OpenAI) -> None:
    respond: Any = sdk.responses.create
    assert respond(model=MODEL, input=ASKED["text"][0]).output_text == "1, 2, 3, 4, 5."
    calls = respond(model=MODEL, input=ASKED["calls"][0], **TOOLS["responses"]).output
    assert [call.name for call in calls] == ["get_weather", "get_time"]
    (patch,) = respond(
        model=MODEL, input=ASKED["custom"][0], **ASKED["custom"][1]["responses"]
    ).output
    assert (patch.type, patch.name) == ("custom_tool_call", "apply_patch")
    parsed: Any = sdk.responses.parse
    assert parsed(model=MODEL, input="Where is Rome?", text_format=Place).output_parsed.city


async def test_the_asynchronous_client_too(rehearsal: Product) -> None:
    async with openai.AsyncOpenAI(base_url=rehearsal.base_url, api_key="none") as sdk:
        assert [model.id async for model in sdk.models.list()] == [MODEL]
        async with sdk.responses.stream(model=MODEL, input="Count to three.") as stream:
            assert (await stream.get_final_response()).output_text == "1, 2, 3."
        question: Any = [{"role": "user", "content": "Count to three."}]
        async with sdk.chat.completions.stream(model=MODEL, messages=question) as chat:
            final = await chat.get_final_completion()
        assert final.choices[0].message.content == "1, 2, 3."
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.responses.create(model="gpt-none", input="Hi")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
