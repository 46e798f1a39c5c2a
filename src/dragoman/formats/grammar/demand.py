"""What a request demands of its answer: calls that must be made, text that must match."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import JSON
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    Request,
    ToolChoice,
    UnknownTool,
)
from dragoman.core.response import CONSTRAINT_FIELDS
from dragoman.core.tools import ToolFilter

from .schema import enforceable


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


_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
"""What is no operator in a grammar: strings, expressions, comments."""


def lark(param: str, text: str) -> Lark:
    """A client's grammar. Raises FaultError for the operators `&` and `~`: a few of them keep
    llguidance's compiler busy for minutes, and every other request waits.

    >>> lark("grammar", 'start: "a & b" /x&/').lark
    'start: "a & b" /x&/'
    """
    if re.search(r"[&~]", _LITERALS.sub("", text)):
        raise FaultError(unsupported("the operators & and ~ are not taken from a request", param))
    return Lark(param, text)


class Anything(Struct, frozen=True):
    """Any text."""


Body = JSONBody | Regex | Choice | Lark | Anything


_NAMES = {"regex": "regex", "pattern": "regex", "choice": "choice", "grammar": "lark"}
_NAMES |= {"json": "json", "schema": "json"}
_IGNORED = frozenset(
    ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
) | {"whitespace_pattern", "type"}
"""Members of vLLM's `structured_outputs` that do not change what is accepted."""


Whole = Regex | Choice | Lark | JSONBody


def structured_output(request: Request) -> Whole | None:
    """What the whole answer must match, by vLLM's fields (`guided_*`, `structured_outputs`,
    `response_format`). Raises FaultError for what is no such demand."""
    found = [body for fields in (request.extra or {}).values() for body in _bodies(fields)]
    if len(found) > 1:
        raise FaultError(bad_request("the answer cannot be bound twice", found[1].param))
    return found[0] if found else None


def _bodies(fields: dict[str, JSON]) -> Iterator[Whole]:
    for name in CONSTRAINT_FIELDS[:-1]:
        if (value := fields.get(name)) is not None:
            yield _body(_NAMES[name.removeprefix("guided_")], value, name)
    given, format = fields.get("structured_outputs"), fields.get("response_format")
    if isinstance(given, dict):
        yield from _members(given, "structured_outputs")
    elif given is not None:
        raise FaultError(bad_request("must be an object", "structured_outputs"))
    match format:
        case {"type": "regex" | "grammar"} if isinstance(format, dict):
            yield from _members(format, "response_format")
        case {"type": kind}:
            problem = f"{kind} is not known here; use regex, grammar or json_schema"
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
            return Regex(param, pattern)
        case "lark", str(text):
            return lark(param, text)
        case "choice", list(texts) if texts and all(isinstance(text, str) for text in texts):
            return Choice(param, tuple(texts))
        case "json", dict(schema):
            return JSONBody(param, enforceable(schema, param))
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
    text, choice = _text(request), request.tool_choice
    tools = tuple(_tools(request))
    must = _call_required(choice)
    bound = text is not None or must or isinstance(choice, AllowedTools)
    if not bound and not any(_is_strict(tool) for _, _, tool in _offered(request)):
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


def _call_required(choice: ToolChoice | None) -> bool:
    match choice:
        case UnknownTool(kind=kind):
            problem = f"a call of {kind} cannot be enforced"
            raise FaultError(unsupported(problem, "tool_choice"))
        case "required" | NamedTool() | AllowedTools(mode="required"):
            return True
        case _:
            return False


def _text(request: Request) -> Body | None:
    """What the text must match, if anything."""
    asked = structured_output(request)
    match request.format:
        case JSONObject():
            body: Body | None = JSONBody("format", ANY_OBJECT)
        case JSONSchema(schema=schema):
            body = JSONBody("format.schema", enforceable(schema or {}, "format.schema"))
        case _:
            body = None
    if body is not None and asked is not None:
        raise FaultError(bad_request("the answer cannot be bound twice", asked.param))
    return body or asked


# ---- tools -------------------------------------------------------------------------------


_Member = tuple[str, str | None, FunctionTool | CustomTool]
"""The field a tool is in, its namespace, and the tool."""


def _tools(request: Request) -> Iterator[AllowedTool]:
    for field, group, tool in _offered(request):
        custom = isinstance(tool, CustomTool)
        body = _input(tool, field) if isinstance(tool, CustomTool) else _arguments(tool, field)
        yield AllowedTool(tool.name, group, custom, body, _is_strict(tool))


def _offered(request: Request) -> Iterator[_Member]:
    """The functions and custom tools that the tool choice leaves."""
    tools, choice = list(enumerate(request.tools)), request.tool_choice
    if choice == "none":
        return
    if isinstance(choice, NamedTool):
        choice = AllowedTools("required", (choice,))
    if isinstance(choice, AllowedTools):
        tools = ToolFilter(choice, request.tools).tools
    for number, tool in tools:
        field = f"tools[{number}]"
        if isinstance(tool, Namespace):
            for place, member in enumerate(tool.tools):
                if not isinstance(member, UnknownTool):
                    yield f"{field}.tools[{place}]", tool.name, member
        elif not isinstance(tool, UnknownTool):
            yield field, None, tool


def _is_strict(tool: FunctionTool | CustomTool) -> bool:
    """Whether a call of this tool must fit, even if none need be made."""
    return tool.grammar is not None if isinstance(tool, CustomTool) else tool.strict is True


def _arguments(tool: FunctionTool, field: str) -> Body:
    """What the arguments must match. A schema that cannot be enforced is refused where the tool is
    strict, and is any object elsewhere."""
    param = f"{field}.parameters"
    schema = {"type": "object", **(tool.parameters or {})}
    try:
        return JSONBody(param, enforceable(schema, param))
    except FaultError:
        if tool.strict:
            raise
        return JSONBody(param, ANY_OBJECT)


def _input(tool: CustomTool, field: str) -> Body:
    param = f"{field}.grammar"
    match tool.syntax:
        case None:
            return Anything()
        case "regex":
            return Regex(param, tool.grammar or "")
        case "lark":
            return lark(param, tool.grammar or "")
        case other:
            raise FaultError(
                bad_request(f"is {other!r}, and must be lark or regex", f"{field}.syntax")
            )
