"""What may be demanded of a piece of text: that it is JSON of a schema, or matches something.

Plain values. `param` is the field of the request that demands it, in the names of the core
(`format.schema`, `tools[0].parameters`), so that a mistake in it can be told by its name.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import JSON


class JSONBody(Struct, frozen=True):
    """JSON that fits a schema, which is one that the grammar can enforce."""

    param: str
    schema: dict[str, JSON]


class Regex(Struct, frozen=True):
    """Text that a regular expression matches from end to end."""

    param: str
    pattern: str


class Choice(Struct, frozen=True):
    """One of several texts."""

    param: str
    texts: tuple[str, ...]


class Lark(Struct, frozen=True):
    """Text of a grammar, whose first rule is `start`."""

    param: str
    lark: str


_QUIET = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
"""What stands in a grammar and is none of its operators: texts, expressions, comments."""


def lark(param: str, text: str) -> Lark:
    """A grammar a client wrote. Raises FaultError for the operators `&` and `~`: a few of them
    keep the compiler busy for minutes, and everybody else waiting.

    >>> lark("grammar", 'start: "a & b" /x&/').lark
    'start: "a & b" /x&/'
    """
    if re.search(r"[&~]", _QUIET.sub("", text)):
        raise FaultError(unsupported("the operators & and ~ are not taken from a request", param))
    return Lark(param, text)


class Anything(Struct, frozen=True):
    """Any text."""


Body = JSONBody | Regex | Choice | Lark | Anything
