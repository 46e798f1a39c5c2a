"""Tools, the choice among them, and the format of the answer, as Responses spells them.

An absent `strict` means "if the schema allows it" on this wire and no other; None in the core means
"not asked for", which must be `false` here. So an absent `strict` is marked in `extra` and left out
again, and None from another wire is written out: the model's server gets what the client meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Raw

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import JSON
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    OutputFormat,
    TextFormat,
    Tool,
    ToolChoice,
    ToolMode,
    UnknownTool,
)
from dragoman.wire import json
from dragoman.wire.json import Cache, Fields, kind

from .items import WIRE, dense, from_extra, to_extra

_CACHE_LIMIT = 4 * 1024 * 1024
_decoded = Cache[tuple[Tool, ...]](_CACHE_LIMIT)
"""Tools by the bytes of their array: an agent sends the same ones with every request."""
_encoded = Cache[tuple[tuple[Tool, ...], Raw | None]](_CACHE_LIMIT)
_echoed = Cache[tuple[tuple[Tool, ...], Raw]](_CACHE_LIMIT)
"""What tools are encoded to, by the identity of the tuple, which an entry keeps alive."""

# ---- decoding ----------------------------------------------------------------------------


def decode_cached(raw: Raw) -> tuple[Tool, ...]:
    """The tools in an array. Raises FaultError naming the tool and the field that is wrong."""
    data = bytes(raw)
    tools = _decoded.get(data)
    if tools is None:
        tools = decode_all(Fields({"tools": json.load(data)}))
        _decoded.put(data, tools, len(data))
    return tools


def decode_all(fields: Fields) -> tuple[Tool, ...]:
    """The field `tools`. Raises FaultError naming the tool and the field that is wrong."""
    return tuple(decode(*tool) for tool in _objects(fields))


def _objects(fields: Fields) -> Iterator[tuple[dict[str, JSON], str]]:
    """Every member of the field `tools` with its path."""
    for number, value in enumerate(fields.array("tools") or ()):
        path = f"{fields.at('tools')}[{number}]"
        if not isinstance(value, dict):
            raise FaultError(bad_request(f"is {kind(value)}, and must be an object", path))
        yield value, path


def decode(value: dict[str, JSON], path: str = "") -> Tool:
    """One tool; one of a kind we do not know is carried unchanged."""
    fields = Fields(value, path)
    match fields.need("type"):
        case "function":
            return _function(fields)
        case "custom":
            return _custom(fields)
        case "namespace":
            name, about = fields.need("name"), fields.string("description")
            members = tuple(_member(*member) for member in _objects(fields))
            return Namespace(name, members, about, to_extra(fields.rest()))
        case other:
            return UnknownTool(WIRE, other, _without_type(value))


def _member(value: dict[str, JSON], path: str) -> FunctionTool | CustomTool | UnknownTool:
    """A tool of a namespace, in which no other namespace means anything to us."""
    tool = decode(value, path)
    if isinstance(tool, Namespace):
        return UnknownTool(WIRE, "namespace", _without_type(value))
    return tool


def _without_type(value: dict[str, JSON]) -> dict[str, JSON]:
    return {name: encoded for name, encoded in value.items() if name != "type"}


def _function(fields: Fields) -> FunctionTool:
    name, about = fields.need("name"), fields.string("description")
    schema, strict = fields.mapping("parameters") or {}, fields.boolean("strict")
    rest = fields.rest()
    if strict is None:
        rest["strict"] = None
    return FunctionTool(name, about, schema, strict, to_extra(rest))


def _custom(fields: Fields) -> CustomTool:
    name, about = fields.need("name"), fields.string("description")
    syntax = grammar = None
    rest: dict[str, JSON] = {}
    if (form := fields.object("format")) is not None:
        kind = form.need("type")
        if kind == "grammar":
            syntax, grammar = form.need("syntax"), form.need("definition")
        named = {} if kind in ("grammar", "text") else {"type": kind}
        rest = {"format": form.rest() | named}
    rest = {field: encoded for field, encoded in rest.items() if encoded} | fields.rest()
    return CustomTool(name, about, syntax, grammar, to_extra(rest))


def decode_choice(value: JSON) -> ToolChoice:
    """The field `tool_choice`."""
    match value:
        case "none" | "auto" | "required":
            mode: ToolMode = value
            return mode
        case dict():
            return _choice(value, "tool_choice")
        case _:
            problem = f"is {repr(value) if isinstance(value, str) else kind(value)}"
            options = "none, auto, required or an object"
            raise FaultError(bad_request(f"{problem}, and must be {options}", "tool_choice"))


def _choice(value: dict[str, JSON], path: str) -> ToolChoice:
    fields = Fields(value, path)
    if fields.string("type") != "allowed_tools":
        return _named(value, path)
    mode: Literal["auto", "required"] = "auto"
    if fields.one_of("mode", ("auto", "required")) == "required":
        mode = "required"
    among = tuple(_named(*tool) for tool in _objects(fields))
    return AllowedTools(mode, among, to_extra(fields.rest()))


def _named(value: dict[str, JSON], path: str) -> NamedTool | UnknownTool:
    fields = Fields(value, path)
    match fields.need("type"):
        case ("function" | "custom") as type:
            name, namespace = fields.need("name"), fields.string("namespace")
            return NamedTool(name, type, namespace, to_extra(fields.rest()))
        case other:
            return UnknownTool(WIRE, other, _without_type(value))


def decode_format(fields: Fields) -> tuple[OutputFormat, dict[str, JSON]]:
    """The object under `text.format`, and what we do not know of it."""
    match fields.one_of("type", ("text", "json_object", "json_schema")):
        case "json_schema":
            name, schema = fields.need("name"), fields.mapping("schema")
            about, strict = fields.string("description"), fields.boolean("strict")
            return JSONSchema(name, schema, about, strict, to_extra(fields.rest())), {}
        case "json_object":
            return JSONObject(), fields.rest()
        case "text":
            return TextFormat(), fields.rest()
        case _:
            raise fields.wrong("type", "is missing")


# ---- encoding ----------------------------------------------------------------------------


def encode_cached(tools: tuple[Tool, ...]) -> Raw | None:
    """The array of the tools; None where all are of other wires."""
    entry = _encoded.get(id(tools))
    if entry is None:
        data = json.dump(encode_all(tools))
        entry = tools, Raw(data) if data != b"[]" else None
        _encoded.put(id(tools), entry, len(data))
    return entry[1]


def encode_all(tools: Iterable[Tool]) -> list[dict[str, JSON]]:
    """Tools in a row, those of other wires left out."""
    encoded = (encode(tool) for tool in tools)
    return [tool for tool in encoded if tool is not None]


def encode(tool: Tool) -> dict[str, JSON] | None:
    """One tool; None for one that belongs to another wire."""
    match tool:
        case FunctionTool():
            more, strict = from_extra(tool.extra), tool.strict
            if strict is None and "strict" not in more:  # absent is another thing here
                strict = False
            encoded: dict[str, JSON] = {"type": "function", "name": tool.name}
            encoded["description"] = tool.description
            encoded |= {"parameters": tool.parameters or {}, "strict": strict}
            return dense({**encoded, **dense(more)})
        case CustomTool():
            encoded = {"type": "custom", "name": tool.name, "description": tool.description}
            more = dict(from_extra(tool.extra))
            form = dense({"syntax": tool.syntax, "definition": tool.grammar})
            if form:
                more["format"] = {"type": "grammar", **form, **more.get("format", {})}
            return dense({**encoded, **more})
        case Namespace():
            encoded = {"type": "namespace", "name": tool.name, "description": tool.description}
            return dense({**encoded, "tools": encode_all(tool.tools), **from_extra(tool.extra)})
        case _:
            return {"type": tool.kind, **tool.value} if tool.wire == WIRE else None


def echo_all(tools: tuple[Tool, ...]) -> Raw:
    """The array of the tools as a response repeats them, those of other wires left out."""
    entry = _echoed.get(id(tools))
    if entry is None:
        data = json.dump([echoed for tool in tools if (echoed := _echo(tool)) is not None])
        entry = tools, Raw(data)
        _echoed.put(id(tools), entry, len(data))
    return entry[1]


def _echo(tool: Tool) -> dict[str, JSON] | None:
    """A tool as a response repeats it: of a function all keys, null where nothing was encoded."""
    encoded = encode(tool)
    if encoded is None or not isinstance(tool, FunctionTool):
        return encoded
    named = {"type": "function", "name": tool.name, "description": None}
    return {**named, **encoded, "parameters": tool.parameters, "strict": tool.strict}


def encode_choice(choice: ToolChoice) -> JSON:
    """A tool choice; a hosted tool of another wire counts as no choice made."""
    match choice:
        case NamedTool():
            tool = {"type": choice.kind, "name": choice.name, "namespace": choice.namespace}
            return dense({**tool, **from_extra(choice.extra)})
        case AllowedTools():
            encoded = [encode_choice(tool) for tool in choice.tools]
            named = [tool for tool in encoded if tool != "auto"]
            allowed = {"type": "allowed_tools", "mode": choice.mode, "tools": named}
            return {**allowed, **from_extra(choice.extra)}
        case UnknownTool():
            return {"type": choice.kind, **choice.value} if choice.wire == WIRE else "auto"
        case _:
            return choice


def encode_format(form: OutputFormat, *, full: bool = False) -> dict[str, JSON]:
    """The object under `text.format`; `full` as a response repeats it, with all its keys."""
    match form:
        case JSONSchema():
            default = {"description": "", "schema": {}, "strict": False} if full else {}
            encoded = {"name": form.name, "description": form.description, "schema": form.schema}
            set_ = dense({**encoded, "strict": form.strict, **from_extra(form.extra)})
            return {"type": "json_schema", **default, **set_}
        case JSONObject():
            return {"type": "json_object"}
        case _:
            return {"type": "text"}
