"""What may stand between two marks, and how each is heard.

A body takes text in pieces, says what it can through the voice, and tells where it ends by itself.
Which body comes next is the profile's business.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

from .json_call import Value
from .values import typed
from .voice import Say, Voice

BLANKS = 64
"""How many blanks before a mark belong to it; what is beyond is text, and held no longer."""

_LONGEST_NAME = 128
_BLANK = re.compile(r"\s")
_OPENING = re.compile(r"[{\[]")
_LEADING = re.compile(r"\s*")
_JUNK = re.compile(r"[\s`]*")


class Draft:
    """What is known of a call before it begins."""

    __slots__ = ("id", "key", "name", "parameters")

    def __init__(self) -> None:
        self.name = ""
        self.id: str | None = None
        self.key = ""
        self.parameters = 0


class Body(Protocol):
    """The text between two marks."""

    @property
    def quoted(self) -> bool:
        """Whether we are in a string, where a mark may be data."""
        ...

    def feed(self, text: str, at: int, end: int) -> int:
        """Hear text[at:end], and tell where the body ended if it did before that."""
        ...

    def leave(self, target: str | None) -> None:
        """A mark came that leads to a state of this kind, or (None) there is no more."""
        ...


class Said:
    """Text or thought. Blanks wait, for they may stand before a mark and belong to it."""

    quoted = False

    def __init__(self, say: Say, plain: Say, *, fresh: bool = False) -> None:
        self.say = say
        self.plain = plain
        self.blanks = ""
        self._fresh = fresh  # blanks before it belong to the mark

    @property
    def flows(self) -> bool:
        """Whether text may be said without a look."""
        return not (self.blanks or self._fresh)

    def feed(self, text: str, at: int, end: int) -> int:
        more = self.blanks + text[at:end]
        if self._fresh:
            more = more.lstrip()
            self._fresh = not more
        words = more.rstrip()
        self.blanks = more[len(words) :]
        if len(self.blanks) > BLANKS:
            words, self.blanks = more[:-BLANKS], self.blanks[-BLANKS:]
        if words:
            self.say(words)
        return end

    def leave(self, target: str | None) -> None:
        if self.blanks and target in (None, "over"):
            self.say(self.blanks)
        self.blanks = ""


class Blanks:
    """The start of a message. It ends with the first thing that is no blank."""

    quoted = False

    def __init__(self, voice: Voice, first: bool) -> None:
        self._voice = voice
        self._first = first
        self._kept: list[str] = []

    def feed(self, text: str, at: int, end: int) -> int:
        found = _LEADING.match(text, at, end)
        stop = found.end() if found else at
        self._kept.append(text[at:stop])
        return stop

    def leave(self, target: str | None) -> None:
        if target in (None, "over") and (kept := self.kept):
            self._voice.text(kept)

    @property
    def kept(self) -> str:
        """The blanks, where nothing came before them; else they belong to that."""
        return "".join(self._kept) if self._first else ""


class Collected:
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
        """What was collected."""
        return "".join(self.pieces)


class Name(Collected):
    """The name of a call, up to a mark.

    Where `braces` may end it, they begin arguments, or calls that carry their own names. In a `tag`
    there is no blank; with one it is no tag but a word.
    """

    def __init__(self, voice: Voice, draft: Draft, braces: bool, tag: bool) -> None:
        super().__init__()
        draft.name, draft.id, draft.parameters = "", None, 0
        self.refused = False
        self._voice = voice
        self._draft = draft
        self._braces = braces
        self._tag = tag
        self._size = 0

    def feed(self, text: str, at: int, end: int) -> int:
        found = _OPENING.search(text, at, end) if self._braces else None
        stop = found.start() if found else end
        super().feed(text, at, stop)
        self._size += stop - at
        blank = self._tag and _BLANK.search(text, at, stop) is not None
        self.refused = self._size > _LONGEST_NAME or blank
        if found:
            self._draft.name = self.text.strip()
        return stop

    def leave(self, target: str | None) -> None:
        name = self.text.strip()
        if target in ("arguments", "typed", "gap", "id", "key") and name:
            self._draft.name = name
        elif name:
            self._voice.warn(f"a call could not be read: {name}")
            self._voice.text(name)


class Id(Collected):
    """The id of a call."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._draft = draft

    def leave(self, target: str | None) -> None:
        self._draft.id = self.text.strip() or None


