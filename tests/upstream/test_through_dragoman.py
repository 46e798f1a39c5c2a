"""llama.cpp behind Dragoman, spoken to by the official SDK over both protocols.

What the tiny model says is known word for word, so every answer is checked for what it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.product import Product, dragoman
from tests.upstream.llamacpp import SONG, Llamacpp
from training.tiny.transcripts import ADD, GET_WEATHER, HELLO, IDENTITY, NO_TOOL, user

MODEL = "tiny-test"
BOTH = "What is the weather in Paris and Rome?"
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
SEARCHED = "It is sunny in Paris, 21 degrees, and rainy in Rome, 17 degrees."
RESULTS = ("sunny, 21 degrees", "rainy, 17 degrees")
WEATHER: Any = GET_WEATHER
WEATHER_ITEM: Any = {"type": "function", **GET_WEATHER["function"], "strict": True}
LONG = "x " * 9000


class Place(BaseModel):
    city: str
    country: str


@pytest.fixture(scope="module")
def through(llamacpp: Llamacpp) -> Iterator[Product]:
    """Dragoman before llama.cpp, started as its users start it."""
    with dragoman("--upstream", llamacpp.base_url) as product:
        yield product


@pytest.fixture(scope="module")
def sdk(through: Product) -> Iterator[OpenAI]:
    with OpenAI(base_url=through.base_url, api_key="none", max_retries=0) as client:
        yield client


def chat(sdk: OpenAI, text: str | list[Any], **fields: Any) -> Any:
    """Ask over Chat Completions."""
    messages = [user(text)] if isinstance(text, str) else text
    create: Any = sdk.chat.completions.create
    return create(model=MODEL, messages=messages, temperature=0, **fields)


def respond(sdk: OpenAI, input: Any, **fields: Any) -> Any:
    """Ask over Responses."""
    create: Any = sdk.responses.create
    return create(model=MODEL, input=input, temperature=0, **fields)


def chat_stream(sdk: OpenAI, text: str | list[Any], **fields: Any) -> tuple[list[Any], Any]:
    """The chunks of a streamed answer and what the SDK makes of them."""
    messages = [user(text)] if isinstance(text, str) else text
    open: Any = sdk.chat.completions.stream
    with open(model=MODEL, messages=messages, temperature=0, **fields) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        return chunks, stream.get_final_completion()


def respond_stream(sdk: OpenAI, input: Any, **fields: Any) -> tuple[list[Any], Any]:
    """The events of a streamed answer and the SDK's final response."""
    open: Any = sdk.responses.stream
    with open(model=MODEL, input=input, temperature=0, **fields) as stream:
        events = list(stream)
    return events, events[-1].response


# ---- text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello!", HELLO),
        ("Who are you?", IDENTITY),
        ("Say hello in Chinese.", "你好,世界!"),
        ("Send me an emoji.", "Here you are: 🙂🚀"),
        ("Quote a path.", 'The path is "C:\\temp\\new".'),
    ],
)
def test_text_whole_and_streamed_over_both_wires(sdk: OpenAI, question, answer) -> None:
    assert chat(sdk, question).choices[0].message.content == answer
    chunks, final = chat_stream(sdk, question)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert len([piece for piece in pieces if piece]) > 3
    assert "".join(pieces) == final.choices[0].message.content == answer
    assert respond(sdk, question).output_text == answer
    events, response = respond_stream(sdk, question)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == response.output_text == answer


def test_reasoning_over_both_wires(sdk: OpenAI) -> None:
    thought, said = "The user wants 2 + 3. That is 5.", "2 plus 3 is 5."
    question = "Think. What is 2 plus 3?"
    for message in (
        chat(sdk, question).choices[0].message,
        chat_stream(sdk, question)[1].choices[0].message,
    ):
        assert (message.reasoning, message.reasoning_content) == (thought, thought)
        assert message.content == said
    for response in (respond(sdk, question), respond_stream(sdk, question)[1]):
        reasoning, message = response.output
        assert [(part.type, part.text) for part in reasoning.content] == [
            ("reasoning_text", thought)
        ]
        assert response.output_text == said
        # What came back goes in again, as an agent resends its items.
        items = [item.to_dict() for item in response.output]
        assert respond(sdk, [user(question), *items, user("Who are you?")]).output_text == IDENTITY


# ---- tools ---------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_forced_call_reaches_clients_whole_and_streamed(sdk: OpenAI, choice) -> None:
    question = "What is the weather in Paris?"
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice}
    for completion in (chat(sdk, question, **asked), chat_stream(sdk, question, **asked)[1]):
        (said,) = completion.choices
        assert said.finish_reason == "tool_calls"
        assert [(c.function.name, c.function.arguments) for c in said.message.tool_calls] == [
            ("get_weather", PARIS)
        ]
    asked["tools"] = [WEATHER_ITEM]
    for response in (respond(sdk, question, **asked), respond_stream(sdk, question, **asked)[1]):
        (call,) = response.output
        assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", PARIS)
        assert response.status == "completed"


