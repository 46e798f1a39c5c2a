"""Fields that a prompt cannot express are reported by every engine that makes prompts."""

import pytest

from dragoman.core.item import Message
from dragoman.core.request import FunctionTool, Request
from dragoman.engines.base import unsupported_fields
from dragoman.engines.pocket import pocket
from tests.engines.asking import ask

DIAL = FunctionTool("dial", parameters={"type": "object", "properties": {}})


def asked(**fields: object) -> Request:
    return Request(model="pocket", items=(Message("user", "Hello!"),), **fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, []),
        ({"modalities": ("text",)}, []),
        ({"modalities": ("text", "audio")}, ["modalities"]),
        ({"max_tool_calls": 0, "verbosity": "low"}, ["max_tool_calls", "verbosity"]),
        ({"web_search": {}}, ["web_search_options"]),
        ({"include": ("message.output_text.logprobs",)}, []),
        ({"include": ("nope",)}, ["include[nope]"]),
        ({"extra": {"legacy": {"functions": True}, "responses_vendor": {"top_k": 1}}}, []),
        ({"extra": {"chat": {"mirostat": 2, "chat_template_kwargs": {}}}}, ["mirostat"]),
    ],
)
async def test_p37_fields_without_a_place_in_the_prompt_are_reported(fields, told) -> None:
    request = asked(**fields)
    assert [loss.field for loss in unsupported_fields(request)] == told
    engine = pocket()
    response = await ask(engine, request)
    assert [loss.field for loss in response.losses] == told
    await engine.close()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tools": (DIAL,)}, []),
        ({"tools": (DIAL,), "parallel_tool_calls": False}, ["parallel_tool_calls"]),
        ({"tools": (DIAL,), "parallel_tool_calls": False, "tool_choice": "required"}, []),
        ({"parallel_tool_calls": False}, []),
        ({"extra": {"chat": {"guided_choice": ["yes", "no"]}}}, []),
    ],
)
async def test_unenforced_fields_of_a_token_model_are_reported(fields, told) -> None:
    engine = pocket()
    response = await ask(engine, asked(**fields))
    assert [loss.field for loss in response.losses] == told
    await engine.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", {"id": "pmpt_1"}), ("previous_response_id", "resp_1"), ("conversation", "conv_1")],
)
async def test_what_is_stored_elsewhere_is_refused(name, value) -> None:
    engine = pocket()
    (failed,) = [event async for event in engine.stream(asked(**{name: value}))]
    assert (failed.fault.code, failed.fault.param) == ("unsupported", name)
    await engine.close()
