"""A short cut through the commonest chunks: those that say one piece of one thing.

Such chunks of one stream differ in a single string (and some in a random padding), so the bytes
around it are remembered and only the string is decoded. A chunk that differs anywhere else takes
the long way, and so does one that has not exactly one JSON string in that place: the short cut
is never laxer than the long way.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dragoman.core.item import JSON
from dragoman.wire import sse
from dragoman.wire.body import BROKEN, decode_string, decode_strings, string

from . import known

Kind = Literal["text", "thought", "arguments"]

_KINDS: dict[str, Kind] = {
    "content": "text",
    "reasoning_content": "thought",
    "reasoning": "thought",
}
_STRING = rb'"%s"[ \t]*:[ \t]*("(?:[^"\\]|\\.)*+")'
_FIELDS = {
    name: (b'"%s"' % name.encode(), re.compile(_STRING % name.encode()))
    for name in (*_KINDS, "arguments")
}
_PADDING = re.compile(rb'"obfuscation"[ \t]*:[ \t]*("[^"\\]*+")')
_NOTHING: tuple[JSON, ...] = (None, "", [])


_FEW = 2048
"""Bytes up to which events are looked at one by one."""
_MARK = 48
"""Bytes of what stands between two strings that are looked for."""


class Envelope(NamedTuple):
    """The bytes before and after the string, and what the string is.

    `call` is the index of the call that arguments belong to. `padding` splits what comes after
    the string where a random padding stands, if there is one.
    """

    prefix: bytes
    suffix: bytes
    kind: Kind
    choice: int
    call: int | None
    padding: tuple[bytes, bytes] | None
    framed: bytes = b""
    """The prefix and the suffix with what frames an event around them, and both together."""
    ending: bytes = b""
    between: bytes = b""

    def open_alone(self, data: bytes) -> str | None:
        """The string, if the bytes are one such event and no more, which is how a stream that is
        not in a hurry comes."""
        if not (data.endswith(self.ending) and data.startswith(self.framed)):
            return None
        inner = data[len(self.framed) : -len(self.ending)]
        if len(data) > sse.MAX_EVENT or b"\n" in inner or b"\r" in inner:
            return None  # JSON does not mind a line end beside the string, but events do
        try:
            return decode_string(inner)
        except BROKEN:  # the long way will find out what it is
            return None

    def open_run(self, data: bytes) -> tuple[list[str], bytes]:
        """The strings of the events with which the bytes begin, and the bytes behind them."""
        if len(data) > sse.MAX_EVENT:
            return [], data
        strings = (self._many(data) if len(data) > _FEW else None) or self._few(data)
        said = decode_strings(strings)
        if "" in said:  # the next one must take the long way
            del said[said.index("") :]
        if not said:
            return [], data
        told = sum(map(len, strings[: len(said)])) + (len(said) - 1) * len(self.between)
        return said, data[len(self.framed) + told + len(self.ending) :]

    def _few(self, data: bytes) -> list[bytes]:
        """What stands in the place of the string in each event."""
        framed, ending, at = self.framed, self.ending, 0
        strings: list[bytes] = []
        while data.startswith(framed, at) and (end := data.find(ending, at)) >= 0:
            strings.append(data[at + len(framed) : end])
            at = end + len(ending)
        return strings

    def _many(self, data: bytes) -> list[bytes] | None:
        """The same for many, which a single split gives; None where others stand among them."""
        framed, between = self.framed, self.between
        mark = between[-_MARK:]
        *pieces, last = data[len(framed) :].split(mark)
        around = len(mark) - len(between)
        strings = [piece[:around] for piece in pieces]
        text, ended, _ = last.partition(self.ending)
        if ended:
            strings.append(text)
        # Comparing with what they should have been is cheaper than looking at each.
        if not strings or not data.startswith(framed + between.join(strings) + self.ending):
            return None
        return strings

    def open(self, data: bytes) -> str | None:
        """The string in this chunk; None, or empty, if it must take the long way."""
        prefix, suffix = self.prefix, self.suffix
        if not data.startswith(prefix):
            return None
        if data.endswith(suffix):
            return string(data[len(prefix) : -len(suffix)])
        padding = self.padding
        if padding is None or not data.endswith(padding[1]):
            return None
        inner = data[len(prefix) : len(data) - len(padding[1])]
        text, found, padded = inner.rpartition(padding[0])
        return string(text) if found and string(padded) is not None else None


class _Plain(NamedTuple):
    """What a chunk says that says one piece of one thing."""

    field: str
    said: str
    kind: Kind
    choice: int
    call: int | None = None


def learn(data: bytes, value: dict[str, JSON]) -> Envelope | None:
    """The envelope of a chunk that was read the long way; None if it says more than one thing."""
    plain = _plain(value)
    if plain is None:
        return None
    name, pattern = _FIELDS[plain.field]
    found = pattern.search(data)
    if data.count(name) != 1 or found is None or string(found[1]) != plain.said:
        return None
    prefix, suffix = data[: found.start(1)], data[found.end(1) :]
    around = prefix + suffix
    if b"\\" in around or b"\n" in around:
        return None  # a name may be written in more ways than one, and so may several lines
    return Envelope(
        prefix,
        suffix,
        plain.kind,
        plain.choice,
        plain.call,
        _padding(suffix),
        b"data: " + prefix,
        suffix + b"\n\n",
        suffix + b"\n\ndata: " + prefix,
    )


def _padding(suffix: bytes) -> tuple[bytes, bytes] | None:
    found = _PADDING.search(suffix)
    if found is None or suffix.count(b'"obfuscation"') != 1:
        return None
    return suffix[: found.start(1)], suffix[found.end(1) :]


def _plain(value: dict[str, JSON]) -> _Plain | None:
    """What the chunk says, if it has nothing in it that must be looked at every time."""
    match value:
        case {"choices": [{"delta": dict(delta)} as choice]}:
            beside = (value.get("usage"), value.get("error"), *_others(choice, "index", "delta"))
        case _:
            return None
    left = {name: v for name, v in delta.items() if name != "role" and v not in _NOTHING}
    unknown = known.rest(choice, known.CHOICE) or known.rest(delta, known.MESSAGE)
    if len(left) != 1 or unknown or not all(each in _NOTHING for each in beside):
        return None
    ((field, said),) = left.items()
    if field == "tool_calls":
        return _plain_arguments(said, known.number(choice, 0))
    if field not in _KINDS or not isinstance(said, str):
        return None
    return _Plain(field, said, _KINDS[field], known.number(choice, 0))


def _plain_arguments(calls: JSON, choice: int) -> _Plain | None:
    match calls:
        case [{"function": {"arguments": str(said)} as function} as entry] if said:
            more = (*_others(entry, "index", "function", "type"), *_others(function, "arguments"))
            unknown = known.rest(entry, known.ENTRY) or known.rest(function, known.CALL)
            plain = entry.get("type") in (*_NOTHING, "function") and not unknown
            if plain and all(each in _NOTHING for each in more):
                return _Plain("arguments", said, "arguments", choice, known.index(entry))
    return None


def _others(fields: dict[str, JSON], *names: str) -> list[JSON]:
    return [v for name, v in fields.items() if name not in names]
