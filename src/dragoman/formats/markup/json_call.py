"""Calls written as JSON objects, heard in pieces of any size.

Name, id and arguments are found in any order and under their usual keys; the arguments are given on
as they come, word for word. What marks stand around the object is not known here.
"""

from __future__ import annotations

import json
import re

from .voice import Voice

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
    """Follows one JSON value to its end. `quoted` tells whether we are inside a string."""

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


class Envelope:
    """One object that names a function and holds its arguments.

    With `known` it is a call only if it names one of them and has nothing in it that a call has
    not; else `rejected` becomes true, and nothing was said. `raw` is its text so far.
    """

    def __init__(self, voice: Voice, known: frozenset[str] | None = None) -> None:
        self.done = False
        self.rejected = False
        self.raw: list[str] = []
        self._voice = voice
        self._known = known
        self._value = Value()
        self._pieces: list[str] = []
        self._key: str | None = None
        self._step = self._open
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: str | None = None
        self._said = False  # the arguments, or a part of them

    @property
    def quoted(self) -> bool:
        """Whether we are inside a string."""
        return self._value.quoted

    def feed(self, text: str, at: int) -> int:
        """Where in the text the object ends, or the text's end."""
        start = at
        while at < len(text) and not (self.done or self.rejected):
            at = self._step(text, at)
        if not self._said:
            self.raw.append(text[start:at])
            if self.done:
                self._nameless("a call without a name")
        return at

    def close(self) -> None:
        """No more comes: say what there is as what it is."""
        voice = self._voice
        self.done = True
        if self._known is not None and not self._said:
            self.rejected = True
        elif self._said:
            junk = "".join(self._pieces) if self._step == self._lost else ""
            voice.warn(f"the call of {self._name} was not closed{junk and f': {junk}'}")
            voice.shut()
        elif self._name and self._arguments is not None:
            voice.warn(f"the call of {self._name} was not closed")
            self._whole(self._name)
        else:
            raw = "".join(self.raw)
            found = _NAME.search(raw)
            if name := self._name or (found and found[1]):
                voice.warn(f"the call of {name} could not be read: {raw}")
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
            if self._known is not None and key not in _BESIDE:
                self.rejected = True
            self._step = self._before_value
        return end

    def _before_value(self, text: str, at: int) -> int:
        at = _end(_COLON, text, at)
        if at < len(text):
            self._value, self._pieces = Value(), []
            streams = self._key in _ARGUMENTS and self._name and not self._said
            if streams and self._arguments is None and text[at] == "{":
                self._said = True
                self._voice.open(self._name or "", self._id)
            self._step = self._in_value if text[at] not in ",}]" else self._lost
        return at

    def _in_value(self, text: str, at: int) -> int:
        if self._said and self._key in _ARGUMENTS and self._arguments is None:
            end = self._value.feed(text, at)
            self._voice.more(text[at:end])
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
        """It is no JSON: all that follows is its raw text."""
        if self._known is not None and not self._said:
            self.rejected = True
        self._pieces.append(text[at:])
        return len(text)

    def _collect(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._pieces.append(text[at:end])
        return end

    # ---- what it says --------------------------------------------------------------------

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
        if self._said:
            self._voice.shut()
        elif self._name:
            self._whole(self._name)

    def _nameless(self, what: str) -> None:
        raw = "".join(self.raw)
        self._voice.warn(f"{what}: {raw}")
        self._voice.text(raw)

    def _whole(self, name: str, raw: str | None = None) -> None:
        self._said = True
        self._voice.whole(name, _plain(self._arguments) if raw is None else raw, self._id)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _string(literal: str) -> str | None:
    """What a JSON string says; None for any other value."""
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
    """Arguments as an object: nothing is the empty one, and one in a string is let out."""
    if arguments is None or arguments in ("null", '""'):
        return "{}"
    inside = _string(arguments) if arguments[0] == '"' else None
    return inside if inside is not None and inside.lstrip()[:1] == "{" else arguments
