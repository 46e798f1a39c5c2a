"""Clients: how one is had, what it asks, and that it is an engine itself."""

import pytest

from dragoman.client import AnswerError, Client, connect, connect_sync
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed, Started
from dragoman.core.interfaces import ANYONE, Caller, Model
from dragoman.core.item import FunctionCallOutput, Message
from dragoman.core.request import FunctionTool, Request
from dragoman.engines.remote import Remote
from dragoman.engines.script import Script
from tests.engines.stage import answered
from tests.mock import chunk, completion, mock, plain, stream

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
