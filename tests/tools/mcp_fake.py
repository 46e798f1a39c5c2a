"""A small MCP server whose answers can be replaced, and what the tests of MCP servers share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dragoman.core.interfaces import Caller
from dragoman.core.item import FunctionCall, Unknown
from dragoman.tools.mcp import MCP, Server
from dragoman.tools.run import Context, Result, Runner
from tests.mock import Asked, Mock, Reply, mock, plain

SESSION = "mcp-session-id"


def asked(label: str = "s", **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, "require_approval": "never", **more}


async def ran(session: Any, name: str, arguments: str = "", reports: Any = None) -> Result:
    call = FunctionCall("c1", name, arguments)
    report = (lambda _: None) if reports is None else reports
    return await Runner(session.tools).run(call, Context(call, report=report))


@asynccontextmanager
async def opened(
    *servers: Server, request: dict[str, Any] | None = None, items: Any = (), **settings: Any
) -> AsyncIterator[Any]:
    hosted = MCP(servers, **settings)
    try:
        yield await hosted.open(request or asked(), items, Caller("tenant"))
    finally:
        await hosted.close()


def listed(*tools: dict[str, Any], label: str = "s", error: str | None = None) -> Unknown:
    named = [{"name": f"t{n}", "input_schema": {}} | tool for n, tool in enumerate(tools)]
    value = {"server_label": label, "tools": named, "error": error}
    return Unknown("responses", "mcp_list_tools", value)


class Fake:
    """A small server: how it answers each method can be replaced, by a reply or by a result."""

    def __init__(self, *tools: dict[str, Any], **answers: Any) -> None:
        named = [{"name": "t", "inputSchema": {"type": "object"}} | tool for tool in tools or ({},)]
        self.answers: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            },
            "tools/list": {"tools": named},
            "tools/call": {"content": [{"type": "text", "text": "ok"}]},
            **{name.replace("_", "/"): answer for name, answer in answers.items()},
        }
        self.sessions = 0
        self.lost: set[str] = set()
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    def __call__(self, request: Asked) -> Reply:
        if request.method == "DELETE":
            return plain(200, b"")
        message = request.json
        method = message["method"]
        self.asked.append((method, request.headers, message))
        if request.headers.get(SESSION) in self.lost:
            return plain(404, b"no such session", type="text/plain")
        if "id" not in message:
            return plain(202, b"")
        answer = self.answers.get(method)
        if callable(answer):
            answer = answer(message)
        if isinstance(answer, Reply):
            return answer
        about = {"error": {"code": -32601, "message": "no such method"}}
        fields = []
        if method == "initialize":
            self.sessions += 1
            fields = [f"{SESSION}: {self.sessions}"]
        if answer is not None:
            about = answer if "error" in answer else {"result": answer}
        return plain(200, {"jsonrpc": "2.0", "id": message["id"], **about}, *fields)

    def count(self, method: str) -> int:
        return sum(each[0] == method for each in self.asked)


@asynccontextmanager
async def served(fake: Any, **more: Any) -> AsyncIterator[tuple[Server, Mock]]:
    async with mock(fake) as server:
        yield Server(name="s", url=f"http://127.0.0.1:{server.port}/mcp", **more), server


def mcp_tasks() -> list[Any]:
    """What still runs for a session."""
    return [task for task in asyncio.all_tasks() if "Connection._run" in repr(task)]
