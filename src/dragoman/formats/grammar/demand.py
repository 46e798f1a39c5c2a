"""What a request demands of its answer (calls, matching text), and whether an answer meets it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import JSON, Call, Item, Message
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Request,
    Tool,
    UnknownTool,
)
from dragoman.core.response import CONSTRAINT_FIELDS
from dragoman.core.tools import ToolFilter, flat

from . import readings
from .readings import MAX_IN_SCHEMA, MAX_READINGS
from .schema import check_properties, enforceable, fitting, valid


class JSONBody(Struct, frozen=True):
    """JSON that fits a schema, which the grammar can enforce."""

    param: str
    schema: dict[str, JSON]


class Regex(Struct, frozen=True):
    """Text that a regular expression matches from end to end."""

    param: str
    pattern: str


class Choice(Struct, frozen=True):
    """One of several texts."""

    param: str
    texts: tuple[str, ...]


class Lark(Struct, frozen=True):
    """Text of a Lark grammar, whose first rule is `start`."""

    param: str
    lark: str


_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*+"?|/(?:\\.|[^/\\\n])++/?|//[^\n]*|#[^\n]*')
"""Strings, expressions and comments of a grammar. An unclosed one ends with its line, so that
matching is linear."""
lark_literals = _LITERALS.finditer
"""Finds the strings, expressions and comments of a grammar."""

RULE = re.compile(
    r"^[ \t]*+[!?]?[A-Za-z_][\w.-]*+[ \t]*+(?:\[[^\]\n]*+\]|\{[^}\n]*+\})?[ \t]*+:", re.MULTILINE
)
MAX_REGEX, MAX_LARK, MAX_CHOICES = 16_384, 65_536, 262_144
"""The most characters of a regular expression, a grammar, and all choices together."""
MAX_RULES, MAX_NESTED = 1_000, 100
"""The most rules of a grammar, and levels of brackets: both take stack of the compiler."""


def _check_size(param: str, what: str, size: int, most: int) -> None:
    if size > most:
        raise FaultError(bad_request(f"has {size} {what}, and {most} are the most here", param))


def regex(param: str, pattern: str) -> Regex:
    """A client's regular expression. Raises FaultError for one that is too long."""
    _check_size(param, "characters", len(pattern), MAX_REGEX)
    return Regex(param, pattern)


def choice(param: str, texts: Sequence[str]) -> Choice:
    """A client's choices. Raises FaultError where they are too long together."""
    _check_size(param, "characters", sum(map(len, texts)) + len(texts), MAX_CHOICES)
    return Choice(param, tuple(texts))


def lark(param: str, text: str) -> Lark:
    """A client's grammar, in Lark or in GBNF. Raises FaultError for one that is too large, and for
    the operators `&` and `~`: a few of them keep llguidance's compiler busy for minutes.

    >>> lark("grammar", 'start: "a & b" /x&/').lark
    'start: "a & b" /x&/'
    """
    _check_size(param, "characters", len(text), MAX_LARK)
    if _IS_GBNF.match(text):
        text = from_gbnf(param, text)
    bare = _LITERALS.sub("", text)
    if re.search(r"[&~]", bare):
        raise FaultError(unsupported("the operators & and ~ are not taken", param))
    _check_size(param, "rules", len(RULE.findall(bare)), MAX_RULES)
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", bare):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    _check_size(param, "levels of brackets", deepest, MAX_NESTED)
    count = readings.of_lark(text, _LITERALS, RULE)
    _check_size(param, "alternatives, each as often as its rule is named", count, MAX_READINGS)
    return Lark(param, text)


def recursive(text: str) -> bool:
    """Whether rules of a client's grammar may come again in themselves."""
    return readings.recursive(text, _LITERALS, RULE)


def _schema(schema: Mapping[str, JSON], param: str, *, strict: bool = True) -> dict[str, JSON]:
    fitted = enforceable(schema, param, strict=strict)
    what = "alternatives, each as often as a reference leads there"
    _check_size(param, what, readings.of_schema(fitted), MAX_IN_SCHEMA)
    return fitted


# ---- GBNF --------------------------------------------------------------------------------

