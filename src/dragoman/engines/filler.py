"""Makes a JSON value that fits a JSON Schema: always the same one, and always a dull one.

The rehearsal engine fills in forms with it. It takes schemas as clients send them, broken ones
included, and never raises; `pattern` and `not` are beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dragoman.core.item import JSON

_DEEP = 6
"""The depth from which only what is required is filled in, so that recursive schemas end."""
_BOTTOM = 40
_MOST = 2_000
"""Values made for one schema at the most."""
_FAR = 1e15
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_KEYWORDS = {
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "minLength": "string",
    "maxLength": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
}
"""Keywords that give away the type of a schema that names none."""


def fill(schema: JSON, words: str = "rehearsal") -> JSON:
    """A value that fits `schema`; `words` is what free text says.

    >>> fill({"type": "object", "properties": {"city": {"type": "string"}, "days": {"minimum": 3}}})
    {'city': 'rehearsal', 'days': 3}
    """
    return _Filler(schema, words).value(schema, 0)


class _Filler:
    """One schema being filled in: what its references point into, and what free text says."""

    def __init__(self, root: JSON, words: str) -> None:
        self._root = root
        self._words = words
        self._left = _MOST

    def value(self, schema: JSON, depth: int) -> JSON:
        self._left -= 1
        if depth > _BOTTOM or self._left < 0:
            return None
        schema = self._resolved(schema, depth)
        for keyword in ("const", "default"):
            if keyword in schema:
                return schema[keyword]
        for keyword in ("enum", "examples"):
            if values := _list(schema, keyword):
                return values[0]
        match _type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return _number(schema, whole=True)
            case "number":
                return _number(schema, whole=False)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._words

    def _resolved(self, schema: JSON, depth: int) -> dict[str, Any]:
        """The schema with its reference followed, its alternatives chosen, its parts merged."""
        merged: dict[str, Any] = {}
        queue = [schema]
        for _ in range(_BOTTOM):
            if not queue:
                break
            part = queue.pop()
            if not isinstance(part, Mapping):
                continue
            merged = _merged(merged, part)
            if isinstance(part.get("$ref"), str):
                queue.append(self._lookup(part["$ref"]))
            queue += _list(part, "allOf")
            for keyword in ("anyOf", "oneOf"):
                if choices := _list(part, keyword):
                    queue.append(_simplest(choices) if depth > _DEEP else choices[0])
        return merged

    def _lookup(self, reference: str) -> JSON:
        """What a local reference points at; anything at all where it points nowhere."""
        found = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        return found

    def _object(self, schema: dict[str, Any], depth: int) -> JSON:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        names = [name for name in _list(schema, "required") if isinstance(name, str)]
        if depth <= _DEEP:
            names = [*properties, *(name for name in names if name not in properties)]
        return {name: self.value(properties.get(name), depth + 1) for name in names}

    def _array(self, schema: dict[str, Any], depth: int) -> JSON:
        values = [self.value(item, depth + 1) for item in _list(schema, "prefixItems")]
        low = max(_bound(schema.get("minItems"), 0), 1 if depth <= _DEEP else 0)
        count = min(low, _bound(schema.get("maxItems"), low), 100)
        rest = schema.get("items")
        return values + [self.value(rest, depth + 1) for _ in range(int(count) - len(values))]

    def _string(self, schema: dict[str, Any]) -> str:
        text = _FORMATS.get(str(schema.get("format")), self._words)
        low, high = _bound(schema.get("minLength"), 0), _bound(schema.get("maxLength"), len(text))
        text = text.ljust(min(int(low), 10_000), ".")
        return text[: int(max(low, high))]


def _merged(schema: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Both schemas' keywords; what each says of properties adds up."""
    merged = {**part, **schema}
    for keyword in ("properties", "required"):
        both = schema.get(keyword), part.get(keyword)
        if isinstance(both[0], Mapping) and isinstance(both[1], Mapping):
            merged[keyword] = {**both[1], **both[0]}
        elif isinstance(both[0], list) and isinstance(both[1], list):
            merged[keyword] = [*both[0], *(name for name in both[1] if name not in both[0])]
    return merged


def _type(schema: dict[str, Any]) -> str | None:
    """The type to make, where the schema names one or gives it away."""
    named = schema.get("type")
    if isinstance(named, list):
        named = next((name for name in named if name != "null"), "null")
    if isinstance(named, str):
        return named
    return next((_KEYWORDS[keyword] for keyword in schema if keyword in _KEYWORDS), None)


def _simplest(schemas: list[JSON]) -> JSON:
    """Of several alternatives, one without anything inside."""
    flat = [
        each
        for each in schemas
        if isinstance(each, Mapping) and _type(dict(each)) not in ("object", "array", None)
    ]
    return (flat or schemas)[0]


def _number(schema: dict[str, Any], *, whole: bool) -> float:
    """The smallest number the bounds allow, or 1."""
    step = max(_bound(schema.get("multipleOf"), 1), 1e-6)
    inside = step if whole or "multipleOf" in schema else step / 2
    low = max(
        _bound(schema.get("minimum"), -_FAR),
        _bound(schema.get("exclusiveMinimum"), -2 * _FAR) + inside,
    )
    high = min(
        _bound(schema.get("maximum"), _FAR),
        _bound(schema.get("exclusiveMaximum"), 2 * _FAR) - inside,
    )
    number = min(max(step, low), high)
    if "multipleOf" in schema or whole:
        number = math.floor(number / step) * step
        number = number if number >= low else number + step
    return int(number) if whole else number


def _bound(value: JSON, otherwise: float) -> float:
    """A number of a schema, if it is one that can be counted with."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and abs(value) <= _FAR else otherwise


def _list(schema: Mapping[str, Any], keyword: str) -> list[JSON]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
