"""Parses tool calls in the notations models use: JSON objects, Python, bare values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from dragoman.core.item import JSON

from .emitter import Emitter

_WORDS = {"True": "true", "False": "false", "None": "null"}
_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ALL = frozenset(_KINDS.values())
_STRING = frozenset({"string"})


def typed(text: str, name: str, schema: JSON) -> str:
    """The JSON of an argument that was written as bare text.

    >>> typed("3", "n", {"properties": {"n": {"type": "integer"}}})
    '3'
    >>> typed("3", "s", {"properties": {"s": {"type": "string"}}})
    '"3"'
    """
    kinds = _kinds(_property(schema, name), schema)
    literal = _WORDS.get(text.strip(), text.strip())
    if kinds != _STRING:
        try:
            value = json.loads(literal)
        except (ValueError, RecursionError):
            value = ""  # a string, if anything
        kind = _KINDS[type(value)]
        if kind != "string" and (kind in kinds or (kind == "integer" and "number" in kinds)):
            return literal
    return json.dumps(text, ensure_ascii=False)


def bare(value: JSON) -> str:
    """The bare text of an argument: a string as it is, else JSON.

    >>> bare("x"), bare([1])
    ('x', '[1]')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _property(schema: JSON, name: str) -> JSON:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _kinds(schema: JSON, root: JSON, depth: int = 8) -> frozenset[str]:
    """The types a schema allows; a string where it gives none."""
    if not isinstance(schema, dict) or depth == 0:
        return _STRING
    match schema:
        case {"type": str(kind)}:
            return frozenset({kind})
        case {"type": list(kinds)}:
            return frozenset(kind for kind in kinds if isinstance(kind, str))
        case {"$ref": str(address)}:
            return _kinds(_look_up(root, address), root, depth - 1)
        case {"enum": list(choices)}:
            return frozenset(_KINDS.get(type(each), "string") for each in choices)
        case {"const": value}:
            return frozenset({_KINDS.get(type(value), "string")})
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return frozenset().union(*(_kinds(each, root, depth - 1) for each in options))
        case {"properties": _}:
            return frozenset({"object"})
        case {"items": _}:
            return frozenset({"array"})
        case _:
            return _STRING


def _look_up(root: JSON, address: str) -> JSON:
    found = root
    for step in address.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_BETWEEN_KEYS = re.compile(r"[\s,]*")
_COLON = re.compile(r"[\s:]*")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')

_ARGUMENTS = ("arguments", "parameters")
_IDS = ("id", "call_id", "tool_call_id")
_BESIDE = ("type", "function", "name", *_ARGUMENTS, *_IDS)


class Value:
    """Finds the end of one JSON value. `quoted` is whether the position is inside a string."""

    __slots__ = ("_depth", "_escaped", "_scalar", "_started", "done", "quoted")

    def __init__(self) -> None:
        self.done = False
        self.quoted = False
        self._depth = 0
        self._escaped = False
        self._started = False
        self._scalar = False

    def feed(self, text: str, at: int) -> int:
        """Where in the text the value ends, or the text's end."""
        if not self._started and at < len(text):
            self._started = True
            self._scalar = text[at] not in '"{['
        while at < len(text) and not self.done:
            if self._scalar:
                end = _SCALAR_END.search(text, at)
                self.done = end is not None
                return end.start() if end else len(text)
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self.quoted else _STRUCTURE).search(text, at)
            if found is None:
                return len(text)
            self._turn(found[0])
            at = found.end()
        return at

    def _turn(self, mark: str) -> None:
        if mark == "\\":
            self._escaped = True
        elif mark == '"':
            self.quoted = not self.quoted
        else:
            self._depth += 1 if mark in "{[" else -1
        self.done = self._depth <= 0 and not self.quoted and not self._escaped


