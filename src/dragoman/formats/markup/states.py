"""Parser states between two markers, and how each reads its text."""

from __future__ import annotations

import json
import re
from typing import Protocol

from .calls import METHOD, Envelope, Value, calls, typed
from .emitter import Say, Voice

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


_AFTER = re.compile(r"[\s,;`}\]]*")
_AFTER_BARE = re.compile(r"[\s,;]*")
_CALL = re.compile(r"\[?\s*(?:([^\W\d][\w.\-]*)\s*(\()?)?")
_LONGEST = 256
"""How long a name, with the blanks around it, may be."""


class Calls:
    """The body between the marks of calls.

    With `known` they must name one of these. `refused` becomes true where they are no calls at
    all; `raw` is then what was heard. `code` is the tool for what is neither JSON nor a call.
    """

    def __init__(self, voice: Voice, code: str | None, known: frozenset[str] | None = None) -> None:
        self.refused = False
        self.raw: list[str] = []
        self._voice = voice
        self._code = code if known is None else None
        self._known = known
        self._list = False
        self._envelope: Envelope | None = None
        self._python = False
        self._proven = self._code is not None  # that Python may stand here
        self._said = False  # a call

    @property
    def quoted(self) -> bool:
        """Whether we are in a string of JSON."""
        return self._envelope is not None and self._envelope.quoted

    @property
    def doubtful(self) -> bool:
        """Whether nothing yet shows that this is a call."""
        return self._python and not self._proven

    def feed(self, text: str, at: int, end: int) -> int:
        """Hear text[at:end], and tell where the calls ended if they did before that."""
        text = text[:end]
        while at < end and not self.refused:
            if self._envelope is not None:
                at = self._in_envelope(self._envelope, text, at)
            elif self._python:
                at = self._in_python(text, at)
            elif not self._said:
                at = self._before(text, at)
            else:
                at = self._after(text, at)
                if self._envelope is None:
                    return at
        return at

    def leave(self, target: str | None) -> None:
        """A mark came, or the end: say what there is as what it is."""
        voice, raw = self._voice, "".join(self.raw)
        if self._envelope is not None:
            self._envelope.close()
            if self._envelope.rejected:
                voice.text(raw + "".join(self._envelope.raw))
        elif self._python:
            self._say_python(raw)
        elif not self._said and raw.strip():
            voice.warn(f"a call could not be read: {raw}")
            voice.text(raw)

    # ---- inside --------------------------------------------------------------------------

    def _before(self, text: str, at: int) -> int:
        """Nothing but blanks, and perhaps the bracket of a list."""
        stop = skip(_LEADING, text, at, len(text))
        self.raw.append(text[at:stop])
        if stop == len(text):
            return stop
        if text[stop] == "{":
            self._envelope = Envelope(self._voice, self._known)
        elif text[stop] == "[" and not self._list:
            self._list = True
            self.raw.append("[")
            return stop + 1
        else:
            self._python = True
        return stop

    def _in_envelope(self, envelope: Envelope, text: str, at: int) -> int:
        at = envelope.feed(text, at)
        if envelope.rejected:
            self.raw += envelope.raw
            self.refused = True
        elif envelope.done:
            self._envelope, self._said, self.raw = None, True, []
        return at

    def _after(self, text: str, at: int) -> int:
        """A call was said. What follows it needs no proof of its own."""
        bare = self._known is not None and not self._list
        stop = skip(_AFTER_BARE if bare else _AFTER, text, at, len(text))
        if "}" in text[at:stop]:
            self._voice.warn("a brace too many after a call")
        if stop < len(text) and text[stop] == "{":
            self._envelope = Envelope(self._voice)
        return stop

    def _in_python(self, text: str, at: int) -> int:
        """Python is needed whole. It must soon look like a call, if it need not be code."""
        self.raw.append(text[at:])
        if not self._proven:
            raw = "".join(self.raw).lstrip()
            match = _CALL.match(raw)
            if match is not None and match[2]:
                self._proven = self._known is None or match[1] in self._known
                self.refused = not self._proven
            else:
                self.refused = match is None or match.end() < len(raw) or len(raw) > _LONGEST
        return len(text)

    def _say_python(self, raw: str) -> None:
        voice, read = self._voice, calls(raw)
        if read is not None and (self._code is None or _is_call(raw, read[1])):
            for name, arguments in read[0]:
                voice.whole(name, arguments)
            if read[1].strip():
                voice.text(read[1].strip())
        elif self._code is not None:
            voice.whole(self._code, json.dumps({"code": raw.strip()}, ensure_ascii=False))
        else:
            voice.warn(f"a call could not be read: {raw}")
            voice.text(raw)


def _is_call(raw: str, rest: str) -> bool:
    """Whether what may be code is a call: a list of them, or a method named `call`."""
    head = raw.lstrip().partition("(")[0]
    return not rest.strip() and (head[:1] == "[" or head.endswith(METHOD))
