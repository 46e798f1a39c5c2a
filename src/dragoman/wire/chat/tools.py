"""Tools and the choice among them, in both directions.

Functions, custom tools and namespaces of tools are carried as they are; a tool of a kind we do
not know is kept word for word. The choice is checked against what is offered, since servers
answer a choice of something else in as many ways as there are servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from dragoman.core.item import JSON
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedTool,
    Namespace,
    Tool,
    ToolChoice,
    ToolMode,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.json import Cache, Fields

from .fields import NAME, restore, to_extra

_CACHE_LIMIT = 4 * 1024 * 1024
_decoded = Cache[tuple[Tool, ...]](_CACHE_LIMIT)
"""Tools by the bytes of their array: an agent sends the same ones with every request."""
_encoded = Cache[tuple[tuple[Tool, ...], Raw]](_CACHE_LIMIT)
"""What tools are encoded to, by the identity of the tuple, which an entry keeps alive."""

# ---- tools -------------------------------------------------------------------------------


def decode(raw: Raw) -> tuple[Tool, ...]:
    """The tools on offer."""
    data = bytes(raw)
    tools = _decoded.get(data)
    if tools is None:
        fields = Fields({"tools": json.load(data)})
        tools = tuple([_tool(tool) for tool in fields.objects("tools")])
        _decoded.put(data, tools, len(data))
    return tools


def decode_functions(request: Fields) -> tuple[FunctionTool, ...]:
    """The tools on offer in the deprecated `functions`."""
    return tuple(_function(function, {}) for function in request.objects("functions"))


def _tool(tool: Fields, *, grouped: bool = False) -> Any:
    """One tool; `grouped` inside a namespace, where there are no others."""
    kind = tool.string("type") or ("function" if "function" in tool else tool.need("type"))
    match kind:
        case "namespace" if grouped:
            raise tool.wrong("type", "is a namespace inside a namespace")
        case "namespace":
            name, description = tool.need("name"), tool.string("description")
            tools = tuple([_tool(each, grouped=True) for each in tool.objects("tools")])
            return Namespace(name, tools, description, to_extra(tool.rest()))
        case "function" if grouped and "function" not in tool:
            return _function(tool, {})  # without the inner object, as another protocol has it
        case "function":
            inner = _inner(tool, "function")
            return _function(inner, tool.rest())
        case "custom":
            return _custom(tool)
        case _:
            return UnknownTool(NAME, kind, tool.rest())


def _inner(tool: Fields, name: str) -> Fields:
    inner = tool.object(name)
    if inner is None:
        raise tool.wrong(name, "is missing")
    return inner


def _function(inner: Fields, rest: dict[str, JSON]) -> FunctionTool:
    name, description = inner.need("name"), inner.string("description")
    parameters, strict = inner.mapping("parameters"), inner.boolean("strict")
    extra = to_extra(rest, function=inner.rest())
    return FunctionTool(name, description, parameters, strict, extra)


def _custom(tool: Fields) -> CustomTool:
    inner = _inner(tool, "custom")
    name, description = inner.need("name"), inner.string("description")
    syntax = definition = None
    rest: dict[str, JSON] = {}
    if (format := inner.object("format")) is not None:
        if (grammar := format.object("grammar")) is not None:
            syntax, definition = grammar.need("syntax"), grammar.need("definition")
            rest = {"grammar": grammar.rest()} if grammar.rest() else {}
            if format.need("type") != "grammar":
                raise format.wrong("type", "must be 'grammar' where there is one")
        rest = format.rest() | rest
    extra = to_extra(tool.rest(), custom=inner.rest() | ({"format": rest} if rest else {}))
    return CustomTool(name, description, syntax, definition, extra)


def encode(tools: tuple[Tool, ...]) -> Raw | None:
    """The array of the tools this wire can offer; None where there are none. Hosted tools of
    another wire are not among them."""
    entry = _encoded.get(id(tools))
    if entry is None:
        offered = _encode_all(tools)
        entry = tools, Raw(json.dump(offered) if offered else b"")
        _encoded.put(id(tools), entry, len(bytes(entry[1])))
    return entry[1] if bytes(entry[1]) else None


def _encode_all(tools: Iterable[Tool]) -> list[JSON]:
    encoded = (_encode(tool) for tool in tools)
    return [tool for tool in encoded if tool is not None]


def _encode(tool: Tool) -> JSON:
    match tool:
        case FunctionTool():
            named = {"description": tool.description, "parameters": tool.parameters}
            function = {"name": tool.name} | _given(**named, strict=tool.strict)
            return restore({"type": "function", "function": function}, tool.extra)
        case CustomTool():
            custom: dict[str, JSON] = {"name": tool.name} | _given(description=tool.description)
            if tool.grammar is not None:
                grammar = {"syntax": tool.syntax, "definition": tool.grammar}
                custom["format"] = {"type": "grammar", "grammar": grammar}
            return restore({"type": "custom", "custom": custom}, tool.extra)
        case Namespace():
            group = {"type": "namespace", "name": tool.name}
            group |= _given(description=tool.description)
            return restore({**group, "tools": _encode_all(tool.tools)}, tool.extra)
        case _:
            return {"type": tool.kind, **tool.value} if tool.wire == NAME else None


def _given(**fields: JSON) -> dict[str, JSON]:
    return {name: value for name, value in fields.items() if value is not None}


# ---- choice ------------------------------------------------------------------------------

_MODES: dict[str, ToolMode] = {"none": "none", "auto": "auto", "required": "required"}


def decode_choice(request: Fields, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """Which tool the model may or must call."""
    value = request.any("tool_choice")
    match value:
        case None:
            return None
        case str() if value in _MODES:
            if value == "required" and not tools:
                raise request.wrong("tool_choice", "is 'required', and there are no tools")
            return _MODES[value]
        case dict():
            return _choice(Fields(value, request.at("tool_choice")), tools)
        case _:
            problem = f"is {json.text(value)}, and must be none, auto, required or an object"
            raise request.wrong("tool_choice", problem)


def decode_function_call(request: Fields, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """The choice in the deprecated `function_call`."""
    match value := request.any("function_call"):
        case None:
            return None
        case "none" | "auto":
            return _MODES[value]
        case {"name": str(name)}:
            rest = {field: said for field, said in value.items() if field != "name"}
            choice = NamedTool(name, extra=to_extra({}, function=rest))
            _check_offered(request, "function_call", choice, tools)
            return choice
        case _:
            raise request.wrong("function_call", "must be none, auto or an object with a name")


def _choice(choice: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    kind = choice.need("type")
    match kind:
        case "function" | "custom":
            named = _named(choice, kind)
        case "allowed_tools":
            allowed = _inner(choice, "allowed_tools")
            mode = allowed.one_of("mode", ("auto", "required"))
            several = tuple(_allowed(each, tools) for each in allowed.objects("tools"))
            if not several:
                raise allowed.wrong("tools", "is missing or empty")
            extra = to_extra(choice.rest(), allowed_tools=allowed.rest())
            return AllowedTools("required" if mode == "required" else "auto", several, extra)
        case _:
            unknown = UnknownTool(NAME, kind, choice.rest())
            _check_offered(choice, "type", unknown, tools)
            return unknown
    _check_offered(choice, kind, named, tools)
    return named


def _allowed(tool: Fields, tools: tuple[Tool, ...]) -> NamedTool | UnknownTool:
    kind = tool.need("type")
    known = kind in ("function", "custom")
    choice = _named(tool, kind) if known else UnknownTool(NAME, kind, tool.rest())
    _check_offered(tool, kind if known else "type", choice, tools)
    return choice


def _named(choice: Fields, kind: str) -> NamedTool:
    inner = _inner(choice, kind)
    name, namespace = inner.need("name"), inner.string("namespace")
    extra = to_extra(choice.rest(), **{kind: inner.rest()})
    return NamedTool(name, "custom" if kind == "custom" else "function", namespace, extra)


def _check_offered(
    place: Fields, field: str, choice: NamedTool | UnknownTool, tools: tuple[Tool, ...]
) -> None:
    if not any(_is(tool, choice) for tool in tools):
        name = choice.name if isinstance(choice, NamedTool) else choice.kind
        raise place.wrong(field, f"chooses {name!r}, which is not among the tools")


def _is(tool: Tool, choice: NamedTool | UnknownTool) -> bool:
    match tool, choice:
        case Namespace(), NamedTool(namespace=str(space)):
            inner = NamedTool(choice.name, choice.kind)
            return tool.name == space and any(_is(each, inner) for each in tool.tools)
        case FunctionTool(), NamedTool(namespace=None, kind="function"):
            return tool.name == choice.name
        case CustomTool(), NamedTool(namespace=None, kind="custom"):
            return tool.name == choice.name
        case UnknownTool(), UnknownTool():
            return tool.kind == choice.kind
        case _:
            return False


def encode_choice(choice: ToolChoice) -> JSON:
    """The choice; None where this wire cannot say it."""
    match choice:
        case str():
            return choice
        case NamedTool():
            named = {"name": choice.name} | _given(namespace=choice.namespace)
            return restore({"type": choice.kind, choice.kind: named}, choice.extra)
        case AllowedTools():
            tools = [each for each in map(encode_choice, choice.tools) if each is not None]
            allowed = {"mode": choice.mode, "tools": tools}
            return restore({"type": "allowed_tools", "allowed_tools": allowed}, choice.extra)
        case _:
            return {"type": choice.kind, **choice.value} if choice.wire == NAME else None
