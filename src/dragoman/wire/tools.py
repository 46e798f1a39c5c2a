"""Decodes and encodes tools, tool choices and response formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import JSON, Extra, Item, Unknown
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    OutputFormat,
    Request,
    TextFormat,
    Tool,
    ToolChoice,
    ToolMode,
    UnknownTool,
)

from . import json
from .cache import Cache
from .json import LIMITS, Fields, Limits, dense
from .losses import Note

_CACHE_LIMIT = 4 * 1024 * 1024
_SECRETS = frozenset({"authorization", "headers"})
"""Fields of an MCP tool that only its server may get."""


def without_secrets(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools for storing and echoing: without the credentials for MCP servers. The
    same tuple where there are none.

    >>> without_secrets((UnknownTool("responses", "mcp", {"authorization": "t", "a": 1}),))
    (UnknownTool(wire='responses', kind='mcp', value={'a': 1}),)
    """
    if {UnknownTool, Namespace}.isdisjoint(map(type, tools)):
        return tools
    kept = tuple([_without_secrets(tool) for tool in tools])
    return tools if kept == tools else kept


def _without_secrets(tool: Tool) -> Tool:
    match tool:
        case UnknownTool(kind="mcp", value=value) if not _SECRETS.isdisjoint(value):
            kept = {name: field for name, field in value.items() if name not in _SECRETS}
            return UnknownTool(tool.wire, tool.kind, kept)
        case Namespace(tools=members):
            fit = without_secrets(members)
            return tool if fit is members else replace(tool, tools=fit)
        case _:
            return tool