class Arguments:
    """JSON, given on as it comes. It ends with its last brace; other text lasts to the mark."""

    def __init__(self, voice: Voice, draft: Draft) -> None:
        self._voice = voice
        self._value: Value | None = None
        self._raw = False
        voice.open(draft.name, draft.id)
        draft.name = ""

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
        self._voice.more(text[at:stop])
        if stop < end:
            return skip(_JUNK, text, stop, end)
        return end

    def leave(self, target: str | None) -> None:
        self._voice.shut()


class Typed(Collected):
    """A name and a fence, or nothing at all, before the arguments; then those."""

    def __init__(self, voice: Voice, draft: Draft) -> None:
        super().__init__()
        self._voice = voice
        self._draft = draft
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
        self._draft.name = name or self._draft.name
        self._arguments = Arguments(self._voice, self._draft)
        return self._arguments

    def leave(self, target: str | None) -> None:
        (self._arguments or self._begin()).leave(target)


class Gap(Collected):
    """Between two things. What is said there is told, and not lost."""

    def __init__(self, voice: Voice, draft: Draft) -> None:
        super().__init__()
        self._voice = voice
        self._draft = draft
        if draft.name and not voice.calling:
            voice.open(draft.name)

    def leave(self, target: str | None) -> None:
        said = self.text.strip()
        if said:
            self._voice.warn(f"not expected there: {said}")
        if target not in ("key", "value") and self._voice.calling:
            close_parameters(self._voice, self._draft)
        if said:
            self._voice.text(said)


class Argument(Collected):
    """One argument as bare text, typed by the schema of its tool."""

    def __init__(self, voice: Voice, draft: Draft) -> None:
        super().__init__()
        self._voice = voice
        self._draft = draft

    def leave(self, target: str | None) -> None:
        text = self.text.removeprefix("\n")
        if target not in ("gap", "key"):
            text = text.rstrip().removesuffix("</function>")
        text = text.removesuffix("\n")
        draft = self._draft
        value = typed(text, draft.key, self._voice.tools.get(draft.name))
        if self._voice.cut:
            value = json.dumps(text, ensure_ascii=False)[:-1]
        sign = ", " if draft.parameters else "{"
        draft.parameters += 1
        self._voice.more(f"{sign}{json.dumps(draft.key, ensure_ascii=False)}: {value}")
        if target not in ("gap", "key"):
            self._voice.warn(f"an argument of {draft.name} was not closed")
            close_parameters(self._voice, draft)


def close_parameters(voice: Voice, draft: Draft) -> None:
    """End a call whose arguments came one by one."""
    if draft.parameters and not voice.cut:
        voice.more("}")
    voice.shut()
    draft.name, draft.parameters = "", 0


class Key(Collected):
    """The name of an argument."""

    def __init__(self, voice: Voice, draft: Draft) -> None:
        super().__init__()
        self._voice = voice
        self._draft = draft

    def leave(self, target: str | None) -> None:
        self._draft.key = self.text.strip()
        if target != "value":
            self._voice.warn(f"an argument of {self._draft.name} has no value: {self._draft.key}")
            close_parameters(self._voice, self._draft)


class Unsaid:
    """Not said: whose turn it is, or what comes after the end."""

    quoted = False

    def __init__(self, voice: Voice, after: bool) -> None:
        self._voice = voice
        self._after = after
        self._warned = False

    def feed(self, text: str, at: int, end: int) -> int:
        if self._after and not self._warned and text[at:end].strip():
            self._warned = True
            self._voice.warn("the model wrote on after its end")
        return end

    def leave(self, target: str | None) -> None:
        pass


def skip(pattern: re.Pattern[str], text: str, at: int, end: int) -> int:
    """Where what the pattern matches ends."""
    found = pattern.match(text, at, end)
    return found.end() if found else at
