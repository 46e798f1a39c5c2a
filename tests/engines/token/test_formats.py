"""The engine in the formats of the families: what a model writes in markup is heard as items."""

import pytest

from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller
from dragoman.core.item import FunctionCall, Message, Unknown
from dragoman.core.request import FunctionTool, Request
from dragoman.engines.token import TokenEngine
from dragoman.formats.names import NAMES, by_name
from dragoman.formats.tokenizer import ByteTokenizer
from tests.engines.stage import answered
from tests.engines.token.models import Says
from tests.engines.token.plain import TOY

ASKED = Request(
    model="m",
    items=(Message("user", "What is the weather in Rome?"),),
    tools=(FunctionTool("get_weather", None, {"properties": {"city": {"type": "string"}}}),),
)


async def test_hermes_thinks_speaks_and_calls() -> None:
    text = (
        "<think>Hm.</think>Let me see.\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>more'
    )
    engine = TokenEngine(by_name("hermes"), Says(text, size=TOY.size), ByteTokenizer(["<|x|>"]))
    response = await answered(engine, ASKED)
    await engine.close()
    assert response.reasoning == "Hm."
    assert response.text.strip() == "Let me see."
    (call,) = response.calls
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Rome"}')
    assert response.usage is not None
    assert response.usage.output_tokens == len(text) - len("more")  # the end is no token here


@pytest.mark.parametrize("name", NAMES)
async def test_plain_words_are_plain_words_in_every_format(name: str) -> None:
    format = by_name(name)
    words = "It is sunny in Rome." if name != "harmony" else "<|message|>It is sunny in Rome."
    (end, *_) = format.stops(ASKED).controls
    engine = TokenEngine(format, Says(words + end, size=TOY.size), ByteTokenizer(["<|x|>"]))
    response = await answered(engine, ASKED)
    await engine.close()
    assert response.text == "It is sunny in Rome."
    assert response.reasons == ("stop",)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "harmony"])
async def test_an_item_without_a_place_is_refused_in_the_words_of_the_caller(name: str) -> None:
    searched = Unknown("responses", "web_search_call", {"id": "ws_1"})
    items = (*ASKED.items, Message("assistant", "Hm."), Message("user", "And?"), searched)
    engine = TokenEngine(by_name(name), Says("", size=TOY.size), ByteTokenizer(["<|x|>"]))
    stream = engine.stream(Request(model="m", items=items), Caller(wire="responses"))
    (failed,) = [event async for event in stream]
    await engine.close()
    assert isinstance(failed, Failed)
    assert failed.fault.param == "input[3]"
    assert failed.fault.message == (
        "input[3]: this model's prompt has no place for an item of type 'web_search_call'"
    )
