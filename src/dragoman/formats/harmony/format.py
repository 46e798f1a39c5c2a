"""Harmony as a format: the prompt, what ends an answer, and the parser of it.

For models of the gpt-oss kind. Each side has a room of its own; here they are put together.
"""

from __future__ import annotations

from dragoman.core.ledger import Ledger
from dragoman.core.lower import Limits
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.harmony import grammar
from dragoman.formats.prompt import Prompt
from dragoman.formats.tokenizer import Tokenizer

from .marks import CALL, RETURN, Vocabulary
from .opening import opening
from .parse import HarmonyParser
from .render import render
from .tools import Toolkit


class Harmony:
    """A conversation in harmony.

    >>> from dragoman.core.item import Message
    >>> request = Request(model="m", items=(Message("user", "hi"),))
    >>> Harmony().render(request).text[-51:]
    '<|start|>user<|message|>hi<|end|><|start|>assistant'
    """

    name = "harmony"
    limits = Limits(hosted_tools=False)
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
        tools = Toolkit(request, Ledger())
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
