"""Harmony as a format: prompt, end tokens, parser and the grammar of a constrained answer."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.error import FaultError, bad_request
from dragoman.core.loss import LossList
from dragoman.core.lower import UpstreamLimits
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import AllowedTool, Anything, Demand, JSONBody, demand
from dragoman.formats.grammar.lark import EITHER, Writer
from dragoman.formats.prompt import Prompt, Tokenizer

from .layout import CALL, END_OF_TEXT, RETURN, TokenTable, prefill
from .parse import HarmonyParser
from .render import render
from .tools import Toolkit


def grammar(
    request: Request, channel: str | None = None, recipient: str | None = None
) -> Grammar | None:
    """The grammar of the answer, or None where the request constrains nothing.

    `channel` and `recipient` are those of a message that the prompt leaves open. Raises FaultError
    for a constraint on an answer that has already begun.
    """
    asked = demand(request)
    if asked is None:
        return None
    return _GrammarBuilder(asked).grammar(channel, recipient)


class _GrammarBuilder:
    """The grammar of one demand, as messages."""

    def __init__(self, asked: Demand) -> None:
        self._asked = asked
        self._writer = Writer(EITHER)

    def grammar(self, channel: str | None, recipient: str | None) -> Grammar:
        writer, header = self._writer, self._writer.marker("<|channel|>")
        if channel is not None and recipient is not None:
            called = [tool for tool in self._asked.tools if _recipient(tool) == recipient]
            return writer.grammar(self._called(called[0]))
        next_message = (
            f'{writer.marker("<|end|>")} {writer.marker("<|start|>")} "assistant" {header}'
        )
        answer = writer.rule("answer", writer.any_of(self._answers()))
        free = [f'"analysis" {self._message()}']
        if isinstance(self._asked.text, Anything | None):  # else it would be part of the text
            free.append(f'"commentary" {self._message()}')
        start = f"({writer.any_of(free)} {writer.free()} {next_message})* {answer}"
        match channel:
            case None:
                return writer.grammar(f"{header} {start}")
            case "analysis":
                return writer.grammar(f"{writer.free()} {next_message} {start}")
            case _ if isinstance(self._asked.text, Anything):
                return writer.grammar(f"{writer.free()} {writer.end(['<|return|>'])}")
            case _:
                problem = "the answer has begun, so it cannot be constrained any more"
                raise FaultError(bad_request(problem, "items"))

    def _answers(self) -> Iterator[str]:
        """The headers and bodies that may end the answer."""
        asked, writer = self._asked, self._writer
        for tool in asked.tools:
            to = f"commentary to={_recipient(tool)}"
            kind = "" if tool.custom else f'" " {writer.marker("<|constrain|>")} "json" '
            yield f"{writer.text(to)} {kind}{self._message()} {self._called(tool)}"
        if asked.text is not None:
            json = isinstance(asked.text, JSONBody)
            kind = f'(" " {writer.marker("<|constrain|>")} "json")? ' if json else ""
            body = writer.body(asked.text)
            yield f'"final" {kind}{self._message()} {body} {writer.end(["<|return|>"])}'

    def _called(self, tool: AllowedTool) -> str:
        return f"{self._writer.body(tool.body)} {self._writer.end(['<|call|>'])}"

    def _message(self) -> str:
        return self._writer.marker("<|message|>")


def _recipient(tool: AllowedTool) -> str:
    return f"{tool.namespace or 'functions'}.{tool.name}"


class Harmony:
    """A conversation in harmony.

    >>> from dragoman.core.item import Message
    >>> request = Request(model="m", items=(Message("user", "hi"),))
    >>> Harmony().render(request).text[-51:]
    '<|start|>user<|message|>hi<|end|><|start|>assistant'
    """

    name = "harmony"
    limits = UpstreamLimits(hosted_tools=False)
    """It has namespaces and free-text tools; its built-in tools cannot be run here."""

    def __init__(self) -> None:
        self._table: tuple[Tokenizer, TokenTable] | None = None

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to `<|start|>assistant`, or inside a message that is to be continued or a
        call that is forced.

        Raises FaultError for an output without its call before it, and for an unresolved reference.
        """
        return render(request, setting)

    def stops(self, request: Request) -> Stops:
        return Stops((RETURN, CALL, END_OF_TEXT))

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> HarmonyParser:
        tools = Toolkit(request, LossList())
        table = self._token_table(tokenizer) if tokenizer is not None else None
        return HarmonyParser(turn, tools, prefill(request), table)

    def grammar(self, request: Request) -> Grammar | None:
        prefilled = prefill(request)
        return grammar(request, *((prefilled.channel, prefilled.recipient) if prefilled else ()))

    def _token_table(self, tokenizer: Tokenizer) -> TokenTable:
        """The table of a vocabulary; the last one is kept, since a model has but one."""
        if self._table is None or self._table[0] is not tokenizer:
            self._table = tokenizer, TokenTable(tokenizer)
        return self._table[1]


HARMONY = Harmony()
"""Stateless but for a cache, so that one is enough."""