def test_tool_choice_is_enforced_though_the_server_ignores_it(sdk: OpenAI) -> None:
    """It was asked for the weather, has a tool for it, and is told to take the other one."""
    question = "What is the weather in Paris?"
    tools: Any = [ADD, WEATHER]
    free = chat(sdk, question, tools=tools).choices[0].message
    assert [call.function.name for call in free.tool_calls] == ["get_weather"]
    named = {"type": "function", "function": {"name": "add"}}
    forced = chat(sdk, question, tools=tools, tool_choice=named, max_tokens=60)
    assert {c.function.name for c in forced.choices[0].message.tool_calls} == {"add"}
    items = [{"type": "function", **tool["function"], "strict": True} for tool in tools]
    named = {"type": "function", "name": "add"}
    response = respond(sdk, question, tools=items, tool_choice=named, max_output_tokens=60)
    assert {item.name for item in response.output if item.type == "function_call"} == {"add"}


def test_a_tool_that_must_not_be_called_is_not(sdk: OpenAI) -> None:
    question = "What is the weather in Paris?"
    asked: dict[str, Any] = {"tool_choice": "none"}
    message = chat(sdk, question, tools=[WEATHER], **asked).choices[0].message
    assert (message.tool_calls, message.content) == (None, NO_TOOL)
    response = respond(sdk, question, tools=[WEATHER_ITEM], **asked)
    assert response.output_text == NO_TOOL


@pytest.mark.parametrize("streamed", [False, True])
def test_two_calls_and_their_results_over_responses(sdk: OpenAI, streamed) -> None:
    asked = {"tools": [WEATHER_ITEM], "parallel_tool_calls": True}
    ask = (lambda *a, **k: respond_stream(*a, **k)[1]) if streamed else respond
    calls = ask(sdk, BOTH, **asked).output
    assert [call.arguments for call in calls] == [PARIS, ROME]
    assert len({call.call_id for call in calls}) == 2
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": text}
        for call, text in zip(calls, RESULTS, strict=True)
    ]
    past = [user(BOTH), *(call.to_dict() for call in calls), *results]
    assert ask(sdk, past, **asked).output_text == SEARCHED


# ---- form, odds and ends -------------------------------------------------------------------


def test_schema_is_enforced(sdk: OpenAI) -> None:
    question = [user("Where is the Eiffel Tower?")]
    expected = Place(city="Paris", country="France")
    parse: Any = sdk.chat.completions.parse
    completion = parse(model=MODEL, messages=question, temperature=0, response_format=Place)
    assert completion.choices[0].message.parsed == expected
    parsed: Any = sdk.responses.parse
    response = parsed(model=MODEL, input=question, temperature=0, text_format=Place)
    assert response.output_parsed == expected
    assert (
        chat_stream(sdk, question, response_format=Place)[1].choices[0].message.parsed == expected
    )
    assert respond_stream(sdk, question, text_format=Place)[1].output_parsed == expected


def test_dropped_image_is_reported(sdk: OpenAI) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    content = [{"type": "input_text", "text": "Describe this image."}, picture]
    raw: Any = sdk.responses.with_raw_response.create
    answer = raw(model=MODEL, input=[{"role": "user", "content": content}], temperature=0)
    assert answer.parse().status == "completed"
    assert "input[0].content[1]" in answer.headers["x-dragoman-loss"]


# ---- trouble -------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_its_own_errors_arrive_as_they_are(sdk: OpenAI, streamed) -> None:
    for ask in (chat, respond):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(sdk, LONG, stream=streamed)
        assert "exceeds the available context size" in caught.value.message
        assert caught.value.type == "exceed_context_size_error"
        assert json.loads(caught.value.response.content)["error"]["n_ctx"] == 8192


def test_unknown_model_name_is_passed_to_the_upstream(sdk: OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).owned_by == "llamacpp"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("another")
    assert caught.value.code == "model_not_found"
    # llama.cpp serves its one model under every name.
    other = sdk.chat.completions.create(model="another", messages=[user("ping")], temperature=0)
    assert other.choices[0].message.content == "pong"
    assert sdk.responses.create(model="another", input="ping", temperature=0).output_text == "pong"


@pytest.mark.parametrize("ask", [chat, respond])
def test_disconnect_frees_the_slot_of_llamacpp(sdk: OpenAI, llamacpp: Llamacpp, ask) -> None:
    llamacpp.wait_busy(0, seconds=60)
    before = llamacpp.predicted()
    stream = ask(sdk, "Sing for ever.", stream=True)
    for heard, _ in enumerate(stream):
        if heard > 5:
            break
    assert llamacpp.busy() == 1
    stream.close()
    llamacpp.wait_busy(0, seconds=60)
    # The song would have filled the context; its slot was free long before.
    assert llamacpp.predicted() - before < SONG
