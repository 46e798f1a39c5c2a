"""Segments: how the parser reads the text of each state between two marks."""

from __future__ import annotations

import json
import re
from typing import Protocol

from .calls import METHOD, CallObject, Value, calls, typed
from .emitter import Emit, Emitter

BLANKS = 64
"""How many blanks before a mark belong to it; more are text, so that no text waits for long."""

_LONGEST_NAME = 128
_BLANK = re.compile(r"\s")
_OPENING = re.compile(r"[{\[]")
_LEADING = re.compile(r"\s*")
_JUNK = re.compile(r"[\s`]*")


class PendingCall:
    """What is known of a call before it begins."""

    __slots__ = ("id", "key", "name", "parameters")

    def __init__(self) -> None:
        self.name = ""
        self.id: str | None = None
        self.key = ""
        self.parameters = 0


class Segment(Protocol):
    """The text between two marks."""

    @property
    def quoted(self) -> bool:
        """Whether the position is inside a string, where a mark may be data."""
        ...

    def feed(self, text: str, at: int, end: int) -> int:
        """Read text[at:end]; returns where the segment ended, if it did before that."""
        ...

    def leave(self, target: str | None) -> None:
        """A mark was found that leads to a state of this kind, or (None) the text is over."""
        ...


class TextSegment:
    """Text or reasoning. Blanks wait, because blanks before a mark belong to it."""

    quoted = False

    def __init__(self, emit: Emit, plain: Emit, *, fresh: bool = False) -> None:
        self.emit = emit
        self.plain = plain
        self.blanks = ""
        self._fresh = fresh  # blanks before it belong to the mark

    @property
    def flows(self) -> bool:
        """Whether plain text may be emitted without a scan."""
        return not (self.blanks or self._fresh)

    def feed(self, text: str, at: int, end: int) -> int:
        more = self.blanks + text[at:end]
        if self._fresh:
            more = more.lstrip()
            self._fresh = not more
        text_part = more.rstrip()
        self.blanks = more[len(text_part) :]
        if len(self.blanks) > BLANKS:
            text_part, self.blanks = more[:-BLANKS], self.blanks[-BLANKS:]
        if text_part:
            self.emit(text_part)
        return end

    def leave(self, target: str | None) -> None:
        if self.blanks and target in (None, "over"):
            self.emit(self.blanks)
        self.blanks = ""


class LeadingBlanks:
    """The start of a message. It ends at the first character that is not blank."""

    quoted = False

    def __init__(self, emitter: Emitter, first: bool) -> None:
        self._emitter = emitter
        self._first = first
        self._collected: list[str] = []

    def feed(self, text: str, at: int, end: int) -> int:
        found = _LEADING.match(text, at, end)
        stop = found.end() if found else at
        self._collected.append(text[at:stop])
        return stop

    def leave(self, target: str | None) -> None:
        if target in (None, "over") and (blanks := self.blanks):
            self._emitter.text(blanks)

    @property
    def blanks(self) -> str:
        """The blanks, where nothing came before them; else they belong to that."""
        return "".join(self._collected) if self._first else ""


