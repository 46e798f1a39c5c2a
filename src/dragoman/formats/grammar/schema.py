"""Fits a JSON schema to the keywords of a strict validator.

`fit` returns the schema to send, and every keyword that is lost, by its place. The caller decides
about the losses: a grammar refuses, a remote server may be sent less.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import JSON

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

    `closed`: every property must be listed as required, and no others are allowed. `bounded`:
    objects that list properties have no others unless the schema says so, so that a weak model
    comes to an end; what fits is still what was asked for.
    """

    name: str
    keywords: frozenset[str]
    formats: frozenset[str]
    closed: bool = False
    bounded: bool = False


LLGUIDANCE = Target(
    "llguidance",
    _CONSTRAINTS
    - {"contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "dependencies"}
    - {"not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"}
    - {"dependentSchemas", "dependentRequired", "$dynamicRef", "$recursiveRef"},
    _KNOWN_FORMATS,
    bounded=True,
)
"""The grammars of token engines."""

OPENAI_STRICT = Target(
    "openai-strict",
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
    """Rewrite a schema for a target. Keys keep their order, which is the order of the answer.

    >>> fitted = fit({"type": "array", "items": {"not": {}}, "uniqueItems": True}, LLGUIDANCE)
    >>> fitted.schema
    {'type': 'array', 'items': {}}
    >>> [loss.place for loss in fitted.losses]
    ['items.not', 'uniqueItems']
    """
    fitter = _Fitter(target, bound=target.bounded and not _joins(dict(schema)))
    fitted = fitter.schema(dict(schema), "", 0)
    return Fitted(fitted if isinstance(fitted, dict) else {}, tuple(fitter.losses))


def enforceable(schema: Mapping[str, JSON], param: str) -> dict[str, JSON]:
    """The schema for a grammar. Raises FaultError naming every keyword that cannot be enforced."""
    fitted = fit(schema, LLGUIDANCE)
    if fitted.losses:
        first, places = fitted.losses[0], [loss.place for loss in fitted.losses]
        others = f"; nor can {', '.join(places[1:])}" if len(places) > 1 else ""
        raise FaultError(bad_request(f"{first.why}{others}", f"{param}.{first.place}"))
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
                self._lose(place, "", "is no schema")
            return schema
        if depth > _DEEPEST:
            self._lose(place, "", "is nested too deeply")
            return {}
        fitted: dict[str, JSON] = {}
        for keyword, value in schema.items():
            where = f"{place}.{keyword}" if place else keyword
            if keyword not in _CONSTRAINTS:
                if keyword != "x-guidance":  # which would be taken for an order
                    fitted[keyword] = value
            elif keyword not in self._target.keywords:
                if _says_something(keyword, value):
                    self._lose(where, keyword)
            elif keyword == "minProperties" and value not in (0, 1):
                self._lose(where, keyword)  # nothing keeps a model from repeating a property
            elif keyword != "format" or self._format(value, where):
                fitted[keyword] = self._inside(keyword, value, where, depth + 1)
        if self._bound and fitted.get("properties") and not fitted.keys() & _OPEN:
            fitted["additionalProperties"] = False
        return self._closed(fitted, place) if self._target.closed else fitted

    def _inside(self, keyword: str, value: JSON, place: str, depth: int) -> JSON:
        """The value of a keyword, with the schemas in it fitted."""
        if keyword in _MAP and isinstance(value, dict):
            return {
                name: self.schema(each, f"{place}.{name}", depth) for name, each in value.items()
            }
        if keyword in _LIST and isinstance(value, list):
            return [self.schema(v, f"{place}[{n}]", depth) for n, v in enumerate(value)]
        if keyword in _ONE:
            return self.schema(value, place, depth)
        return value

    def _format(self, name: JSON, place: str) -> bool:
        """Whether a format is kept."""
        if name in _FORMATS and name not in self._target.formats:
            self._lose(place, "format", f"{name} cannot be enforced")
        return name in self._target.formats

    def _closed(self, schema: dict[str, JSON], place: str) -> dict[str, JSON]:
        """An object whose properties are all required, the optional ones nullable, and no others
        allowed."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return schema
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        for name in properties.keys() - set(required):
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        if schema.get("additionalProperties") not in (None, False):
            self._lose(f"{place}.additionalProperties".lstrip("."), "additionalProperties")
        return {**schema, "required": list(properties), "additionalProperties": False}

    def _lose(self, place: str, keyword: str, why: str = "cannot be enforced") -> None:
        self.losses.append(Lost(place, keyword, why))


def _says_something(keyword: str, value: JSON) -> bool:
    """Whether a keyword constrains anything with this value."""
    return (keyword, value) not in (("uniqueItems", False), ("unevaluatedProperties", True))


_OPEN = frozenset({"additionalProperties", "patternProperties"})
"""Keywords that say which other properties an object may have."""


def _joins(schema: JSON) -> bool:
    """Whether the properties of an object may come from several places: then none may exclude
    others."""
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case dict() as value:
                joined = "properties" in value and value.keys() & {"anyOf", "oneOf", "$ref"}
                if joined or "allOf" in value:
                    return True
                waiting += value.values()
            case list() as values:
                waiting += values
    return False
