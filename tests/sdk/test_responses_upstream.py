"""A server that speaks Responses behind Dragoman: its output, to clients of both protocols."""

from typing import Any

import pytest

from tests.sdk import speaking
from tests.sdk.behind import behind, timeless
from tests.sdk.speaking import answering, custom_call, function_call, message, reasoning

CITATION = {
    "type": "url_citation",
    "start_index": 0,
    "end_index": 5,
    "url": "https://example.com/a",
    "title": "A page",
}
WEATHER, CLOCK = '{"city": "Rome"}', '{"zone": "CET"}'
SEAL = "gAAAAABseal+/=="

OUTPUTS = {
    "text": [message("Hello there, world.")],
    "citation": [message("Hello there.", CITATION)],
    "phases": [message("One moment.", phase="commentary"), function_call("weather", WEATHER)],
    "refusal": [speaking.refusal("I cannot do that.")],
    "summary": [reasoning("**One** at a time.", "**Two**", seal=SEAL), message("Yes.")],
    "thoughts": [reasoning(thoughts=("First this.",)), message("Yes.")],
    "calls": [function_call("weather", WEATHER), function_call("clock", CLOCK, 2)],
    "custom": [custom_call("apply_patch", "*** Begin Patch\n*** End Patch\n")],
    "hosted": [speaking.web_search("weather in Rome"), message("It is sunny.", CITATION)],
}


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}


TOOLS = [_tool("weather"), _tool("clock"), {"type": "custom", "name": "apply_patch"}]


@pytest.mark.parametrize("name", OUTPUTS)
async def test_responses_output_passes_unchanged(name) -> None:
    output = OUTPUTS[name]
    async with behind(answering(*output), wire="responses") as server:
        whole = await server.whole("responses", tools=TOOLS)
        events, final = await server.streamed("responses", tools=TOOLS)
        for asked in server.up.asked:
            assert asked.path == "/v1/responses"
            assert asked.json["store"] is False  # left out it would mean yes
    for answer in (whole, final):
        assert [timeless(item) for item in answer.output] == timeless(output)
        assert [item.id for item in answer.output] == [item["id"] for item in output]
    assert whole.usage.to_dict() == final.usage.to_dict() == speaking.USAGE
    assert [event.sequence_number for event in events] == list(range(len(events)))


CHAT: dict[str, dict[str, Any]] = {
    "text": {"content": "Hello there, world."},
    "refusal": {"refusal": "I cannot do that."},
    "thoughts": {
        "content": "Yes.",
        "reasoning": "First this.",
        "reasoning_content": "First this.",
    },
    "summary": {
        "content": "Yes.",
        "reasoning": "**One** at a time.\n\n**Two**",
        "reasoning_content": "**One** at a time.\n\n**Two**",
    },
    "calls": {"tool_calls": [("weather", WEATHER), ("clock", CLOCK)]},
}


@pytest.mark.parametrize("name", CHAT)
async def test_chat_client_gets_text_refusal_reasoning_and_calls(name) -> None:
    async with behind(answering(*OUTPUTS[name]), wire="responses") as server:
        whole = await server.whole("chat")
        _, final = await server.streamed("chat", stream_options={"include_usage": True})
    for answer in (whole, final):
        (choice,) = timeless(answer)["choices"]
        said = choice["message"]
        if calls := said.get("tool_calls"):
            functions = [call["function"] for call in calls]
            said["tool_calls"] = [(each["name"], each["arguments"]) for each in functions]
        assert {k: v for k, v in said.items() if k not in ("role", "annotations")} == CHAT[name]
        assert choice["finish_reason"] == ("tool_calls" if name == "calls" else "stop")
        assert answer.usage.prompt_tokens_details.cached_tokens == 2
        assert answer.usage.completion_tokens_details.reasoning_tokens == 3
