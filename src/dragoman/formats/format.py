"""What a token format promises: render a request, and parse what the model writes.

Only signatures and plain values live here. A parser works for tokens and for text alike, holds back
what may still become a marker, never raises, and feeds the one assembler of the house.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from dragoman.core.item import Token
from dragoman.core.lower import UpstreamLimits
from dragoman.core.request import Request
from dragoman.core.turn import Turn

from .prompt import Prompt, Tokenizer


class Setting(Struct, frozen=True):
    """What a prompt says beyond the request, given from outside so that rendering stays pure.

    `today` is an ISO date, or None to leave the date out: a date in the prompt empties every
    prompt cache at midnight.
    """

    today: str | None = None
    identity: str | None = None
    knowledge_cutoff: str | None = None


PLAIN = Setting()


class Stops(Struct, frozen=True):
    """What ends an answer of this format: control tokens by their text, and strings."""

    controls: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class Marker(Struct, frozen=True):
    """A marker of a format, and the rule of a grammar that stands for it.

    Whether it is one token or ordinary text is for a vocabulary to say. `after text` is the text
    of the rule `before` and then the marker; of the `end` markers those that are no tokens are left
    out.
    """

    rule: str
    text: str
    kind: Literal["alone", "after text", "end"] = "alone"
    before: str = ""


class Grammar(Struct, frozen=True):
    """A grammar the answer must match, from its first token on (markers included).

    `lark` is in llguidance's Lark dialect (`%json {…}` for schemas); the rules of its `markers`
    are left to be written, and `inner` are whole grammars that it refers to as `@name`. `parts`
    are the demands in it: a field of the request, and the expression made of it.
    """

    lark: str
    markers: tuple[Marker, ...] = ()
    inner: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, str], ...] = ()


class Parser(Protocol):
    """Hears a model's tokens, or its text, in pieces of any size, into a turn."""

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        """More tokens. `tokens` are the same ones with log-probabilities, where asked for."""
        ...

    def write(self, text: str) -> None:
        """More text, from a source that has no ids; markers are found in the text."""
        ...

    def close(self, reason: str) -> None:
        """The model stopped, for `stop` (its own end or a stop string) or `length`. Ends the turn:
        what was held back is said as what it turned out to be."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens were reasoning, markers included."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What was malformed and how it was read."""
        ...


class Format(Protocol):
    """A conversation as tokens, both ways."""

    @property
    def name(self) -> str:
        """What it is called on the command line and in the model listing."""
        ...

    @property
    def limits(self) -> UpstreamLimits:
        """What of a request it has words for; what it has none for is rewritten before."""
        ...

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to where the model begins to write. Raises FaultError, naming the field,
        for what cannot be said in this format."""
        ...

    def stops(self, request: Request) -> Stops:
        """What ends the answer to this request."""
        ...

    def parser(self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None) -> Parser:
        """A parser for the answer to this request. Without a tokenizer only `write` works."""
        ...

    def grammar(self, request: Request) -> Grammar | None:
        """What the whole answer must match, or None where the request demands nothing. Raises
        FaultError, naming the field, for a demand that cannot be kept."""
        ...
