"""Parses tool calls in the notations models use: JSON objects, Python, bare values."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from dragoman.core.item import JSON
from dragoman.core.open_item import paired
from dragoman.formats.grammar.schema import KINDS, find, read_json

from .emitter import Emitter, Segment

_STRING = frozenset({"string"})
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
"""Python's, in JSON."""


def typed(text: str, name: str, schema: JSON) -> str:
    """The JSON of an argument that was written as bare text.

    >>> typed("3", "n", {"properties": {"n": {"type": "integer"}}})
    '3'
    >>> typed("3", "s", {"properties": {"s": {"type": "string"}}})
    '"3"'
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    kinds = _kinds(properties.get(name) if isinstance(properties, dict) else None, schema)
    literal = _CONSTANTS.get(text.strip(), text.strip())
    if kinds != _STRING:
        if literal[:1] in ("[", "{") and read_json(literal) is None:  # as some templates show it
            with suppress(ValueError, RecursionError):
                literal = _keywords(f"x={literal}")[len('{"x": ') : -1]
        kind = KINDS[type(read_json(literal, ""))]  # a string, if anything
        if kind != "string" and (kind in kinds or (kind == "integer" and "number" in kinds)):
            return literal
    return json.dumps(text, ensure_ascii=False)


def bare(value: JSON) -> str:
    """The bare text of an argument: a string as it is, else JSON.

    >>> bare("x"), bare([1])
    ('x', '[1]')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kinds(schema: JSON, root: JSON, depth: int = 8) -> frozenset[str]:
    """The types a schema allows; a string where it gives none."""
    match schema if depth else None:
        case {"type": str(kind)}:
            return frozenset({kind})
        case {"type": list(kinds)}:
            return frozenset(kind for kind in kinds if isinstance(kind, str))
        case {"$ref": str(pointer)}:
            return _kinds(find(root, pointer), root, depth - 1)
        case {"enum": list(choices)}:
            return frozenset(KINDS.get(type(each), "string") for each in choices)
        case {"const": value}:
            return frozenset({KINDS.get(type(value), "string")})
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return frozenset().union(*(_kinds(each, root, depth - 1) for each in options))
        case {"properties": _}:
            return frozenset({"object"})
        case {"items": _}:
            return frozenset({"array"})
        case _:
            return _STRING


# ---- JSON ----------------------------------------------------------------------------------

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_BETWEEN_KEYS = re.compile(r"[\s,]*")
_COLON = re.compile(r"[\s:]*")
_NAME = re.compile(r'"(?:tool_)?name"\s*:\s*"([^"\\]+)"')

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")
_IDS = ("id", "call_id", "tool_call_id")
_BESIDE = ("type", "function", *_NAMES, *_ARGUMENTS, *_IDS)


class Value:
    """Finds the end of one JSON value; with `marks`, of another notation with brackets. `quoted` is
    whether the position is inside a string."""

    __slots__ = ("_depth", "_escaped", "_marks", "_quote", "_scalar", "done")

    def __init__(self, marks: re.Pattern[str] | None = None, *, done: bool = False) -> None:
        self.done = done
        self._marks = marks
        self._quote = ""
        self._depth = 0
        self._escaped = False
        self._scalar: bool | None = None if marks is None else False

    @property
    def quoted(self) -> bool:
        return self._quote != ""

    def feed(self, text: str, at: int) -> int:
        """Where in the text the value ends, or the text's end."""
        if self._scalar is None and at < len(text):
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
            found = (self._marks or (_IN_STRING if self._quote else _STRUCTURE)).search(text, at)
            if found is None:
                return len(text)
            at, mark = found.end(), found[0]
            if mark == "\\":
                self._escaped = True
            elif self._quote:
                self._quote = "" if mark.startswith(self._quote) else self._quote
            elif mark[0] in "\"'":
                self._quote = mark
            else:
                self._depth += 1 if mark in "([{" else -1
            self.done = self._depth <= 0 and not (self._quote or self._escaped)
        return at


