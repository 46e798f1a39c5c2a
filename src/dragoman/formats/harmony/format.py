"""Harmony as a format: prompt, end tokens, parser and the grammar of a constrained answer."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.error import FaultError, bad_request
from dragoman.core.loss import LossList
from dragoman.core.lower import UpstreamLimits
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.demand import Anything, Callee, Demand, JSONBody, demand
from dragoman.formats.grammar.lark import EITHER, Writer
from dragoman.formats.prompt import Prompt, Tokenizer

from .layout import CALL, RETURN, Vocabulary, opening
from .parse import HarmonyParser
from .render import render
from .tools import Toolkit


def grammar(
    request: Request, opened: str | None = None, recipient: str | None = None
) -> Grammar | None:
    """What the answer must match, or None where nothing is demanded.

    `opened` is the channel of a message in the midst of which the prompt ends, and `recipient`
    whom it calls. Raises FaultError for a demand on an answer that has already begun.
    """
    asked = demand(request)
    if asked is None:
        return None
    return _Envelope(asked).grammar(opened, recipient)


class _Envelope:
    """One demand, laid into messages."""

    def __init__(self, asked: Demand) -> None:
        self._asked = asked
        self._writer = Writer(EITHER)

    def grammar(self, opened: str | None, recipient: str | None) -> Grammar:
        writer, header = self._writer, self._writer.marker("<|channel|>")
        if opened is not None and recipient is not None:
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
        match opened:
            case None:
                return writer.grammar(f"{header} {start}")
            case "analysis":
                return writer.grammar(f"{writer.free()} {next_message} {start}")
            case _ if isinstance(self._asked.text, Anything):
                return writer.grammar(f"{writer.free()} {writer.end(['<|return|>'])}")
            case _:
                problem = "the answer is begun, and what it must be is told too late"
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

    def _called(self, tool: Callee) -> str:
        return f"{self._writer.body(tool.body)} {self._writer.end(['<|call|>'])}"

    def _message(self) -> str:
        return self._writer.marker("<|message|>")


def _recipient(tool: Callee) -> str:
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
    """Namespaces and tools of free text are its own; its built-in tools nobody here can run."""

    def __init__(self) -> None:
        self._known: tuple[Tokenizer, Vocabulary] | None = None

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to where the model begins to write: `<|start|>assistant`, or the midst of
        a message where one is to be continued or a certain tool must be called.

        Raises FaultError: for the output of a call that does not come before it, and for an item
        that stands for something kept elsewhere.
        """
        return render(request, setting)

    def stops(self, request: Request) -> Stops:
        """The end of the answer, and the end of a call."""
        return Stops((RETURN, CALL))

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> HarmonyParser:
        """A parser for the answer to this request. Without a tokenizer only `write` works."""
        tools = Toolkit(request, LossList())
        vocabulary = self._vocabulary(tokenizer) if tokenizer is not None else None
        return HarmonyParser(turn, tools, opening(request), vocabulary)

    def grammar(self, request: Request) -> Grammar | None:
        """What the whole answer must match, or None where the request demands nothing. Raises
        FaultError, naming the field, for a demand that cannot be kept."""
        begun = opening(request)
        return grammar(request, *((begun.channel, begun.recipient) if begun else ()))

    def _vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """What the ids stand for; the last one is remembered, since a model has but one."""
        if self._known is None or self._known[0] is not tokenizer:
            self._known = tokenizer, Vocabulary(tokenizer)
        return self._known[1]


HARMONY = Harmony()
"""For all who need no more than one."""
