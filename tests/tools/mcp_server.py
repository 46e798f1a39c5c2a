"""A server of the official SDK, over stdio as a program, or as an application for HTTP."""

from typing import Any

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel

server = MCPServer("a server of tests")
begun, cancelled = [], []


class Point(BaseModel):
    """With a reference in the schema of whoever takes several."""

    x: int
    y: float | None = None


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def total(points: list[Point], start: int | str = 0) -> int:
    """Add what is in an array of objects."""
    return int(start) + sum(point.x for point in points)


@server.tool()
def nothing() -> str:
    """Takes no arguments."""
    return "done"


@server.tool(structured_output=False)
def picture() -> list[Any]:
    return ["a dot", Image(data=b"\x89PNG dot", format="png"), "and more"]


@server.tool()
def refuse() -> CallToolResult:
    """Fails."""
    return CallToolResult(content=[TextContent(type="text", text="not today")], is_error=True)


@server.tool()
async def wait(context: Context) -> str:
    """Reports, and never ends."""
    begun.append("wait")
    try:
        await context.report_progress(1, 2, "half of it")
        await anyio.sleep_forever()
    finally:
        cancelled.append("wait")
    return ""


@server.tool()
def counts() -> str:
    """How many calls of `wait` were begun, and cancelled."""
    return f"{len(begun)} {len(cancelled)}"


@server.tool()
async def ask(context: Context) -> str:
    """Asks whoever uses the client."""
    return str(await context.elicit("May I?", Point))


if __name__ == "__main__":
    server.run("stdio")
