"""Writes grammars in llguidance's Lark dialect, one rule at a time.

Whether a marker is one token or ordinary text depends on a vocabulary, so the rules of markers are
left open and filled in where there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from dragoman.core.item import JSON
from dragoman.formats.format import Grammar, Marker

from .demand import Anything, Body, Choice, JSONBody, Regex

_ANY = r"(?s:.*)"


SPACED = (", ", ": ")
"""What stands between items and after keys in JSON, as regular expressions: as `json.dumps` writes,
which most models were trained on. White space is never free: a weak model fills the answer with
it."""
EITHER = (", ?", ": ?")
"""Compact or spaced."""


class Writer:
    """A grammar being written. Every method returns an expression to be used in rules.

    >>> writer = Writer()
    >>> print(writer.grammar(writer.text("ok") + " " + writer.marker("<|end|>")).lark)
    start: "ok" marker_1
    """

    def __init__(self, separators: tuple[str, str] = SPACED) -> None:
        self._options: dict[str, JSON] = {
            "whitespace_flexible": False,
            "coerce_one_of": True,  # which is refused before where it is not the same
            "item_separator": separators[0],
            "key_separator": separators[1],
        }
        self._rules: dict[str, str] = {}  # by name
        self._named: dict[str, str] = {}  # names by what they mean
        self._markers: list[Marker] = []
        self._inner: list[tuple[str, str]] = []
        self._parts: dict[tuple[str, str], None] = {}

    def text(self, text: str) -> str:
        """Exactly this text."""
        return json.dumps(text, ensure_ascii=False)

    def marker(self, text: str) -> str:
        return self._mark("marker", text)

    def until(self, text: str, without: Iterable[str] = (), lead: str = "") -> str:
        """Any text up to and with a marker, without it or any of the others inside. It ends with
        `lead`."""
        before = self.free((text, *without), _ANY + slashed(re.escape(lead)) if lead else _ANY)
        return self._mark("until", text, before)

    def end(self, texts: Iterable[str]) -> str:
        """One of the tokens that end an answer; empty in a vocabulary that has none of them."""
        ends = [self._mark("end", text, end=True) for text in texts]
        return self.rule("end", self.any_of(ends)) if ends else '""'

    def free(self, without: Iterable[str] = (), start: str = _ANY) -> str:
        """Any text that a regular expression matches and none of these stands in."""
        return self.rule("FREE", f"/{start}/{_barred(without)}")

    def rule(self, name: str, expression: str, options: str = "") -> str:
        """A named rule; the same one twice is one. Names in capitals are terminals."""
        key = f"{name}: {expression}"
        if key not in self._named:
            self._named[key] = numbered = f"{name}_{len(self._named) + 1}"
            self._rules[numbered + options] = expression
        return self._named[key]

    def any_of(self, expressions: Iterable[str]) -> str:
        several = list(dict.fromkeys(expressions))
        return several[0] if len(several) == 1 else f"({' | '.join(several)})"

    def body(self, body: Body, without: Iterable[str] = ()) -> str:
        """What an answer or a call must match; free text and regular expressions `without` some
        texts."""
        match body:
            case Anything():
                return self.free(without)
            case JSONBody():
                schema = {**body.schema, "x-guidance": self._options}
                dumped = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
                made = self.rule("json", f"%json {dumped}")
            case Regex():
                made = self.rule("REGEX", f"/{slashed(body.pattern)}/{_barred(without)}")
            case Choice():
                # A terminal: alternatives of rules are tried one by one at every token.
                made = self.rule("CHOICE", self.any_of(map(self.text, body.texts)))
            case _:
                name = f"inner_{len(self._inner) + 1}"
                self._inner.append((name, body.lark))
                made = f"@{name}"
        self._parts[body.param, made] = None
        return made

    def grammar(self, start: str) -> Grammar:
        """The complete grammar; `start` is its first rule."""
        rules = (f"{name}: {expression}" for name, expression in self._rules.items())
        lark = "\n".join((f"start: {start}", *rules))
        return Grammar(lark, tuple(self._markers), tuple(self._inner), tuple(self._parts))

    def _mark(self, name: str, text: str, before: str = "", *, end: bool = False) -> str:
        key = f"{name} {before} {text}"
        if key not in self._named:
            self._named[key] = f"{name}_{len(self._named) + 1}"
            self._markers.append(Marker(self._named[key], text, before, end))
        return self._named[key]


def _barred(texts: Iterable[str]) -> str:
    """The part of a terminal that keeps these texts out of it."""
    barred = "|".join(re.escape(text).replace("/", "\\/") for text in texts)
    return f" & ~/{_ANY}(?:{barred}){_ANY}/" if barred else ""


def slashed(pattern: str) -> str:
    """A regular expression between slashes, on one line.

    The whole text is matched anyway, so outer anchors are dropped. `\\d` is 0-9: which other digits
    there are differs between regular expression engines.
    """
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not re.search(r"(?<!\\)(?:\\\\)*\\\$$", pattern):
        pattern = pattern[:-1]
    return f"(?:{_PIECE.sub(_escaped, pattern)})"


_PIECE = re.compile(r"\[(?:\\.|[^\]\\])++\]?|\\.|/|\n|\r", re.DOTALL)
_IN_CLASS = re.compile(r"\\.|/|\n|\r", re.DOTALL)
_SPELLED = {"/": "\\/", "\n": "\\n", "\\\n": "\\n", "\r": "\\r"}


def _escaped(found: re.Match[str]) -> str:
    piece = found[0]
    if piece.startswith("["):
        return _IN_CLASS.sub(lambda each: _SPELLED.get(each[0], each[0]), piece)
    return "[0-9]" if piece == "\\d" else _SPELLED.get(piece, piece)


_IN_OUR_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^at \d+\(\d+\): (?=invalid regex \"\(\?:)", ""),  # a place in what we wrote
        (r"(?:invalid regex|regex parse error:) .* error: ", "is no regular expression: "),
        (
            r"(?:invalid regex .*)?lookarounds not supported yet; .*",
            "has an anchor or a word boundary, which cannot be enforced",
        ),
        (r"^NoExtension(?:Bias)?$", "nothing can match it"),
        (r"^panic: .*", "has something that cannot be compiled, an attribute of a rule perhaps"),
        (r"^Unsatisfiable schema: ", "no value fits: "),
        (r"Regex is empty:.*", "no text is all that is demanded"),
        (r"^.*too many (?:expressions|states).*", "is too large: repeat less in it"),
        (
            r"^.*(?:Too many items \(|Current row has ).*",
            "is too large, or refers to itself without an end",
        ),
        (r"^Resource '(.*)' is not present.*", r"refers to \1, which is not in the schema"),
        (
            r"^patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
            r"a property may fit both \1 and \2: write patterns of which only one fits",
        ),
        (r'^failed to parse "%json": number out of range.*', "has a number that is too large"),
        (r"^Failed to generate regex for .*", "its range of numbers cannot be enforced"),
        (r" while processing .*$", ""),
        (r";? following (?:\w+ )*are available:.*", ""),
        (r"[Ee]xpected token (.*), found (.*) \(at .*\)$", r"expected \1, and found \2"),
        (r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: "),
    )
]
"""Error texts of llguidance and their replacements; other texts are passed on."""


def error_text(error: str) -> str:
    """The first lines of an error, in our words: after them comes the grammar itself."""
    lines = [line.strip() for line in error.partition("<state>")[0].splitlines()]
    text = " ".join(line for line in lines if line and "|" not in line[:6])
    text = (text.partition("failed to compile JSON schema: ")[2] or text).rstrip(" ^")
    for pattern, words in _IN_OUR_WORDS:
        text = pattern.sub(words, text)
    return text[:300]
