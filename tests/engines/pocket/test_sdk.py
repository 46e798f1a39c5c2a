"""The first minutes with the package, as the official SDK lives through them: the pocket model
behind both protocols, streamed, with tools and with a schema."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

import dragoman
from dragoman.engines.pocket import pocket

FUNCTION: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the current weather for a location.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "City and country"}},
        "required": ["location"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
async def sdk() -> AsyncIterator[openai.AsyncOpenAI]:
    engine = pocket()
    http = httpx2.AsyncClient(transport=dragoman.transport(engine))
    async with openai.AsyncOpenAI(
        api_key="none", base_url="http://here/v1", http_client=http
    ) as sdk:
        yield sdk
    await engine.close()


async def test_the_listing_says_that_it_is_a_demonstration(sdk: openai.AsyncOpenAI) -> None:
    (model,) = [model async for model in sdk.models.list()]
    assert model.id == "pocket"
    assert "demonstration" in (model.model_extra or {})["description"]


async def test_it_streams_over_chat(sdk: openai.AsyncOpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Hello!"}]
    stream = await sdk.chat.completions.create(
        model="pocket", messages=hello, stream=True, temperature=0
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces).startswith("Hello! I am pocket, a very small demonstration model.")
    assert len([piece for piece in pieces if piece]) > 5


async def test_it_streams_over_responses(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.responses.create(
        model="pocket", input="Count to ten.", stream=True, temperature=0
    )
    pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."


async def test_it_calls_a_tool_and_says_what_it_answered(sdk: openai.AsyncOpenAI) -> None:
    said: Any = [{"role": "user", "content": "What's the weather like in Paris today?"}]
    tools: Any = [{"type": "function", **FUNCTION}]
    asked = {"model": "pocket", "tools": tools, "temperature": 0, "store": False}
    answer = await sdk.responses.create(input=said, **asked)
    (call,) = answer.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"location": "Paris"})
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "sunny, 21 degrees",
    }
    answer = await sdk.responses.create(input=[*said, call, result], **asked)
    assert answer.output_text == "The weather in Paris: sunny, 21 degrees."


async def test_it_fills_in_a_schema(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.responses.parse(
        model="pocket", input="Ada is 36 years old.", text_format=Person, temperature=0
    )
    assert answer.output_parsed == Person(name="Ada", age=36)
    asked: Any = [{"role": "user", "content": "Ada is 36 years old."}]
    completion = await sdk.chat.completions.parse(
        model="pocket", messages=asked, response_format=Person, temperature=0
    )
    assert completion.choices[0].message.parsed == Person(name="Ada", age=36)


async def test_it_knows_how_likely_its_tokens_are(sdk: openai.AsyncOpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is 2+2?"}]
    completion = await sdk.chat.completions.create(
        model="pocket", messages=asked, logprobs=True, top_logprobs=3, temperature=0
    )
    told = completion.choices[0].logprobs
    assert told is not None
    assert "".join(token.token for token in told.content or ()).startswith("2 plus 2 is 4.")
    for token in told.content or ():
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(other.logprob for other in token.top_logprobs) <= 0