class CallObject:
    """One JSON object that names a function and holds its arguments, which are emitted as they
    come.

    With `known` it is a call only if it names one of them and has no other members than a call;
    else `rejected` turns true, and nothing was emitted. `raw` is its text so far.
    """

    def __init__(self, emitter: Emitter, known: frozenset[str] | None = None) -> None:
        self.done = False
        self.rejected = False
        self.raw = ["{"]
        self._emitter = emitter
        self._known = known
        self._value = Value(done=True)  # of a key or a value
        self._pieces: list[str] = []  # of it
        self._key: str | None = None
        self._after_key = False
        self._streams = False  # it is emitted as it comes
        self._lost = False  # not JSON: all that follows is raw text
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: str | None = None
        self._emitted = False  # the arguments, or part of them

    @property
    def quoted(self) -> bool:
        return self._value.quoted

    def feed(self, text: str, at: int) -> int:
        """Where in the text the object ends, or the text's end. The brace that opens it is not
        fed."""
        start = at
        while at < len(text) and not (self.done or self.rejected):
            if self._lost:
                self._pieces.append(text[at:])
                at = len(text)
            elif self._value.done:
                at = self._begin(text, at)
            else:
                at = self._read(text, at)
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
            junk = "".join(self._pieces) if self._lost else ""
            emitter.warn(f"the call of {self._name} was not closed{junk and f': {junk}'}")
            emitter.close_call()
        elif self._name and self._arguments is not None:
            emitter.warn(f"the call of {self._name} was not closed")
            self._whole(self._name)
        elif not emitter.cut:
            raw = "".join(self.raw)
            found = _NAME.search(raw)
            if name := self._name or (found and found[1]):
                emitter.warn(f"the call of {name} could not be read: {raw}")
                self._whole(name, raw)
            else:
                self._nameless("a call could not be read")

    def _begin(self, text: str, at: int) -> int:
        """The next key, value or end of the object begins, if it is there."""
        at = skip(_COLON if self._after_key else _BETWEEN_KEYS, text, at)
        if at == len(text):
            return at
        char = text[at]
        if char == "}" and not self._after_key:
            self._finish()
            return at + 1
        self._value, self._pieces = Value(), []
        self._lost = char in ",}]" if self._after_key else char != '"'
        if self._lost and not self._emitted:
            self._reject()
        first = self._after_key and not self._emitted and self._arguments is None
        if first and self._key in _ARGUMENTS and self._name and char == "{":
            self._streams = self._emitted = True
            self._emitter.open_call(self._name, self._id)
        return at

    def _read(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        if self._streams:
            self._emitter.add_arguments(text[at:end])
        else:
            self._pieces.append(text[at:end])
        if self._value.done:
            if self._streams:
                self._arguments = ""
            elif self._after_key:
                self._learn("".join(self._pieces))
            else:
                self._key = _string("".join(self._pieces))
                if not self._emitted and self._key not in _BESIDE:
                    self._reject()
            self._streams, self._after_key = False, not self._after_key
        return end

    def _reject(self) -> None:
        self.rejected = self._known is not None

    # ---- emitting ------------------------------------------------------------------------

    def _learn(self, value: str) -> None:
        if self._key in _ARGUMENTS:
            self._arguments = value
        elif self._key in _IDS:
            id = _string(value)
            self._id = None if id and id.isdecimal() else id  # a number of its turn alone
        elif self._key in (*_NAMES, "function"):
            if self._key in _NAMES or value[0] == '"':
                self._name = self._name or _string(value)
            else:
                inner = read_json(value, strict=False)
                inner = inner if isinstance(inner, dict) else {}
                name = inner.get("name")
                self._name = name if isinstance(name, str) else None
                self._arguments = json.dumps(inner.get("arguments"), ensure_ascii=False)
            if self._name not in (self._known or ()):
                self._reject()

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
        """Emit a complete call. No arguments are the empty object, and an object inside a string is
        unquoted (some models copy OpenAI's `arguments` string)."""
        arguments = (self._arguments or "{}") if raw is None else raw
        if raw is None and arguments in ("null", '""'):
            arguments = "{}"
        elif raw is None and arguments[0] == '"':
            inside = _string(arguments)
            arguments = inside if inside and inside.lstrip()[:1] == "{" else arguments
        self._emitted = True
        self._emitter.emit_call(name, arguments, self._id)


def skip(pattern: re.Pattern[str], text: str, at: int, end: int | None = None) -> int:
    """Where the match of a pattern ends."""
    found = pattern.match(text, at, len(text) if end is None else end)
    return found.end() if found else at


def _string(literal: str) -> str | None:
    """The value of a JSON string; None for any other value."""
    value = read_json(literal, strict=False)
    return value if isinstance(value, str) and value else None


# ---- Python --------------------------------------------------------------------------------

DEEPEST = 64
"""The deepest nesting of Python literals that is read."""

_STRING_LITERAL = re.compile(
    r"""[rbuRBU]{0,2}(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
            |'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""",
    re.VERBOSE | re.DOTALL,
)
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<string>{_STRING_LITERAL.pattern}(?:\s*{_STRING_LITERAL.pattern})*+)
      | (?P<number>[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)
      | (?P<key>[^\W\d][\w.\-]*\s*=)
      | (?P<name>[^\W\d][\w.\-]*)
      | (?P<sign>[()\[\]{{}},:])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<newline>\n)|(?P<code>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|(?P<one>.))",
    re.DOTALL,
)
_ONES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_BRACKET = re.compile(r"""\"{3}|'{3}|["'()\[\]{}\\]""")
_CALL = re.compile(r"\s*([^\W\d][\w.\-]*)\s*\(")
_JOINT = re.compile(r"\s*(?:[,;]\s*|\Z)")
METHOD = ".call"