_IS_GBNF = re.compile(r"(?:\s++|#[^\n]*+)*+[A-Za-z][\w-]*+\s*+::=")
_GBNF = re.compile(
    r"(?P<head>[A-Za-z][\w-]*+)\s*+::=|(?P<name>[A-Za-z][\w-]*+)|(?P<gap>\s++|#[^\n]*+)"
    r'|"(?P<text>(?:\\.|[^"\\\n])*+)"|\[(?P<set>\^?(?:\\.|[^\]\\\n])*+)\]'
    r"|(?P<sign>[()|*+?]|\{\d+(?:,\d*)?\})|(?P<any>\.)"
)
_LETTER = re.compile(r"\\x[\da-fA-F]{2}|\\u[\da-fA-F]{4}|\\U[\da-fA-F]{8}|\\?.")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


def from_gbnf(param: str, text: str) -> str:
    """A grammar in GBNF, the notation of llama.cpp, in Lark. A rule that is not recursive is a
    terminal, so that its text is matched as a whole; in recursive rules, the longest
    match of a part counts. Raises FaultError for invalid GBNF.

    >>> print(from_gbnf("grammar", 'root ::= "a" list?\\nlist ::= "," root'))
    r0: "a" r1 ?
    r1: "," r0
    start: r0
    """
    rules: dict[str, list[tuple[str, str]]] = {}
    parts: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _GBNF.match(text, at)
        if found is None or found["head"] in rules:
            shown = text[at : at + 20].partition("\n")[0]
            why = "is not read here as GBNF" if found is None else "is there already"
            line = text.count("\n", 0, at) + 1
            raise FaultError(bad_request(f"line {line}: {shown!r} {why}", param))
        kind = str(found.lastgroup)
        if kind == "head":
            parts = rules[found["head"]] = []
        elif kind != "gap":
            parts.append((kind, found[kind]))
        at = found.end()
    refers = {rule: {name for kind, name in rules[rule] if kind == "name"} for rule in rules}
    for name in ("root", *(name for names in refers.values() for name in names)):
        if name not in rules:
            raise FaultError(bad_request(f"there is no rule {name}", param))
    sorter, flat = TopologicalSorter(refers), set[str]()
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        flat.update(ready)
        sorter.done(*ready)
    names = {rule: f"{'R' if rule in flat else 'r'}{n}" for n, rule in enumerate(rules)}
    try:
        lines = [
            f"{names[rule]}: {' '.join(_in_lark(kind, text, names) for kind, text in parts)}"
            for rule, parts in rules.items()
        ]
    except (ValueError, OverflowError) as error:
        problem = "has an escape that stands for no character"
        raise FaultError(bad_request(problem, param)) from error
    return "\n".join((*lines, f"start: {names['root']}"))


def _in_lark(kind: str, text: str, names: Mapping[str, str]) -> str:
    match kind:
        case "name":
            return names[text]
        case "text":
            quoted = json.dumps("".join(_letters(text)), ensure_ascii=False)
            return quoted.replace("\x7f", "\\x7f")
        case "set":
            return f"/[{_class(text)}]/"
        case "any":
            return "/(?s:.)/"
        case _:
            return text


def _letters(text: str) -> list[str]:
    """The characters of a GBNF literal. Raises ValueError for an invalid escape."""
    found = []
    for letter in _LETTER.findall(text):
        if letter[0] == "\\" and len(letter) > 2:
            letter = chr(int(letter[2:], 16))
            letter.encode()  # raises for a lone surrogate
        elif letter[0] == "\\":
            letter = _CONTROL.get(letter[1], letter[1])
        found.append(letter)
    return found


def _class(text: str) -> str:
    """The inside of a character class, in the syntax of regular expressions."""
    negated = text.startswith("^")
    raw = _LETTER.findall(text[negated:])
    codes = [f"\\u{{{ord(letter):x}}}" for letter in _letters(text[negated:])]
    ranges = (
        "-" if letter == "-" and 0 < place < len(raw) - 1 else code
        for place, (letter, code) in enumerate(zip(raw, codes, strict=True))
    )
    return "^" * negated + "".join(ranges)


class Anything(Struct, frozen=True):
    """Any text."""


Whole = Regex | Choice | Lark | JSONBody
Body = Whole | Anything

_NAMES = {"regex": "regex", "pattern": "regex", "choice": "choice", "grammar": "lark"}
_NAMES |= {"json": "json", "schema": "json"}
_IGNORED = frozenset(
    ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
) | {"whitespace_pattern", "type"}
"""Members of vLLM's `structured_outputs` that do not change what is accepted."""


