"""The official Agents SDK on this server: hosted tools, run for a model that knows Chat alone."""

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dragoman.engines.completions import remote
from dragoman.server.build import hosted
from dragoman.server.config import HostedTool
from tests.mock import Asked, Reply, chunk, mock, stream
from tests.server.state.storing import storing
from tests.tools.browsing import Site
from tests.tools.test_mcp import CHILD

STEPS = (
    ("browser__search", {"query": "a long story"}),
    ("browser__open", {"id": 0}),
    ("python", {"code": "6 * 7"}),
    ("shop__total", {"points": [{"x": 4}, {"x": 5}]}),
)


def chat_only(asked: Asked) -> Reply:
    """A server of a model that takes these steps, each when it has the result of the one before."""
    if asked.path != "/v1/chat/completions":
        return Reply([b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}"], keep=True)
    results = [each["content"] for each in asked.json["messages"] if each["role"] == "tool"]
    if len(results) == len(STEPS):
        text = f"The story【1†L0】 is told; {results[2]} and {results[3]}."
        words = [{"content": letter} for letter in text]
        return stream(*map(chunk, words), chunk(finish="stop"))
    name, arguments = STEPS[len(results)]
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": f"call_{len(results)}", "type": "function", "function": function}
    return stream(chunk({"tool_calls": [call]}), chunk(finish="tool_calls"))


@pytest.mark.parametrize("streamed", [True, False])
async def test_web_search_python_and_mcp_with_approval_from_a_chat_only_model(streamed) -> None:
    import agents  # two seconds, for whoever runs this

    agents.set_tracing_disabled(True)
    approved: list[str] = []

    def approve(request: Any) -> agents.MCPToolApprovalFunctionResult:
        approved.append(request.data.name)
        return {"approve": True}

    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(Site())
        upstream = await stack.enter_async_context(mock(chat_only))
        tools = hosted(
            [
                HostedTool(use=f"web=searxng:{site.base}", allow=("127.0.0.0/8",)),
                HostedTool(use="python"),
                HostedTool(use=f"mcp:shop=stdio:{sys.executable} {CHILD}"),
            ],
            {},
        )
        engine = remote(upstream.base_url, wire="chat")
        server = await stack.enter_async_context(storing(engine, tools=tools))
        python: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
        agent = agents.Agent(
            "helper",
            model=agents.OpenAIResponsesModel("m", server.sdk),
            tools=[
                agents.WebSearchTool(),
                agents.CodeInterpreterTool(python),
                agents.HostedMCPTool(
                    {"type": "mcp", "server_label": "shop", "require_approval": "always"}, approve
                ),
            ],
        )
        if streamed:
            running = agents.Runner.run_streamed(agent, "Tell me the story.")
            text = ""
            async for event in running.stream_events():
                if event.type == "raw_response_event":
                    text += getattr(event.data, "delta", "") * (
                        event.data.type == "response.output_text.delta"
                    )
            result: Any = running
            assert text == result.final_output
        else:
            result = await agents.Runner.run(agent, "Tell me the story.")
    assert result.final_output.startswith("The story ([127.0.0.1")
    assert result.final_output.endswith(" is told; 42 and 9.")
    assert approved == ["total"]
    kinds = [item.raw_item.type for item in result.new_items if hasattr(item.raw_item, "type")]
    assert [kind for kind in kinds if kind != "mcp_list_tools"] == [
        *("web_search_call", "web_search_call", "code_interpreter_call"),
        *("mcp_approval_request", "mcp_call", "message"),
    ]
    (part,) = result.raw_responses[-1].output[-1].content
    (note,) = part.annotations
    assert note.url == f"{site.base}/"
    assert note.url in part.text[note.start_index : note.end_index]
