"""What describes a family's markup: marks, call syntax, chat layout, hints; and the tables that a
parser scans by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

from dragoman.formats.prompt import Marks

Kind = Literal[
    "start",  # nothing yet: blanks, then text, or a call without a mark
    "text",
    "thought",
    "call",  # one or more whole calls, as JSON or as Python
    "name",  # of a call
    "id",  # of a call
    "typed",  # a name and then arguments, in a fence or not
    "arguments",  # JSON
    "literal",  # arguments with bare keys and strings between marks (Gemma)
    "string",  # one of these strings
    "gap",  # between things; blanks only
    "key",  # the name of one argument
    "value",  # one argument, as bare text
    "header",  # the role of the next turn: discarded
    "over",  # after the end: discarded
]


class State(Struct, frozen=True):
    """How the text between two marks is read, and the state each mark leads to.

    `ids` are marks that count only as tokens, not when spelled. `then` is the next state of a
    segment that ends by itself; `braces` is the next state of a name that is empty: JSON follows.
    `doubtful` marks end a value that was not closed; but they may be part of it, and are unless
    nothing follows them but other marks. A value may be `known` to be a string, or JSON,
    whatever its schema says.
    """

    kind: Kind
    marks: dict[str, str] = {}
    ids: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    then: str = "start"
    braces: str | None = None
    known: Literal["string", "json"] | None = None


class CallSyntax(Struct, frozen=True, kw_only=True):
    """How calls are written: the text before the name, between name and arguments, after them, in
    which `#` is the number of the call.

    `first` and `last` enclose all calls of a message, `between` separates two. Arguments are JSON,
    kept byte for byte, unless `argument` says how each is written, with its name and its bare text
    (`data` where it is not a string).
    """

    opening: str
    separator: str
    closing: str
    first: str = ""
    last: str = ""
    between: str = ""
    argument: str = ""
    data: str = ""

    def template(self, string: bool) -> str:
        """How an argument is written that is a string, or not."""
        return self.argument if string else self.data or self.argument


class ChatLayout(Struct, frozen=True, kw_only=True):
    """The layout of a conversation for a model that brings no template: the text around that of
    each role, which `{}` stands for.

    `call_end` ends an assistant turn with calls (None: as any other). `tools` introduces the tools,
    one JSON object per line.
    """

    begin: str = ""
    system: str
    user: str
    assistant: str
    tool: str
    call_end: str | None = None
    tools: str
    thought: str = "<think>\n{}\n</think>\n\n"


class Profile(Struct, frozen=True, kw_only=True):
    """One family's markup. Parsing begins in the state `start`.

    - `ends` are the control tokens that end the answer, in every state.
    - `strays` do not belong in text and are removed with a warning.
    - `tags` are marks made of ordinary characters: they are text where the request has no tools.
    - `bare` says that a message may be a call without any mark.
    - `code` is the tool that is called where code stands in place of a call; `builtins` take one
      `query` and are called as `name.call(query="…")` (Llama 3.1).
    - `id_length` is the length of call ids (Mistral: nine characters).
    - `name_form` finds the name in what stands in its place, as its first group.
    - `fragments` are control tokens that are only part of a mark (DeepSeek's DSML).
    - `hints` are texts that only templates and vocabularies of this family contain.
    """

    name: str
    states: dict[str, State]
    ends: tuple[str, ...]
    syntax: CallSyntax
    layout: ChatLayout
    strays: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    bare: bool = False
    code: str | None = None
    builtins: frozenset[str] = frozenset()
    id_length: int | None = None
    name_form: str = "(.*)"
    fragments: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default_factory=tuple)


_TEXT_KINDS = ("start", "text", "thought")


class MarkTable(Marks):
    """The marks of one state; `leads` has the next state of each, None for a stray."""

    def __init__(
        self, name: str, state: State, leads: dict[str, str | None], spelled: Iterable[str]
    ) -> None:
        self.name = name
        self.state = state
        self.kind = state.kind
        self.leads = leads
        super().__init__(spelled)


def all_marks(profile: Profile) -> frozenset[str]:
    """Every mark of a profile."""
    found = {*profile.ends, *profile.strays}
    for state in profile.states.values():
        found |= {*state.marks, *state.ids, *state.doubtful}
    return frozenset(found)


def mark_tables(
    profile: Profile, calls: bool, controls: Iterable[str] = ()
) -> dict[str, MarkTable]:
    """The tables of all states, with calls or, where the request has no tools, without."""
    as_tokens = frozenset(controls)
    without_calls = (*_TEXT_KINDS, "header", "over")
    tables: dict[str, MarkTable] = {}
    for name, state in profile.states.items():
        leads: dict[str, str | None] = {**state.ids, **state.doubtful, **state.marks}
        spelled = {*state.marks, *state.doubtful, *profile.ends}
        if state.kind in (*_TEXT_KINDS, "gap"):
            spelled.update(profile.strays)
            leads = {**dict.fromkeys(profile.strays), **leads}
        if state.kind in _TEXT_KINDS and not calls:
            leads = {
                mark: to if to and profile.states[to].kind in without_calls else None
                for mark, to in leads.items()
                if mark not in profile.tags
            }
        leads |= dict.fromkeys(profile.ends, "over")
        tables[name] = MarkTable(name, state, leads, (spelled & leads.keys()) - as_tokens)
    return tables
