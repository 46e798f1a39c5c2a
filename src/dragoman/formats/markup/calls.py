"""Whole calls: JSON objects, lists and rows of them, or Python.

With a mark before them they are calls whatever they name; without one they must name a tool that
was offered, or else they are text. How a call is read is known to the readers of each syntax.
"""

from __future__ import annotations

import json
import re

from . import python_call
from .bodies import skip
from .json_call import Envelope
from .voice import Voice

_LEADING = re.compile(r"\s*")
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
        voice, read = self._voice, python_call.calls(raw)
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
    return not rest.strip() and (head[:1] == "[" or head.endswith(python_call.METHOD))
