"""The protocol of a token format: it renders a request and parses a model's tokens or text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.core.item import Token
from dragoman.core.lower import UpstreamLimits
from dragoman.core.request import Request
from dragoman.core.turn import Turn

from .prompt import Prompt, Tokenizer


class Setting(Struct, frozen=True):
    """Values for a prompt beside the request. Passed in, so that rendering is pure.

    `today` is an ISO date, for formats that have a place for it; None leaves it out. A date in the
    prompt invalidates every prompt cache at midnight.
    """

    today: str | None = None
    identity: str | None = None
    knowledge_cutoff: str | None = None

    def preamble(self, identity: str = "", cutoff: str = "") -> str:
        """The first lines of a prompt, with the format's defaults; without
        identity and cutoff none, not even the date."""
        identity = identity if self.identity is None else self.identity
        cutoff = cutoff if self.knowledge_cutoff is None else self.knowledge_cutoff
        if not (identity or cutoff):
            return ""
        dates = (("Knowledge cutoff", cutoff), ("Current date", self.today))
        return "\n".join(filter(None, (identity, *(f"{k}: {v}" for k, v in dates if v))))


PLAIN = Setting()


class Stops(Struct, frozen=True):
    """The ends of an answer: control tokens by their text, and strings."""

    controls: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class Marker(Struct, frozen=True):
    """A marker of a format, and its grammar rule.

    Whether it is one token or ordinary text depends on the vocabulary. It may follow text of the
    rule `before`; `end` markers without a token are left out.
    """

    rule: str
    text: str
    before: str = ""
    end: bool = False


class Grammar(Struct, frozen=True):
    """A grammar for the whole answer, markers included.

    `lark` is in llguidance's Lark dialect (`%json {…}` for schemas); the rules of `markers` are
    filled in later, and `inner` are whole grammars that it references as `@name`. `parts` pair a
    field of the request with its expression, so that an error can name the field.
    """

    lark: str
    markers: tuple[Marker, ...] = ()
    inner: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, str], ...] = ()


class Parser(Protocol):
    """Parses an answer, in pieces of any size, into a turn. It never raises, and holds back text
    that may still become a marker."""

    def feed(self, ids: Sequence[int], tokens: Sequence[Token] = ()) -> None:
        """Parse tokens. `tokens` are the same ones with log-probabilities, where requested."""
        ...

    def write(self, text: str) -> None:
        """Parse text, from a source without ids; markers are found in the text."""
        ...

    def close(self, reason: str) -> None:
        """End the turn, for `stop` (the model's own end or a stop string) or `length`. Text held
        back is emitted as what it turned out to be."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning tokens, markers included."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """Malformed output, and how it was interpreted."""
        ...


class Format(Protocol):
    """A conversation as tokens, both ways."""

    @property
    def name(self) -> str:
        """The name on the command line and in the model listing."""
        ...

    @property
    def controls(self) -> Iterable[str]:
        """Its control tokens, by their text."""
        ...

    @property
    def limits(self) -> UpstreamLimits:
        """The kinds of tools it can render; others are lowered before."""
        ...

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt. Raises FaultError, naming the field, for what the format cannot express."""
        ...

    def stops(self, request: Request) -> Stops:
        """The ends of the answer to this request."""
        ...

    def parser(self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None) -> Parser:
        """A parser for the answer to this request. Without a tokenizer only `write` works."""
        ...

    def grammar(self, request: Request) -> Grammar | None:
        """The grammar of the whole answer; None where the request constrains nothing. Raises
        FaultError, naming the field, for a constraint that cannot be enforced."""
        ...
