"""The smallest format there is, for tests of the engine: bytes in, bytes out, one control token.

Each item of a conversation is a line of the prompt; the answer is text until `<|end|>`.
"""

from dragoman.core.item import Message
from dragoman.core.lower import UNLIMITED
from dragoman.core.request import JSONSchema, Request
from dragoman.core.turn import Turn
from dragoman.engines.token.engine import RawParser
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.prompt import ByteTokenizer, Prompt, Tokenizer

TOY = ByteTokenizer(["<|end|>"])
END = TOY.controls["<|end|>"]


class Plain:
    """Lines of text."""

    name = "plain"
    limits = UNLIMITED

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        lines = [item.text + "\n" for item in request.items if isinstance(item, Message)]
        date = setting.today if setting.identity and setting.today else ""
        return Prompt((date, *lines))

    def stops(self, request: Request) -> Stops:
        return Stops(("<|end|>",))

    def parser(self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None) -> RawParser:
        return RawParser(turn, tokenizer or TOY)

    def grammar(self, request: Request) -> Grammar | None:
        return Grammar("start: /[ab]+/") if isinstance(request.format, JSONSchema) else None