def without_keys(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items for storing: those that offer tools, without the credentials for MCP servers.

    >>> tool = {"type": "mcp", "headers": {"x-key": "k"}}
    >>> without_keys((Unknown("responses", "additional_tools", {"tools": [tool]}),))[0].value
    {'tools': [{'type': 'mcp'}]}
    """
    return tuple(
        [
            replace(item, value=_without_keys(item.value))
            if isinstance(item, Unknown) and isinstance(item.value.get("tools"), list)
            else item
            for item in items
        ]
    )


def _without_keys(value: dict[str, JSON]) -> dict[str, JSON]:
    """A tool, or an object with tools."""
    gone: frozenset[str] = _SECRETS if value.get("type") == "mcp" else frozenset()
    kept = {name: field for name, field in value.items() if name not in gone}
    if isinstance(tools := kept.get("tools"), list):
        kept["tools"] = [_without_keys(t) if isinstance(t, dict) else t for t in tools]
    return kept


class ToolCodec:
    """Tools as one wire spells them.

    `nested`: a tool's fields are in an object of its own, under its type (`{"type":
    "function", "function": {"name": …}}`), and not beside the type.

    An absent `strict` means "if the schema allows it" where tools are not nested, and "no" where
    they are; None in the core means "not requested". So without nesting an absent `strict` is
    marked in `extra` and left out again, and None from another wire is encoded as false, which
    preserves the client's meaning.
    """

    def __init__(self, wire: str, *, nested: bool) -> None:
        self._wire = wire
        self._nested = nested
        # Tools by the bytes of their array: an agent sends the same ones with every request.
        self._decoded = Cache[tuple[Tool, ...]](_CACHE_LIMIT)
        # Encoded tools, by the identity of the tuple, which an entry keeps alive.
        self._encoded = Cache[tuple[tuple[Tool, ...], Raw | None]](_CACHE_LIMIT)

    # ---- decoding ------------------------------------------------------------------------

    def decode_all(self, raw: Raw, limits: Limits = LIMITS) -> tuple[Tool, ...]:
        """The tools in an array. Raises FaultError naming the tool and the field that is wrong."""
        data = bytes(raw)
        tools = self._decoded.get(data)
        if tools is None:
            given = json.load(data)
            fields = Fields({"tools": given})
            if isinstance(given, list) and len(given) > limits.max_tools:
                raise json.too_many("tools", limits.max_tools, "max_tools")
            tools = tuple([self.decode(tool) for tool in fields.objects("tools")])
            self._decoded.put(data, tools, len(data))
        return tools

    def decode(self, tool: Fields, *, grouped: bool = False) -> Any:
        """One tool; an unknown kind is carried unchanged. `grouped`: in a
        namespace, which cannot be nested."""
        if self._nested and "function" in tool:
            kind = tool.string("type") or "function"
        else:
            kind = tool.need("type")
        match kind:
            case "namespace" if grouped and self._nested:
                raise tool.wrong("type", "is a namespace inside a namespace")
            case "namespace" if not grouped:
                name, about = tool.need("name"), tool.string("description")
                members = tuple([self.decode(t, grouped=True) for t in tool.objects("tools")])
                return Namespace(name, members, about, self._extra(tool.rest()))
            case "function" if grouped and "function" not in tool:
                return self.function(tool)  # without nesting, as in another protocol
            case "function":
                return self.function(self._inner(tool, kind), tool)
            case "custom":
                inner = self._inner(tool, kind)
                name, about = inner.need("name"), inner.string("description")
                syntax = grammar = None
                more: dict[str, JSON] = {}
                if (form := inner.object("format")) is not None:
                    syntax, grammar, more = self._grammar(form)
                rest = self._rest(kind, tool, inner, {"format": more} if more else {})
                return CustomTool(name, about, syntax, grammar, self._extra(rest))
            case _:
                return UnknownTool(self._wire, kind, tool.left())

    def function(self, inner: Fields, tool: Fields | None = None) -> FunctionTool:
        """A function, by its fields and, where they are nested, the object around them."""
        name, about = inner.need("name"), inner.string("description")
        schema, strict = inner.mapping("parameters"), inner.boolean("strict")
        rest = self._rest("function", tool, inner)
        if not self._nested:
            schema = schema or {}
            rest |= {"strict": None} if strict is None else {}
        return FunctionTool(name, about, schema, strict, self._extra(rest))

    def _grammar(self, form: Fields) -> tuple[str | None, str | None, dict[str, JSON]]:
        """The syntax and the text of a grammar, and the rest of the format it is in."""
        if self._nested:
            grammar = form.object("grammar")
            if grammar is None:
                return None, None, form.rest()
            syntax, text = grammar.need("syntax"), grammar.need("definition")
            if form.need("type") != "grammar":
                raise form.wrong("type", "must be 'grammar' where there is one")
            inner = grammar.rest()
            return syntax, text, form.rest() | ({"grammar": inner} if inner else {})
        kind = form.need("type")
        if kind == "grammar":
            return form.need("syntax"), form.need("definition"), form.rest()
        return None, None, form.rest() | ({"type": kind} if kind != "text" else {})

    def _inner(self, fields: Fields, kind: str) -> Fields:
        """The fields of a tool, choice or format: the object under the kind, or all the fields."""
        if not self._nested:
            if kind in fields and "name" not in fields and "mode" not in fields:
                problem = f"is missing; what {kind} holds stands beside type here"
                raise fields.wrong("name", problem)
            return fields
        inner = fields.object(kind)
        if inner is None:
            beside = "; the fields beside type stand in it here" if "name" in fields else ""
            raise fields.wrong(kind, f"is missing{beside}")
        return inner

    def _rest(
        self, kind: str, fields: Fields | None, inner: Fields, more: dict[str, JSON] | None = None
    ) -> dict[str, JSON]:
        """The unknown fields, nested as the known ones."""
        rest = inner.rest() | (more or {})
        if not self._nested:
            return rest
        return (fields.rest() if fields else {}) | ({kind: rest} if rest else {})

    def _extra(self, rest: dict[str, JSON]) -> Extra | None:
        return {self._wire: rest} if rest else None

    def decode_choice(self, value: JSON, limits: Limits = LIMITS) -> ToolChoice:
        """The field `tool_choice`."""
        match value:
            case "none" | "auto" | "required":
                mode: ToolMode = value
                return mode
            case dict():
                chosen: ToolChoice = self._choice(Fields(value, "tool_choice"))
                if isinstance(chosen, AllowedTools) and len(chosen.tools) > limits.max_tools:
                    raise json.too_many("tool_choice", limits.max_tools, "max_tools")
                return chosen
            case _:
                problem = f"is {repr(value) if isinstance(value, str) else json.kind(value)}"
                options = "none, auto, required or an object"
                raise FaultError(bad_request(f"{problem}, and must be {options}", "tool_choice"))

    def _choice(self, choice: Fields, *, one_of: bool = False) -> Any:
        """A choice, or one of the tools in a choice of several."""
        kind = choice.need("type")
        if kind in ("function", "custom"):
            inner = self._inner(choice, kind)
            name, space = inner.need("name"), inner.string("namespace")
            extra = self._extra(self._rest(kind, choice, inner))
            return NamedTool(name, "custom" if kind == "custom" else "function", space, extra)
        if kind != "allowed_tools" or one_of:
            return UnknownTool(self._wire, kind, choice.left())
        inner = self._inner(choice, kind)
        required = inner.one_of("mode", ("auto", "required")) == "required"
        tools = tuple([self._choice(each, one_of=True) for each in inner.objects("tools")])
        extra = self._extra(self._rest(kind, choice, inner))
        return AllowedTools("required" if required else "auto", tools, extra)

    # ---- encoding ------------------------------------------------------------------------

    def encode_all(self, tools: tuple[Tool, ...]) -> Raw | None:
        """The array of the tools; None where all are of other wires."""
        entry = self._encoded.get(id(tools))
        if entry is None:
            data = json.dump(self._encode_each(tools))
            entry = tools, Raw(data) if data != b"[]" else None
            self._encoded.put(id(tools), entry, len(data))
        return entry[1]

    def _encode_each(self, tools: Iterable[Tool]) -> list[dict[str, JSON]]:
        encoded = (self.encode(tool) for tool in tools)
        return [tool for tool in encoded if tool is not None]

    def encode(self, tool: Tool) -> dict[str, JSON] | None:
        """One tool; None for one that belongs to another wire."""
        match tool:
            case UnknownTool():
                return {"type": tool.kind, **tool.value} if tool.wire == self._wire else None
            case Namespace(name=name, description=about):
                group = {"type": "namespace", **dense({"name": name, "description": about})}
                return self._merged({**group, "tools": self._encode_each(tool.tools)}, tool.extra)
            case FunctionTool(parameters=schema, strict=strict):
                if not self._nested:
                    schema = schema or {}
                    if strict is None and "strict" not in (tool.extra or {}).get(self._wire, {}):
                        strict = False  # absent means something else here
                more = {"parameters": schema, "strict": strict}
            case _:
                named = dense({"syntax": tool.syntax, "definition": tool.grammar})
                form = {"grammar": named} if self._nested else named
                more = {"format": {"type": "grammar", **form} if named else None}
        kind = "function" if isinstance(tool, FunctionTool) else "custom"
        known = dense({"name": tool.name, "description": tool.description, **more})
        return self._wrapped(kind, known, tool.extra)

    def encode_choice(self, choice: ToolChoice | None) -> JSON:
        """A tool choice; None for a hosted tool of another wire."""
        match choice:
            case NamedTool(kind=kind):
                known = dense({"name": choice.name, "namespace": choice.namespace})
                return self._wrapped(kind, known, choice.extra)
            case AllowedTools():
                encoded = [self.encode_choice(tool) for tool in choice.tools]
                tools = [tool for tool in encoded if tool is not None]
                known = {"mode": choice.mode, "tools": tools}
                return self._wrapped("allowed_tools", known, choice.extra)
            case UnknownTool(kind=kind):
                return {"type": kind, **choice.value} if choice.wire == self._wire else None
            case _:
                return choice

    def _wrapped(self, kind: str, known: dict[str, JSON], extra: Extra | None) -> dict[str, JSON]:
        """An object of a kind: its fields nested or not, and the unknown ones."""
        fields = {"type": kind, kind: known} if self._nested else {"type": kind, **known}
        return self._merged(fields, extra)

    def _merged(self, fields: dict[str, JSON], extra: Extra | None) -> dict[str, JSON]:
        return json.merge(fields, dense((extra or {}).get(self._wire, {})))

    # ---- the format of an answer ---------------------------------------------------------

    def decode_format(self, form: Fields) -> tuple[OutputFormat, dict[str, JSON]]:
        """The response format, and its unknown fields."""
        match form.one_of("type", ("text", "json_object", "json_schema")):
            case "json_schema" as kind:
                inner = self._inner(form, kind)
                name, schema = inner.need("name"), inner.mapping("schema")
                about, strict = inner.string("description"), inner.boolean("strict")
                extra = self._extra(inner.rest())
                rest = form.rest() if self._nested else {}
                return JSONSchema(name, schema, about, strict, extra), rest
            case "json_object":
                return JSONObject(), form.rest()
            case "text":
                return TextFormat(), form.rest()
            case _:
                raise form.wrong("type", "is missing")

    def encode_format(self, form: OutputFormat) -> dict[str, JSON]:
        """The format of an answer."""
        match form:
            case JSONSchema(name=name, schema=schema, description=about, strict=strict):
                known = {"name": name, "description": about, "schema": schema, "strict": strict}
                inner = self._merged(dense(known), form.extra)
                nested = {"json_schema": inner} if self._nested else inner
                return {"type": "json_schema", **nested}
            case JSONObject():
                return {"type": "json_object"}
            case _:
                return {"type": "text"}


def without_tools(request: Request) -> list[Note]:
    """The losses where a wire supports none of a request's tools. Raises FaultError where a
    call is required."""
    choice = request.tool_choice
    demanded = choice.mode if isinstance(choice, AllowedTools) else choice
    if demanded not in (None, "auto", "none"):
        problem = "demands a call, and this server can be offered none of the tools"
        raise FaultError(unsupported(problem, "tool_choice"))
    why = "there are no tools to choose from"
    names = ("tool_choice", "parallel_tool_calls")
    return [(n, "dropped", why, ()) for n in names if getattr(request, n) is not None]
