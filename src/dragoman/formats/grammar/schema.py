"""Fits a JSON schema to the keywords of a validator, and validates values against one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import JSON


def find(root: JSON, pointer: JSON) -> JSON:
    """What a reference points to in a schema; None for one that points elsewhere.

    >>> find({"$defs": {"a/b": [{"type": "null"}]}}, "#/$defs/a~1b/0")
    {'type': 'null'}
    """
    place = root
    head, *steps = str(pointer).split("/")
    if head != "#":
        return None
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(step)
        elif isinstance(place, list) and step.isdecimal() and int(step) < len(place):
            place = place[int(step)]
        else:
            return None
    return place


# ---- fitting a schema to a validator -------------------------------------------------------

_DEEPEST = 100
"""Levels of a schema that are read; deeper ones are refused."""
_ONE = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "propertyNames"}
    | {"not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"}
)
_LIST = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset(
    {"type", "enum", "const", "$ref", "$dynamicRef", "$recursiveRef", "required", "dependencies"}
    | {"minProperties", "maxProperties", "dependentRequired", "minItems", "maxItems"}
    | {"uniqueItems", "minContains", "maxContains", "minLength", "maxLength", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
_CONSTRAINTS = _ONE | _LIST | _MAP | _VALUES
"""The keywords that constrain values; all others are annotations."""
_KNOWN_FORMATS = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_FORMATS = (
    _KNOWN_FORMATS
    | {"idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"}
    | {"json-pointer", "relative-json-pointer", "regex"}
)
"""The formats that JSON Schema defines. Any other is an annotation."""


class Target(Struct, frozen=True):
    """The keywords and formats of a validator.

    `closed`: every property must be listed as required, and no others are allowed. Else objects
    that list properties have no others unless the schema says so, so that a weak model comes to an
    end; what fits is still what was asked for.
    """

    keywords: frozenset[str]
    formats: frozenset[str]
    closed: bool = False


LLGUIDANCE = Target(
    _CONSTRAINTS
    - {"contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "dependencies"}
    - {"not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"}
    - {"dependentSchemas", "dependentRequired", "$dynamicRef", "$recursiveRef"},
    _KNOWN_FORMATS,
)
"""The grammars of token engines."""

OPENAI_STRICT = Target(
    frozenset({"type", "enum", "const", "$ref", "$defs", "definitions", "anyOf", "properties"})
    | {"required", "additionalProperties", "items", "minItems", "maxItems", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    _KNOWN_FORMATS - {"uri"},
    closed=True,
)
"""OpenAI's `strict` schemas."""


class Lost(Struct, frozen=True):
    """A keyword that a target does not have, and its place (`properties.a.not`)."""

    place: str
    keyword: str
    why: str = "cannot be enforced"


class Fitted(Struct, frozen=True):
    """The schema for a target, and its losses."""

    schema: dict[str, JSON]
    losses: tuple[Lost, ...]


def fit(schema: Mapping[str, JSON], target: Target) -> Fitted:
    """Rewrite a schema for a target. Keys keep their order, which is the order of the answer. The
    caller decides about the losses: a grammar refuses, a remote server may be sent less.

    >>> fitted = fit({"type": "array", "items": {"not": {}}, "uniqueItems": True}, LLGUIDANCE)
    >>> fitted.schema
    {'type': 'array', 'items': {}}
    >>> [loss.place for loss in fitted.losses]
    ['items.not', 'uniqueItems']
    """
    fitter = _Fitter(target, bound=not target.closed and not _joins(dict(schema)))
    fitted = fitter.schema(dict(schema), "", 0)
    return Fitted(fitted if isinstance(fitted, dict) else {}, tuple(fitter.losses))


def enforceable(schema: Mapping[str, JSON], param: str) -> dict[str, JSON]:
    """The schema for a grammar. Raises FaultError naming every keyword that cannot be enforced."""
    fitted = fit(schema, LLGUIDANCE)
    if fitted.losses:
        first, *others = fitted.losses
        also = f"; nor can {', '.join(loss.place for loss in others)}" if others else ""
        raise FaultError(bad_request(f"{first.why}{also}", f"{param}.{first.place}"))
    return fitted.schema


