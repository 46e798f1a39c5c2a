"""Validates a finished answer against the demand, for engines that cannot enforce it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from dragoman.core.item import JSON, Call, FunctionCall, Item, Message

from .demand import AllowedTool, Anything, Body, Choice, Demand, JSONBody

Judge = Callable[[dict[str, JSON], str], bool]
"""Whether a text fits a string schema with a `pattern` or a `format`."""

_MOST = 100
"""References followed in a row before they count as a circle."""


def valid(value: JSON, schema: JSON, judge: Judge) -> bool:
    """Whether a value fits a schema.

    >>> valid({"n": 3}, {"properties": {"n": {"maximum": 2}}}, lambda schema, text: True)
    False
    """
    return _Validator(schema, judge).fits(value, schema, 0)


class _Validator:
    def __init__(self, root: JSON, judge: Judge) -> None:
        self._root = root
        self._judge = judge

    def fits(self, value: JSON, schema: JSON, steps: int) -> bool:
        if not isinstance(schema, dict):
            return schema is not False
        return all(self._checks(value, schema, steps))

    def _checks(self, value: JSON, schema: dict[str, Any], steps: int) -> Iterator[bool]:
        if "type" in schema:
            types = schema["type"]
            yield any(_is(value, t) for t in (types if isinstance(types, list) else [types]))
        if "enum" in schema:
            yield any(_same(value, each) for each in schema["enum"])
        if "const" in schema:
            yield _same(value, schema["const"])
        if "$ref" in schema:
            yield steps < _MOST and self.fits(value, self._found(schema["$ref"]), steps + 1)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in schema:
                fits = [self.fits(value, each, steps) for each in schema[keyword]]
                yield {"allOf": all(fits), "anyOf": any(fits), "oneOf": fits.count(True) == 1}[
                    keyword
                ]
        match value:
            case dict():
                yield from self._object(value, schema)
            case list():
                yield from self._array(value, schema)
            case str():
                yield _between(len(value), schema, "minLength", "maxLength")
                leaf = {name: schema[name] for name in schema if name in ("pattern", "format")}
                yield not leaf or self._judge({"type": "string", **leaf}, value)
            case int() | float() if not isinstance(value, bool):
                yield _within(value, schema)

    def _object(self, value: dict[str, JSON], schema: dict[str, Any]) -> Iterator[bool]:
        listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        yield all(name in value for name in schema.get("required", ()))
        yield _between(len(value), schema, "minProperties", "maxProperties")
        for name, each in value.items():
            known = [listed[name]] if name in listed else []
            known += [inner for pattern, inner in patterns.items() if self._named(pattern, name)]
            for inner in known or [schema.get("additionalProperties", True)]:
                yield self.fits(each, inner, 0)

    def _named(self, pattern: str, name: str) -> bool:
        return self._judge({"type": "string", "pattern": pattern}, name)

    def _array(self, value: list[JSON], schema: dict[str, Any]) -> Iterator[bool]:
        yield _between(len(value), schema, "minItems", "maxItems")
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        for place, each in enumerate(value):
            yield self.fits(each, first[place] if place < len(first) else rest, 0)

    def _found(self, address: JSON) -> JSON:
        """The target of a reference; nothing fits one without a target."""
        found = self._root
        for step in str(address).removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name, False) if isinstance(found, dict) else False
        return found


def _is(value: JSON, kind: JSON) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "integer":
            return number and float(value).is_integer()
        case "number":
            return number
        case _:
            kinds = {"object": dict, "array": list, "string": str, "boolean": bool}
            return value is None if kind == "null" else isinstance(value, kinds.get(kind, ()))


def _same(one: JSON, other: JSON) -> bool:
    """Equality in JSON: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _between(count: int, schema: dict[str, Any], low: str, high: str) -> bool:
    return bool(schema.get(low, 0) <= count <= schema.get(high, math.inf))


def _within(value: float, schema: dict[str, Any]) -> bool:
    step = schema.get("multipleOf")
    return bool(
        schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        and (not step or math.isclose(value / step, round(value / step), rel_tol=1e-9))
    )


Matches = Callable[[Body, str], bool]
"""Whether a text matches a grammar, or a JSON schema whose keys are in order."""


class Problem(Struct, frozen=True):
    """What is wrong with an answer, and whether that is worse than no answer."""

    what: str
    fatal: bool = True


def problem(asked: Demand, items: Sequence[Item], matches: Matches) -> Problem | None:
    """What is wrong with an answer; None where nothing is.

    >>> problem(Demand(None, (), True), [Message("assistant", "Hm.")], lambda body, text: True)
    Problem(what='it calls no tool', fatal=True)
    """
    calls = [item for item in items if isinstance(item, Call)]
    if not calls:
        if asked.text is None:
            return Problem("it calls no tool")
        text = "".join(item.text for item in items if isinstance(item, Message))
        fits = _fits(asked.text, text, matches)
        return None if fits else Problem("its text is something else", asked.strict)
    if len(calls) > 1 and not asked.several:
        return Problem("it calls several tools at once")
    return next(filter(None, (_wrong(call, asked.tools, matches) for call in calls)), None)


def _wrong(call: Call, tools: Sequence[AllowedTool], matches: Matches) -> Problem | None:
    """What is wrong with a call."""
    for tool in tools:
        if (tool.name, tool.namespace) == (call.name, call.namespace):
            text = call.arguments if isinstance(call, FunctionCall) else call.input
            if _fits(tool.body, text, matches):
                return None
            return Problem(f"what it gives to {call.name} does not fit", tool.strict)
    return Problem(f"it calls {call.name}, which may not be called")


def _fits(body: Body, text: str, matches: Matches) -> bool:
    match body:
        case Anything():
            return True
        case Choice(texts=texts):
            return text in texts
        case JSONBody(schema=schema):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return False
            return valid(
                value, schema, lambda leaf, string: matches(JSONBody("", leaf), _quoted(string))
            )
        case _:
            return matches(body, text)


def _quoted(text: str) -> str:
    """A text as JSON, escaped as llguidance's grammar has it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
