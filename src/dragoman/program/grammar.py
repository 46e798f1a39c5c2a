"""Lowers nodes to grammars (Lark, GBNF, a regular expression, a list of texts), and matches texts.

Whatever is regular becomes one terminal: between terminals llguidance looks for the longest text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from dragoman.core.error import FaultError
from dragoman.core.item import JSON, Message
from dragoman.engines.token.constraints import GrammarState, byte_compiler, followed, matches
from dragoman.formats.format import Grammar
from dragoman.formats.grammar.demand import RULE, Demand, JSONBody, lark_literals, problem
from dragoman.formats.grammar.lark import slashed
from dragoman.formats.grammar.schema import read_json

from . import search
from .nodes import (
    Bound,
    Gen,
    Join,
    Json,
    Lark,
    Literal,
    Node,
    Regex,
    Repeat,
    Rule,
    Select,
    Substring,
    label,
    node,
)

ANY = "(?s:.*)"
MISSING = "Grammars of programs need the extra local: pip install '.[local]' in the checkout."


class Match(Struct, frozen=True):
    """A text that matches, and its captures; a `partial` one is only the beginning of a match."""

    text: str
    captures: dict[str, Any]
    partial: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.captures[name]


def match(grammar: object, text: str | bytes, allow_partial: bool = False) -> Match | None:
    """How a text matches nodes or texts; None where it does not. With `allow_partial` the beginning
    of a match is accepted.

    >>> match("It is " + Literal("so"), "It is", allow_partial=True).partial
    True
    """
    value, text = node(grammar), text.decode() if isinstance(text, bytes) else text
    fits = fitting(value, text)
    if fits is None or not (fits or allow_partial):
        return None
    return Match(text, captures(value, text), not fits)


def fitting(value: Node, text: str) -> bool | None:
    """Whether a text matches: wholly, or only (False) as far as it goes; None: not at all."""
    if (texts := choices(value)) is not None:
        if text in texts:
            return True
        return False if any(each.startswith(text) for each in texts) else None
    state = _followed(value, text)
    if state is not None:
        return state.accepting
    if isinstance(body := bare(value), Json) and _is_json(body, text):
        return True  # its keys in another order
    return None


def captures(value: Node, text: str) -> dict[str, Any]:
    """The captures of a text that matches, those in lists as lists."""
    found: dict[str, Any] = {}
    lists: set[str] = set()
    names = list(_captured(value, frozenset(), lists))
    if not names:
        return found
    pairs: list[tuple[str, str]] | None = None
    groups: list[str] = []
    if (pattern := regular(value, groups)) is not None:
        with suppress(FaultError):
            if (hit := search.whole(pattern, text)) is not None:
                pairs = [
                    (name, text[slice(*hit.groups[f"g{n}"])])
                    for n, name in enumerate(groups)
                    if f"g{n}" in hit.groups
                ]
    if pairs is None:
        state = _followed(value, text, capturing=True)
        parts = state.captures if state is not None else []
        pairs = [(name, part.decode("utf-8", "replace")) for name, part in parts]
    for name, part in pairs:
        if name not in lists:
            found[name] = part
        elif part or name not in found:
            found.setdefault(name, []).append(part)
    return found


def check(value: Node) -> None:
    """Raise ValueError where a node is no grammar, with the compiler's message; ImportError where
    there is no compiler."""
    _check_installed()
    alone = (value.text,) if isinstance(value, Lark) else ()  # so that places are those in the text
    try:
        for lark in (*alone, _Writer().whole(value)):
            byte_compiler().compiled(Grammar(lark))
    except FaultError as error:
        raise ValueError(f"{label(value)}: {error.fault.message}") from None


def _followed(value: Node, text: str, *, capturing: bool = False) -> GrammarState | None:
    _check_installed()
    return followed(Grammar(_Writer(flexible=True, capturing=capturing).whole(value)), text)


def _check_installed() -> None:
    if find_spec("llguidance") is None:
        raise ImportError(MISSING)


def bare(value: Node) -> Node:
    """A node without its options."""
    while isinstance(value, Bound):
        value = value.body
    return value


def _captured(value: Node, seen: frozenset[Any], lists: set[str]) -> Iterator[str]:
    """The names that are captured in a node; those of lists are added to `lists`."""
    match value:
        case Bound(options=options) | Gen(options=options):
            if options.name is not None:
                if options.list_append:
                    lists.add(options.name)
                yield options.name
            if isinstance(value, Bound):
                yield from _captured(value.body, seen, lists)
        case Join(parts=parts) | Select(options=parts):
            for part in parts:
                yield from _captured(part, seen, lists)
        case Repeat(body=body):
            yield from _captured(body, seen, lists)
        case Rule(key=key, build=build) if key not in seen:
            yield from _captured(build(), seen | {key}, lists)


# ---- what fits, in what a model says ---------------------------------------------------------

_FENCE = re.compile(r"```\w*[ \t]*\n(.*?)```", re.DOTALL)
MOST_READ = 1_000_000
"""Characters that are read for the JSON in a text, also those that are read again; each bracket at
which it may begin counts as 250."""


def find(value: Node, text: str) -> str | None:
    """The part of a model's text that matches: all of it, or the first matching part with word
    boundaries around it; None where nothing matches."""
    for each in (text, text.strip(), text.strip().strip("\"'`*.").strip()):
        if fitting(value, each):
            return each
    for block in _FENCE.findall(text):
        if fitting(value, fenced := str(block).rstrip(" \t").removesuffix("\n")):
            return fenced
    body = bare(value)
    if isinstance(body, Json):
        left = MOST_READ
        for start in (at.start() for at in re.finditer(r"[\[{]", text)):
            try:
                _, end = json.JSONDecoder().raw_decode(text, start)
                if fitting(value, text[start:end]):
                    return text[start:end]
            except json.JSONDecodeError as error:
                end = len(text) if error.msg.startswith("Unterminated") else error.pos
            except (ValueError, RecursionError):
                end = start + 2_500
            left -= end - start + 250
            if left < 0:
                break
        return None
    if (texts := choices(value)) is not None:
        hits = [
            (hit.start(), -len(each), each)
            for each in texts
            if each and (hit := re.search(_alone(re.escape(each.strip())), text, re.IGNORECASE))
        ]
        return min(hits)[2] if hits else None
    if (pattern := regular(value)) is not None:
        with suppress(FaultError):
            for at in search.every(_alone(pattern), text):
                if fitting(value, part := text[at.start : at.end]):
                    return part
    return None


def _alone(pattern: str) -> str:
    return rf"(?<!\w){pattern}(?!\w)"


def _is_json(body: Json, text: str) -> bool:
    """Whether a text is JSON that fits, with its keys in any order and any white space."""
    asked = Demand(JSONBody("schema", body.schema), (), several=False, strict=True)
    return problem(asked, [Message("assistant", text)], matches) is None


# ---- a list of texts, a regular expression ---------------------------------------------------


def choices(value: Node) -> tuple[str, ...] | None:
    """All texts that a node allows, where it is a choice of texts."""
    match bare(value):
        case Select(options=options) if all(isinstance(each, Literal) for each in options):
            return tuple(each.text for each in options if isinstance(each, Literal))
        case Literal(text=text):
            return (text,)
    return None


def regular(value: Node, groups: list[str] | None = None) -> str | None:
    """The regular expression of a node; None where it has none. With `groups` captures are groups
    `g0`, `g1` …, whose names are added there."""
    match value:
        case Literal(text=text):
            return slashed(re.escape(text)) if text else ""
        case Regex(pattern=pattern):
            return slashed(pattern)
        case Join(parts=parts):
            found = [regular(part, groups) for part in parts]
            return None if None in found else "".join(filter(None, found))
        case Select(options=options):
            found = [regular(each, groups) for each in options]
            return None if None in found else f"(?:{'|'.join(map(str, found))})"
        case Repeat(body=body, least=least, most=most):
            if groups is not None and next(_captured(body, frozenset(), set()), None) is not None:
                return None  # a group holds the last one only
            inner = regular(body, groups)
            most_said = "" if most is None else most
            return None if inner is None else f"(?:{inner}){{{least},{most_said}}}"
        case Gen(options=own) | Bound(options=own):
            place = None
            if groups is not None and own.name is not None:
                place = len(groups)
                groups.append(own.name)
            inner = _free(value) if isinstance(value, Gen) else regular(value.body, groups)
            return inner if inner is None or place is None else f"(?P<g{place}>{inner})"
    return None


def _free(value: Gen) -> str | None:
    """The regular expression of free text before its stops; None where one has several letters."""
    if any(len(each) > 1 for each in value.stop) or value.stop_regex:
        return None
    letters = "".join(
        re.escape(each) if each.isprintable() else f"\\u{{{ord(each):x}}}" for each in value.stop
    )
    return f"[^{letters}]*" if letters else ANY


# ---- Lark ------------------------------------------------------------------------------------


def to_lark(value: Node, prefix: str = "") -> str:
    """The grammar of a node in llguidance's Lark dialect, after a text."""
    return _Writer().whole(value, prefix)


