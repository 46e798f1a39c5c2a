"""Emits text, reasoning and calls found in markup into a turn."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from dragoman.core.item import JSON, Token
from dragoman.core.request import FunctionTool, Request, UnknownTool
from dragoman.core.tool_calls import CallFragment
from dragoman.core.tools import flat
from dragoman.core.turn import Turn
from dragoman.formats.grammar.schema import read_json

Schemas = Mapping[str, JSON]
"""The tools of a request by name, each with the schema of its arguments, or None."""


class Segment:
    """The text between two marks; this one discards it (the role of the next turn)."""

    @property
    def quoted(self) -> bool:
        """Whether the position is inside a string, where a mark may be data."""
        return False

    def feed(self, text: str, at: int, end: int) -> int:
        """Read text[at:end]; returns where the segment ended, if it did before that."""
        return end

    def leave(self, target: str | None) -> None:
        """A mark was found that leads to a state of this kind, or (None) the text is over."""


def schemas(request: Request) -> dict[str, JSON]:
    """The tools that may be called in an answer to this request; none where calls are forbidden.

    >>> schemas(Request(model="m", tools=(FunctionTool("now"),)))
    {'now': None}
    """
    return {
        tool.name: tool.parameters if isinstance(tool, FunctionTool) else None
        for _, tool in flat(request.tools if request.tool_choice != "none" else ())
        if not isinstance(tool, UnknownTool)
    }


class Emitter:
    """One answer, written into a turn."""

    def __init__(self, turn: Turn, tools: Schemas, name_form: str = "(.*)") -> None:
        self.tools = tools
        self._name_form = re.compile(name_form, re.DOTALL)
        self.calls = 0
        self.truncated = False  # the open call was not ended by the model
        self.cut = False  # the answer ends at a limit: what has not begun is left out
        self.dropping = False  # and that is in the head of a call: its text is no answer
        self.warnings: list[str] = []
        self.warn = self.warnings.append
        # What is known of a call before it begins, and of arguments that are tags.
        self.next_name = ""
        self.next_id: str | None = None
        self.parameter = ""
        self.parameters = 0
        self._tokens: deque[tuple[Token | None, int]] = deque()  # with their characters left
        self._left = 0  # the sum of these
        self._turn = turn
        self._name: str | None = None  # of the call that is open
        self._arguments: list[str] = []

    def text(self, data: str) -> None:
        if not self.dropping:
            self._turn.text(data, 0, self._take_tokens(data))

    def thought(self, data: str) -> None:
        self._turn.reasoning(data, 0, self._take_tokens(data))

    def add_token(self, token: Token, text: str) -> None:
        """A token with its log-probability arrives as this text."""
        self._tokens.append((token, len(text)))
        self._left += len(text)

    def drop_tokens(self, left: int) -> None:
        """Only the last `left` characters that arrived may still be emitted."""
        while self._tokens and self._left > left:
            self._left -= self._tokens.popleft()[1]

    def _take_tokens(self, data: str) -> tuple[Token, ...]:
        """The tokens that begin in this text, and earlier ones without text."""
        found: list[Token] = []
        size = len(data)
        while self._tokens and (size > 0 or self._tokens[0][1] == 0):
            token, left = self._tokens.popleft()
            if token is not None:
                found.append(token)
            if left > size:
                self._tokens.appendleft((None, left - size))
            self._left -= min(left, size)
            size = max(0, size - left)
        return tuple(found)

    def finish(self, reason: str) -> None:
        """End the answer."""
        self._turn.finish("tool_calls" if reason == "stop" and self.calls else reason)
        self._turn.end(complete=True)

    # ---- calls ---------------------------------------------------------------------------

    def name_in(self, text: str) -> str:
        """The name in what stands in its place."""
        found = self._name_form.fullmatch(text.strip())
        return found[1].strip() if found else ""

    @property
    def in_call(self) -> bool:
        return self._name is not None

    def open_call(self, name: str, id: str | None = None) -> None:
        """Begin a call. One without a name becomes text in the end."""
        self.close_call()
        self._name, self._arguments = name, []
        if name:
            if name not in self.tools:
                self.warn(f"{name} is called, and no tool of that name was offered")
            self._turn.call(CallFragment(self.calls, id, name))
            self.calls += 1

    def add_arguments(self, piece: str) -> None:
        self._arguments.append(piece)
        if self._name:
            self._turn.call(CallFragment(self.calls - 1, arguments=piece))

    def close_call(self) -> None:
        """End the call; without arguments it has the empty object."""
        name, self._name = self._name, None
        arguments = "".join(self._arguments)
        if name:
            value = read_json(arguments or "{}")
            if not isinstance(value, dict):
                self.warn(f"the arguments of {name} are not a JSON object")
            if not self.truncated or (arguments and isinstance(value, dict)):
                missing = "" if arguments.strip() else "{}"
                self._turn.call(CallFragment(self.calls - 1, arguments=missing, last=True))
        elif name is not None:
            self.warn(f"a call without a name: {arguments}")
            if arguments:
                self.text(arguments)

    def close_parameters(self) -> None:
        """End a call whose arguments were tags."""
        if self.parameters and not self.truncated:
            self.add_arguments("}")
        self.close_call()
        self.next_name, self.parameter, self.parameters = "", "", 0

    def emit_call(self, name: str, arguments: str, id: str | None = None) -> None:
        """A complete call."""
        self.open_call(name, id)
        self.add_arguments(arguments)
        self.close_call()
