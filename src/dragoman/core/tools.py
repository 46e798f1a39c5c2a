"""Tools of a request under names and kinds an upstream accepts, and the mapping back."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .error import FaultError, bad_request
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


MAX_COMPARED = 100_000
"""Tools of kinds that are not known here that the entries of one choice are held against."""

_Name = tuple[str | None, str]
"""A namespace (or none) and a name in it."""


class _Origin(Struct, frozen=True):
    """What a tool is to the client."""

    name: str
    namespace: str | None
    custom: bool


class Toolbox:
    """The tools as the upstream accepts them, and both names of each; past calls are renamed alike.

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
        self._losses = losses
        self.grammar_described = False
        self._names: dict[_Name, str] = {}
        self._origins: dict[_Name, _Origin] = {}
        offered = list(tools)
        self._taken: set[str] = set()
        for _, tool in offered:
            if isinstance(tool, FunctionTool | CustomTool):
                self._taken.add(tool.name)
        lowered: list[tuple[int, Tool]] = []
        for number, tool in offered:
            match tool:
                case CustomTool() if not custom:
                    lowered.append((number, self._as_function(tool, None, "tools[*]", (number,))))
                case Namespace():
                    lowered += [(number, each) for each in self._lower_namespace(tool, number)]
                case _:
                    lowered.append((number, tool))
        self.tools: tuple[Tool, ...] = tuple([tool for _, tool in lowered])
        self.positions: tuple[int, ...] = tuple([number for number, _ in lowered])

    @property
    def renames(self) -> bool:
        """Whether the name or kind of any call must be restored."""
        return bool(self._origins)

    # ---- to the upstream -----------------------------------------------------------------

    def lower(self, call: Call) -> Call:
        """A past call, as the upstream knows it."""
        name, namespace = self._name(call.namespace, call.name)
        custom = isinstance(call, CustomToolCall)
        if name != call.name or (custom and not self._custom):
            origin = _Origin(call.name, call.namespace, custom)
            self._origins.setdefault((namespace, name), origin)
        if isinstance(call, FunctionCall) or self._custom:
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

    def _lower_namespace(self, group: Namespace, number: int) -> tuple[Tool, ...]:
        members: list[FunctionTool | CustomTool | UnknownTool] = []
        for place, tool in enumerate(group.tools):
            if isinstance(tool, UnknownTool):
                members.append(tool)
                continue
            lowered = tool
            if isinstance(tool, CustomTool) and not self._custom:
                where = "tools[*].tools[*]"
                lowered = self._as_function(tool, group.name, where, (number, place))
            if not self._namespaces:
                name, _ = self._name(group.name, tool.name)
                origin = _Origin(tool.name, group.name, isinstance(tool, CustomTool))
                self._origins.setdefault((None, name), origin)
                # Errors of tools name it so, as the models of harmony do.
                if (dotted := f"{group.name}.{tool.name}") not in self._taken:
                    self._origins.setdefault((None, dotted), origin)
                about = "\n\n".join(filter(None, (group.description, lowered.description))) or None
                lowered = replace(lowered, name=name, description=about)
            members.append(lowered)
        if self._namespaces:
            return (replace(group, tools=tuple(members)),)
        why = "the namespace is written before the names of its tools"
        self._losses.note("tools[*]", "emulated", why, (number,))
        return tuple(members)

    def _as_function(
        self, tool: CustomTool, group: str | None, field: str, place: tuple[int, ...]
    ) -> FunctionTool:
        name, namespace = self._name(group, tool.name)
        self._origins.setdefault((namespace, name), _Origin(tool.name, group, True))
        self._losses.note(field, "emulated", "sent as a function with one string `input`", place)
        about = tool.description
        if tool.grammar is not None:
            self.grammar_described = True
            why = "the grammar is described to the model, and not enforced"
            self._losses.note(f"{field}.format", "dropped", why, place)
            grammar = f"The input must match this {tool.syntax} grammar:\n{tool.grammar}"
            about = f"{about}\n\n{grammar}" if about else grammar
        return FunctionTool(name, about or None, _ONE_INPUT, extra=tool.extra)

    def _name(self, namespace: str | None, name: str) -> tuple[str, str | None]:
        """The upstream's name and namespace for a tool."""
        if namespace is None or self._namespaces:
            return name, namespace
        flat = self._names.get((namespace, name))
        if flat is None:
            flat = f"{namespace}__{name}"
            if not _LEGAL_NAME.fullmatch(flat) or flat in self._taken:
                # The checksum keeps the names apart and is the same in every request.
                stem = _ILLEGAL.sub("_", flat)[: LONGEST_NAME - 9]
                sum = zlib.crc32(json.dumps([namespace, name]).encode())
                while (flat := f"{stem}_{sum:08x}") in self._taken:
                    sum = (sum + 1) % 2**32
            self._names[namespace, name] = flat
            self._taken.add(flat)
        return flat, None

    # ---- from the upstream ---------------------------------------------------------------

    def restore(self, call: Call) -> Call:
        """A call of the upstream's, as the client knows it.

        Arguments that are not an object with one string `input` are the input, unchanged.
        """
        origin = self._origins.get((call.namespace, call.name))
        if origin is None:
            return call
        if isinstance(call, CustomToolCall) or not origin.custom:
            return replace(call, name=origin.name, namespace=origin.namespace)
        input = call.arguments
        try:
            value = json.loads(input)
        except (ValueError, RecursionError):
            pass
        else:
            match value:
                case {"input": str(text)} if len(value) == 1:
                    input = text
        id = _with_prefix(call.id, "fc_", "ctc_")
        return CustomToolCall(
            call.call_id, origin.name, input, origin.namespace, id, call.status, call.extra
        )


