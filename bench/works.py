"""The work that gateways are measured on: the bodies clients send, and the goals per row."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from dragoman.wire.registry import BASE, WIRES


class Load(Struct, frozen=True):
    """A request as the load sends it, over any of the protocols."""

    body: str
    pace: str
    wire: str

    @property
    def connections(self) -> int:
        """As many as keep one core busy, and for a paced stream far fewer than it can take."""
        if self.body == "history":
            return 2
        return {"whole": 16, "burst": 8, "paced": 40}[self.pace]

    @property
    def path(self) -> str:
        return BASE + WIRES[self.wire].path

    def text(self) -> bytes:
        """The body of the request."""
        model = "mock-n100-us20000" if self.pace == "paced" else "mock-n200-us0"
        fields = _BODIES[self.body]()
        turns, tools = fields["turns"], fields["tools"]
        body: dict[str, Any] = {"model": model}
        match self.wire:
            case "chat":
                body["messages"] = turns
                body["tools"] = [{"type": "function", "function": tool} for tool in tools]
            case "responses":
                body["input"] = turns
                body["tools"] = [{"type": "function", **tool} for tool in tools]
            case _:
                first = turns[0]["role"] == "system"
                body |= {"system": turns[0]["content"]} if first else {}
                body |= {"messages": turns[first:], "max_tokens": 1000}
                body["tools"] = [_renamed(tool) for tool in tools]
        if not tools:
            del body["tools"]
        body |= {"temperature": 0.7, "stream": self.pace != "whole"}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _renamed(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as Messages describes it."""
    return {("input_schema" if name == "parameters" else name): v for name, v in tool.items()}


class Work(Struct, frozen=True):
    """A row of the table: the load on a stored Dragoman, and what it may cost at most.

    Those that speak only Chat get the same over Chat. Gates are multiples of nginx's CPU, of the
    floor's, and of the floor's for a Dragoman without a store.
    """

    name: str
    load: Load
    nginx: float | None = None
    floor: float | None = None
    unstored: float | None = None


def _works() -> tuple[Work, ...]:
    def work(name: str, body: str, pace: str, wire: str, *gates: float | None) -> Work:
        return Work(name, Load(body, pace, wire), *gates)

    return (
        work("Chat, request", "small", "whole", "chat", 4.5, 2.5),
        work("Responses, request", "small", "whole", "responses", 7.5, 4),
        work("Messages, request", "small", "whole", "messages", None, 4),
        work("Chat, paced chunk", "small", "paced", "chat", 2.5, 1.5),
        work("Responses, paced chunk", "small", "paced", "responses", 2.5, 1.5),
        work("Messages, paced chunk", "small", "paced", "messages", 2.5, 1.5),
        work("Responses with ten tools, paced chunk", "tools", "paced", "responses", 2.5, 1.5),
        work("Chat, burst chunk", "small", "burst", "chat", 3),
        work("Responses, burst chunk", "small", "burst", "responses", 5),
        work("Messages, burst chunk", "small", "burst", "messages", 5),
        work("Codex-like, 30 kB, request", "codex", "whole", "responses", None, 4, 2.2),
        work("Claude Code-like, 30 kB, request", "codex", "whole", "messages", None, 4, 2.2),
        work("history of 870 kB, request", "history", "whole", "responses", None, 4, 2.5),
    )


# ---- bodies ------------------------------------------------------------------------------------


def _small() -> dict[str, Any]:
    system = "You are a helpful assistant. Answer briefly and cite sources where you can."
    question = "Describe the water cycle in three sentences to a child who likes boats."
    return {"turns": [_turn("system", system), _turn("user", question)], "tools": []}


def _tools() -> dict[str, Any]:
    return {**_small(), "tools": [_tool(number, 3) for number in range(10)]}


def _codex() -> dict[str, Any]:
    """Like the first request of a coding agent: 17 kB of instructions and ten large tools."""
    rules = _prose(17_000)
    turns = [_turn("system", rules), _turn("user", "Fix the failing test in tests/test_app.py.")]
    return {"turns": turns, "tools": [_tool(number, 8) for number in range(10)]}


def _history() -> dict[str, Any]:
    """A conversation of 400 messages."""
    roles = ("user", "assistant")
    return {
        "turns": [_turn(roles[n % 2], _prose(2_060, n)) for n in range(399)]
        + [_turn("user", "Go on.")],
        "tools": [],
    }


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _tool(number: int, fields: int) -> dict[str, Any]:
    properties = {
        f"field_{n}": {
            "type": ("string", "integer", "boolean")[n % 3],
            "description": _prose(80, n),
        }
        for n in range(fields)
    }
    schema = {"type": "object", "properties": properties, "required": ["field_0"]}
    return {"name": f"tool_{number}", "description": _prose(200), "parameters": schema}


def _prose(length: int, seed: int = 0) -> str:
    """Text with lines and quotes; one in ten has letters beyond ASCII, which are slower to read."""
    words = ("the", "model", "reads", "every", "line\n", "of", 'a "file"', "and", "then", "writes")
    text = " ".join(f"{words[(n * 7 + seed) % 10]} {n}" for n in range(length // 5))
    return (("“Café”: " if seed % 10 == 9 else "") + text)[:length]


_BODIES = {"small": _small, "tools": _tools, "codex": _codex, "history": _history}
WORKS = _works()
