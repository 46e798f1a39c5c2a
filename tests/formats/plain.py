"""A format as small as can be, for tests of what stands around formats.

A turn begins with `<user>` or `<model>`; a call is `<call>NAME JSON</call>` in the prompt. What the
model writes is text.
"""

from collections.abc import Sequence

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Token
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Parser, Setting, Stops
from dragoman.formats.prompt import Control, Piece, Prompt, Tokenizer

END = "<end>"


class PlainFormat:
    """Renders lines, and parses text."""

    name = "plain"
    controls = (END, "<user>", "<model>", "<tool>")

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        pieces: list[Piece] = [f"<tools>{tool.name}\n" for tool in request.tools]
        if setting.identity:
            pieces.insert(0, setting.identity)
        for item in request.items:
            match item:
                case Message():
                    role = "<model>" if item.role == "assistant" else f"<{item.role}>"
                    pieces += [Control(role), item.text, Control(END)]
                case FunctionCall():
                    call = f"<call>{item.name} {item.arguments}</call>"
                    pieces += [Control("<model>"), call, Control(END)]
                case FunctionCallOutput(output=str(said)):
                    pieces += [Control("<tool>"), said, Control(END)]
                case _:
                    raise FaultError(unsupported("cannot be written in lines", "items"))
        pieces.append(Control("<model>"))
        lost = (Loss("verbosity", "dropped", "lines are short"),) if request.verbosity else ()
        return Prompt(tuple(pieces), lost)

    def stops(self, request: Request) -> Stops:
        return Stops((END,), ("\n<user>",))

    def parser(self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None) -> Parser:
        return PlainParser(turn)

    def grammar(self, request: Request) -> Grammar | None:
        return None


class PlainParser:
    """Text until the end marker, half of which is held back."""

    reasoning_tokens = 0
    warnings: Sequence[str] = ()

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._held = ""

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        raise NotImplementedError

    def write(self, text: str) -> None:
        self._held = (self._held + text).partition(END)[0]
        at = self._held.rfind("<")
        tail = self._held[at:] if at >= 0 else ""
        kept = tail if END.startswith(tail) else ""
        self._turn.text(self._held[: len(self._held) - len(kept)])
        self._held = kept

    def close(self, reason: str) -> None:
        self._turn.text(self._held)
        self._turn.finish(reason)
        self._turn.end(complete=True)