class _Writer:
    """Writes a grammar, rule by rule."""

    def __init__(self, *, flexible: bool = False, capturing: bool = False) -> None:
        self._flexible, self._capturing = flexible, capturing
        self._rules: list[str] = []
        self._names: dict[Any, str] = {}  # of rules that may come back to themselves
        self._count = 0

    def whole(self, value: Node, prefix: str = "") -> str:
        start = self.expression(value)
        if prefix:
            start = f"{_quoted(prefix)} {start}"
        return "\n".join((f"start: {start}", *self._rules))

    def expression(self, value: Node) -> str:
        """What stands for a node in a rule; every node has one."""
        match value:
            case Literal(text=text):
                return _quoted(text)
            case Select(options=options) if (texts := choices(value)) is not None and len(
                texts
            ) > 1:
                return self._rule("C", " | ".join(map(_quoted, dict.fromkeys(texts))))
        captured = self._capturing and next(_captured(value, frozenset(), set()), None) is not None
        if not captured and (pattern := regular(value)) is not None:
            return self._rule("T", f"/{pattern}/") if pattern else '""'
        match value:
            case Join(parts=parts):
                return " ".join(map(self.expression, parts))
            case Select(options=options):
                return f"({' | '.join(map(self.expression, options))})"
            case Repeat(body=body, least=least, most=most):
                inner = self._rule("r", self.expression(body))
                return f"{inner}{{{least},{'' if most is None else most}}}"
            case Bound(body=body, options=about):
                return self._capture(about.name, self.expression(body))
            case Gen(options=about):
                pattern = regular(value) or ANY
                return self._capture(about.name, self._rule("T", f"/{pattern}/"))
            case Json(schema=schema, separators=(item, key)):
                own: dict[str, JSON] = {"whitespace_flexible": True}
                if not self._flexible:
                    separators = {"item_separator": item, "key_separator": key}
                    own = {"whitespace_flexible": False, **separators}
                own["coerce_one_of"] = True
                dumped = json.dumps({**schema, "x-guidance": own}, ensure_ascii=False)
                return self._rule("j", f"%json {dumped}")
            case Substring(chunks=chunks):
                dumped = json.dumps({"substring_chunks": list(chunks)}, ensure_ascii=False)
                return self._rule("S", f"%regex {dumped}")
            case Lark(text=text):
                return self._foreign(text)
            case Rule(key=key, build=build):
                if key not in self._names:
                    self._names[key] = name = self._name("f")
                    self._rules.append(f"{name}: {self.expression(build())}")
                return self._names[key]
        raise ValueError(f"a grammar has no place for {label(value)}")

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _rule(self, kind: str, expression: str, options: str = "") -> str:
        name = self._name(kind)
        self._rules.append(f"{name}{options}: {expression}")
        return name

    def _capture(self, name: str | None, expression: str) -> str:
        if name is None or not self._capturing:
            return expression
        return self._rule("c", expression, f"[capture={_quoted(name)}]")

    def _foreign(self, text: str) -> str:
        """A whole grammar, under names of its own: where it is alone, as it stands."""
        own = self._name("x")
        heads = {
            re.split(r"[\[{:\s]", each.strip(" \t!?"), maxsplit=1)[0] for each in RULE.findall(text)
        }

        def renamed(found: re.Match[str]) -> str:
            word = found[0]
            if word not in heads:
                return word
            return f"{own.upper()}_{word}" if word[0].isupper() else f"{own}_{word}"

        pieces: list[str] = []
        at = 0
        for literal in lark_literals(text):
            pieces += (re.sub(r"[A-Za-z_]\w*", renamed, text[at : literal.start()]), literal[0])
            at = literal.end()
        pieces.append(re.sub(r"[A-Za-z_]\w*", renamed, text[at:]))
        self._rules.append("".join(pieces).strip())
        return f"{own}_start"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


