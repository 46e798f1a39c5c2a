"""Markup that a remote server leaves in its text is read where its profile says so."""

from msgspec.structs import replace

from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import FunctionTool, completion_request
from tests.engines.asking import ask, asking, remote
from tests.mock import chunk, completion, plain, stream

LEAK = 'Look.\n<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
ASKED = asking(tools=(FunctionTool("now"),))


async def test_p5_calls_left_in_the_text_of_a_stream_are_found() -> None:
    pieces = [chunk({"content": LEAK[at : at + 3]}) for at in range(0, len(LEAK), 3)]
    async with remote(stream(*pieces, chunk(finish="stop"))) as (engine, _):
        engine.upstream.profile = replace(engine.profile, markup="hermes")
        answer = await ask(engine, replace(ASKED, stream=True))
    text, call = answer.output
    assert isinstance(text, Message)
    assert text.text == "Look."
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments) == ("now", '{"zone": "UTC"}')


async def test_calls_left_in_a_whole_answer_are_found_and_native_ones_win() -> None:
    native = {"id": "c1", "function": {"name": "now", "arguments": '{"zone":"UTC"}'}}
    message = {"content": LEAK, "tool_calls": [native]}
    async with remote(plain(200, completion(message, "tool_calls"))) as (engine, _):
        engine.upstream.profile = replace(engine.profile, markup="hermes")
        answer = await ask(engine, ASKED)
    calls = [item for item in answer.output if isinstance(item, FunctionCall)]
    assert [(call.call_id, call.arguments) for call in calls] == [("c1", '{"zone":"UTC"}')]
    assert "tool_call" not in str(answer.output)


async def test_without_a_profile_for_it_text_is_text() -> None:
    async with remote(plain(200, completion({"content": LEAK}))) as (engine, _):
        assert (await ask(engine, ASKED)).text == LEAK


async def test_text_that_is_wanted_raw_stays_so() -> None:
    text = "<think>x"
    body = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    async with remote(plain(200, body)) as (engine, _):
        engine.upstream.profile = replace(engine.profile, markup="hermes")
        answer = await ask(engine, completion_request(replace(ASKED, tools=(), items=()), ("Hi",)))
    assert (answer.text, answer.reasoning) == (text, "")
