"""What becomes of the content of a message: said, thought, called, or passed over.

Each kind of content feeds the one assembler in its own way. How a header is read and where a
message ends is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

from dragoman.core.item import (
    JSON,
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Token,
    Unknown,
)
from dragoman.core.turn import Turn

from .tools import Callee

Ending = Literal["completed", "incomplete"]


Flow = Callable[[str], None]


class Body(Protocol):
    """The content of a message while it comes."""

    @property
    def flow(self) -> Flow | None:
        """Where more of it may go straight on, once there is some: the same as `add`, sooner."""
        ...

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        """More of it."""
        ...

    def close(self, ending: Ending) -> None:
        """It is at its end; an incomplete one was cut."""
        ...


class Said:
    """A message to the user, in a phase of the answer. A final one is said even if it is empty."""

    def __init__(self, turn: Turn, phase: str, final: bool) -> None:
        self._turn = turn
        self._phase = phase
        self._final = final
        self.flow: Flow | None = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self.flow is None:
            self._begin()
        self._turn.text(text, 0, tokens)

    def close(self, ending: Ending) -> None:
        if self._final and self.flow is None and ending == "completed":
            self._turn.write(self._begin(), "text", "")
        if ending == "completed":
            self._turn.pause()

    def _begin(self) -> int:
        self.flow = self._turn.text
        return self._turn.start(Message("assistant", phase=self._phase))


class Thought:
    """Reasoning."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.flow: Flow | None = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self.flow is None:
            self.flow = self._turn.thought
            self._turn.start(Reasoning())
        self._turn.thought(text, 0, tokens)

    def close(self, ending: Ending) -> None:
        if ending == "completed":
            self._turn.pause()


class Called:
    """A call of one of the client's tools, its arguments exactly as the model writes them."""

    def __init__(self, turn: Turn, callee: Callee) -> None:
        self._turn = turn
        custom = callee.kind == "custom"
        kind = CustomToolCall if custom else FunctionCall
        self._index = index = turn.start(kind("", callee.name, "", callee.namespace))
        self.flow: Flow = partial(turn.write, index, "input" if custom else "arguments")

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        self.flow(text)

    def close(self, ending: Ending) -> None:
        if (item := self._turn.item(self._index)) is not None:
            item.status = ending
        self._turn.shut(self._index)


class Hosted:
    """A call of a built-in, as the item that Responses has for it.

    Word for word it is in the item's `extra`, for whoever runs it.
    """

    def __init__(self, turn: Turn, name: str, number: int) -> None:
        self._turn = turn
        self._name = name
        self._pieces: list[str] = []
        self.flow: Flow = self._pieces.append
        self._id = f"{'ci' if name == 'python' else 'ws'}_{turn.id}_{number}"
        self._index = turn.start(self._item("in_progress"))

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        self.flow(text)

    def close(self, ending: Ending) -> None:
        self._turn.shut(self._index, self._item(ending))

    def _item(self, status: str) -> Unknown:
        body = "".join(self._pieces)
        extra = {"harmony": {"recipient": self._name, "body": body}}
        if self._name == "python":
            kind = "code_interpreter_call"
            value: dict[str, JSON] = {"code": body, "container_id": "", "outputs": None}
        else:
            kind = "web_search_call"
            value = {"action": _action(self._name, _arguments(body))}
        return Unknown("responses", kind, {"status": status, **value}, self._id, extra)


class Unsaid:
    """What somebody else would have said."""

    flow = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        pass

    def close(self, ending: Ending) -> None:
        pass


def _arguments(body: str) -> dict[str, JSON]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _action(name: str, arguments: dict[str, JSON]) -> JSON:
    """What the browser is to do, as far as the call alone says it."""

    def text(key: str) -> str:
        value = arguments.get(key)
        return value if isinstance(value, str) else ""

    match name:
        case "browser.open":
            return {"type": "open_page", "url": text("id") or None}
        case "browser.find":
            return {"type": "find_in_page", "pattern": text("pattern"), "url": text("url")}
        case _:
            return {"type": "search", "query": text("query")}