Call = tuple[str, str]
"""A name, and its arguments as JSON text, or raw where they could not be parsed."""


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
        end = _closing(body, 0)
        if end is None:
            return None
        body, rest = body[1 : end - 1].strip(), body[end:]
    found: list[Call] = []
    at = 0
    while at < len(body):
        match = _CALL.match(body, at)
        end = _closing(body, match.end() - 1) if match else None
        if match is None or end is None:
            return None
        arguments = body[match.end() : end - 1]
        with suppress(ValueError, RecursionError):  # else they stay as they are
            arguments = _keywords(arguments)
        found.append((match[1].removesuffix(METHOD), arguments))
        joint = _JOINT.match(body, end)
        if joint is None:
            return (found, body[end:]) if not rest else None
        at = joint.end()
    return (found, rest) if found else None


def _closing(text: str, at: int) -> int | None:
    """Where the bracket at `at` is closed, strings left out; None if it is not."""
    value = Value(_BRACKET)
    end = value.feed(text, at)
    return end if value.done else None


def _keywords(text: str) -> str:
    """`a=1, b="x"` as a JSON object: every token is written as JSON has it, and the whole is parsed
    as JSON. Raises ValueError for anything else.

    By hand: `ast` warns of escapes, and may overflow the stack.
    """
    text = text.rstrip()
    pieces = ["{"]
    before = ""
    at = depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or depth > DEEPEST:
            raise ValueError(text)
        at, kind, word = token.end(), token.lastgroup or "", token[0].strip()
        match kind, word:
            case "string", _:
                strings = _STRING_LITERAL.findall(word)  # adjacent strings are one
                pieces.append(json.dumps("".join(map(_python_string, strings))))
            case "number", _:
                plain = word.replace("_", "").lstrip("+")
                number = int(plain) if plain.lstrip("-").isdigit() else float(plain)
                pieces.append(json.dumps(number, allow_nan=False))
            case "key", _ if not depth:
                pieces.append(f"{json.dumps(word[:-1].rstrip())}:")
            case "name", _ if word in _CONSTANTS or word in _CONSTANTS.values():
                pieces.append(_CONSTANTS.get(word, word))
            case "sign", ":" if depth:
                if before != "string":
                    pieces[-1] = json.dumps(pieces[-1])
                pieces.append(":")
            case "sign", "[" | "(" | "{":
                depth += 1
                pieces.append("{" if word == "{" else "[")
            case "sign", "]" | ")" | "}":
                depth -= 1
                if pieces[-1] == ",":
                    pieces.pop()
                pieces.append("}" if word == "}" else "]")
            case "sign", ",":
                pieces.append(",")
            case _:
                raise ValueError(word)
        before = kind
    if pieces[-1] == ",":
        pieces.pop()
    return json.dumps(json.loads(" ".join((*pieces, "}"))), ensure_ascii=False)


def _python_string(literal: str) -> str:
    body = literal.lstrip("rbuRBU")
    raw = "r" in literal[: len(literal) - len(body)].lower()
    size = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    inside = body[size:-size]
    text = inside if raw else _ESCAPE.sub(_unescaped, inside)
    return paired(text)


