"""Calls written as Python: `[get(city="Rome"), now()]` and `search.call(query="…")`.

Only literals are read, by a small reader of our own; nothing is evaluated. How the text came and
what becomes of the calls is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from dragoman.core.item import JSON

DEEPEST = 64
"""Values nested deeper than this are not read."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>[rbuRBU]{0,2}(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
            |'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
      | (?P<number>[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d][\w.\-]*)
      | (?P<sign>[()\[\]{},:=])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<newline>\n)|(?P<code>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|(?P<one>.))",
    re.DOTALL,
)
_ONES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_CONSTANTS: dict[str, JSON] = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
_ENDLESS = (float("inf"), float("-inf"))
_BRACKET = re.compile(r"""\"{3}|'{3}|["'()\[\]{}\\]""")
_CALL = re.compile(r"\s*([^\W\d][\w.\-]*)\s*\(")
_JOINT = re.compile(r"\s*(?:[,;]\s*|\Z)")
METHOD = ".call"

Call = tuple[str, str]
"""A name, and its arguments as JSON text, or raw where they could not be read."""


class UnreadableError(ValueError):
    """A text is no literal we read."""


def calls(text: str) -> tuple[list[Call], str] | None:
    """The calls a text begins with and what follows them, or None where it is something else.

    Arguments that cannot be read are given as they stand.

    >>> calls('[get(city="Rome", n=2), now()]')
    ([('get', '{"city": "Rome", "n": 2}'), ('now', '{}')], '')
    >>> calls("2 + print(1)") is None
    True
    """
    body, rest = text.strip(), ""
    if body[:1] == "[":
        end = closing(body, 0)
        if end is None:
            return None
        body, rest = body[1 : end - 1].strip(), body[end:]
    found: list[Call] = []
    at = 0
    while at < len(body):
        match = _CALL.match(body, at)
        end = closing(body, match.end() - 1) if match else None
        if match is None or end is None:
            return None
        found.append((match[1].removesuffix(METHOD), _arguments(body[match.end() : end - 1])))
        joint = _JOINT.match(body, end)
        if joint is None:
            return (found, body[end:]) if not rest else None
        at = joint.end()
    return (found, rest) if found else None


def closing(text: str, at: int) -> int | None:
    """Where the bracket that stands at `at` is closed, strings left out; None if it is not."""
    depth, quote = 0, ""
    skip = -1
    for found in _BRACKET.finditer(text, at):
        mark = found[0]
        if found.start() == skip:
            continue
        if mark == "\\":
            skip = found.end()
        elif quote:
            quote = "" if mark.startswith(quote) else quote
        elif mark[0] in "\"'":
            quote = mark
        else:
            depth += 1 if mark in "([{" else -1
            if depth == 0:
                return found.end()
    return None


def _arguments(text: str) -> str:
    try:
        return json.dumps(_Reader(text).keywords(), ensure_ascii=False)
    except ValueError:
        return text


class _Reader:
    """Reads literals from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self._depth = 0

    def keywords(self) -> dict[str, JSON]:
        """`a=1, b="x"`, as an object."""
        found: dict[str, JSON] = {}
        while self._at < len(self._text):
            kind, name = self._next()
            if kind != "name" or self._next() != ("sign", "="):
                raise UnreadableError(name)
            found[name] = self._value()
            if self._at < len(self._text) and self._next() != ("sign", ","):
                raise UnreadableError(name)
        return found

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise UnreadableError(self._text)
        self._at = match.end()
        return match.lastgroup, match[match.lastgroup]

    def _value(self) -> JSON:
        return self._meant(*self._next())

    def _meant(self, kind: str, word: str) -> JSON:
        if kind == "string":
            return self._strings(word)
        if kind == "number":
            return _number(word)
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if word in ("[", "("):
            return self._many("]" if word == "[" else ")", self._meant)
        if word == "{":
            return dict(self._many("}", self._pair))
        raise UnreadableError(word)

    def _strings(self, word: str) -> str:
        """Strings that stand side by side are one."""
        said = _string(word)
        while (more := _TOKEN.match(self._text, self._at)) and more["string"]:
            self._at = more.end()
            said += _string(more["string"])
        return said

    def _pair(self, kind: str, word: str) -> tuple[str, JSON]:
        key = self._meant(kind, word)
        if self._next() != ("sign", ":"):
            raise UnreadableError(word)
        return key if isinstance(key, str) else json.dumps(key), self._value()

    def _many(self, end: str, one: Callable[[str, str], JSON]) -> list[JSON]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UnreadableError("too deep")
        found: list[JSON] = []
        while True:
            kind, word = self._next()
            if (kind, word) == ("sign", end):
                break
            found.append(one(kind, word))
            kind, word = self._next()
            if (kind, word) == ("sign", end):
                break
            if word != ",":
                raise UnreadableError(word)
        self._depth -= 1
        return found


def _number(word: str) -> JSON:
    plain = word.replace("_", "").lstrip("+")
    number = int(plain) if plain.lstrip("-").isdigit() else float(plain)
    if number in _ENDLESS:
        raise UnreadableError(word)
    return number


def _string(literal: str) -> str:
    body = literal.lstrip("rbuRBU")
    raw = "r" in literal[: len(literal) - len(body)].lower()
    size = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    inside = body[size:-size]
    said = inside if raw else _ESCAPE.sub(_unescaped, inside)
    return said.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(match: re.Match[str]) -> str:
    if match["newline"]:
        return ""
    if match["code"]:
        number = int(match["code"][1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    one = match["one"]
    return _ONES.get(one, one if one in "\\'\"" else match[0])
