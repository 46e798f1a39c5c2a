"""Hosted tools that do what a test tells them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.error import FaultError, bad_request
from dragoman.core.interfaces import Caller
from dragoman.core.item import Annotation, Call, FunctionCall, Unknown
from dragoman.core.request import FunctionTool
from dragoman.tools.run import Context, Display, Output, Shown


class Fake:
    """A tool with one function, that does what a test tells it."""

    after, auto_retry, auto_truncate, enabled = "model", True, None, True
    seconds, repeatable = None, False

    def __init__(self, name: str, display: Display, does: Any, approval: Any = "never") -> None:
        self.spec = FunctionTool(name, None, {"type": "object", "properties": {}})
        self.display, self.approval, self._does = display, approval, does

    async def call(self, text: str, context: Context) -> Output | Shown:
        return await self._does(text) if callable(self._does) else self._does


def cited(number: int, rest: str) -> Annotation | None:
    """Every number is a page, except behind `【n†file】`."""
    if rest == "file":
        return Annotation("file_citation", file_id=f"file-{number}", filename=f"{number}.md")
    url = f"https://example.com/{number}"
    return Annotation("url_citation", url=url, title=f"Page {number}")


class Session:
    """One of them in an answer."""

    def __init__(self, of: "Tool") -> None:
        self.namespace, self.tools, self.items = of.namespace, of.tools, of.items
        self._of, self.description = of, "What it is for."
        self.cited = cited if of.cites else None

    async def close(self) -> None:
        self._of.closed += 1


class Tool:
    """A hosted tool."""

    def __init__(
        self, kind: str, *tools: Fake, namespace: str | None = None, **fields: Any
    ) -> None:
        self.kinds = frozenset((kind,))
        self.tools, self.namespace = tools, namespace
        self.items: Sequence[Unknown] = fields.get("items", ())
        self.cites, self.refuses = fields.get("cites", False), fields.get("refuses")
        self.asked: list[Mapping[str, Any]] = []
        self.known: list[Sequence[Unknown]] = []
        self.opening, self.waits = asyncio.Event(), fields.get("waits", False)
        self.closed = 0

    async def open(
        self, asked: Mapping[str, Any], items: Sequence[Unknown], caller: Caller
    ) -> Session:
        self.opening.set()
        if self.waits:
            await asyncio.Future()
        if self.refuses:
            raise FaultError(bad_request("is not to be", "server_label"))
        self.asked.append(asked)
        self.known.append(items)
        return Session(self)

    async def close(self) -> None:
        self.closed += 100


def action(call: Call) -> dict[str, Any]:
    query = json.loads(call.arguments).get("query", "") if isinstance(call, FunctionCall) else ""
    return {"action": {"type": "search", "query": query}}


def search(does: Any = None, **fields: Any) -> Tool:
    display = Display("web_search_call", action, working="searching")
    found = {
        "type": "search",
        "query": "cats",
        "sources": [{"type": "url", "url": "https://e.com"}],
    }
    tool = Fake("search", display, does or Shown("Cats: see [1].", {"action": found}))
    return Tool("web_search", tool, namespace="browser", **fields)


def python(does: Any = None, **fields: Any) -> Tool:
    def opened(call: Call) -> dict[str, Any]:
        code = json.loads(call.arguments)["code"] if isinstance(call, FunctionCall) else ""
        return {"code": code, "container_id": "cntr_1", "outputs": None}

    display = Display("code_interpreter_call", opened, delta="code", working="interpreting")
    logs = {"outputs": [{"type": "logs", "logs": "4"}]}
    tool = Fake("python", display, does or Shown("4", logs))
    return Tool("code_interpreter", tool, **fields)


def mcp(does: Any = None, approval: Any = "always", **fields: Any) -> Tool:
    def opened(call: Call) -> dict[str, Any]:
        assert isinstance(call, FunctionCall)
        about = {"name": call.name, "arguments": call.arguments}
        return {"server_label": "shop", **about, "output": None, "error": None}

    display = Display("mcp_call", opened, delta="arguments", fails=True)
    shown = Shown("bought", {"output": "bought"})
    return Tool("mcp", Fake("buy", display, does or shown, approval), namespace="shop", **fields)


def wants(name: str, space: str | None = None, id: str = "c1", **arguments: Any) -> FunctionCall:
    return FunctionCall(id, name, json.dumps(arguments), space)