def _unescaped(match: re.Match[str]) -> str:
    if match["newline"]:
        return ""
    if match["code"]:
        number = int(match["code"][1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    one = match["one"]
    return _ONES.get(one, one if one in "\\'\"" else match[0])


# ---- calls of either kind ------------------------------------------------------------------

LEADING = re.compile(r"\s*")
_AFTER = re.compile(r"[\s,;`}\]]*")
_AFTER_BARE = re.compile(r"[\s,;]*")
_CALL_HEAD = re.compile(r"\[?\s*(?:([^\W\d][\w.\-]*)\s*(\()?)?")
_LONGEST = 256
"""The longest name, with the blanks around it."""


class Calls(Segment):
    """The text between the marks of calls.

    With `known` they must name one of these. `rejected` turns true where the text is no call at
    all; `raw` is then that text. `code` is the tool for what is neither JSON nor a call (Llama
    3.1).
    """

    def __init__(
        self, emitter: Emitter, code: str | None, known: frozenset[str] | None = None
    ) -> None:
        self.rejected = False
        self.raw: list[str] = []
        self._emitter = emitter
        self._code = code
        self._known = known
        self._list = False
        self._object: CallObject | None = None
        self._python = False
        self._proven = code is not None  # that Python may stand here
        self._emitted = False  # a call

    @property
    def quoted(self) -> bool:
        return self._object is not None and self._object.quoted

    @property
    def unproven(self) -> bool:
        """Whether nothing yet shows that this is a call."""
        return self._python and not self._proven

    def feed(self, text: str, at: int, end: int) -> int:
        text = text[:end]
        while at < end and not self.rejected:
            if self._object is not None:
                at = self._object.feed(text, at)
                if self._object.rejected:
                    self.raw += self._object.raw
                    self.rejected = True
                elif self._object.done:
                    self._object, self._emitted, self.raw = None, True, []
            elif self._python:
                self._read_python(text[at:])
                at = end
            elif self._emitted:
                at = self._read_after(text, at)
                if self._object is None:
                    return at
            else:  # nothing but blanks, and perhaps the bracket of a list
                start, at = at, skip(LEADING, text, at)
                self.raw.append(text[start:at])
                if at < end and text[at] == "{":
                    self._object = CallObject(self._emitter, self._known)
                    at += 1
                elif at < end and text[at] == "[" and not self._list:
                    self._list = True
                    self.raw.append("[")
                    at += 1
                else:
                    self._python = at < end
        return at

    def leave(self, target: str | None) -> None:
        emitter, raw = self._emitter, "".join(self.raw)
        if self._object is not None:
            self._object.close()
            if self._object.rejected:
                emitter.text(raw + "".join(self._object.raw))
            return
        found = calls(raw) if self._python else None
        if found is not None and (self._code is None or _is_call(raw, found[1])):
            for name, arguments in found[0]:
                emitter.emit_call(name, arguments)
            if found[1].strip():
                emitter.text(found[1].strip())
        elif self._python and self._code is not None and not emitter.cut:
            emitter.emit_call(self._code, json.dumps({"code": raw.strip()}, ensure_ascii=False))
        elif not self._emitted and raw.strip():
            emitter.warn(f"a call could not be read: {raw}")
            emitter.text(raw)

    def _read_after(self, text: str, at: int) -> int:
        """After a call. Another object here needs no proof that it is one."""
        bare = self._known is not None and not self._list
        stop = skip(_AFTER_BARE if bare else _AFTER, text, at)
        if "}" in text[at:stop]:
            self._emitter.warn("a brace too many after a call")
        if stop < len(text) and text[stop] == "{":
            self._object = CallObject(self._emitter)
            stop += 1
        return stop

    def _read_python(self, text: str) -> None:
        """Python is parsed when complete; it must soon look like a call, if it may not be code."""
        self.raw.append(text)
        if not self._proven:
            raw = "".join(self.raw).lstrip()
            match = _CALL_HEAD.match(raw)
            if match is not None and match[2]:
                self._proven = self._known is None or match[1] in self._known
                self.rejected = not self._proven
            else:
                self.rejected = match is None or match.end() < len(raw) or len(raw) > _LONGEST


def _is_call(raw: str, rest: str) -> bool:
    """Whether what may be code is a call: a list of calls, or a method named `call`."""
    head = raw.lstrip().partition("(")[0]
    return not rest.strip() and (head[:1] == "[" or head.endswith(METHOD))
