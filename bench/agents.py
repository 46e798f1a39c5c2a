"""What a round of an agent costs, beside other agent libraries on the same scripted server.

A round is a request to the model, its call of a function, and the result. Each library runs in a
process of its own; what is reported is that process's CPU.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman import Agent, FunctionCall, Message, Request
from dragoman.core.interfaces import ANYONE
from dragoman.core.response import Response
from dragoman.engines.compaction import fit
from dragoman.engines.script import Script, spoken

from . import machine
from .gateways import ELSEWHERE

ROUNDS, RUNS = 20, 20
PROGRAMS = {
    "dragoman": """
from dragoman import Agent
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
agent = Agent(URL, tools=[add], model="m")
async def run():
    assert (await agent.branch().run("Add.")).text == "Done."
""",
    "requests alone": """
import json
from dragoman import connect, FunctionCall, FunctionCallOutput, FunctionTool, Message
schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
client, tools = connect(URL), [FunctionTool("add", "Add two numbers.", schema)]
async def run():
    items = [Message("user", "Add.")]
    for number in range(ROUNDS + 1):
        async with client.stream(items, model="m", tools=tools) as stream:
            answer = await stream.finish()
        items += answer.output
        calls = [item for item in answer.output if isinstance(item, FunctionCall)]
        items += [FunctionCallOutput(call.call_id, "3") for call in calls]
    assert answer.text == "Done."
""",
    "openai-agents": """
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
set_tracing_disabled(True)
@function_tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=URL, api_key="none"))
agent = Agent("a", tools=[add], model=model)
async def run():
    stream = Runner.run_streamed(agent, "Add.", max_turns=ROUNDS + 2)
    async for _ in stream.stream_events():
        pass
    assert stream.final_output == "Done."
""",
    "pydantic-ai": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=URL, api_key="none")))
@agent.tool_plain
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
async def run():
    async with agent.run_stream("Add.", usage_limits=UsageLimits(request_limit=None)) as result:
        assert await result.get_output() == "Done."
""",
}
PACKAGES = {"openai-agents": "openai-agents", "pydantic-ai": "pydantic-ai-slim[openai]"}
"""What `--install` puts into environments of their own."""
_TIMED = """
import asyncio, time
async def main():
    await run()
    begun = time.process_time()
    for _ in range(RUNS):
        await run()
    print((time.process_time() - begun) / RUNS / (ROUNDS + 1))
asyncio.run(main())
"""


# ---- the server ------------------------------------------------------------------------------


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Calls `add` until the conversation has enough results, then says that it is done."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        size = next(
            (
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line[:15] == b"content-length:"
            ),
            0,
        )
        asked = json.loads(await reader.readexactly(size) or b"{}")
        messages = asked.get("messages", ())
        results = sum(each["role"] == "tool" for each in messages)
        function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
        call = {"index": 0, "id": f"c{results}", "type": "function", "function": function}
        over = results >= ROUNDS
        delta = (
            {"role": "assistant", "content": "Done."}
            if over
            else {"role": "assistant", "tool_calls": [call]}
        )
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        ends = [
            {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {
                **chunk,
                "choices": [
                    {"index": 0, "delta": {}, "finish_reason": "stop" if over else "tool_calls"}
                ],
            },
            {**chunk, "choices": [], "usage": usage},
        ]
        body = (
            b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in ends)
            + b"data: [DONE]\n\n"
        )
        kind = b"text/event-stream" if messages else b"application/json"
        body = body if messages else b'{"object":"list","data":[{"id":"m","object":"model"}]}'
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (kind, len(body), body)
        )


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port, limit=1 << 24)
    await server.serve_forever()


@contextmanager
def _server() -> Iterator[str]:
    port = machine.free_port()
    words = [sys.executable, "-m", "bench.agents", str(port)]
    url = f"http://127.0.0.1:{port}/v1"
    with machine.running(words, core=1, ready=f"{url}/models"):
        yield url


def _measured(name: str, url: str) -> float | None:
    """CPU seconds per round; None where the library is not installed."""
    python = sys.executable if name not in PACKAGES else str(ELSEWHERE / name / "bin" / "python")
    if not Path(python).exists():
        return None
    given = f"URL, ROUNDS, RUNS = {url!r}, {ROUNDS}, {RUNS}\n"
    text = given + PROGRAMS[name] + _TIMED
    environ = {**os.environ, "OPENAI_API_KEY": "none"}
    shown = subprocess.run([python, "-c", text], capture_output=True, check=True, env=environ)
    return float(shown.stdout)


# ---- in this process -------------------------------------------------------------------------


def _cpu(work: Callable[[], object], times: int = 5) -> float:
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def _parallel() -> float:
    """Seconds that 100 calls of one round take which wait 50 ms each."""

    async def wait(number: int) -> int:
        """Wait."""
        await asyncio.sleep(0.05)
        return number

    calls = tuple(FunctionCall(f"c{n}", "wait", f'{{"number": {n}}}') for n in range(100))

    def play(request: Request) -> Response:
        if any(isinstance(item, FunctionCall) for item in request.items):
            return spoken("Done.")
        whole = spoken("")
        return Response(
            id="1",
            created_at=0,
            model="m",
            status="completed",
            output=calls,
            reasons=("tool_calls",),
            usage=whole.usage,
        )

    async def run() -> float:
        agent = Agent(Script(play), tools=[wait], model="m")
        begun = time.perf_counter()
        assert (await agent.run("Wait.")).text == "Done."
        return time.perf_counter() - begun

    return asyncio.run(run())


def _turns(count: int) -> tuple[float, float]:
    """CPU seconds of the first and the last ten turns of a conversation of so many."""

    async def run() -> tuple[float, float]:
        agent = Agent(Script(lambda request: spoken("Yes.")), model="m")
        took = []
        for _ in range(count):
            begun = time.process_time()
            await agent.run("Really?", caller=ANYONE)
            took.append(time.process_time() - begun)
        return statistics.median(took[5:15]), statistics.median(took[-10:])

    return asyncio.run(run())


def table() -> list[str]:
    """The comparisons, as lines of Markdown."""
    with _server() as url:
        rounds = {name: [_measured(name, url) for _ in range(3)] for name in PROGRAMS}
    found = {
        name: statistics.median(values)
        for name, each in rounds.items()
        if (values := [value for value in each if value is not None])
    }
    bare = found["requests alone"]
    lines = [
        "| a round of an agent | CPU | beyond its request | times Dragoman's |",
        "|---|---|---|---|",
    ]
    for name, took in found.items():
        more = f"{(took - bare) * 1e3:.2f} ms" if name != "requests alone" else "–"
        lines.append(f"| {name} | {took * 1e3:.2f} ms | {more} | {took / found['dragoman']:.1f} |")
    if missing := [name for name in PROGRAMS if name not in found]:
        lines += ["", f"Not installed, so not measured: {', '.join(missing)}."]
    first, last = _turns(1_000)
    messages = [
        Message("user" if n % 2 else "assistant", f"Message {n}. " * 20) for n in range(2_000)
    ]
    shared = _cpu(lambda: fit(messages, 20_000))
    return [
        *lines,
        "",
        "| agents in one process | figure |",
        "|---|---|",
        f"| 100 parallel calls that wait 50 ms each | {_parallel() * 1e3:.0f} ms |",
        f"| the 10th turn of a conversation | {first * 1e3:.2f} ms of CPU |",
        f"| the 1,000th turn of it | {last * 1e3:.2f} ms of CPU |",
        f"| 2,000 messages fitted into 20,000 tokens | {shared * 1e3:.1f} ms of CPU |",
    ]


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
