"""What is known of one family's markup, as data, and the scanning tables made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

from dragoman.formats.prompt import Tokenizer

Kind = Literal[
    "start",  # nothing said yet: blanks, then text, or a call without a mark
    "text",
    "thought",
    "call",  # one or more whole calls, as JSON or as Python
    "name",  # of a call
    "id",  # of a call
    "typed",  # a name and then arguments, in a fence or not
    "arguments",  # JSON
    "gap",  # between things; blanks only
    "key",  # the name of one argument
    "value",  # one argument, as bare text
    "header",  # whose turn it is: not said
    "over",  # after the end: not said
]


class State(Struct, frozen=True):
    """What the text between two marks is, and where each mark leads.

    `ids` are marks that count only as tokens of their own, not when spelled. `then` is where a
    body leads that ends by itself, `braces` where a name leads that is none: JSON stands there.
    """

    kind: Kind
    marks: dict[str, str] = {}
    ids: dict[str, str] = {}
    then: str = "start"
    braces: str | None = None


class Writing(Struct, frozen=True, kw_only=True):
    """How calls are written: what stands before the name, between name and arguments, after them.

    `first` and `last` frame all calls of a message, `between` stands between two of them. With
    `body` "xml" the arguments are a tag for each, else they are JSON, word for word.
    """

    opening: str
    separator: str
    closing: str
    first: str = ""
    last: str = ""
    between: str = ""
    body: Literal["json", "xml"] = "json"


class Side(Struct, frozen=True):
    """How a turn of one role is framed."""

    before: str
    after: str


class Frame(Struct, frozen=True, kw_only=True):
    """How a conversation is laid out for a model that brings no template.

    `call_end` ends an assistant's turn that calls tools (None: as any other). `tools` is how the
    tools are told, with `{tools}` in the place of one JSON object a line.
    """

    begin: str = ""
    system: Side
    user: Side
    assistant: Side
    tool: Side
    call_end: str | None = None
    tools: str
    thought: Side = Side("<think>\n", "\n</think>\n\n")


class Profile(Struct, frozen=True, kw_only=True):
    """One family's markup. Parsing begins in the state `start`.

    - `ends` are the control tokens that end the answer, in every state.
    - `strays` have no business in text and are dropped from it, with a warning.
    - `tags` are marks made of ordinary words: where no tools are on offer they are text.
    - `bare` says that a message may be a call without any mark.
    - `code` is the tool that code in the place of a call is for; `builtins` take one `query` and
      are called as `name.call(query="…")`.
    - `id_length` is the length that call ids must have.
    - `hints` are texts found in the chat templates and vocabularies of this family only.
    """

    name: str
    states: dict[str, State]
    ends: tuple[str, ...]
    writing: Writing
    frame: Frame
    strays: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    bare: bool = False
    code: str | None = None
    builtins: frozenset[str] = frozenset()
    id_length: int | None = None
    controls: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default_factory=tuple)


_SAID = ("start", "text", "thought")
_BLANK_END = re.compile(r"\s\Z")


class Marks:
    """The marks that count in one state; where each leads is in `leads`, None for a stray."""

    __slots__ = ("_begins", "_first", "_longest", "_pattern", "kind", "leads", "name", "state")
    # `_first` are the characters marks begin with, `_begins` all that may become a mark.

    def __init__(
        self, name: str, state: State, leads: dict[str, str | None], spelled: Iterable[str]
    ) -> None:
        self.name = name
        self.state = state
        self.kind = state.kind
        self.leads = leads
        marks = sorted(spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._begins = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
        self._first = frozenset(mark[0] for mark in marks)
        self._longest = max(map(len, marks), default=1) - 1

    def find(self, text: str, at: int) -> tuple[int, int]:
        """Where the next mark begins and ends; beyond the text if there is none."""
        found = self._pattern.search(text, at)
        return found.span() if found else (len(text), len(text))

    def touches(self, text: str) -> bool:
        """Whether there is anything in the text that a mark begins with."""
        return not self._first.isdisjoint(text)

    def held(self, text: str, at: int) -> int:
        """Where at the end of the text a mark may be beginning."""
        for start in range(max(at, len(text) - self._longest), len(text)):
            if text[start] in self._first and text[start:] in self._begins:
                return start
        return len(text)


class Vocabulary:
    """What the tokens of one vocabulary say, learnt as they come.

    `plain` holds the text of those that cannot have to do with any mark.
    """

    def __init__(self, tokenizer: Tokenizer, profile: Profile) -> None:
        self.controls = {id: text for text, id in tokenizer.controls.items()}
        self.plain: dict[int, str] = {}
        self._tokenizer = tokenizer
        firsts = {mark[0] for mark in marks(profile) if len(mark) > 1}
        self._first = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]")

    def piece(self, id: int) -> bytes:
        """The bytes of an ordinary token."""
        raw = self._tokenizer.piece(id)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return raw
        if text and not self._first.search(text) and not _BLANK_END.search(text):
            self.plain[id] = text
        return raw


def marks(profile: Profile) -> frozenset[str]:
    """Every mark of a profile."""
    found = {*profile.ends, *profile.strays}
    for state in profile.states.values():
        found |= {*state.marks, *state.ids}
    return frozenset(found)


def table(profile: Profile, calls: bool, controls: Iterable[str] = ()) -> dict[str, Marks]:
    """The states of a profile, with calls or, where no tools are on offer, without."""
    as_tokens = frozenset(controls)
    return {
        name: _marks(profile, name, state, calls, as_tokens)
        for name, state in profile.states.items()
    }


def _marks(
    profile: Profile, name: str, state: State, calls: bool, as_tokens: frozenset[str]
) -> Marks:
    leads: dict[str, str | None] = {**state.ids, **state.marks}
    spelled = set(state.marks)
    if state.kind in _SAID:
        for mark in profile.strays:
            leads.setdefault(mark, None)
            spelled.add(mark)
        if not calls:
            for mark, target in list(leads.items()):
                if mark in profile.tags:
                    del leads[mark]
                elif target and profile.states[target].kind not in (*_SAID, "header", "over"):
                    leads[mark] = None
    for mark in profile.ends:
        leads[mark] = "over"
        spelled.add(mark)
    return Marks(name, state, leads, (spelled & leads.keys()) - as_tokens)
