"""Finds markup in an upstream's text, for servers that leave their model's calls there."""

from __future__ import annotations

import json

from dragoman.core.error import Fault
from dragoman.core.item import JSON, Token
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn

from .format import Markup
from .parser import MarkupParser


class _Call:
    """A call, collected from its fragments."""

    def __init__(self, fragment: CallFragment) -> None:
        self.id = fragment.id
        self.name = fragment.name or ""
        self.whole = False
        self._pieces: list[str] = []

    def add(self, fragment: CallFragment) -> None:
        self.name = self.name or fragment.name or ""
        self.whole = self.whole or fragment.last
        self._pieces.append(fragment.arguments)

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def meaning(self) -> tuple[str, JSON]:
        """Equal for equal calls, however they are written."""
        try:
            return self.name, json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.name, self.arguments


class _Choice:
    """One choice: its parser, and the calls found in it, which wait for its end."""

    def __init__(
        self, turn: TextToolCallTurn, number: int, format: Markup, request: Request
    ) -> None:
        self._turn = turn
        self._number = number
        self.found: list[_Call] = []
        self.given: dict[int | str, _Call] = {}
        self.parser: MarkupParser = format.parser(request, self)

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        self._turn.plain_text(data, self._number, tokens)

    def reasoning(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        self._turn.reasoning(data, self._number, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        if fragment.name:
            self.found.append(_Call(fragment))
        self.found[-1].add(fragment)

    def native(self, fragment: CallFragment) -> None:
        """A fragment of a call that the server gave as such."""
        key = fragment.id or fragment.index or 0
        if fragment.index is not None:
            key = fragment.index
        self.given.setdefault(key, _Call(fragment)).add(fragment)

    def finish(self, reason: str, choice: int = 0) -> None:
        """Not used: the turn ends the choice."""

    def end(self, complete: bool) -> None:
        """Not used: the turn ends the choice."""


class TextToolCallTurn(Turn):
    """A turn whose text may contain one family's markup.

    >>> from dragoman.core.request import FunctionTool
    >>> asked = Request(model="m", tools=(FunctionTool("now"),))
    >>> turn = TextToolCallTurn("1", 0, "m", markup="hermes", request=asked)
    >>> turn.text('<tool_call>{"name": "now"}</tool_call>')
    >>> turn.end(complete=True)
    >>> turn.take()[-1].reasons
    ('tool_calls',)
    """

    def __init__(
        self,
        id: str,
        created_at: int,
        model: str,
        *,
        markup: str,
        request: Request,
        losses: tuple[Loss, ...] = (),
    ) -> None:
        super().__init__(id, created_at, model, losses=losses, think=None)
        self._format = Markup(markup)
        self._request = request
        self._parsed: dict[int, _Choice] = {}

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Text with markup in it."""
        if data:
            self._state(choice).parser.write(data, tokens)
        else:
            super().text(data, choice, tokens)

    def plain_text(self, data: str, choice: int, tokens: tuple[Token, ...]) -> None:
        """Text without markup."""
        super().text(data, choice, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """A fragment of a call that the server gave as such."""
        state = self._state(choice)
        if not state.given:
            state.parser.flush()
        state.native(fragment)
        super().call(fragment, choice)

    def finish(self, reason: str, choice: int = 0) -> None:
        if self._release(choice) and reason == "stop":
            reason = "tool_calls"
        super().finish(reason, choice)

    def end(self, complete: bool) -> None:
        for choice in list(self._parsed) if complete else ():
            self.finish("stop", choice)
        super().end(complete)

    def fail(self, fault: Fault) -> None:
        for choice in list(self._parsed):
            self._release(choice)
        super().fail(fault)

    # ---- inside --------------------------------------------------------------------------

    def _state(self, choice: int) -> _Choice:
        state = self._parsed.get(choice)
        if state is None:
            state = self._parsed[choice] = _Choice(self, choice, self._format, self._request)
        return state

    def _release(self, choice: int) -> bool:
        """Emit what is held back; returns whether there were calls in it."""
        state = self._parsed.pop(choice, None)
        if state is None:
            return False
        state.parser.flush()
        given = [call.meaning for call in state.given.values()]
        for number, call in enumerate(state.found):
            if not given:
                fragment = CallFragment(number, call.id, call.name, call.arguments, last=call.whole)
                super().call(fragment, choice)
            elif call.meaning not in given:
                name = json.dumps(call.name, ensure_ascii=False)
                text = f'{{"name": {name}, "arguments": {call.arguments or "{}"}}}'
                super().text(text, choice)
        return bool(state.found) and not given
