"""Settings become a request, engines become a client, and answers are read or raised."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dragoman.agent import Agent
from dragoman.client import Answer, AnswerError, Client, Spent, arguments, connect, connect_sync
from dragoman.client.answer import spent
from dragoman.client.client import LOOP, Settings, build_request
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, Started
from dragoman.core.interfaces import ANYONE, Caller, Model
from dragoman.core.item import (
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
)
from dragoman.core.request import (
    AudioOutput,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    ReasoningOptions,
    Request,
    Sampling,
)
from dragoman.core.response import Status, Usage
from dragoman.engines.remote import Remote
from dragoman.engines.script import Script
from tests.engines.stage import answered
from tests.hostile.stage import upstream
from tests.mock import Asked, Reply, chunk, completion, mock, plain, stream

TOOL = FunctionTool("f")


def test_text_item_and_conversation_are_accepted() -> None:
    hello = Message("user", "Hello!")
    for said in ("Hello!", hello, [hello], (hello,)):
        assert build_request(said, {"model": "m"}, stream=True) == Request(
            model="m", items=(hello,), stream=True
        )


def test_r1_w14_only_given_settings_are_set() -> None:
    assert build_request("Hi", {}, stream=False) == Request(
        model="", items=(Message("user", "Hi"),)
    )


def test_r1_3_settings_go_where_the_core_has_them() -> None:
    settings: Settings = {
        "model": "m",
        "instructions": "be kind",
        "tools": [TOOL],
        "tool_choice": "auto",
        "format": JSONSchema("x", {"type": "object"}),
        "reasoning": "low",
        "max_output_tokens": 9,
        "temperature": 0.0,
        "stop": "END",
        "seed": 7,
    }
    assert build_request("Hi", settings, stream=True) == Request(
        model="m",
        items=(Message("user", "Hi"),),
        instructions="be kind",
        tools=(TOOL,),
        tool_choice="auto",
        format=JSONSchema("x", {"type": "object"}),
        reasoning=ReasoningOptions("low"),
        max_output_tokens=9,
        sampling=Sampling(temperature=0.0, stop=("END",), seed=7),
        stream=True,
    )


def test_whole_request_is_sent_unchanged() -> None:
    request = Request(model="m", sampling=Sampling(top_p=0.5))
    assert build_request(request, {}, stream=True) is request
    changed = build_request(
        request, {"temperature": 1.0, "stop": ["a", "b"], "model": "n"}, stream=True
    )
    assert changed == Request(
        model="n", sampling=Sampling(top_p=0.5, temperature=1.0, stop=("a", "b"))
    )


def test_unknown_setting_is_a_type_error() -> None:
    for name in ("temprature", "items", "sampling"):
        with pytest.raises(TypeError, match=name):
            build_request("Hi", {name: 1}, stream=True)


def test_dicts_are_items_as_the_official_sdk_has_them() -> None:
    said = [
        {"role": "user", "content": "Six times seven?"},
        {"type": "function_call", "call_id": "c1", "name": "times", "arguments": "{}"},
        FunctionCallOutput("c1", "42"),
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ]
    items = (
        Message("user", "Six times seven?"),
        FunctionCall("c1", "times", "{}"),
        FunctionCallOutput("c1", "42"),
        Message("user", (Text("And?"),)),
    )
    assert build_request(said, {}, stream=True).items == items
    assert build_request(tuple(said), {}, stream=True).items == items
    assert build_request({"role": "user", "content": "Hi"}, {}, stream=True).items == (
        Message("user", "Hi"),
    )


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (7, "^input: is of type int, and must be an item or a dict"),
        (None, "^input: is of type NoneType"),
        (FunctionTool("f"), "^input: is of type FunctionTool"),
        (["Hi"], r"^input\[0\]: is of type str"),
        ([Message("user", "Hi"), Text("Hi")], r"^input\[1\]: is of type Text"),
        ([{}], r"^input\[0\].role: is missing"),
        ([{"role": "tool", "content": "x"}], r"^input\[0\].role: is 'tool', and must be one of"),
        ([{"role": "user", "content": 7}], r"^input\[0\].content: is a number"),
        ({"role": "user"}, r"^input.content: is missing"),
    ],
)
def test_invalid_item_is_a_type_error_that_names_its_place(said, problem) -> None:
    with pytest.raises(TypeError, match=problem):
        build_request(said, {}, stream=True)


def test_a_class_as_a_format_and_a_key_that_is_no_text_are_named() -> None:
    with pytest.raises(TypeError, match=r"^format: int is a class; give a dict"):
        build_request("Hi", {"format": int}, stream=True)
    with pytest.raises(TypeError, match=r"^the key is of type int, and must be a text"):
        connect("http://127.0.0.1:9/v1", key=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("max_output_tokens", "9"),
        ("max_output_tokens", 9.5),
        ("seed", True),
        ("tools", [1]),
        ("tool_choice", "maybe"),
        ("format", "json"),
        ("reasoning", 3),
        ("stop", ["a", 1]),
        ("model", None),
        ("logit_bias", {"a": "b"}),
    ],
)
def test_a_setting_of_the_wrong_type_is_a_type_error_that_names_it(name, value) -> None:
    settings: Any = {name: value}
    with pytest.raises(TypeError, match=f"^{name}: "):
        build_request("Hi", settings, stream=True)


def test_dicts_are_tools_as_the_official_sdk_has_them() -> None:
    said = {"type": "function", "name": "f", "parameters": {}, "strict": True, "vendor": 1}
    settings: Settings = {"tools": [said, TOOL]}
    tool = FunctionTool("f", parameters={}, strict=True, extra={"responses": {"vendor": 1}})
    assert build_request("Hi", settings, stream=True).tools == (tool, TOOL)
    with pytest.raises(TypeError, match=r"^tools\[0\].name: is missing"):
        build_request("Hi", {"tools": [{"type": "function"}]}, stream=True)


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("format", {"type": "json_object"}, JSONObject()),
        (
            "format",
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
            JSONSchema("n", {"type": "object"}),
        ),
        ("tool_choice", {"type": "function", "name": "f"}, NamedTool("f")),
        ("reasoning", {"effort": "low"}, ReasoningOptions("low")),
        ("audio", {"format": "wav"}, AudioOutput(format="wav")),
    ],
)
def test_dicts_are_settings_as_the_official_sdk_has_them(name, said, value) -> None:
    assert getattr(build_request("Hi", {name: said}, stream=True), name) == value


@pytest.mark.parametrize(
    ("name", "said", "problem"),
    [
        ("format", {"type": "json_schema"}, r"^format\.name: is missing"),
        ("format", {"type": "xml"}, r"^format\.type: is 'xml'"),
        ("tool_choice", {"type": "function"}, r"^tool_choice\.name: is missing"),
        ("reasoning", {"effort": 3}, "^reasoning: "),
    ],
)
def test_a_dict_that_is_no_such_setting_is_a_type_error(name, said, problem) -> None:
    with pytest.raises(TypeError, match=problem):
        build_request("Hi", {name: said}, stream=True)


def test_calls_with_json_arguments_stand_apart() -> None:
    output = (FunctionCall("c1", "f", "{}"), CustomToolCall("c2", "patch", "text"))
    answer = Answer(id="1", created_at=0, model="m", status="completed", output=output)
    assert answer.calls == output
    assert answer.function_calls == output[:1]


MODEL_SAID = Script(lambda request: f"{request.model} {request.stream}")


async def test_r1_1_connecting_takes_an_address_a_name_or_an_engine() -> None:
    script = Script("Hi")
    assert connect(script).engine is script
    assert isinstance(connect("script").engine, Script)
    remote = connect("http://127.0.0.1:9/v1", wire="chat")
    assert isinstance(remote.engine, Remote)
    assert remote.base_url == "http://127.0.0.1:9/v1"
    await remote.close()
    with pytest.raises(ValueError, match="'scrpt' is neither an http"):
        connect("scrpt")


async def test_model_is_the_requested_or_the_default_or_the_first_listed() -> None:
    assert (await Client(MODEL_SAID, model="b").respond("Hi", model="a")).text == "a False"
    assert (await Client(MODEL_SAID, model="b").respond("Hi")).text == "b False"
    client = Client(MODEL_SAID)
    assert (await client.respond("Hi")).text == "script False"
    async with client.stream("Hi") as answer:
        assert (await answer.finish()).text == "script True"


class Mute(Script):
    """An engine that lists no models, or cannot."""

    def __init__(self, fault: Fault | None = None) -> None:
        super().__init__("Hi")
        self._fault = fault

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        if self._fault is not None:
            raise FaultError(self._fault)
        return ()


async def test_the_model_of_whom_names_none_is_not_one_for_embeddings() -> None:
    asked = []

    class Listing(Mute):
        async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
            return (Model("nomic-embed-text"), Model("qwen3:8b"))

        def stream(self, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
            asked.append(request.model)
            return super().stream(request, caller)

    await Client(Listing()).respond("Hi")
    await Agent(Listing()).run("Hi")
    assert asked == ["qwen3:8b"] * 2


async def test_no_model_is_a_fault() -> None:
    with pytest.raises(AnswerError, match="No model was named"):
        await Client(Mute()).respond("Hi")
    fault = Fault("upstream_unreachable", "nobody there", "upstream")
    assert [e async for e in Client(Mute(fault)).stream("Hi")] == [Failed(fault)]


async def test_a_failed_answer_is_raised_or_returned() -> None:
    client = Client(Script([]))
    with pytest.raises(AnswerError) as raised:
        await client.respond("Hi")
    answer = await client.respond("Hi", raises=False)
    assert (answer.status, answer.error) == ("failed", raised.value.fault)
    assert raised.value.answer.end == "truncated"


async def test_law_8_a_client_is_an_engine() -> None:
    request = Request(model="m", items=(Message("user", "Hi"),))
    inner = Script("Good day")
    outer = connect(connect(inner))
    assert (await answered(outer, request)).text == (await answered(inner, request)).text
    assert await outer.models() == await inner.models()


async def test_output_can_be_appended_to_the_conversation() -> None:
    weather = FunctionTool("get_weather", parameters={"properties": {"city": {"type": "string"}}})
    async with connect("script", pace=0) as client:
        first = await client.respond("The weather in Rome?", tools=[weather])
        (call,) = first.calls
        history = [Message("user", "The weather in Rome?"), *first.output]
        result = FunctionCallOutput(call.call_id, "sunny")
        second = await client.respond([*history, result], tools=[weather])
    assert first.end == "tool_calls"
    assert "get_weather returned sunny" in second.text


async def test_a_server_behind_an_address_answers_whole_and_streamed() -> None:
    whole = plain(200, completion({"content": "Hello"}))
    async with mock(whole) as up, connect(up.base_url, wire="chat", model="m") as client:
        assert (await client.respond("Hi")).text == "Hello"
    pieces = stream(chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk(finish="stop"))
    async with (
        mock(pieces) as up,
        connect(up.base_url, wire="chat", model="m") as client,
        client.stream("Hi") as answer,
    ):
        assert [piece async for piece in answer.text] == ["Hel", "lo"]


async def test_a_server_goes_on_from_a_response_that_it_was_told_to_store() -> None:
    stored = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [],
        "model": "m",
    }
    async with (
        mock(plain(200, stored)) as up,
        connect(up.base_url, wire="responses", model="m") as client,
    ):
        answer = await client.respond("Hi", store=True)
        assert answer.response.extra is not None
        place: Any = answer.response.extra["upstream"]
        await client.respond("And?", previous_response_id=place["id"])
        first, then = (each.json for each in up.asked)
    assert (first["store"], then["previous_response_id"]) == (True, "resp_1")


def test_sync_client_gives_the_same_answers() -> None:
    with connect_sync("script", pace=0) as client:
        answer = client.respond("Count to three.")
        assert (answer.text, answer.end) == ("1, 2, 3.", "stop")
        with client.stream("Count to two.") as events:
            assert "".join(events.text) == "1, 2."
            assert events.answer.end == "stop"
        assert isinstance(next(client.stream("Hi")), Started)
        assert client.models()[0].id == "script"
        with pytest.raises(TypeError, match="temprature"):
            client.respond("Hi", temprature=1)


def test_sync_client_raises_the_same_errors() -> None:
    with connect_sync(Script([])) as client, pytest.raises(AnswerError):
        client.respond("Hi")


CALL = FunctionCall("c", "f", '{"a": 1}')


def answer(status: Status = "completed", *output: Any, **rest: Any) -> Answer:
    return Answer(id="r", created_at=0, model="m", status=status, output=output, **rest)


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
        (answer("incomplete", reasons=("budget",)), "budget"),
        (answer("completed", CALL, reasons=("tool_calls",)), "tool_calls"),
        (answer("completed", Message("assistant", (Refusal("no"),)), reasons=("stop",)), "refused"),
        (answer("failed", error=Fault("upstream_cut", "x")), "truncated"),
        (answer("failed", error=Fault("internal", "x")), "error"),
        (answer("cancelled"), "cancelled"),
        (answer("in_progress"), "unfinished"),
    ],
)
def test_r1_w11_every_end_has_its_name(said, end) -> None:
    assert said.end == end


def test_json_is_parsed_when_it_is_asked_for() -> None:
    assert answer("completed", Message("assistant", '{"a": [1]}')).json() == {"a": [1]}
    with pytest.raises(FaultError, match="The answer: 'oops' is not valid JSON"):
        answer("completed", Message("assistant", "oops")).json()


@pytest.mark.parametrize(
    ("text", "value"), [("", {}), (" \n", {}), ("{}", {}), ('{"a":1}', {"a": 1})]
)
def test_r1_7_arguments_are_an_object(text, value) -> None:
    assert arguments(FunctionCall("c", "f", text)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{oops", "The arguments of f: '{oops' is not valid JSON"),
        ("[1]", "The arguments of f are an array"),
        ("x" * 1000, "xxx…'"),
    ],
)
def test_r1_7_arguments_that_are_none_are_a_fault_that_quotes_them(text, problem) -> None:
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


@pytest.mark.filterwarnings("ignore")
def test_client_whose_loop_was_closed_connects_again() -> None:
    def reply(asked: Asked) -> Reply:
        return plain(200, completion({"content": "Hello"}))

    async def ask(client: Client, question: str) -> str:
        return (await asyncio.wait_for(client.respond(question), 10)).text

    with upstream(reply) as model:
        client = connect(model.base_url, wire="chat", profile="generic", model="m")
        for question in ("Hi", "Hi", "Hi " * 100_000):  # which is prepared in a thread
            assert asyncio.run(ask(client, question)) == "Hello"
        assert [asked.connection for asked in model.asked] == [1, 2, 3]
        asyncio.run(client.close())
        assert asyncio.run(ask(client, "Hi")) == "Hello"
        assert LOOP.run(client.respond, "Hi").text == "Hello"
        asyncio.run(client.close())  # that loop goes on, in its thread
        del client
        gc.collect()  # of the connections that closed loops left, with warnings
