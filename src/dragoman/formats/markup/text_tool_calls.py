"""Finds markup in an answer's text, for servers that leave their model's calls there."""

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
    """A call, collected piece by piece."""

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
        """What the same call means however it is written."""
        try:
            return self.name, json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return self.name, self.arguments


class _Choice:
    """One choice: what it says, and the calls found in it, which wait for its end."""

    def __init__(self, turn: MarkedTurn, number: int, format: Markup, request: Request) -> None:
        self._turn = turn
        self._number = number
        self.found: list[_Call] = []
        self.given: dict[int | str, _Call] = {}
        self.parser: MarkupParser = format.hear(request, self)

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Text with no markup in it."""
        self._turn.say(data, self._number, tokens)

    def reasoning(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """Reasoning that was marked as such."""
        self._turn.reasoning(data, self._number, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """A piece of a call that was found."""
        if fragment.name:
            self.found.append(_Call(fragment))
        self.found[-1].add(fragment)

    def native(self, fragment: CallFragment) -> None:
        """A piece of a call that the server gave as such."""
        key = fragment.id or fragment.index or 0
        if fragment.index is not None:
            key = fragment.index
        self.given.setdefault(key, _Call(fragment)).add(fragment)

    def finish(self, reason: str, choice: int = 0) -> None:
        """Only the turn itself hears of ends."""

    def end(self, complete: bool) -> None:
        """Only the turn itself hears of ends."""


class MarkedTurn(Turn):
    """Makes events of loose deltas whose text may hold one family's markup.

    >>> from dragoman.core.request import FunctionTool
    >>> asked = Request(model="m", tools=(FunctionTool("now"),))
    >>> turn = MarkedTurn("1", 0, "m", markup="hermes", request=asked)
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
        self._heard: dict[int, _Choice] = {}

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """More of what the model says, with its markup."""
        if data:
            self._hearing(choice).parser.write(data, tokens)
        else:
            super().text(data, choice, tokens)

    def say(self, data: str, choice: int, tokens: tuple[Token, ...]) -> None:
        """More of what the model says, with no markup in it."""
        super().text(data, choice, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """A piece of a call that the server gave as such."""
        heard = self._hearing(choice)
        if not heard.given:
            heard.parser.flush()
        heard.native(fragment)
        super().call(fragment, choice)

    def finish(self, reason: str, choice: int = 0) -> None:
        """The choice is at its end: what was held back is said."""
        if self._settle(choice) and reason == "stop":
            reason = "tool_calls"
        super().finish(reason, choice)

    def end(self, complete: bool) -> None:
        """The stream is over."""
        for choice in list(self._heard) if complete else ():
            self.finish("stop", choice)
        super().end(complete)

    def fail(self, fault: Fault) -> None:
        """The bad end. What came before stands."""
        for choice in list(self._heard):
            self._settle(choice)
        super().fail(fault)

    # ---- inside --------------------------------------------------------------------------

    def _hearing(self, choice: int) -> _Choice:
        heard = self._heard.get(choice)
        if heard is None:
            heard = self._heard[choice] = _Choice(self, choice, self._format, self._request)
        return heard

    def _settle(self, choice: int) -> bool:
        """Say what is held back, and tell whether there were calls in it."""
        heard = self._heard.pop(choice, None)
        if heard is None:
            return False
        heard.parser.flush()
        given = [call.meaning for call in heard.given.values()]
        for number, call in enumerate(heard.found):
            if not given:
                fragment = CallFragment(number, call.id, call.name, call.arguments, last=call.whole)
                super().call(fragment, choice)
            elif call.meaning not in given:
                name = json.dumps(call.name, ensure_ascii=False)
                text = f'{{"name": {name}, "arguments": {call.arguments or "{}"}}}'
                super().text(text, choice)
        return bool(heard.found) and not given
