"""What the official SDK asks for, and what of it reaches a server over the other protocol or the
same: tools, forms, pictures, results, and the odd fields around them."""

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.mock import chunk, completion, mock, plain, stream
from tests.sdk.behind import Behind, behind, by_form
from tests.sdk.scenes import SCENES, USAGE
from tests.sdk.speaking import answering, custom_call, message


class Step(BaseModel):
    explanation: str
    kind: Literal["sum", "product"]


class Solution(BaseModel):
    steps: list[Step]
    answer: int


SOLVED = Solution(steps=[Step(explanation="2 + 3", kind="sum")], answer=5)
SOLVED_JSON = '{"steps": [{"explanation": "2 + 3", "kind": "sum"}], "answer": 5}'


class Weather(BaseModel):
    """Looks up the weather."""

    city: str


def saying(text: str) -> Any:
    """A Chat server that says a text in three pieces."""
    third = len(text) // 3
    pieces = (text[:third], text[third : 2 * third], text[2 * third :])
    chunks = [chunk({"content": piece}) for piece in pieces]
    return by_form(plain(200, completion({"content": text})), stream(*chunks, chunk(finish="stop")))


def sent(server: Behind) -> Any:
    """The last request that went upstream."""
    return server.up.asked[-1].json


# ---- structured output -----------------------------------------------------------------------


@pytest.mark.parametrize("face", ["async", "sync"])
async def test_structured_output_is_parsed_over_both_wires(face) -> None:
    async with behind(saying(SOLVED_JSON), face=face) as server:
        answer = await server.parsed("chat", response_format=Solution)
        assert answer.choices[0].message.parsed == SOLVED
        over_chat = sent(server)["response_format"]
        _, final = await server.streamed("chat", response_format=Solution)
        assert final.choices[0].message.parsed == SOLVED
        response = await server.parsed("responses", text_format=Solution)
        assert response.output_parsed == SOLVED
        assert sent(server)["response_format"] == over_chat
        _, final = await server.streamed("responses", text_format=Solution)
        assert final.output_parsed == SOLVED
    form = over_chat["json_schema"]
    assert (over_chat["type"], form["name"], form["strict"]) == ("json_schema", "Solution", True)
    assert list(form["schema"]["properties"]) == ["steps", "answer"]


async def test_refusal_of_structured_output_is_not_parsed() -> None:
    async with behind(SCENES["refusal"].handler) as server:
        message = (await server.parsed("chat", response_format=Solution)).choices[0].message
        assert (message.parsed, message.refusal) == (None, "I cannot do that.")
        response = await server.parsed("responses", text_format=Solution)
        assert response.output_parsed is None
        assert response.output[0].content[0].refusal == "I cannot do that."


# ---- tools -----------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["async", "sync"])
async def test_strict_tool_calls_are_parsed_by_the_sdk(face) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "Weather", "arguments": ""}}
    whole = completion(
        {
            "tool_calls": [
                {**call, "function": {"name": "Weather", "arguments": '{"city": "Rome"}'}}
            ]
        },
        "tool_calls",
    )
    pieces = ('{"city"', ': "Rome"}')
    more = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    chunks = [chunk({"tool_calls": [{"index": 0, **call}]}), *map(chunk, more)]
    handler = by_form(plain(200, whole), stream(*chunks, chunk(finish="tool_calls")))
    chat_tool: Any = openai.pydantic_function_tool(Weather, name="Weather")
    tool = {"type": "function", **chat_tool["function"]}
    async with behind(handler, face=face) as server:
        answer = await server.parsed("chat", tools=[chat_tool])
        offered = sent(server)["tools"]
        (called,) = answer.choices[0].message.tool_calls
        assert called.function.parsed_arguments == Weather(city="Rome")
        events, _ = await server.streamed("chat", tools=[chat_tool])
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        assert [event.parsed_arguments for event in done] == [Weather(city="Rome")]
        response = await server.parsed("responses", tools=[tool])
        assert response.output[0].parsed_arguments == {"city": "Rome"}
        assert sent(server)["tools"] == offered == [chat_tool]


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
PATCH = {"type": "custom", "name": "patch", "description": "Patches.", "format": GRAMMAR}
DIFF = "*** Begin\n+a\n*** End\n"