class CollectedText:
    """A short text that is needed whole: a name, an id, a key."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    @property
    def quoted(self) -> bool:
        return False

    def feed(self, text: str, at: int, end: int) -> int:
        self.pieces.append(text[at:end])
        return end

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Name(CollectedText):
    """The name of a call, up to a mark.

    With `braces` a brace may end it: arguments follow, or calls that carry their own names. A `tag`
    has no blanks in its name: with one it is ordinary text.
    """

    def __init__(self, emitter: Emitter, pending: PendingCall, braces: bool, tag: bool) -> None:
        super().__init__()
        pending.name, pending.id, pending.parameters = "", None, 0
        self.rejected = False
        self._emitter = emitter
        self._pending = pending
        self._braces = braces
        self._tag = tag
        self._size = 0

    def feed(self, text: str, at: int, end: int) -> int:
        found = _OPENING.search(text, at, end) if self._braces else None
        stop = found.start() if found else end
        super().feed(text, at, stop)
        self._size += stop - at
        blank = self._tag and _BLANK.search(text, at, stop) is not None
        self.rejected = self._size > _LONGEST_NAME or blank
        if found:
            self._pending.name = self.text.strip()
        return stop

    def leave(self, target: str | None) -> None:
        name = self.text.strip()
        if target in ("arguments", "typed", "gap", "id", "key") and name:
            self._pending.name = name
        elif name:
            self._emitter.warn(f"a call could not be read: {name}")
            self._emitter.text(name)


class Id(CollectedText):
    """The id of a call."""

    def __init__(self, pending: PendingCall) -> None:
        super().__init__()
        self._pending = pending

    def leave(self, target: str | None) -> None:
        self._pending.id = self.text.strip() or None


class Arguments:
    """JSON, emitted as it arrives. It ends with its last brace; other text lasts to the mark."""

    def __init__(self, emitter: Emitter, pending: PendingCall) -> None:
        self._emitter = emitter
        self._value: Value | None = None
        self._raw = False
        emitter.open_call(pending.name, pending.id)
        pending.name = ""

    @property
    def quoted(self) -> bool:
        return self._value is not None and self._value.quoted

    def feed(self, text: str, at: int, end: int) -> int:
        if self._value is None:
            found = _LEADING.match(text, at, end)
            at = found.end() if found else at
            if at == end:
                return end
            self._value = Value()
            self._raw = text[at] not in '{["'
        if self._value.done:
            return skip(_JUNK, text, at, end)
        stop = end if self._raw else self._value.feed(text[:end] if end < len(text) else text, at)
        self._emitter.add_arguments(text[at:stop])
        if stop < end:
            return skip(_JUNK, text, stop, end)
        return end

    def leave(self, target: str | None) -> None:
        self._emitter.close_call()


class NamedArguments(CollectedText):
    """DeepSeek's `function` type: a name, perhaps in a fence, before the arguments; then those."""

    def __init__(self, emitter: Emitter, pending: PendingCall) -> None:
        super().__init__()
        self._emitter = emitter
        self._pending = pending
        self._arguments: Arguments | None = None

    @property
    def quoted(self) -> bool:
        return self._arguments is not None and self._arguments.quoted

    def feed(self, text: str, at: int, end: int) -> int:
        arguments = self._arguments
        if arguments is None:
            brace = text.find("{", at, end)
            super().feed(text, at, end if brace < 0 else brace)
            if brace < 0:
                return end
            arguments, at = self._begin(), brace
        return arguments.feed(text, at, end)

    def _begin(self) -> Arguments:
        name = self.text.split("```")[0].strip()
        self._pending.name = name or self._pending.name
        self._arguments = Arguments(self._emitter, self._pending)
        return self._arguments

    def leave(self, target: str | None) -> None:
        (self._arguments or self._begin()).leave(target)


class Gap(CollectedText):
    """Between two parts of a call. Text there is reported, and emitted after the call."""

    def __init__(self, emitter: Emitter, pending: PendingCall) -> None:
        super().__init__()
        self._emitter = emitter
        self._pending = pending
        if pending.name and not emitter.in_call:
            emitter.open_call(pending.name)

    def leave(self, target: str | None) -> None:
        text = self.text.strip()
        if text:
            self._emitter.warn(f"not expected there: {text}")
        if target not in ("key", "value") and self._emitter.in_call:
            close_parameters(self._emitter, self._pending)
        if text:
            self._emitter.text(text)


class ParameterValue(CollectedText):
    """One argument as bare text, typed by the schema of its tool."""

    def __init__(self, emitter: Emitter, pending: PendingCall) -> None:
        super().__init__()
        self._emitter = emitter
        self._pending = pending

    def leave(self, target: str | None) -> None:
        text = self.text.removeprefix("\n")
        if target not in ("gap", "key"):
            text = text.rstrip().removesuffix("</function>")
        text = text.removesuffix("\n")
        pending = self._pending
        value = typed(text, pending.key, self._emitter.tools.get(pending.name))
        if self._emitter.truncated:
            value = json.dumps(text, ensure_ascii=False)[:-1]
        sign = ", " if pending.parameters else "{"
        pending.parameters += 1
        self._emitter.add_arguments(f"{sign}{json.dumps(pending.key, ensure_ascii=False)}: {value}")
        if target not in ("gap", "key"):
            self._emitter.warn(f"an argument of {pending.name} was not closed")
            close_parameters(self._emitter, pending)


def close_parameters(emitter: Emitter, pending: PendingCall) -> None:
    """End a call whose arguments were tags."""
    if pending.parameters and not emitter.truncated:
        emitter.add_arguments("}")
    emitter.close_call()
    pending.name, pending.parameters = "", 0


class ParameterKey(CollectedText):
    """The name of an argument."""

    def __init__(self, emitter: Emitter, pending: PendingCall) -> None:
        super().__init__()
        self._emitter = emitter
        self._pending = pending

    def leave(self, target: str | None) -> None:
        self._pending.key = self.text.strip()
        if target != "value":
            self._emitter.warn(
                f"an argument of {self._pending.name} has no value: {self._pending.key}"
            )
            close_parameters(self._emitter, self._pending)


