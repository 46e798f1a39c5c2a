"""What becomes of the content of a message: said, thought, called, or passed over.

Each kind of content feeds the one assembler in its own way. How a header is read and where a
message ends is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

from dragoman.core.item import (
    CustomToolCall,
    FunctionCall,
    Message,
    Reasoning,
    Token,
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


class Unsaid:
    """What somebody else would have said."""

    flow = None

    def add(self, text: str, tokens: tuple[Token, ...]) -> None:
        pass

    def close(self, ending: Ending) -> None:
        pass
