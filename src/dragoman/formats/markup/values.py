"""Arguments written as bare text, typed by the schema of their tool, and the way back.

Only as much of JSON Schema is read as tells a string from something else. A value that does not
have the type it should have stays a string.
"""

from __future__ import annotations

import json

from dragoman.core.item import JSON

_WORDS = {"True": "true", "False": "false", "None": "null"}
_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ALL = frozenset(_KINDS.values())
_STRING = frozenset({"string"})


def typed(text: str, name: str, schema: JSON) -> str:
    """The JSON for an argument that was written as bare text.

    >>> typed("3", "n", {"properties": {"n": {"type": "integer"}}})
    '3'
    >>> typed("3", "s", {"properties": {"s": {"type": "string"}}})
    '"3"'
    """
    kinds = _kinds(_property(schema, name), schema)
    literal = _WORDS.get(text.strip(), text.strip())
    if kinds != _STRING:
        try:
            value = json.loads(literal)
        except (ValueError, RecursionError):
            value = ""  # a string, if anything
        kind = _KINDS[type(value)]
        if kind != "string" and (kind in kinds or (kind == "integer" and "number" in kinds)):
            return literal
    return json.dumps(text, ensure_ascii=False)


def bare(value: JSON) -> str:
    """The bare text of an argument: a string as it is, all else as JSON.

    >>> bare("x"), bare([1])
    ('x', '[1]')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _property(schema: JSON, name: str) -> JSON:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _kinds(schema: JSON, root: JSON, depth: int = 8) -> frozenset[str]:
    """The types a schema allows; a string where it says nothing."""
    if not isinstance(schema, dict) or depth == 0:
        return _STRING
    match schema:
        case {"type": str(kind)}:
            return frozenset({kind})
        case {"type": list(kinds)}:
            return frozenset(kind for kind in kinds if isinstance(kind, str))
        case {"$ref": str(address)}:
            return _kinds(_look_up(root, address), root, depth - 1)
        case {"enum": list(choices)}:
            return frozenset(_KINDS.get(type(each), "string") for each in choices)
        case {"const": value}:
            return frozenset({_KINDS.get(type(value), "string")})
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return frozenset().union(*(_kinds(each, root, depth - 1) for each in options))
        case {"properties": _}:
            return frozenset({"object"})
        case {"items": _}:
            return frozenset({"array"})
        case _:
            return _STRING


def _look_up(root: JSON, address: str) -> JSON:
    found = root
    for step in address.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found
