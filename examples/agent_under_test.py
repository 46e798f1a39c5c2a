"""An agent built on the official SDK, tested in this process: no port, no network, no key.

The script has the model's answers, turn by turn. The SDK sends and receives the same
bytes as with a server.
"""

import asyncio
from typing import Any

import httpx2
import openai

import dragoman
from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.item import FunctionCall
from dragoman.core.response import Response
from dragoman.engines.script import Script

TOOLS: list[Any] = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]


async def agent(client: openai.AsyncOpenAI, question: str) -> str:
    """The agent under test: asks the model, runs the tools it calls, asks again."""
    items: list[Any] = [{"role": "user", "content": question}]
    while True:
        response = await client.responses.create(model="any", input=items, tools=TOOLS)
        items += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        for call in calls:
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            items.append(output)


def connected(script: Script) -> openai.AsyncOpenAI:
    http = httpx2.AsyncClient(transport=dragoman.transport(script))
    return openai.AsyncOpenAI(
        base_url="http://dragoman/v1", api_key="none", http_client=http, max_retries=0
    )


def calling(name: str, arguments: str) -> Response:
    """A response with a tool call."""
    call = FunctionCall("call_1", name, arguments)
    return Response(
        id="1",
        created_at=0,
        model="script",
        status="completed",
        output=(call,),
        reasons=("tool_calls",),
    )


async def main() -> None:
    script = Script(calling("get_weather", '{"city": "Paris"}'), "It is sunny in Paris.")
    async with connected(script) as client:
        print(await agent(client, "How is the weather in Paris?"))

    limit = Fault("rate_limited", "Slow down.", "upstream", retry_after="7")
    async with connected(Script([Failed(limit)])) as client:
        try:
            await agent(client, "How is the weather in Paris?")
        except openai.RateLimitError as error:
            print(error.status_code, error.response.headers["retry-after"])


asyncio.run(main())

# Run, it prints:
#     It is sunny in Paris.
#     429 7