def _bodies(fields: dict[str, JSON]) -> Iterator[Whole]:
    """What the whole answer must match, by vLLM's fields (`guided_*`, `structured_outputs`,
    `response_format`). Raises FaultError for what is no such demand."""
    for name in CONSTRAINT_FIELDS[:-1]:
        if (value := fields.get(name)) is not None:
            yield _body(_NAMES[name.removeprefix("guided_")], value, name)
    match fields.get("structured_outputs"):
        case None:
            pass
        case dict(given):
            yield from _members(given, "structured_outputs")
        case _:
            raise FaultError(bad_request("must be an object", "structured_outputs"))
    format = fields.get("response_format")
    match format:
        case {"type": "regex" | "grammar"} if isinstance(format, dict):
            yield from _members(format, "response_format")
        case {"type": kind}:
            known = "text, json_object, json_schema, regex or grammar"
            problem = f"{str(kind)[:100]!r} is not known here; use {known}"
            if kind in ("text", "json_object", "json_schema"):  # Chat has taken its own out
                problem = f"is {kind!r} as in Chat; Responses has it in text.format"
            raise FaultError(unsupported(problem, "response_format.type"))


def _members(given: dict[str, JSON], where: str) -> Iterator[Whole]:
    for name, value in given.items():
        if name in _IGNORED or value is None:
            continue
        if name not in _NAMES:
            raise FaultError(unsupported("is not known here", f"{where}.{name}"))
        yield _body(_NAMES[name], value, f"{where}.{name}")


def _body(kind: str, value: JSON, param: str) -> Whole:
    match kind, value:
        case "regex", str(pattern):
            return regex(param, pattern)
        case "lark", str(text):
            return lark(param, text)
        case "choice", list(texts) if texts and all(isinstance(text, str) for text in texts):
            return choice(param, texts)
        case "json", dict(schema):
            return JSONBody(param, _schema(schema, param))
        case _:
            raise FaultError(bad_request(f"is no {kind}", param))


ANY_OBJECT: dict[str, JSON] = {"type": "object"}


class AllowedTool(Struct, frozen=True):
    """A tool that may be called, and what its arguments (or its input) should match; where it is
    strict, they must."""

    name: str
    namespace: str | None
    custom: bool
    body: Body
    strict: bool


class Demand(Struct, frozen=True):
    """What the answer must be: text that matches `text`, or calls of some of `tools`.

    Without `text` there must be a call; `several` allows more than one. `strict` is whether text
    that does not match is an error.
    """

    text: Body | None
    tools: tuple[AllowedTool, ...]
    several: bool
    strict: bool = False


def demand(request: Request) -> Demand | None:
    """What a request demands; None where it demands nothing. Raises FaultError naming the field for
    a demand that is invalid or cannot be enforced."""
    bodies = [body for fields in (request.extra or {}).values() for body in _bodies(fields)]
    text, choice = bodies[0] if bodies else None, request.tool_choice
    formatted = isinstance(request.format, JSONObject | JSONSchema)
    if len(bodies) + formatted > 1:
        raise FaultError(bad_request("the answer cannot be bound twice", bodies[:2][-1].param))
    if isinstance(request.format, JSONObject | JSONSchema):
        text = JSONBody("format", ANY_OBJECT)
        if isinstance(request.format, JSONSchema):
            strict = request.format.strict is not False
            schema = _schema(request.format.schema or {}, "format.schema", strict=strict)
            text = JSONBody("format.schema", schema)
    tools = tuple(_allowed_tools(request))
    must = False
    match choice:
        case UnknownTool(kind=kind):
            problem = f"a call of {kind} cannot be enforced"
            raise FaultError(unsupported(problem, "tool_choice"))
        case "required" | NamedTool() | AllowedTools(mode="required"):
            must = True
    bound = text is not None or must or isinstance(choice, AllowedTools)
    if not bound and not any(tool.strict for tool in tools):
        return None
    if must and not tools:
        raise FaultError(bad_request("a tool must be called, and there is none", "tool_choice"))
    return Demand(
        text=None if must else text or Anything(),
        tools=tools,
        several=request.parallel_tool_calls is not False,
        strict=request.format.strict is True
        if isinstance(request.format, JSONSchema)
        else not isinstance(request.format, JSONObject),
    )


def unenforced(request: Request) -> tuple[Loss, ...]:
    """What the schema of a format that is not strict asks for, and no grammar enforces."""
    match request.format:
        case JSONSchema(schema=dict(schema), strict=False):
            return tuple(
                Loss(f"format.schema.{each.place}", "dropped", each.why)
                for each in fitting(schema)[1]
            )
    return ()