# ---- GBNF ------------------------------------------------------------------------------------


def to_gbnf(value: Node, prefix: str = "") -> str | None:
    """The grammar of a node in GBNF, the notation of llama.cpp, after a text; None where it has
    none."""
    rules: dict[Any, str] = {}
    body = _gbnf(value, rules)
    if body is None or any(not each for each in rules.values()):
        return None
    root = f"{_quoted(prefix)} {body}" if prefix else body
    return "\n".join((f"root ::= {root}", *rules.values()))


def _gbnf(value: Node, rules: dict[Any, str]) -> str | None:
    match value:
        case Literal(text=text):
            return _quoted(text)
        case Regex(pattern=pattern):
            return _regex_in_gbnf(pattern)
        case Join(parts=parts) | Select(options=parts):
            found = [_gbnf(part, rules) for part in parts]
            between = " " if isinstance(value, Join) else " | "
            return None if None in found else f"({between.join(map(str, found))})"
        case Repeat(body=body, least=least, most=most):
            inner = _gbnf(body, rules)
            return None if inner is None else f"({inner}){{{least},{'' if most is None else most}}}"
        case Bound(body=body):
            return _gbnf(body, rules)
        case Gen():
            free = regular(value)
            return None if free is None or free == ANY else _regex_in_gbnf(free)
        case Lark(text=text):
            return _lark_in_gbnf(text, rules)
        case Substring(chunks=chunks):
            own = len(rules)
            names = [f"s{own + place}" for place in range(len(chunks))]
            for place, chunk in enumerate(chunks):
                rest = f" ({names[place + 1]})?" if place + 1 < len(chunks) else ""
                rules[own, place] = f"{names[place]} ::= {_quoted(chunk)}{rest}"
            return f"({' | '.join(names)})?"
        case Rule(key=key, build=build):
            name = f"f{list(rules).index(key)}" if key in rules else f"f{len(rules)}"
            if key not in rules:
                rules[key] = "…"
                inner = _gbnf(build(), rules)
                rules[key] = "" if inner is None else f"{name} ::= {inner}"
            return name
    return None