class Discarded:
    """Text that is not emitted: the role of the next turn, or what follows the end."""

    quoted = False

    def __init__(self, emitter: Emitter, after: bool) -> None:
        self._emitter = emitter
        self._after = after
        self._warned = False

    def feed(self, text: str, at: int, end: int) -> int:
        if self._after and not self._warned and text[at:end].strip():
            self._warned = True
            self._emitter.warn("the model wrote on after its end")
        return end

    def leave(self, target: str | None) -> None:
        pass


def skip(pattern: re.Pattern[str], text: str, at: int, end: int) -> int:
    """Where the match of a pattern ends."""
    found = pattern.match(text, at, end)
    return found.end() if found else at


_AFTER = re.compile(r"[\s,;`}\]]*")
_AFTER_BARE = re.compile(r"[\s,;]*")
_CALL = re.compile(r"\[?\s*(?:([^\W\d][\w.\-]*)\s*(\()?)?")
_LONGEST = 256
"""The longest name, with the blanks around it."""


class Calls:
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
        self._code = code if known is None else None
        self._known = known
        self._list = False
        self._object: CallObject | None = None
        self._python = False
        self._proven = self._code is not None  # that Python may stand here
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
                at = self._in_object(self._object, text, at)
            elif self._python:
                at = self._in_python(text, at)
            elif not self._emitted:
                at = self._before(text, at)
            else:
                at = self._after(text, at)
                if self._object is None:
                    return at
        return at

    def leave(self, target: str | None) -> None:
        emitter, raw = self._emitter, "".join(self.raw)
        if self._object is not None:
            self._object.close()
            if self._object.rejected:
                emitter.text(raw + "".join(self._object.raw))
        elif self._python:
            self._emit_python(raw)
        elif not self._emitted and raw.strip():
            emitter.warn(f"a call could not be read: {raw}")
            emitter.text(raw)

    # ---- inside --------------------------------------------------------------------------

    def _before(self, text: str, at: int) -> int:
        """Nothing but blanks, and perhaps the bracket of a list."""
        stop = skip(_LEADING, text, at, len(text))
        self.raw.append(text[at:stop])
        if stop == len(text):
            return stop
        if text[stop] == "{":
            self._object = CallObject(self._emitter, self._known)
        elif text[stop] == "[" and not self._list:
            self._list = True
            self.raw.append("[")
            return stop + 1
        else:
            self._python = True
        return stop

    def _in_object(self, object: CallObject, text: str, at: int) -> int:
        at = object.feed(text, at)
        if object.rejected:
            self.raw += object.raw
            self.rejected = True
        elif object.done:
            self._object, self._emitted, self.raw = None, True, []
        return at

    def _after(self, text: str, at: int) -> int:
        """After a call. Another object here needs no proof that it is one."""
        bare = self._known is not None and not self._list
        stop = skip(_AFTER_BARE if bare else _AFTER, text, at, len(text))
        if "}" in text[at:stop]:
            self._emitter.warn("a brace too many after a call")
        if stop < len(text) and text[stop] == "{":
            self._object = CallObject(self._emitter)
        return stop

    def _in_python(self, text: str, at: int) -> int:
        """Python is parsed when complete; it must soon look like a call, if it may not be code."""
        self.raw.append(text[at:])
        if not self._proven:
            raw = "".join(self.raw).lstrip()
            match = _CALL.match(raw)
            if match is not None and match[2]:
                self._proven = self._known is None or match[1] in self._known
                self.rejected = not self._proven
            else:
                self.rejected = match is None or match.end() < len(raw) or len(raw) > _LONGEST
        return len(text)

    def _emit_python(self, raw: str) -> None:
        emitter, read = self._emitter, calls(raw)
        if read is not None and (self._code is None or _is_call(raw, read[1])):
            for name, arguments in read[0]:
                emitter.emit_call(name, arguments)
            if read[1].strip():
                emitter.text(read[1].strip())
        elif self._code is not None:
            emitter.emit_call(self._code, json.dumps({"code": raw.strip()}, ensure_ascii=False))
        else:
            emitter.warn(f"a call could not be read: {raw}")
            emitter.text(raw)


def _is_call(raw: str, rest: str) -> bool:
    """Whether what may be code is a call: a list of calls, or a method named `call`."""
    head = raw.lstrip().partition("(")[0]
    return not rest.strip() and (head[:1] == "[" or head.endswith(METHOD))