class CallObject:
    """One JSON object that names a function and holds its arguments, which are emitted as they
    come.

    With `known` it is a call only if it names one of them and has no other members than a call;
    else `rejected` turns true, and nothing was emitted. `raw` is its text so far.
    """

    def __init__(self, emitter: Emitter, known: frozenset[str] | None = None) -> None:
        self.done = False
        self.rejected = False
        self.raw: list[str] = []
        self._emitter = emitter
        self._known = known
        self._value = Value()
        self._pieces: list[str] = []
        self._key: str | None = None
        self._step = self._open
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: str | None = None
        self._emitted = False  # the arguments, or part of them

    @property
    def quoted(self) -> bool:
        return self._value.quoted

    def feed(self, text: str, at: int) -> int:
        """Where in the text the object ends, or the text's end."""
        start = at
        while at < len(text) and not (self.done or self.rejected):
            at = self._step(text, at)
        if not self._emitted:
            self.raw.append(text[start:at])
            if self.done:
                self._nameless("a call without a name")
        return at

    def close(self) -> None:
        """The text is over: emit what there is as what it is."""
        emitter = self._emitter
        self.done = True
        if self._known is not None and not self._emitted:
            self.rejected = True
        elif self._emitted:
            junk = "".join(self._pieces) if self._step == self._lost else ""
            emitter.warn(f"the call of {self._name} was not closed{junk and f': {junk}'}")
            emitter.close_call()
        elif self._name and self._arguments is not None:
            emitter.warn(f"the call of {self._name} was not closed")
            self._whole(self._name)
        else:
            raw = "".join(self.raw)
            found = _NAME.search(raw)
            if name := self._name or (found and found[1]):
                emitter.warn(f"the call of {name} could not be read: {raw}")
                self._whole(name, raw)
            else:
                self._nameless("a call could not be read")

    # ---- steps ---------------------------------------------------------------------------

    def _open(self, text: str, at: int) -> int:
        self._step = self._before_key
        return at + 1

    def _before_key(self, text: str, at: int) -> int:
        at = _end(_BETWEEN_KEYS, text, at)
        if at < len(text):
            if text[at] == "}":
                self._finish()
                return at + 1
            self._value, self._pieces = Value(), []
            self._step = self._in_key if text[at] == '"' else self._lost
        return at

    def _in_key(self, text: str, at: int) -> int:
        end = self._collect(text, at)
        if self._value.done:
            key = _string("".join(self._pieces))
            self._key = key
            if self._known is not None and not self._emitted and key not in _BESIDE:
                self.rejected = True
            self._step = self._before_value
        return end

    def _before_value(self, text: str, at: int) -> int:
        at = _end(_COLON, text, at)
        if at < len(text):
            self._value, self._pieces = Value(), []
            streams = self._key in _ARGUMENTS and self._name and not self._emitted
            if streams and self._arguments is None and text[at] == "{":
                self._emitted = True
                self._emitter.open_call(self._name or "", self._id)
            self._step = self._in_value if text[at] not in ",}]" else self._lost
        return at

    def _in_value(self, text: str, at: int) -> int:
        if self._emitted and self._key in _ARGUMENTS and self._arguments is None:
            end = self._value.feed(text, at)
            self._emitter.add_arguments(text[at:end])
            if self._value.done:
                self._arguments = ""
                self._step = self._before_key
            return end
        end = self._collect(text, at)
        if self._value.done:
            self._learn("".join(self._pieces))
            self._step = self._before_key
        return end

    def _lost(self, text: str, at: int) -> int:
        """Not JSON: all that follows is raw text."""
        if self._known is not None and not self._emitted:
            self.rejected = True
        self._pieces.append(text[at:])
        return len(text)

    def _collect(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._pieces.append(text[at:end])
        return end

    # ---- emitting ------------------------------------------------------------------------

    def _learn(self, value: str) -> None:
        if self._key == "name" or (self._key == "function" and value[0] == '"'):
            self._name = self._name or _string(value)
            if self._known is not None and self._name not in self._known:
                self.rejected = True
        elif self._key == "function":
            inner = _object(value)
            name, arguments = inner.get("name"), inner.get("arguments")
            self._name = name if isinstance(name, str) else None
            self._arguments = json.dumps(arguments, ensure_ascii=False)
            if self._known is not None and self._name not in self._known:
                self.rejected = True
        elif self._key in _ARGUMENTS:
            self._arguments = value
        elif self._key in _IDS:
            self._id = _string(value)

    def _finish(self) -> None:
        if self._known is not None and not self._name:
            self.rejected = True
            return
        self.done = True
        if self._emitted:
            self._emitter.close_call()
        elif self._name:
            self._whole(self._name)

    def _nameless(self, what: str) -> None:
        raw = "".join(self.raw)
        self._emitter.warn(f"{what}: {raw}")
        self._emitter.text(raw)

    def _whole(self, name: str, raw: str | None = None) -> None:
        self._emitted = True
        self._emitter.emit_call(name, _plain(self._arguments) if raw is None else raw, self._id)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _string(literal: str) -> str | None:
    """The value of a JSON string; None for any other value."""
    try:
        value = json.loads(literal, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) and value else None


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _plain(arguments: str | None) -> str:
    """Arguments as an object: none is the empty one, and one inside a string is unquoted (some
    models copy OpenAI's `arguments` string)."""
    if arguments is None or arguments in ("null", '""'):
        return "{}"
    inside = _string(arguments) if arguments[0] == '"' else None
    return inside if inside is not None and inside.lstrip()[:1] == "{" else arguments


DEEPEST = 64
"""The deepest nesting of Python literals that is read."""

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
"""A name, and its arguments as JSON text, or raw where they could not be parsed."""


class _UnreadableError(ValueError):
    pass


def calls(text: str) -> tuple[list[Call], str] | None:
    """The Python calls a text begins with and the text after them; None where it is something else.

    Arguments that cannot be parsed are given as they stand.

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
    """Where the bracket at `at` is closed, strings left out; None if it is not."""
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
    """Reads Python literals. By hand: `ast` warns of escapes, and may overflow the stack."""

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
                raise _UnreadableError(name)
            found[name] = self._value()
            if self._at < len(self._text) and self._next() != ("sign", ","):
                raise _UnreadableError(name)
        return found

    def _next(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise _UnreadableError(self._text)
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
        raise _UnreadableError(word)

    def _strings(self, word: str) -> str:
        """Adjacent strings are one."""
        text = _python_string(word)
        while (more := _TOKEN.match(self._text, self._at)) and more["string"]:
            self._at = more.end()
            text += _python_string(more["string"])
        return text

    def _pair(self, kind: str, word: str) -> tuple[str, JSON]:
        key = self._meant(kind, word)
        if self._next() != ("sign", ":"):
            raise _UnreadableError(word)
        return key if isinstance(key, str) else json.dumps(key), self._value()

    def _many(self, end: str, one: Callable[[str, str], JSON]) -> list[JSON]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise _UnreadableError("too deep")
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
                raise _UnreadableError(word)
        self._depth -= 1
        return found


def _number(word: str) -> JSON:
    plain = word.replace("_", "").lstrip("+")
    number = int(plain) if plain.lstrip("-").isdigit() else float(plain)
    if number in _ENDLESS:
        raise _UnreadableError(word)
    return number


def _python_string(literal: str) -> str:
    body = literal.lstrip("rbuRBU")
    raw = "r" in literal[: len(literal) - len(body)].lower()
    size = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    inside = body[size:-size]
    text = inside if raw else _ESCAPE.sub(_unescaped, inside)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(match: re.Match[str]) -> str:
    if match["newline"]:
        return ""
    if match["code"]:
        number = int(match["code"][1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    one = match["one"]
    return _ONES.get(one, one if one in "\\'\"" else match[0])