_LARK = re.compile(
    r"(?P<head>^[ \t]*[A-Za-z_]\w*[ \t]*:)|(?P<name>[A-Za-z_]\w*)|(?P<gap>\s+|(?://|#)[^\n]*)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*"(?!i))|/(?P<regex>(?:\\.|[^/\\\n])+)/(?![imslux])'
    r"|(?P<sign>[()|?*+]|\{\d+,?\d*\})",
    re.MULTILINE,
)


def _lark_in_gbnf(text: str, rules: dict[Any, str]) -> str | None:
    """A grammar in Lark in GBNF; None for one with more than rules, texts and expressions."""
    own, at = len(rules), 0
    lines: dict[str, list[str]] = {}
    line: list[str] = []
    while at < len(text):
        piece = _LARK.match(text, at)
        if piece is None:
            return None
        at, lexeme = piece.end(), piece[0].strip()
        match piece.lastgroup:
            case "head":
                line = lines.setdefault(lexeme[:-1].strip(), [])
            case "name":
                line.append(_name(own, lexeme))
            case "regex":
                inner = _regex_in_gbnf(piece["regex"])
                if inner is None:
                    return None
                line.append(inner)
            case "text" | "sign":
                line.append(lexeme)
    for name, each in lines.items():
        rules[own, name] = f"{_name(own, name)} ::= {' '.join(each)}"
    return _name(own, "start")


