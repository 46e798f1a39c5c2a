"""Which of the tools on offer a choice of `allowed_tools` names.

Entries name a tool, a tool in a namespace, a whole namespace, or a hosted tool by some of its
fields. A name without a namespace means the tool of that name wherever it stands.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from .request import AllowedTools, CustomTool, NamedTool, Namespace, Tool, UnknownTool


class Allowed:
    """A choice, applied to the tools on offer. `tools` are those that remain, numbered as before.

    >>> from .request import FunctionTool
    >>> offered = (FunctionTool("read"), FunctionTool("write"))
    >>> Allowed(AllowedTools("auto", (NamedTool("write"),)), offered).tools
    [(1, FunctionTool(name='write', description=None, parameters=None, strict=None, extra=None))]
    """

    __slots__ = ("_choice", "_offered", "tools")

    def __init__(self, choice: AllowedTools, tools: tuple[Tool, ...]) -> None:
        self._choice = choice
        self._offered = tools
        kept = ((number, self._keep(tool)) for number, tool in enumerate(tools))
        self.tools: list[tuple[int, Tool]] = [(n, tool) for n, tool in kept if tool is not None]

    @property
    def names(self) -> frozenset[tuple[str | None, str]]:
        """Namespace and name of every function and custom tool that may be called."""
        return frozenset(
            (each.namespace, each.name) for each in self.expanded if isinstance(each, NamedTool)
        )

    @property
    def expanded(self) -> tuple[NamedTool | UnknownTool, ...]:
        """The entries in their order, each named tool with its kind and its namespace."""
        entries: dict[tuple[str | None, str, str] | int, NamedTool | UnknownTool] = {}
        for number, entry in enumerate(self._choice.tools):
            named = self._named(entry)
            for each in named:
                entries.setdefault((each.namespace, each.name, each.kind), each)
            if not named and isinstance(entry, UnknownTool):
                entries[number] = entry
        return tuple(entries.values())

    def _named(self, entry: NamedTool | UnknownTool) -> list[NamedTool]:
        """The named tools that an entry means."""
        extra = entry.extra if isinstance(entry, NamedTool) else None
        return [
            NamedTool(tool.name, _kind(tool), group, extra)
            for group, tool in _flat(self._offered)
            if not isinstance(tool, UnknownTool) and _means(entry, group, tool.name)
        ]

    def _keep(self, tool: Tool) -> Tool | None:
        """The tool if it is allowed, a namespace with what is allowed of it, or None."""
        match tool:
            case Namespace():
                kept = tuple(m for m in tool.tools if self._allows(m, tool.name))
                return replace(tool, tools=kept) if kept else None
            case _:
                return tool if self._allows(tool, None) else None

    def _allows(self, tool: Tool, group: str | None) -> bool:
        for entry in self._choice.tools:
            if isinstance(tool, UnknownTool):
                if isinstance(entry, UnknownTool) and _is(tool, entry):
                    return True
            elif _means(entry, group, tool.name):
                return True
        return False


def _kind(tool: Tool) -> Literal["function", "custom"]:
    return "custom" if isinstance(tool, CustomTool) else "function"


def _flat(tools: tuple[Tool, ...]) -> list[tuple[str | None, Tool]]:
    flat: list[tuple[str | None, Tool]] = []
    for tool in tools:
        if isinstance(tool, Namespace):
            flat += [(tool.name, member) for member in tool.tools]
        else:
            flat.append((None, tool))
    return flat


def _means(entry: NamedTool | UnknownTool, group: str | None, name: str) -> bool:
    match entry:
        case NamedTool():
            return entry.name == name and entry.namespace in (None, group)
        case UnknownTool(kind="namespace", value={"name": space}):
            return group is not None and group == space
        case _:
            return False


def _is(tool: UnknownTool, entry: UnknownTool) -> bool:
    return tool.kind == entry.kind and entry.value.items() <= tool.value.items()
