"""The envelope of harmony: thinking, then a call on the commentary channel or a final message.

Only the body behind a header's `<|message|>` is bound to what was demanded; headers are the ones
the model was trained on. Where the prompt ends in the midst of a message, the grammar begins there.
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.error import FaultError, bad_request
from dragoman.core.request import Request
from dragoman.formats.format import Grammar

from .body import Anything, JSONBody
from .demand import Callee, Demand, demand
from .lark import EITHER, Writer


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
