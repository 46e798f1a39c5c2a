"""The tools of a request as harmony has them: namespaces to render, and recipients to call.

A tool that takes free text is a function of one string. The format's built-in tools are never
rendered, since nothing here runs them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dragoman.core.loss import LossList
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    Namespace,
    Request,
    Tool,
    UnknownTool,
)
from dragoman.core.tools import ToolFilter

from . import typescript

FUNCTIONS = "functions"
"""The namespace of tools without one."""

_BUILT_IN = ("browser", "python")
"""Tools that the model was trained with, and calls at times though the prompt has none."""

NOT_TOOLS = ("", "assistant", "all", "user")
"""Recipients of text, not of a call."""


_FieldTool = tuple[FunctionTool | CustomTool, str]
"""A tool, and the field of the request it is in."""

_Section = tuple[str | None, list[_FieldTool]]
"""The description of a namespace, and its tools."""


class CalledTool(Struct, frozen=True):
    """The tool a message calls. Nothing here runs a built-in one."""

    kind: Literal["function", "custom", "built-in"]
    name: str
    namespace: str | None = None


class Toolkit:
    """The tools that may be called in an answer to a request."""

    def __init__(self, request: Request, losses: LossList) -> None:
        self._sections: dict[str, _Section] = {}
        self._custom: dict[tuple[str | None, str], bool] = {}
        self._losses = losses
        for number, tool in _offered(request):
            self._offer(tool, number)

    @property
    def has_functions(self) -> bool:
        """Whether there is any tool without a namespace."""
        return FUNCTIONS in self._sections

    def developer_section(self) -> str:
        """The request's own tools, for the developer message."""
        return _section(self._sections)

    def called_tool(self, recipient: str) -> CalledTool | None:
        """The tool a recipient names; None where none is called.

        Names are taken with and without `functions.`. An unknown name is a function, as long as
        there is any tool: a client can report that to the model, where text would only confuse.
        """
        if recipient in NOT_TOOLS:
            return None
        bare = recipient.removeprefix(f"{FUNCTIONS}.") or recipient
        space, _, name = bare.partition(".")
        for key in ((None, bare), (space, name)):
            if (custom := self._custom.get(key)) is not None:
                return CalledTool("custom" if custom else "function", key[1], key[0])
        if space in _BUILT_IN and space not in self._sections:
            return CalledTool("built-in", space)
        if bare != recipient or self._custom:
            return CalledTool("function", bare)
        return None

    # ---- inside --------------------------------------------------------------------------

    def _offer(self, tool: Tool, number: int) -> None:
        match tool:
            case FunctionTool() | CustomTool():
                self._show(tool, FUNCTIONS, f"tools[{number}]")
                self._custom[None, tool.name] = isinstance(tool, CustomTool)
            case Namespace():
                self._sections.setdefault(tool.name, (tool.description, []))
                for place, member in enumerate(tool.tools):
                    if isinstance(member, UnknownTool):
                        why = "the model has no such tool"
                        self._losses.note("tools[*].tools[*]", "dropped", why, (number, place))
                        continue
                    self._show(member, tool.name, f"tools[{number}].tools[{place}]")
                    group = None if tool.name == FUNCTIONS else tool.name
                    self._custom[group, member.name] = isinstance(member, CustomTool)
            case _:
                self._losses.note("tools[*]", "dropped", "the model has no such tool", (number,))

    def _show(self, tool: FunctionTool | CustomTool, group: str, field: str) -> None:
        self._sections.setdefault(group, (None, []))[1].append((tool, field))


def _offered(request: Request) -> list[tuple[int, Tool]]:
    """The tools that may be called, numbered as in the request."""
    match request.tool_choice:
        case "none":
            return []
        case AllowedTools() as choice:
            return ToolFilter(choice, request.tools).tools
        case _:
            return list(enumerate(request.tools))


def _shown(tool: FunctionTool | CustomTool, field: str) -> str:
    if isinstance(tool, FunctionTool):
        param = f"{field}.parameters"
        return typescript.function(tool.name, tool.description, tool.parameters, param)
    about = tool.description
    if tool.grammar is not None:
        rule = f"The input must match this {tool.syntax} grammar:\n{tool.grammar}"
        about = f"{about}\n\n{rule}" if about else rule
    return typescript.free(tool.name, about)


def _section(namespaces: dict[str, _Section]) -> str:
    """Namespaces, sorted by name; empty where there are none."""
    if not namespaces:
        return ""
    each = (_namespace(name, *namespaces[name]) for name in sorted(namespaces))
    return "\n\n".join(["# Tools", *each])


def _namespace(name: str, description: str | None, tools: list[_FieldTool]) -> str:
    functions = [_shown(tool, field) for tool, field in tools]
    if not functions:
        return "\n\n".join([f"## {name}", *([description] if description else [])])
    opening = "\n".join([*typescript.comment(description), f"namespace {name} {{"])
    return "\n\n".join([f"## {name}", opening, *functions, f"}} // namespace {name}"])
