"""What a request demands of its answer: which calls may or must be made, and what text must match.

Every way of asking meets here: response formats, tool choices, strict tools, grammars of custom
tools, and the fields for constrained answers that other servers know. How an answer is written in
some format is not known here. Names of fields are those of the core.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dragoman.core.allowed import Allowed
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

from .body import Anything, Body, JSONBody, Regex, lark
from .schema import enforceable
from .whole import whole

ANY_OBJECT: dict[str, JSON] = {"type": "object"}


class Callee(Struct, frozen=True):
    """A tool that may be called, and what its arguments (or its input) should be; where it is
    strict, they must."""

    name: str
    namespace: str | None
    custom: bool
    body: Body
    strict: bool


class Demand(Struct, frozen=True):
    """What the answer must be: text that is `text`, or calls of some of `tools`.

    Without `text` there must be a call; `several` says that there may be more than one. `strict` is
    whether text that is something else is worse than no answer.
    """

    text: Body | None
    tools: tuple[Callee, ...]
    several: bool
    strict: bool = False


def demand(request: Request) -> Demand | None:
    """What a request demands; None where it demands nothing.

    Raises FaultError naming the field for a demand that means nothing or cannot be enforced.
    """
    text, choice = _text(request), request.tool_choice
    tools = tuple(_tools(request))
    must = _must(choice)
    bound = text is not None or must or isinstance(choice, AllowedTools)
    if not bound and not any(_is_strict(tool) for _, _, tool in _members(request)):
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


def _must(choice: ToolChoice | None) -> bool:
    """Whether a tool must be called."""
    match choice:
        case UnknownTool(kind=kind):
            problem = f"a call of {kind} cannot be enforced"
            raise FaultError(unsupported(problem, "tool_choice"))
        case "required" | NamedTool() | AllowedTools(mode="required"):
            return True
        case _:
            return False


def _text(request: Request) -> Body | None:
    """What the text must be, if anything in particular."""
    asked = whole(request)
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
"""The field a tool stands in, its namespace, and the tool."""


def _tools(request: Request) -> Iterator[Callee]:
    """The tools that may be called, each with what must be in a call."""
    for field, group, tool in _members(request):
        custom = isinstance(tool, CustomTool)
        body = _input(tool, field) if isinstance(tool, CustomTool) else _arguments(tool, field)
        yield Callee(tool.name, group, custom, body, _is_strict(tool))


def _members(request: Request) -> Iterator[_Member]:
    """The functions and custom tools that the choice leaves."""
    tools, choice = list(enumerate(request.tools)), request.tool_choice
    if choice == "none":
        return
    if isinstance(choice, NamedTool):
        choice = AllowedTools("required", (choice,))
    if isinstance(choice, AllowedTools):
        tools = Allowed(choice, request.tools).tools
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
    """What the arguments must be. A schema that cannot be enforced is refused where it must be,
    and is any object elsewhere."""
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
