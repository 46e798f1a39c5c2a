"""What is known of one family's markup, as data: its marks, what each leads to, how it is written.

A profile holds no code; the one engine of this package reads it. Every difference between families
is a value here, and nothing asks for a family's name.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

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