class _Fitter:
    def __init__(self, target: Target, *, bound: bool) -> None:
        self._target = target
        self._bound = bound
        self.losses: list[Lost] = []

    def schema(self, schema: JSON, place: str, depth: int) -> JSON:
        """A schema, fitted; true and false are schemas too."""
        if not isinstance(schema, dict):
            if not isinstance(schema, bool):
                self.losses.append(Lost(place, "", "is no schema"))
            return schema
        if depth > _DEEPEST:
            self.losses.append(Lost(place, "", "is nested too deeply"))
            return {}
        fitted: dict[str, JSON] = {}
        for keyword, value in schema.items():
            where = f"{place}.{keyword}" if place else keyword
            if keyword not in _CONSTRAINTS:
                if keyword != "x-guidance":  # which would be taken for an order
                    fitted[keyword] = value
            elif keyword not in self._target.keywords:
                if (keyword, value) not in _WITHOUT_EFFECT:
                    self.losses.append(Lost(where, keyword))
            elif keyword == "minProperties" and value not in (0, 1):
                # nothing stops a model from repeating a property
                self.losses.append(Lost(where, keyword))
            elif keyword == "format" and str(value) not in self._target.formats:
                if str(value) in _FORMATS:
                    self.losses.append(Lost(where, keyword, f"{value} cannot be enforced"))
            else:
                fitted[keyword] = self._inside(keyword, value, where, depth + 1)
        if self._bound and fitted.get("properties") and not fitted.keys() & _OPEN:
            fitted["additionalProperties"] = False
        return self._closed(fitted, place) if self._target.closed else fitted

    def _inside(self, keyword: str, value: JSON, place: str, depth: int) -> JSON:
        """The value of a keyword, with the schemas in it fitted."""
        if keyword in _MAP and isinstance(value, dict):
            return {n: self.schema(each, f"{place}.{n}", depth) for n, each in value.items()}
        if keyword in _LIST and isinstance(value, list):
            return [self.schema(v, f"{place}[{n}]", depth) for n, v in enumerate(value)]
        return self.schema(value, place, depth) if keyword in _ONE else value

    def _closed(self, schema: dict[str, JSON], place: str) -> dict[str, JSON]:
        """An object whose properties are all required, the optional ones nullable, and no others
        allowed."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return schema
        required = schema.get("required")
        for name in properties.keys() - set(required if isinstance(required, list) else ()):
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        if schema.get("additionalProperties") not in (None, False):
            where = f"{place}.additionalProperties".lstrip(".")
            self.losses.append(Lost(where, "additionalProperties"))
        return {**schema, "required": list(properties), "additionalProperties": False}


_WITHOUT_EFFECT = (("uniqueItems", False), ("unevaluatedProperties", True))
_OPEN = frozenset({"additionalProperties", "patternProperties"})
"""Keywords that say which other properties an object may have."""


def _joins(schema: JSON) -> bool:
    """Whether the properties of an object may come from several places: then none may exclude
    others."""
    for value in objects(schema):
        joined = "properties" in value and value.keys() & {"anyOf", "oneOf", "$ref"}
        if joined or "allOf" in value:
            return True
    return False


def objects(schema: JSON) -> Iterator[dict[str, JSON]]:
    """Every JSON object in a schema, however deep."""
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case dict() as value:
                yield value
                waiting += value.values()
            case list() as values:
                waiting += values


# ---- validating a value --------------------------------------------------------------------

Judge = Callable[[dict[str, JSON], str], bool]
"""Whether a text fits a string schema with a `pattern` or a `format`."""

_MOST = 100
"""References followed in a row before they count as a circle."""


def valid(value: JSON, schema: JSON, judge: Judge) -> bool:
    """Whether a value fits a schema, as far as a grammar can enforce it.

    >>> valid({"n": 3}, {"properties": {"n": {"maximum": 2}}}, lambda schema, text: True)
    False
    """
    return _Validator(schema, judge).fits(value, schema)


class _Validator:
    def __init__(self, root: JSON, judge: Judge) -> None:
        self._root = root
        self._judge = judge

    def fits(self, value: JSON, schema: JSON, steps: int = 0) -> bool:
        if not isinstance(schema, dict):
            return schema is True
        return all(self._checks(value, schema, steps))

    def _checks(self, value: JSON, schema: dict[str, Any], steps: int) -> Iterator[bool]:
        if "type" in schema:
            types = schema["type"]
            yield any(_is(value, t) for t in (types if isinstance(types, list) else [types]))
        if "enum" in schema:
            yield any(_same(value, each) for each in schema["enum"])
        if "const" in schema:
            yield _same(value, schema["const"])
        if "$ref" in schema:  # nothing fits a reference without a target
            yield steps < _MOST and self.fits(value, find(self._root, schema["$ref"]), steps + 1)
        for keyword, most in (("allOf", math.inf), ("anyOf", math.inf), ("oneOf", 1)):
            if keyword in schema:
                fits = [self.fits(value, each, steps) for each in schema[keyword]]
                least = len(fits) if keyword == "allOf" else 1
                yield least <= fits.count(True) <= most
        match value:
            case dict():
                yield all(name in value for name in schema.get("required", ()))
                yield _between(len(value), schema, "minProperties", "maxProperties")
                listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
                for name, each in value.items():
                    known = [listed[name]] if name in listed else []
                    for pattern, inner in patterns.items():
                        if self._judge({"type": "string", "pattern": pattern}, name):
                            known.append(inner)
                    for inner in known or [schema.get("additionalProperties", True)]:
                        yield self.fits(each, inner)
            case list():
                yield _between(len(value), schema, "minItems", "maxItems")
                first, rest = schema.get("prefixItems", []), schema.get("items", True)
                if isinstance(rest, list):  # as in older drafts
                    first, rest = rest, schema.get("additionalItems", True)
                for place, each in enumerate(value):
                    yield self.fits(each, first[place] if place < len(first) else rest)
            case str():
                yield _between(len(value), schema, "minLength", "maxLength")
                leaf = {name: schema[name] for name in schema if name in ("pattern", "format")}
                yield not leaf or self._judge({"type": "string", **leaf}, value)
            case int() | float() if not isinstance(value, bool):
                step = schema.get("multipleOf")
                yield _between(value, schema, "minimum", "maximum", -math.inf)
                yield "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
                yield "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]
                yield not step or math.isclose(value / step, round(value / step), rel_tol=1e-9)


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


def _between(number: float, schema: dict[str, Any], low: str, high: str, least: float = 0) -> bool:
    return bool(schema.get(low, least) <= number <= schema.get(high, math.inf))