async def test_p16_custom_tool_is_emulated_on_a_chat_server() -> None:
    arguments = json.dumps({"input": DIFF})
    call = {"id": "c", "type": "function", "function": {"name": "patch", "arguments": ""}}
    halves = (arguments[:9], arguments[9:])
    more = [{"tool_calls": [{"index": 0, "function": {"arguments": half}}]} for half in halves]
    chunks = [chunk({"tool_calls": [{"index": 0, **call}]}), *map(chunk, more)]
    whole = {**call, "function": {"name": "patch", "arguments": arguments}}
    handler = by_form(
        plain(200, completion({"tool_calls": [whole]}, "tool_calls")),
        stream(*chunks, chunk(finish="tool_calls")),
    )
    async with behind(handler) as server:
        response = await server.whole("responses", tools=[PATCH])
        events, final = await server.streamed("responses", tools=[PATCH])
        function = sent(server)["tools"][0]["function"]
        native = {"name": "patch", "description": "Patches."}
        chat = await server.whole("chat", tools=[{"type": "custom", "custom": native}])
    for answer in (response, final):
        (item,) = answer.output
        assert (item.type, item.name, item.input) == ("custom_tool_call", "patch", DIFF)
    said = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(said) == DIFF
    assert not [e for e in events if e.type.startswith("response.function_call")]
    (call_back,) = chat.choices[0].message.tool_calls
    assert (call_back.type, call_back.custom.name, call_back.custom.input) == (
        "custom",
        "patch",
        DIFF,
    )
    assert GRAMMAR["definition"] in function["description"]
    assert list(function["parameters"]["properties"]) == ["input"]


async def test_p16_custom_tool_passes_to_a_server_that_has_them() -> None:
    handler = answering(custom_call("patch", DIFF))
    async with behind(handler, wire="responses", profile="openai") as server:
        response = await server.whole("responses", tools=[PATCH])
        assert sent(server)["tools"] == [PATCH]
        chat_tool = {"type": "custom", "custom": {"name": "patch", "description": "Patches."}}
        chat = await server.whole("chat", tools=[chat_tool])
        chunks = await server.raw("chat", tools=[chat_tool])
    assert response.output[0].input == DIFF
    assert chat.choices[0].message.tool_calls[0].custom.input == DIFF
    fragments = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert fragments[0].custom["name"] == "patch"
    assert "".join(each.custom["input"] for each in fragments) == DIFF


# ---- what else is asked ------------------------------------------------------------------------


@pytest.mark.parametrize("upstream", ["chat", "responses"])
@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_p44_v16_image_url_is_passed_on_and_never_fetched(wire, upstream) -> None:
    yes = {"chat": saying("A dot."), "responses": answering(message("A dot."))}
    async with mock(plain(500, b"")) as pictures, behind(yes[upstream], wire=upstream) as server:
        url = f"http://127.0.0.1:{pictures.port}/picture.png"
        part = {
            "chat": {"type": "image_url", "image_url": {"url": url}},
            "responses": {"type": "input_image", "image_url": url},
        }
        said = [{"role": "user", "content": [part[wire]]}]
        await server.whole(wire, **{"chat": {"messages": said}, "responses": {"input": said}}[wire])
        assert url.encode() in server.up.asked[-1].body
        assert pictures.connections == 0


async def test_p29_usage_is_shown_only_to_clients_that_asked() -> None:
    counted = {**chunk(), "choices": [], "usage": USAGE}
    chunks = [chunk({"content": "Yes."}), chunk(finish="stop"), counted]
    async with behind(stream(*chunks)) as server:
        assert not any("usage" in each.to_dict() for each in await server.raw("chat"))
        assert sent(server)["stream_options"]["include_usage"] is True
        *others, last = await server.raw("chat", stream_options={"include_usage": True})
        assert (last.choices, last.usage.total_tokens) == ([], 13)
        assert all(each.to_dict()["usage"] is None for each in others)


# ---- needs of single clients -----------------------------------------------------------------


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_forced_tool_wins_over_the_response_format(wire) -> None:
    """Some get structured output by a forced tool, and send the form besides."""
    scene = SCENES["call"]
    form = {"type": "json_schema", "name": "f", "schema": {"type": "object"}, "strict": False}
    fields = {
        "chat": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": {}}},
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        "responses": {
            "text": {"format": form},
            "tool_choice": {"type": "function", "name": "weather"},
        },
    }
    async with behind(scene.handler) as server:
        answer = await server.whole(wire, **scene.fields[wire], **fields[wire])
        asked = server.up.asked[0].json
    assert "response_format" not in asked
    assert asked["tool_choice"] == fields["chat"]["tool_choice"]
    assert "weather" in json.dumps(answer.to_dict())


async def test_logprobs_false_is_accepted() -> None:
    """What `guidance` sends, in every request: an explicit false must be no reason to refuse."""
    async with behind(saying("Yes.")) as server:
        for each in await server.raw("chat", max_completion_tokens=9, logprobs=False):
            assert not any(choice.logprobs for choice in each.choices)
