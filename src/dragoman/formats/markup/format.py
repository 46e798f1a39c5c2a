"""A family of markup as a format: parsed by its profile, laid out by its frame.

For models that bring no chat template; with a template only the parsing is taken from here.
"""

from __future__ import annotations

from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.format import PLAIN, Grammar, Setting, Stops
from dragoman.formats.grammar.markup import grammar
from dragoman.formats.messages import LIMITS
from dragoman.formats.prompt import Prompt
from dragoman.formats.tokenizer import Tokenizer

from .enveloped import enveloped
from .families import BY_NAME
from .frame import lay_out
from .parser import MarkupParser
from .profile import Profile
from .table import Marks, Vocabulary, table
from .voice import Sink, Voice, schemas


class Markup:
    """A conversation in one family's markup. `profile` is a profile or its name.

    >>> Markup("hermes").stops(Request(model="m")).controls[0]
    '<|im_end|>'
    """

    limits = LIMITS

    def __init__(self, profile: Profile | str) -> None:
        self.profile = BY_NAME[profile] if isinstance(profile, str) else profile
        self._in_text = {calls: table(self.profile, calls) for calls in (False, True)}
        self._in_tokens: tuple[Tokenizer, Vocabulary, dict[bool, dict[str, Marks]]] | None = None

    @property
    def name(self) -> str:
        """What it is called on the command line and in the model listing."""
        return self.profile.name

    def render(self, request: Request, setting: Setting = PLAIN) -> Prompt:
        """The prompt, up to where the model begins to write. Raises FaultError, naming the item,
        for pictures, sound and files."""
        return lay_out(self.profile, request, setting)

    def stops(self, request: Request) -> Stops:
        """The control tokens that end an answer."""
        return Stops(self.profile.ends)

    def parser(
        self, request: Request, turn: Turn, tokenizer: Tokenizer | None = None
    ) -> MarkupParser:
        """A parser for the answer to this request. Without a tokenizer only `write` works."""
        return self.hear(request, turn, tokenizer)

    def hear(
        self,
        request: Request,
        sink: Sink,
        tokenizer: Tokenizer | None = None,
        *,
        choice: int = 0,
        thinking: bool = False,
    ) -> MarkupParser:
        """The same for one of several choices, or for a prompt that ends inside the reasoning."""
        known = schemas(request)
        voice = Voice(sink, known, choice)
        start = "thought" if thinking else "start"
        if tokenizer is None:
            return MarkupParser(self.profile, self._in_text[bool(known)], voice, None, start)
        vocabulary, tables = self._prepared(tokenizer)
        return MarkupParser(self.profile, tables[bool(known)], voice, vocabulary, start)

    def grammar(self, request: Request) -> Grammar | None:
        """What the answer must match, by this family's way to write calls; None where the request
        demands nothing. Raises FaultError, naming the field, for a demand that cannot be kept."""
        return self.demanded(request)

    def demanded(self, request: Request, *, thinking: bool = False) -> Grammar | None:
        """The same, for a prompt that may end inside the reasoning."""
        return grammar(request, enveloped(self.profile, thinking=thinking))

    def _prepared(self, tokenizer: Tokenizer) -> tuple[Vocabulary, dict[bool, dict[str, Marks]]]:
        """What is known of a vocabulary; the last one is remembered, since a model has but one."""
        known = self._in_tokens
        if known is None or known[0] is not tokenizer:
            tables = {
                calls: table(self.profile, calls, tokenizer.controls) for calls in (False, True)
            }
            self._in_tokens = known = (tokenizer, Vocabulary(tokenizer, self.profile), tables)
        return known[1], known[2]