def _with_prefix(id: str | None, old: str, new: str) -> str | None:
    """An item's id with the prefix of its new kind."""
    return new + id.removeprefix(old) if id is not None and id.startswith(old) else id


class ToolFilter:
    """A choice, applied to the tools on offer. `tools` are those that remain, numbered as before,
    and `expanded` the entries in their order, each named tool with its kind and its namespace.

    >>> from .request import FunctionTool
    >>> offered = (FunctionTool("read"), FunctionTool("write"))
    >>> ToolFilter(AllowedTools("auto", (NamedTool("write"),)), offered).tools
    [(1, FunctionTool(name='write', description=None, parameters=None, strict=None, extra=None))]
    """

    __slots__ = ("expanded", "tools")

    def __init__(self, choice: AllowedTools, tools: tuple[Tool, ...]) -> None:
        members = flat(tools)
        places = _places(members)
        chosen: set[int] = set()
        entries: dict[tuple[str | None, str, str] | int, NamedTool | UnknownTool] = {}
        left = MAX_COMPARED
        seen: set[_Key] = set()
        for number, entry in enumerate(choice.tools):
            key = _key(entry)
            found = places.get(key, ())
            if isinstance(entry, UnknownTool) and key[0] == "kind":
                left -= len(found)
                if left < 0:
                    raise FaultError(bad_request("names too many of these tools", "tool_choice"))
                found = [place for place in found if _includes(members[place][1], entry)]
            elif key in seen:
                continue
            seen.add(key)
            chosen.update(found)
            expanded = False
            for place in found:
                group, member = members[place]
                if not isinstance(member, UnknownTool):
                    kind: Kind = "custom" if isinstance(member, CustomTool) else "function"
                    extra = entry.extra if isinstance(entry, NamedTool) else None
                    named = NamedTool(member.name, kind, group, extra)
                    entries.setdefault((group, member.name, kind), named)
                    expanded = True
            if not expanded and isinstance(entry, UnknownTool):
                entries[number] = entry
        self.tools: list[tuple[int, Tool]] = []
        place = 0
        for number, tool in enumerate(tools):
            size = len(tool.tools) if isinstance(tool, Namespace) else 1
            kept = [n for n in range(place, place + size) if n in chosen]
            place += size
            if isinstance(tool, Namespace) and kept:
                tool = replace(tool, tools=tuple([members[n][1] for n in kept]))
            if kept:
                self.tools.append((number, tool))
        self.expanded: tuple[NamedTool | UnknownTool, ...] = tuple(entries.values())

    @property
    def names(self) -> frozenset[tuple[str | None, str]]:
        """Namespace and name of every function and custom tool that may be called."""
        return frozenset(
            (each.namespace, each.name) for each in self.expanded if isinstance(each, NamedTool)
        )


Kind = Literal["function", "custom"]


def flat(
    tools: Iterable[Tool],
) -> list[tuple[str | None, FunctionTool | CustomTool | UnknownTool]]:
    """Each tool with its namespace, if it is in one."""
    flat: list[tuple[str | None, FunctionTool | CustomTool | UnknownTool]] = []
    for tool in tools:
        if isinstance(tool, Namespace):
            flat += [(tool.name, member) for member in tool.tools]
        else:
            flat.append((None, tool))
    return flat


_Key = tuple[str | None, ...]


def _places(
    members: Iterable[tuple[str | None, FunctionTool | CustomTool | UnknownTool]],
) -> dict[_Key, list[int]]:
    """Where the tools are that an entry of a choice may mean, by its `_key`."""
    places: dict[_Key, list[int]] = {}
    for place, (group, tool) in enumerate(members):
        keys: list[_Key]
        if isinstance(tool, UnknownTool):
            keys = [("kind", tool.kind)]
        else:
            keys = [("name", tool.name)]
            keys += [("name", tool.name, group), ("group", group)] if group is not None else []
        for key in keys:
            places.setdefault(key, []).append(place)
    return places


def _key(entry: NamedTool | UnknownTool) -> _Key:
    match entry:
        case NamedTool(name=name, namespace=None):
            return "name", name
        case NamedTool(name=name, namespace=space):
            return "name", name, space
        case UnknownTool(kind="namespace", value={"name": str(space)}):
            return "group", space
        case _:
            return "kind", entry.kind


def _includes(tool: Tool, entry: UnknownTool) -> bool:
    return isinstance(tool, UnknownTool) and entry.value.items() <= tool.value.items()
