"""Tools of a request under names and kinds an upstream accepts, and the mapping back."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .item import (
    Call,
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
)
from .loss import LossList
from .request import AllowedTools, CustomTool, FunctionTool, NamedTool, Namespace, Tool, UnknownTool

LONGEST_NAME = 64
_LEGAL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")

_ONE_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class _Origin(Struct, frozen=True):
    """What a tool is to the client."""

    name: str
    namespace: str | None
    custom: bool


_Name = tuple[str | None, str]
"""A namespace (or none) and a name in it."""


class Toolbox:
    """Both names of every tool; calls of the past are renamed alike.

    `tools` is what to offer, and `positions` where each of them stood in the client's list.
    `grammar_described` is whether the grammar of one of them is only described to the model.

    >>> box = Toolbox([(0, CustomTool("patch"))], custom=False, namespaces=True, losses=LossList())
    >>> down = box.lower(CustomToolCall("c1", "patch", "*** Begin"))
    >>> down.arguments
    '{"input": "*** Begin"}'
    >>> box.restore(down).input
    '*** Begin'
    """

    def __init__(
        self, tools: Iterable[tuple[int, Tool]], *, custom: bool, namespaces: bool, losses: LossList
    ) -> None:
        self._custom = custom
        self._namespaces = namespaces
        self._ledger = losses
        self.grammar_described = False
        self._names: dict[_Name, str] = {}
        self._origins: dict[_Name, _Origin] = {}
        offered = list(tools)
        self._taken = {
            tool.name for _, tool in offered if isinstance(tool, FunctionTool | CustomTool)
        }
        lowered = [
            (number, each) for number, tool in offered for each in self._lower_tool(tool, number)
        ]
        self.tools: tuple[Tool, ...] = tuple(tool for _, tool in lowered)
        self.positions: tuple[int, ...] = tuple(number for number, _ in lowered)

    @property
    def renames(self) -> bool:
        """Whether any call must be given back its own name or kind."""
        return bool(self._origins)

    # ---- there ---------------------------------------------------------------------------

    def lower(self, call: Call) -> Call:
        """A call of the past, as the upstream knows it."""
        name, namespace = self._name(call.namespace, call.name)
        custom = isinstance(call, CustomToolCall)
        if name != call.name or (custom and not self._custom):
            origin = _Origin(call.name, call.namespace, custom)
            self._origins.setdefault((namespace, name), origin)
        if isinstance(call, FunctionCall):
            return replace(call, name=name, namespace=namespace)
        if self._custom:
            return replace(call, name=name, namespace=namespace)
        arguments = json.dumps({"input": call.input}, ensure_ascii=False)
        id = _with_prefix(call.id, "ctc_", "fc_")
        return FunctionCall(call.call_id, name, arguments, namespace, id, call.status, call.extra)

    def lower_output(self, output: CustomToolCallOutput) -> CallOutput:
        """What a custom tool returned, as the upstream knows it."""
        if self._custom:
            return output
        return FunctionCallOutput(
            output.call_id, output.output, output.id, output.status, output.extra
        )

    def choose(self, tool: NamedTool) -> NamedTool:
        """The choice of a tool, as the upstream knows it."""
        name, namespace = self._name(tool.namespace, tool.name)
        kind = tool.kind if self._custom else "function"
        return replace(tool, name=name, kind=kind, namespace=namespace)

    def _lower_tool(self, tool: Tool, number: int) -> tuple[Tool, ...]:
        match tool:
            case Namespace():
                members = [
                    self._lower_member(member, tool, (number, place))
                    for place, member in enumerate(tool.tools)
                ]
                if self._namespaces:
                    return (replace(tool, tools=tuple(members)),)
                why = "the namespace is written before the names of its tools"
                self._ledger.note("tools[*]", "emulated", why, (number,))
                return tuple(members)
            case FunctionTool() | CustomTool():
                return (self._lower_named(tool, None, "tools[*]", (number,)),)
            case _:
                return (tool,)

    def _lower_member(
        self,
        tool: FunctionTool | CustomTool | UnknownTool,
        group: Namespace,
        place: tuple[int, ...],
    ) -> FunctionTool | CustomTool | UnknownTool:
        if isinstance(tool, UnknownTool):
            return tool
        lowered = self._lower_named(tool, group.name, "tools[*].tools[*]", place)
        if self._namespaces:
            return lowered
        return replace(lowered, description=_paragraphs(group.description, lowered.description))

    def _lower_named(
        self,
        tool: FunctionTool | CustomTool,
        group: str | None,
        field: str,
        place: tuple[int, ...],
    ) -> FunctionTool | CustomTool:
        name, namespace = self._name(group, tool.name)
        custom = isinstance(tool, CustomTool) and not self._custom
        if name != tool.name or custom:
            origin = _Origin(tool.name, group, isinstance(tool, CustomTool))
            self._origins.setdefault((namespace, name), origin)
        if isinstance(tool, FunctionTool) or self._custom:
            return replace(tool, name=name)
        self._ledger.note(field, "emulated", "sent as a function with one string `input`", place)
        grammar = None
        if tool.grammar is not None:
            self.grammar_described = True
            why = "the grammar is described to the model, and not enforced"
            self._ledger.note(f"{field}.format", "dropped", why, place)
            grammar = f"The input must match this {tool.syntax} grammar:\n{tool.grammar}"
        about = _paragraphs(tool.description, grammar)
        return FunctionTool(name, about, _ONE_INPUT, extra=tool.extra)

    def _name(self, namespace: str | None, name: str) -> tuple[str, str | None]:
        """The upstream's name and namespace for a tool."""
        if namespace is None or self._namespaces:
            return name, namespace
        flat = self._names.get((namespace, name))
        if flat is None:
            flat = self._names[namespace, name] = self._free(namespace, name)
            self._taken.add(flat)
        return flat, None

    def _free(self, namespace: str, name: str) -> str:
        """A name for a tool of a namespace that is legal, and that no other tool has."""
        plain = f"{namespace}__{name}"
        if _LEGAL_NAME.fullmatch(plain) and plain not in self._taken:
            return plain
        stem = _ILLEGAL.sub("_", plain)[: LONGEST_NAME - 9]
        sum = zlib.crc32(json.dumps([namespace, name]).encode())
        while (flat := f"{stem}_{sum:08x}") in self._taken:
            sum = (sum + 1) % 2**32
        return flat

    # ---- back ----------------------------------------------------------------------------

    def restore(self, call: Call) -> Call:
        """A call of the upstream's, as the client knows it.

        Arguments that are no object with one string `input` are the input, word for word.
        """
        origin = self._origins.get((call.namespace, call.name))
        if origin is None:
            return call
        if isinstance(call, CustomToolCall) or not origin.custom:
            return replace(call, name=origin.name, namespace=origin.namespace)
        return CustomToolCall(
            call.call_id,
            origin.name,
            _input(call.arguments),
            origin.namespace,
            _with_prefix(call.id, "fc_", "ctc_"),
            call.status,
            call.extra,
        )


def _input(arguments: str) -> str:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    match value:
        case {"input": str(text)} if len(value) == 1:
            return text
        case _:
            return arguments


def _with_prefix(id: str | None, old: str, new: str) -> str | None:
    """An item's id with the prefix of its new kind."""
    return new + id.removeprefix(old) if id is not None and id.startswith(old) else id


def _paragraphs(*texts: str | None) -> str | None:
    return "\n\n".join(text for text in texts if text) or None


class ToolFilter:
    """A choice, applied to the tools on offer. `tools` are those that remain, numbered as before.

    >>> from .request import FunctionTool
    >>> offered = (FunctionTool("read"), FunctionTool("write"))
    >>> ToolFilter(AllowedTools("auto", (NamedTool("write"),)), offered).tools
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
