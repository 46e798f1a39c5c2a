"""Narrows JSON schemas to what a grammar of few alternatives at a time can express.

llama.cpp compares every token with every alternative that is open, so a schema is written for it
such that the first character of a value decides which of its schemas is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from dragoman.core.item import JSON

from .schema import KINDS, MAX_CHARACTERS, find

MAX_VALUES = 32
"""Values of an `enum`, and schemas of the first items of an array."""
MAX_OPTIONAL = 40
"""Optional properties of an object: any may come next."""
MAX_ITEMS = 100
"""The greatest `minItems` and `maxItems`."""
MAX_SCHEMAS = 5_000
"""Schemas in all of a request, those of each type that one lists apart."""
MAX_LEVELS = 100
MAX_NAMES = 2_000
"""Characters of the names of an object's properties, where it may have others: those must differ
at each character."""
_NOTES = ("title", "description", "default", "examples", "deprecated")
"""Keywords that are read by the model alone."""
_FORMATS = ("date", "time", "date-time", "uuid")
_OF = dict.fromkeys(("properties", "required", "additionalProperties"), "object")
_OF |= dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array")
_OF |= dict.fromkeys(("pattern", "format", "minLength", "maxLength"), "string")
"""The types that keywords are about."""
_DEFS = ("$defs", "definitions")
_SILENT = frozenset({*_NOTES, *_DEFS, "$schema", "$id"})
_ALL = frozenset(KINDS.values()) - {"integer"}


def narrowed(schemas: Iterable[Mapping[str, JSON]]) -> Iterator[dict[str, JSON]]:
    """Schemas that all values of the given ones fit, of which alternatives differ in their
    first character. What was left out is added to the `description`, for the model to read.

    >>> next(narrowed([{"type": "string", "pattern": "^a+$"}]))
    {'type': 'string', 'description': 'Must fit {"pattern": "^a+$"}'}
    """
    room = _Room()
    return (_Narrowing(dict(schema), room).whole() for schema in schemas)


class _Room:
    """What is left of the schemas, and of the characters of descriptions."""

    schemas = MAX_SCHEMAS
    characters = MAX_CHARACTERS

    def described(self, kept: dict[str, JSON], schema: dict[str, JSON]) -> dict[str, JSON]:
        """With what the model reads of a schema, and what of it was not kept."""
        notes = {name: schema[name] for name in _NOTES if name in schema}
        left = {
            name: schema[name]
            for name in schema.keys() - kept.keys() - _SILENT
            if "anyOf" not in kept or name not in ("type", "oneOf")
        }
        if left and self.characters > 0:
            rest = f"Must fit {json.dumps(left, ensure_ascii=False, sort_keys=True)}"
            self.characters -= len(rest)
            given = notes.get("description")
            notes["description"] = f"{given}\n{rest}" if isinstance(given, str) else rest
        return {**kept, **notes}


class _Narrowing:
    def __init__(self, root: dict[str, JSON], room: _Room) -> None:
        self._root = root
        self._room = room
        self._found: dict[str, frozenset[str]] = {}
        """The types of what references point to."""

    def whole(self) -> dict[str, JSON]:
        found = self._narrow(self._root, 0)
        for name in _DEFS:
            if isinstance(held := self._root.get(name), dict):
                found[name] = {key: self._narrow(each, 1) for key, each in held.items()}
        if self._room.schemas >= 0:
            return found
        return self._room.described({"type": "object"}, self._root)

    def _narrow(self, schema: JSON, level: int) -> dict[str, JSON]:
        """One schema, without definitions."""
        self._room.schemas -= 1
        if not isinstance(schema, dict) or self._room.schemas < 0 or level > MAX_LEVELS:
            return {}
        kept = self._kept(schema, level + 1)
        if "anyOf" in kept and isinstance(schema.get("type"), list):
            return kept  # each is described
        return self._room.described(kept, schema)

    def _kept(self, schema: dict[str, JSON], level: int) -> dict[str, JSON]:
        match schema:
            case {"$ref": _}:
                # one to itself is of all kinds
                known = self._kinds(schema) != _ALL
                return {"$ref": schema["$ref"]} if known else {}
            case {"anyOf": list(each)} | {"oneOf": list(each)}:
                return self._alternatives(each, level)
            case {"type": list(types)}:
                return self._alternatives([_of_type(schema, kind) for kind in types], level)
            case {"const": value}:
                return {"const": value}
            case {"enum": list(values)}:
                if 0 < len(values) <= MAX_VALUES:
                    return {"enum": values}
                return _of(self._kinds(schema))
            case {"allOf": [dict(one)]} if "properties" not in schema:
                return self._narrow(one, level)
        kinds = self._kinds(schema)
        if kinds == {"object"}:
            return self._object(schema, level)
        if kinds == {"array"}:
            return self._array(schema, level)
        kept = _of(kinds, schema.get("type"))
        if kinds == {"string"} and schema.get("format") in _FORMATS:
            kept["format"] = schema["format"]
        return kept

    def _alternatives(self, schemas: list[JSON], level: int) -> dict[str, JSON]:
        kinds = [self._kinds(each) for each in schemas]
        every = frozenset[str]().union(*kinds)
        if sum(map(len, kinds)) > len(every) or not every:
            return _of(every or _ALL)
        return {"anyOf": [self._narrow(each, level) for each in schemas]}

    def _object(self, schema: dict[str, JSON], level: int) -> dict[str, JSON]:
        kept: dict[str, JSON] = {"type": "object"}
        listed, must = schema.get("properties"), schema.get("required")
        more = schema.get("additionalProperties")
        if isinstance(listed, dict):
            named = (
                {name for name in must if isinstance(name, str)} if isinstance(must, list) else ()
            )
            required = [name for name in listed if name in named]
            if len(listed) - len(required) > MAX_OPTIONAL:
                return kept
            kept["properties"] = {name: self._narrow(each, level) for name, each in listed.items()}
            kept["required"] = required
        if isinstance(listed, dict) and sum(map(len, listed)) > MAX_NAMES:
            more = None
        if isinstance(more, bool):
            kept["additionalProperties"] = more
        elif more is not None:
            kept["additionalProperties"] = self._narrow(more, level)
        return kept

    def _array(self, schema: dict[str, JSON], level: int) -> dict[str, JSON]:
        kept: dict[str, JSON] = {"type": "array"}
        first = schema.get("items", schema.get("prefixItems"))
        if isinstance(first, list):
            if len(first) <= MAX_VALUES:
                kept["prefixItems"] = [self._narrow(each, level) for each in first]
            return kept
        if isinstance(first, dict):
            kept["items"] = self._narrow(first, level)
        for name in ("minItems", "maxItems"):
            if type(most := schema.get(name)) is int and 0 <= most <= MAX_ITEMS:
                kept[name] = most
        return kept

    def _kinds(self, schema: JSON, level: int = 0) -> frozenset[str]:
        """The types of values, of which a number may be whole; all where they are not known."""
        if not isinstance(schema, dict) or level > MAX_LEVELS:
            return _ALL
        if "$ref" in schema:
            to = str(schema["$ref"])
            if to not in self._found:
                self._found[to] = _ALL  # in a circle
                if self._named(to):
                    self._found[to] = self._kinds(find(self._root, to), level + 1)
            return self._found[to]
        several = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(several, list):
            self._room.schemas -= len(several)
            if self._room.schemas < 0:
                return _ALL
            return frozenset[str]().union(*(self._kinds(each, level + 1) for each in several))
        match schema:
            case {"type": str(kind)}:
                return _known([kind])
            case {"type": list(types)}:
                return _known(types)
            case {"const": value}:
                return _known([KINDS[type(value)]])
            case {"enum": list(values)} if values:
                return _known([KINDS[type(value)] for value in values])
            case {"allOf": [one]} if "properties" not in schema:
                return self._kinds(one, level + 1)
        if "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
            return frozenset({"object"})
        return frozenset({"array"}) if schema.keys() & {"items", "prefixItems"} else _ALL

    def _named(self, to: str) -> bool:
        """Whether it is one of the definitions, which are narrowed too."""
        head, _, name = to.removeprefix("#/").partition("/")
        held = self._root.get(head)
        plain = head in _DEFS and not re.search("[/~%]", name)
        return plain and isinstance(held, dict) and name in held


def _known(kinds: list[JSON]) -> frozenset[str]:
    found = frozenset("number" if kind == "integer" else str(kind) for kind in kinds)
    return found if found <= _ALL else _ALL


def _of_type(schema: dict[str, JSON], kind: JSON) -> JSON:
    """A schema for one of its types."""
    own = {name: value for name, value in schema.items() if _OF.get(name, kind) == kind}
    return {**own, "type": kind}


def _of(kinds: frozenset[str], own: JSON = None) -> dict[str, JSON]:
    """Any value of these types. `own` is one as it was written, an integer perhaps."""
    if kinds == _ALL:
        return {}
    return {"type": own if isinstance(own, str) else sorted(kinds)}