def _allowed_tools(request: Request) -> Iterator[AllowedTool]:
    """The functions and custom tools that the tool choice leaves."""
    tools, choice = list(enumerate(request.tools)), request.tool_choice
    if choice == "none":
        return
    if isinstance(choice, NamedTool):
        choice = AllowedTools("required", (choice,))
    if isinstance(choice, AllowedTools):
        tools = ToolFilter(choice, request.tools).tools
    for field, group, member in _flat(tools):
        if not isinstance(member, UnknownTool):
            yield _allowed(member, group, field)


def _flat(
    tools: Iterable[tuple[int, Tool]],
) -> Iterator[tuple[str, str | None, FunctionTool | CustomTool | UnknownTool]]:
    """The tools, those in namespaces too, each with its place and its namespace."""
    for number, tool in tools:
        for place, (group, member) in enumerate(flat((tool,))):
            inside = "" if group is None else f".tools[{place}]"
            yield f"tools[{number}]{inside}", group, member


def check_tools(request: Request) -> None:
    """Raise FaultError for a function whose properties are no schemas: prompts list them one by
    one."""
    for field, _, tool in _flat(enumerate(request.tools)):
        if isinstance(tool, FunctionTool):
            check_properties(tool.parameters, f"{field}.parameters")


def _allowed(tool: FunctionTool | CustomTool, group: str | None, field: str) -> AllowedTool:
    """A tool that may be called. A schema that cannot be enforced is refused where the tool is
    strict, and is any object elsewhere."""
    body: Body
    if isinstance(tool, CustomTool):
        param, text = f"{field}.grammar", tool.grammar or ""
        match tool.syntax:
            case None:
                body = Anything()
            case "regex":
                body = regex(param, text)
            case "lark":
                body = lark(param, text)
            case other:
                problem = f"is {other!r}, and must be lark or regex"
                raise FaultError(bad_request(problem, f"{field}.syntax"))
        return AllowedTool(tool.name, group, True, body, tool.grammar is not None)
    param, strict = f"{field}.parameters", tool.strict is True
    try:
        schema = _schema({**ANY_OBJECT, **(tool.parameters or {})}, param)
    except FaultError:
        if strict:
            raise
        schema = ANY_OBJECT
    return AllowedTool(tool.name, group, False, JSONBody(param, schema), strict)


# ---- whether a finished answer meets the demand --------------------------------------------

Matches = Callable[[Body, str], bool]
"""Whether a text matches a grammar, or a JSON schema whose keys are in order."""


class Problem(Struct, frozen=True):
    """What is wrong with an answer, and whether that is worse than no answer."""

    what: str
    fatal: bool = True


def problem(asked: Demand, items: Sequence[Item], matches: Matches) -> Problem | None:
    """What is wrong with an answer of an engine that cannot enforce the demand; None: nothing.

    >>> problem(Demand(None, (), True), [Message("assistant", "Hm.")], lambda body, text: True)
    Problem(what='it calls no tool', fatal=True)
    """
    calls = [item for item in items if isinstance(item, Call)]
    if not calls:
        if asked.text is None:
            return Problem("it calls no tool")
        text = "".join(item.text for item in items if isinstance(item, Message))
        fits = _fits(asked.text, text, matches)
        return None if fits else Problem("its text is something else", asked.strict)
    if len(calls) > 1 and not asked.several:
        return Problem("it calls several tools at once")
    tools = {(tool.namespace, tool.name): tool for tool in reversed(asked.tools)}
    for call in calls:
        called = tools.get((call.namespace, call.name))
        if called is None:
            return Problem(f"it calls {call.name}, which may not be called")
        if not _fits(called.body, call.text, matches):
            return Problem(f"what it gives to {call.name} does not fit", called.strict)
    return None


def _fits(body: Body, text: str, matches: Matches) -> bool:
    match body:
        case Anything():
            return True
        case Choice(texts=texts):
            return text in texts
        case JSONBody(schema=schema):

            def judge(leaf: dict[str, JSON], string: str) -> bool:
                # Escaped as llguidance's grammar has it.
                quoted = json.dumps(string, ensure_ascii=False).replace("\x7f", "\\u007f")
                return matches(JSONBody("", leaf), quoted)

            try:
                return valid(json.loads(text), schema, judge)
            except (ValueError, RecursionError):  # it is no JSON, or too much to be looked through
                return False
        case _:
            return matches(body, text)
