"""Leaves bounds of repetition that a server can make no grammar of out of schemas.

A server that makes one grammar of all tools refuses each request for a single `maxLength` of one
of them, and Claude Code has a tool with 524,288.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.item import JSON
from dragoman.core.loss import Loss
from dragoman.core.lower import Lowered
from dragoman.core.request import FunctionTool, JSONSchema, Namespace, Tool
from dragoman.wire import json
from dragoman.wire.cache import Cache

_REPEATED = frozenset(
    {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
)
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value has schemas by names, which may be those of keywords."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
_fitting = Cache[tuple[tuple[Tool, ...], tuple[Tool, ...]]](4 * 1024 * 1024)


def without_bounds(schema: JSON, most: int, named: bool = False) -> JSON:
    """A schema, or schemas by their names, without bounds of repetition that are above this.

    >>> without_bounds({"items": {"maxLength": 9, "minLength": 2}, "default": {"maxLength": 9}}, 5)
    {'items': {'minLength': 2}, 'default': {'maxLength': 9}}
    """
    if isinstance(schema, list):
        return [without_bounds(each, most) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, JSON] = {}
    for name, value in schema.items():
        if named or name not in _REPEATED or not isinstance(value, int | float) or value <= most:
            kept = name in _VALUES and not named
            found[name] = (
                value if kept else without_bounds(value, most, not named and name in _NAMED)
            )
    return found


def _fit(tools: tuple[Tool, ...], most: int) -> tuple[Tool, ...]:
    """The tools with such schemas."""
    found: list[Tool] = []
    for tool in tools:
        match tool:
            case FunctionTool(parameters=dict(schema)):
                tool = replace(tool, parameters=without_bounds(schema, most))
            case Namespace(tools=members):
                tool = replace(tool, tools=_fit(members, most))
        found.append(tool)
    return tuple(found)


def lower_bounds(lowered: Lowered, most: int) -> Lowered:
    """The request without bounds of repetition above this in the schemas of its tools and of its
    format, and what was lost."""
    request, lost = lowered.request, list[str]()
    if tools := request.tools:
        key = id(tools), most
        if (entry := _fitting.get(key)) is None:
            fit = _fit(tools, most)
            entry = tools, tools if fit == tools else fit
            _fitting.put(key, entry, len(json.dump(fit)))
        if entry[1] is not tools:
            request = replace(request, tools=entry[1])
            lost.append("tools[*].parameters")
    if isinstance(format := request.format, JSONSchema):
        schema = without_bounds(format.schema, most)
        if schema != format.schema:
            request = replace(request, format=replace(format, schema=schema))
            lost.append("format.schema")
    if not lost:
        return lowered
    why = f"this server makes no grammar of bounds above {most}: they are left out"
    losses = [Loss(field, "dropped", why) for field in lost]
    return replace(lowered, request=request, losses=(*lowered.losses, *losses))