def _name(own: int, name: str) -> str:
    """The name of another grammar's rule; GBNF has no underscores."""
    return f"x{own}-{'t' if name[0].isupper() else 'r'}-{name.lower().replace('_', '-')}"


_PIECE = re.compile(
    r"(?P<set>\[(?:\\.|[^\]\\])+\])|(?P<open>\(\?:|\((?!\?))|(?P<sign>[)|]|[*+?]|\{\d*,?\d*\})"
    r"|(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.))|(?P<dot>\.)|(?P<text>[^\\\[(){}|*+?.^$])",
    re.DOTALL,
)
_SETS = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " \\t\\n\\r"}
_NOT = {"D": "^0-9", "W": "^a-zA-Z0-9_", "S": "^ \\t\\n\\r"}


def _regex_in_gbnf(pattern: str) -> str | None:
    """A regular expression in GBNF; None for one with more than sets, groups and repetitions."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1]
    if pattern == "(?s:.)":
        return "."
    found: list[str] = []
    at = 0
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if piece is None:
            return None
        at, lexeme = piece.end(), piece[0]
        match piece.lastgroup:
            case "set":
                if re.search(r"\\[DWSpPbB]|\[:|&&", lexeme):
                    return None
                lexeme = re.sub(
                    r"\\u\{([0-9a-fA-F]+)\}", lambda each: f"\\U{int(each[1], 16):08x}", lexeme
                )
                lexeme = re.sub(r"\\([dws])", lambda each: _SETS[each[1]], lexeme)
                found.append(re.sub(r"\\([^\]\\tnrxuU^-])", r"\1", lexeme))
            case "open":
                found.append("(")
            case "sign":
                if lexeme == "?" and found and found[-1] in ("*", "+", "?"):
                    continue  # lazy: the same texts
                found.append(lexeme)
            case "escape":
                letter = lexeme[1]
                if letter in _SETS:
                    found.append(f"[{_SETS[letter]}]")
                elif letter in _NOT:
                    found.append(f"[{_NOT[letter]}]")
                elif letter in "tnrxu":
                    found.append(f'"{lexeme}"')
                elif letter.isalnum():
                    return None
                else:
                    found.append(_quoted(letter))
            case "dot":
                found.append("[^\\n]")
            case _:
                found.append(_quoted(lexeme))
    return f"({' '.join(found)})" if found else '""'


def json_value(value: Node, text: str) -> str | None:
    """The text in an object `{"value": text}`, where it is one and matches."""
    found = read_json(text)
    inner = found.get("value") if isinstance(found, dict) else None
    return inner if isinstance(inner, str) and fitting(value, inner) else None


def is_text(body: Node) -> bool:
    """Whether there is nothing to generate."""
    match bare(body):
        case Literal():
            return True
        case Join(parts=parts):
            return all(map(is_text, parts))
    return False
