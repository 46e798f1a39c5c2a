"""Fits a JSON schema to what a grammar can enforce, and validates values against one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import JSON

KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
"""The names of JSON's types in schemas."""


def read_json(text: str, otherwise: JSON = None, *, strict: bool = True) -> JSON:
    """The value of a JSON text, or `otherwise` where it is none."""
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return otherwise


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


# ---- fitting a schema to the grammars of token engines -------------------------------------

_DEEPEST = 100
"""Levels of a schema that are read; deeper ones are refused."""
_ONE = frozenset({"items", "additionalItems", "additionalProperties"})
_LIST = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions"})
NOT_ENFORCED = frozenset(
    {"contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "dependencies"}
    | {"not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"}
    | {"dependentSchemas", "dependentRequired", "$dynamicRef", "$recursiveRef"}
)
"""The keywords that constrain values and that llguidance does not have."""
FORMATS = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_FORMATS_NOT_ENFORCED = frozenset(
    {"idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"}
    | {"json-pointer", "relative-json-pointer", "regex"}
)
MAX_CHARACTERS = 262_144
"""The most characters of a schema's keys and texts, and of its other values one each."""
MAX_REFERENCES = 200
"""The most references that lead from one to the next: each takes stack of the compiler."""
MAX_OPTIONAL = 400
"""The most optional properties of an object: any of them may come next, at each token."""
MAX_STEP = 10_000
"""The greatest `multipleOf`: so many remainders are told apart."""
MAX_ENTRIES = {
    "enum": 10_000,
    "anyOf": 1_000,
    "oneOf": 1_000,
    "allOf": 100,
    "prefixItems": 1_000,
    "properties": 2_000,
    "patternProperties": 32,
    "pattern": 4_096,
    "required": 2_000,
}
"""How many values, alternatives, properties or characters a keyword may have. Beyond these,
compiling takes seconds and every token of the answer long."""
_WITHOUT_EFFECT = (("uniqueItems", False), ("unevaluatedProperties", True))
_OPEN = frozenset({"additionalProperties", "patternProperties"})
"""Keywords that say which other properties an object may have."""


def enforceable(schema: Mapping[str, JSON], param: str) -> dict[str, JSON]:
    """The schema for a grammar. Keys keep their order, which is the order of the answer. Raises
    FaultError naming, by its place (`properties.a.not`), every keyword that cannot be enforced.

    Objects that list properties have no others unless the schema says so, so that a weak model
    comes to an end; what fits is still what was asked for.

    >>> enforceable({"properties": {"a": {}}, "minItems": 1}, "format.schema")
    {'properties': {'a': {}}, 'minItems': 1, 'additionalProperties': False}
    """
    if (problem := _too_large(schema)) is not None:
        raise FaultError(bad_request(problem, param))
    losses: list[tuple[str, str]] = []  # the place of what is lost, and why
    fitted = _fitted(dict(schema), "", losses, bound=not _joins(dict(schema)))
    if losses:
        (place, why), *others = losses
        also = f"; nor can {', '.join(place for place, _ in others)}" if others else ""
        raise FaultError(bad_request(f"{why}{also}", f"{param}.{place}"))
    return fitted if isinstance(fitted, dict) else {}


def _fitted(
    schema: JSON, place: str, losses: list[tuple[str, str]], *, bound: bool, depth: int = 0
) -> JSON:
    """A schema without what is lost; true and false are schemas too."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        if not isinstance(schema, bool):
            nested = isinstance(schema, dict)
            losses.append((place, "is nested too deeply" if nested else "is no schema"))
        return schema
    fit = partial(_fitted, losses=losses, bound=bound, depth=depth + 1)
    fitted: dict[str, JSON] = {}
    for keyword, value in schema.items():
        where = f"{place}.{keyword}" if place else keyword
        most = MAX_ENTRIES.get(keyword)
        if most is not None and isinstance(value, list | dict | str) and len(value) > most:
            losses.append((where, f"has {len(value)} entries, and {most} are the most here"))
        elif keyword in NOT_ENFORCED:
            if (keyword, value) not in _WITHOUT_EFFECT:
                losses.append((where, "cannot be enforced"))
        elif keyword == "minProperties" and value not in (0, 1):
            # nothing stops a model from repeating a property
            losses.append((where, "cannot be enforced"))
        elif keyword == "multipleOf" and isinstance(value, int) and value > MAX_STEP:
            losses.append((where, f"is {value}, and {MAX_STEP} is the most here"))
        elif keyword == "format" and str(value) not in FORMATS:
            if str(value) in _FORMATS_NOT_ENFORCED:
                losses.append((where, f"{value} cannot be enforced"))
        elif keyword in _MAP and isinstance(value, dict):
            fitted[keyword] = {name: fit(each, f"{where}.{name}") for name, each in value.items()}
            must = schema.get("required")
            optional = len(value) - len(must if isinstance(must, list) else ())
            if keyword == "properties" and optional > MAX_OPTIONAL:
                problem = f"has {optional} that are optional, and {MAX_OPTIONAL} are the most here"
                losses.append((where, problem))
        elif keyword in _LIST and isinstance(value, list):
            fitted[keyword] = [fit(each, f"{where}[{n}]") for n, each in enumerate(value)]
        elif keyword in _ONE:
            fitted[keyword] = fit(value, where)
        elif keyword != "x-guidance":  # which would be taken for an order
            fitted[keyword] = value
    if bound and fitted.get("properties") and not fitted.keys() & _OPEN:
        fitted["additionalProperties"] = False
    return fitted


def _too_large(schema: Mapping[str, JSON]) -> str | None:
    """What is wrong with the size of a schema, if anything. References are followed in the order of
    the compiler, each once."""
    room, followed = MAX_CHARACTERS, {"#"}
    waiting: list[tuple[JSON, int]] = [(dict(schema), 0)]
    while waiting:
        value, chain = waiting.pop()
        match value:
            case dict():
                room -= sum(map(len, value))
                waiting.extend((each, chain) for each in value.values())
                target = value.get("$ref")
                if isinstance(target, str) and target not in followed:
                    followed.add(target)
                    waiting.append((find(dict(schema), target), chain + 1))
            case list():
                waiting.extend((each, chain) for each in value)
            case str():
                room -= len(value)
        room -= 1
        if room < 0:
            return f"is too large: {MAX_CHARACTERS} characters are the most of a schema"
        if chain > MAX_REFERENCES:
            return f"follows more than {MAX_REFERENCES} references, one from the next"
    return None


def _joins(schema: JSON) -> bool:
    """Whether the properties of an object may come from several places: then none may exclude
    others."""
    return any(
        "allOf" in value or ("properties" in value and value.keys() & {"anyOf", "oneOf", "$ref"})
        for value in objects(schema)
    )


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


def valid(
    value: JSON, schema: JSON, judge: Judge, root: JSON | None = None, steps: int = 0
) -> bool:
    """Whether a value fits a schema, as far as a grammar can enforce it. References are found in
    `root`, by default the schema itself; `steps` of them were followed in a row.

    >>> valid({"n": 3}, {"properties": {"n": {"maximum": 2}}}, lambda schema, text: True)
    False
    """
    if not isinstance(schema, dict):
        return schema is True
    return all(_checks(value, schema, judge, schema if root is None else root, steps))


def _checks(
    value: JSON, schema: dict[str, Any], judge: Judge, root: JSON, steps: int
) -> Iterator[bool]:
    if "type" in schema:
        types = schema["type"]
        yield any(_is(value, t) for t in (types if isinstance(types, list) else [types]))
    if "enum" in schema:
        yield any(_same(value, each) for each in schema["enum"])
    if "const" in schema:
        yield _same(value, schema["const"])
    if "$ref" in schema:  # nothing fits a reference without a target
        yield steps < _MOST and valid(value, find(root, schema["$ref"]), judge, root, steps + 1)
    for keyword, most in (("allOf", math.inf), ("anyOf", math.inf), ("oneOf", 1)):
        if keyword in schema:
            fits = [valid(value, each, judge, root, steps) for each in schema[keyword]]
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
                    if judge({"type": "string", "pattern": pattern}, name):
                        known.append(inner)
                for inner in known or [schema.get("additionalProperties", True)]:
                    yield valid(each, inner, judge, root)
        case list():
            yield _between(len(value), schema, "minItems", "maxItems")
            first, rest = schema.get("prefixItems", []), schema.get("items", True)
            if isinstance(rest, list):  # as in older drafts
                first, rest = rest, schema.get("additionalItems", True)
            for place, each in enumerate(value):
                yield valid(each, first[place] if place < len(first) else rest, judge, root)
        case str():
            yield _between(len(value), schema, "minLength", "maxLength")
            leaf = {name: schema[name] for name in schema if name in ("pattern", "format")}
            yield not leaf or judge({"type": "string", **leaf}, value)
        case int() | float() if not isinstance(value, bool):
            step = schema.get("multipleOf")
            yield _between(value, schema, "minimum", "maximum", -math.inf)
            yield "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
            yield "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]
            yield not step or math.isclose(value / step, round(value / step), rel_tol=1e-9)


def _is(value: JSON, kind: JSON) -> bool:
    own = KINDS[type(value)]
    whole = own == "number" and kind == "integer" and float(value).is_integer()
    return whole or kind in (own, "number" if own == "integer" else own)


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
