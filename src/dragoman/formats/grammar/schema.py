"""Fits a JSON schema to what a grammar can enforce, and validates values against one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import Any

from msgspec import Struct

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


_NUMBER = re.compile("[0-9]{1,9}")


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
        elif isinstance(place, list) and _NUMBER.fullmatch(step) and int(step) < len(place):
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
_DAY = (  # of the Gregorian calendar
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-"
    r"(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}"
    r"(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = (  # leap seconds are few, and of no hour; a small model goes on with digits for ever
    r"[0-9]{2}:[0-9]{2}:[0-5][0-9](?:\.[0-9]{1,9})?[Zz+-]"
)
_LABEL = "(?:[^.]{1,2}|[^.]{2}[^.-][^.]*|[^.]{3}(?:[^.-][^.]*)?)"  # of no other alphabet
_HEX, _BYTE = "[0-9A-Fa-f]{1,4}", "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LAST = rf"(?:{_HEX}:{_HEX}|{_BYTE}(?:\.{_BYTE}){{3}})"
_IPV6 = "|".join(
    [f"(?:{_HEX}:){{6}}{_LAST}", f"::(?:{_HEX}:){{5}}{_LAST}"]
    + [f"(?:(?:{_HEX}:){{0,{n}}}{_HEX})?::(?:{_HEX}:){{{4 - n}}}{_LAST}" for n in range(5)]
    + [f"(?:(?:{_HEX}:){{0,5}}{_HEX})?::{_HEX}", f"(?:(?:{_HEX}:){{0,6}}{_HEX})?::"]
)
_USER, _HOST, _STEP, _QUERY = (
    rf"(?:[A-Za-z0-9._~!$&'()*+,;={more}-]|%[0-9A-Fa-f]{{2}})" for more in (":", "", ":@", ":@/?")
)
_URI = (
    rf"^[A-Za-z][A-Za-z0-9+.-]*:(?://(?:{_USER}*@)?(?:\[(?:{_IPV6})\]|{_HOST}*)(?::[0-9]*)?(?:/{_STEP}*)*|"
    rf"/?(?:{_STEP}+(?:/{_STEP}*)*)?)(?:\?{_QUERY}*)?(?:#{_QUERY}*)?$"
)
_EXACT: dict[str, dict[str, JSON]] = {
    "date": {"pattern": f"^{_DAY}$"},
    "time": {"pattern": f"^{_TIME}"},
    "date-time": {"pattern": f"^{_DAY}[Tt ]{_TIME}"},
    "hostname": {"pattern": rf"^{_LABEL}(?:\.{_LABEL})*$", "maxLength": 253},
    "uri": {"pattern": _URI},
}
"""What a grammar's own formats leave out, and one that the llguidance of llama.cpp does not have:
there a grammar that does not compile is passed over in silence."""
MAX_CHARACTERS = 262_144
"""The most characters of a schema's keys and texts, and of its other values one each."""
SHOWN = 8
"""Places that a refusal names beside the first."""
MAX_REFERENCES = 200
"""The most references that lead from one to the next: each takes stack of the compiler."""
MAX_LEVELS = 2_000
"""Levels of JSON in a schema, and in what it refers to: they take stack, too."""
MAX_OPTIONAL = 400
"""The most optional properties of an object: any of them may come next, at each token."""
MAX_COMPARED = 20_000
"""How many alternatives of `oneOf`, parts of them and values are compared to tell them apart."""
_LEAST = 1e-15
"""The least number of an answer that must be above 0."""
MAX_STEP = 10_000
"""The greatest `multipleOf`: the grammar has a state for each remainder."""
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


class Misfit(Struct, frozen=True):
    """What of a schema cannot be enforced: its place (`properties.a.not`), and why. `wrong` is what
    no schema may say."""

    place: str
    why: str
    wrong: bool = False


def enforceable(schema: Mapping[str, JSON], param: str, *, strict: bool = True) -> dict[str, JSON]:
    """The schema for a grammar. Keys keep their order, which is the order of the answer. Raises
    FaultError naming, by its place, every keyword that cannot be enforced; where it is not `strict`
    only what is wrong.

    Objects that list properties have no others unless the schema says so, so that a weak model
    comes to an end; what fits is still what was asked for.

    >>> enforceable({"properties": {"a": {}}, "minItems": 1}, "format.schema")
    {'properties': {'a': {}}, 'minItems': 1, 'additionalProperties': False}
    """
    if (problem := too_large(schema)) is not None:
        raise FaultError(bad_request(problem, param))
    fitted, misfits = fitting(schema)
    if first := next((each for each in misfits if strict or each.wrong), None):
        others = [each.place for each in misfits if each is not first]
        also = f"; nor can {', '.join(others[:SHOWN])}"[:300] if others else ""
        also += f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        raise FaultError(bad_request(f"{first.why[:300]}{also}", f"{param}.{first.place}"[:300]))
    return fitted


def fitting(schema: Mapping[str, JSON]) -> tuple[dict[str, JSON], list[Misfit]]:
    """What of a schema a grammar can enforce, and what it cannot."""
    whole = _Whole(dict(schema))
    fitted = _fitted(whole.root, "", whole)
    if not any(misfit.wrong for misfit in whole.misfits):
        whole.misfits += filter(None, starmap(whole.overlap, whole.choices))
    return fitted if isinstance(fitted, dict) else {}, whole.misfits


class _Whole:
    """A schema being fitted: what does not fit, and the `choices` of which one must."""

    def __init__(self, root: dict[str, JSON]) -> None:
        self.root = root
        self.bound = not _joins(root)
        self.identified = any("$id" in each for each in objects(root))
        self.misfits: list[Misfit] = []
        self.choices: list[tuple[str, list[JSON]]] = []
        self._room = MAX_COMPARED
        self._validator = _Validator(root, lambda *_: True, MAX_COMPARED)
        self._compared: dict[tuple[int, int], bool] = {}

    def overlap(self, place: str, schemas: list[JSON]) -> Misfit | None:
        """Two of the schemas that a value may fit both, as far as is known."""
        if self._have_kinds(schemas):
            return None
        for one, left in enumerate(schemas):
            for other, right in enumerate(schemas):
                if one != other and not self.apart(left, right, 16):
                    pair = f"{min(one, other)} and {max(one, other)}"
                    why = f"{pair} may both fit, and that only one does cannot be enforced"
                    return Misfit(place, f"{why}: write anyOf, or tell them apart")
        return None

    def _have_kinds(self, schemas: list[JSON]) -> bool:
        """Whether all are objects that must have one property, which is another value in each."""
        values: dict[str, list[str]] = {}
        for schema in schemas:
            match find(self.root, schema["$ref"]) if _is_reference(schema) else schema:
                case {"type": "object", "properties": dict(listed), "required": list(must)}:
                    for name in must:
                        match listed.get(name):
                            case {"const": str() | int() as one} | {"enum": [str() | int() as one]}:
                                values.setdefault(name, []).append(f"{one!r}")
        return any(len({*texts}) == len(texts) == len(schemas) for texts in values.values())

    def apart(self, left: JSON, right: JSON, depth: int) -> bool:
        """Whether no answer to the left schema fits the right one. Where they are bound, an answer
        has no properties but those that are listed."""
        known = self._compared.get((id(left), id(right)))
        if known is None:
            known = self._compared[id(left), id(right)] = self._apart(left, right, depth)
        return known

    def _apart(self, left: JSON, right: JSON, depth: int) -> bool:
        self._room -= 1
        if left is False or right is False:
            return True
        if not (isinstance(left, dict) and isinstance(right, dict) and depth and self._room > 0):
            return False
        apart = partial(self.apart, depth=depth - 1)
        for each in ("$ref", "allOf", "anyOf", "oneOf"):  # one part of a schema may tell it apart
            every = all if each in ("anyOf", "oneOf") else any
            if each in left and every(apart(part, right) for part in self._parts(left[each])):
                return True
            if each in right and every(apart(left, part) for part in self._parts(right[each])):
                return True
        for one, other in ((left, right), (right, left)):
            if "const" in one or "enum" in one:
                values = one.get("enum", [one.get("const")])
                sizes = (1 + len(each.get("enum", ())) for each in objects(other))
                self._room -= len(values) * sum(sizes)
                fits = (self._validator.valid(value, other) for value in values)
                with suppress(UndecidedError, RecursionError):
                    return self._room > 0 and not any(fits)
                return False
        kinds = _kinds(left) & _kinds(right)
        return all(_told_apart(kind, left, right, apart, self.bound) for kind in kinds)

    def _parts(self, value: JSON) -> list[JSON]:
        return value if isinstance(value, list) else [find(self.root, value)]


def _is_reference(schema: JSON) -> bool:
    return isinstance(schema, dict) and schema.keys() == {"$ref"}


def _fitted(schema: JSON, place: str, whole: _Whole, depth: int = 0) -> JSON:
    """A schema without what is lost; true and false are schemas too."""
    losses = whole.misfits
    if not isinstance(schema, dict) or depth > _DEEPEST:
        if not isinstance(schema, bool):
            nested = isinstance(schema, dict)
            losses.append(Misfit(place, "is nested too deeply" if nested else "is no schema", True))
        return schema
    fit = partial(_fitted, whole=whole, depth=depth + 1)
    fitted: dict[str, JSON] = {}
    for keyword, value in schema.items():
        where = f"{place}.{keyword}" if place else keyword
        most = MAX_ENTRIES.get(keyword)
        if wrong := _wrong(keyword, value, whole):
            losses.append(Misfit(where, wrong, True))
        elif most is not None and isinstance(value, list | dict | str) and len(value) > most:
            problem = f"has {len(value)} entries, and {most} are the most here"
            losses.append(Misfit(where, problem, True))
        elif keyword in NOT_ENFORCED:
            if (keyword, value) not in _WITHOUT_EFFECT:
                losses.append(Misfit(where, "cannot be enforced"))
        elif keyword in ("const", "enum") and _has_large(value):
            losses.append(Misfit(where, "has a whole number above 2^53, which cannot be enforced"))
        elif keyword == "minProperties" and value not in (0, 1):
            # nothing stops a model from repeating a property
            losses.append(Misfit(where, "cannot be enforced"))
        elif keyword in ("pattern", "patternProperties") and (found := _looking(value)):
            losses.append(Misfit(where, f"{found[0]} cannot be enforced in a regular expression"))
        elif keyword == "multipleOf" and isinstance(value, int) and value > MAX_STEP:
            losses.append(Misfit(where, f"is {value}, and {MAX_STEP} is the most here", True))
        elif keyword == "format" and str(value) not in FORMATS:
            if str(value) in _FORMATS_NOT_ENFORCED:
                losses.append(Misfit(where, f"{value} cannot be enforced"))
        elif keyword in _MAP and isinstance(value, dict):
            fitted[keyword] = {name: fit(each, f"{where}.{name}") for name, each in value.items()}
            must = schema.get("required")
            optional = len(value) - len(must if isinstance(must, list) else ())
            if keyword == "properties" and optional > MAX_OPTIONAL:
                problem = f"has {optional} that are optional, and {MAX_OPTIONAL} are the most here"
                losses.append(Misfit(where, problem, True))
        elif keyword in _LIST and isinstance(value, list):
            fitted[keyword] = [fit(each, f"{where}[{n}]") for n, each in enumerate(value)]
            if keyword == "oneOf":
                whole.choices.append((where, value))
        elif keyword in _ONE:
            fitted[keyword] = fit(value, where)
        elif keyword != "x-guidance":  # which would be taken for an order
            fitted[keyword] = value
    if whole.bound and fitted.get("properties") and not fitted.keys() & _OPEN:
        fitted["additionalProperties"] = False
    if fitted.get("type") != "integer":  # llguidance takes 0 for a number above 0 and below 1
        if fitted.get("exclusiveMinimum") == 0:
            del fitted["exclusiveMinimum"]
            fitted["minimum"] = max(fitted.get("minimum", _LEAST), _LEAST)
        if fitted.get("exclusiveMaximum") == 0:
            del fitted["exclusiveMaximum"]
            fitted["maximum"] = min(fitted.get("maximum", -_LEAST), -_LEAST)
    if exact := _EXACT.get(str(fitted.get("format"))):
        fitted["allOf"] = [*fitted.get("allOf", ()), exact]
        if fitted["format"] == "uri":
            del fitted["format"]
    return fitted


_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LOOKING = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")
"""What looks around, or back at a group: no automaton does."""
_RUST = re.compile(r"\\[pPxz]|\[\[|&&|\|\||--|~~|\(\?")
"""What regular expressions in grammars have, or write, in another way than Python's."""


def _looking(value: JSON) -> re.Match[str] | None:
    """What looks around in a pattern, or in those of properties."""
    patterns = [value] if isinstance(value, str) else value
    return next(filter(None, map(_LOOKING.search, patterns)), None)


def _has_large(value: JSON) -> bool:
    """Whether it has a whole number that is another one as a float, which llguidance writes."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case int(number) if abs(number) > 2**53:
                return True
            case list(values):
                waiting += values
            case dict() as members:
                waiting += members.values()
    return False


def _wrong(keyword: str, value: JSON, whole: _Whole) -> str | None:
    """What is wrong with the value of a keyword, whatever can be enforced."""
    number = isinstance(value, int | float) and -math.inf < value < math.inf
    match keyword:
        case "type":
            kinds = value if isinstance(value, list) else [value]
            known = kinds and all(kind in KINDS.values() for kind in kinds)
            return None if known else "must be a type of JSON, or a list of them"
        case "required" | "prefixItems" if not isinstance(value, list):
            return "must be a list"
        case "enum" | "anyOf" | "oneOf" | "allOf" if not isinstance(value, list) or not value:
            return "must be a list with something in it"
        case _ if keyword in _MAP and not isinstance(value, dict):
            return "must be an object"
        case _ if keyword in _COUNTS and not (number and value >= 0 and value == int(value)):
            return "must be a number of things: 0, 1, 2 …"
        case _ if keyword in _BOUNDS and not number:
            return "must be a number"
        case "multipleOf" if not number or value <= 0:
            return "must be a number above 0"
        case "pattern" if not isinstance(value, str):
            return "must be a text"
        case "pattern" if not (_RUST.search(value) or _LOOKING.search(value)):
            try:
                re.compile(value)
            except (re.error, RecursionError, OverflowError) as error:
                return f"is no regular expression: {error}"
        case "patternProperties":
            wrong = ((name, _wrong("pattern", name, whole)) for name in value)
            return next((f"{name} {why}" for name, why in wrong if why), None)
        case "$ref":
            inside = str(value).startswith("#/") and "%" not in str(value)
            other = not str(value).startswith("#")
            missing = inside and find(whole.root, value) is None
            if missing or (other and not whole.identified):
                return f"{value} is not in the schema"
    return None


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    """The types that a schema allows, a number that is whole among them."""
    kinds = schema.get("type", list(KINDS.values()))
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    return found | {"integer"} if "number" in found else found


def _told_apart(
    kind: str,
    left: dict[str, Any],
    right: dict[str, Any],
    apart: Callable[[JSON, JSON], bool],
    closed: bool,
) -> bool:
    """Whether values of one type cannot fit both schemas."""
    if kind == "object":
        mine, other = left.get("properties", {}), right.get("properties", {})
        must = {*left.get("required", ()), *right.get("required", ())}
        shut = closed and mine and not left.keys() & _OPEN
        return any(
            apart(
                mine.get(name, not shut), other.get(name, right.get("additionalProperties", True))
            )
            for name in must
            if "patternProperties" not in left and "patternProperties" not in right
        )
    if kind in ("integer", "number"):
        low, high = "minimum", "maximum"
    else:
        what = {"string": "Length", "array": "Items"}.get(kind)
        low, high = f"min{what}", f"max{what}"
    return any(
        one.get(low, -math.inf) > other.get(high, math.inf)
        for one, other in ((left, right), (right, left))
    )


def too_large(schema: Mapping[str, JSON]) -> str | None:
    """What is wrong with the size of a schema, if anything. References are followed in the order of
    the compiler, each once."""
    root, room, followed = dict(schema), MAX_CHARACTERS, {"#"}
    waiting: list[tuple[JSON, int, int]] = [(root, 0, 0)]
    while waiting:
        value, chain, level = waiting.pop()
        match value:
            case dict():
                room -= sum(map(len, value))
                waiting.extend((each, chain, level + 1) for each in value.values())
                target = value.get("$ref")
                if isinstance(target, str) and target not in followed:
                    followed.add(target)
                    waiting.append((find(root, target), chain + 1, level + 1))
            case list():
                waiting.extend((each, chain, level + 1) for each in value)
            case str():
                room -= len(value)
        room -= 1
        if room < 0:
            return f"is too large: {MAX_CHARACTERS} characters are the most of a schema"
        if chain > MAX_REFERENCES:
            return f"follows more than {MAX_REFERENCES} references, one from the next"
        if level > MAX_LEVELS:
            return f"has more than {MAX_LEVELS} levels, with those it refers to"
    return None


def _joins(schema: JSON) -> bool:
    """Whether the properties of an object may come from several places: then none may exclude
    others."""
    return any(
        "allOf" in value or ("properties" in value and value.keys() & {"anyOf", "oneOf", "$ref"})
        for value in objects(schema)
    )


def check_properties(schema: JSON, param: str) -> None:
    """Raise FaultError where properties, of the schema or of what is in it, are no schemas.

    >>> check_properties({"properties": {"a": {"items": {"properties": {"b": True}}}}}, "schema")
    """
    waiting = [(schema, param)]
    while waiting:
        value, place = waiting.pop()
        if not isinstance(value, dict):
            continue
        if "items" in value:
            waiting.append((value["items"], f"{place}.items"))
        properties, where = value.get("properties", {}), f"{place}.properties"
        if not isinstance(properties, dict):
            raise FaultError(bad_request("must be an object of schemas", where[:300]))
        for name, each in properties.items():
            if not isinstance(each, dict | bool):
                raise FaultError(bad_request("is no schema", f"{where}.{name}"[:300]))
            waiting.append((each, f"{where}.{name}"))


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


def inside(
    schema: dict[str, JSON], root: JSON, place: str
) -> Iterator[tuple[str, dict[str, JSON]]]:
    """The schemas directly in a schema, and the one it refers to, with their places.

    >>> list(inside({"items": {"$ref": "#/$defs/a"}}, {}, ".b"))
    [('.b.items', {'$ref': '#/$defs/a'})]
    """
    found: list[tuple[str, JSON]] = []
    for keyword, value in schema.items():
        where = f"{place}.{keyword}"
        if keyword == "$ref":
            found.append((str(value)[1:].replace("/", "."), find(root, value)))
        elif isinstance(value, list) and keyword in _LIST:
            found += [(f"{where}[{number}]", each) for number, each in enumerate(value)]
        elif isinstance(value, dict) and keyword in ("properties", "patternProperties"):
            found += [(f"{where}.{name}", each) for name, each in value.items()]
        elif keyword in _ONE:
            found.append((where, value))
    return ((where, each) for where, each in found if isinstance(each, dict))


# ---- validating a value --------------------------------------------------------------------

Judge = Callable[[dict[str, JSON], str], bool]
"""Whether a text fits a string schema with a `pattern` or a `format`."""

MAX_CHECKS = 200_000
"""Schemas that are applied to a value and what is in it, and values that are compared: each of two
alternatives may have two."""


_OF_MANY, _JUDGED = 50, 50
"""What counts as so many: to compare a list or an object, to match a pattern."""


class UndecidedError(ValueError):
    """It takes too long to find out whether a value fits a schema."""


def valid(value: JSON, schema: JSON, judge: Judge, root: JSON | None = None) -> bool:
    """Whether a value fits a schema, as far as a grammar can enforce it. References are found in
    `root`, by default the schema itself. Raises UndecidedError.

    >>> valid({"n": 3}, {"properties": {"n": {"maximum": 2}}}, lambda schema, text: True)
    False
    """
    return _Validator(schema if root is None else root, judge).valid(value, schema)


class _Validator:
    """Validates values; `followed` are the references that led to a schema for the same value."""

    def __init__(self, root: JSON, judge: Judge, most: int = MAX_CHECKS) -> None:
        self._root, self._judge, self._left = root, judge, most

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise UndecidedError("a value and its schema take too many comparisons")

    def valid(self, value: JSON, schema: JSON, followed: frozenset[str] = frozenset()) -> bool:
        self._spend(1)
        if not isinstance(schema, dict):
            return schema is True
        return all(self._checks(value, schema, followed))

    def _checks(
        self, value: JSON, schema: dict[str, Any], followed: frozenset[str]
    ) -> Iterator[bool]:
        valid = self.valid
        if "type" in schema:
            types = schema["type"]
            yield any(_is(value, t) for t in (types if isinstance(types, list) else [types]))
        each_takes = _OF_MANY if isinstance(value, list | dict) else 1
        if "enum" in schema:
            self._spend(each_takes * len(schema["enum"]))
            yield any(_same(value, each) for each in schema["enum"])
        if "const" in schema:
            self._spend(each_takes)
            yield _same(value, schema["const"])
        if "$ref" in schema:  # nothing fits one without a target, nor a circle
            to = str(schema["$ref"])
            yield to not in followed and valid(value, find(self._root, to), followed | {to})
        for keyword, most in (("allOf", math.inf), ("anyOf", math.inf), ("oneOf", 1)):
            if keyword in schema:
                fits = [valid(value, each, followed) for each in schema[keyword]]
                least = len(fits) if keyword == "allOf" else 1
                yield least <= fits.count(True) <= most
        match value:
            case dict():
                yield all(name in value for name in schema.get("required", ()))
                yield _between(len(value), schema, "minProperties", "maxProperties")
                listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
                for name, each in value.items():
                    known = [listed[name]] if name in listed else []
                    self._spend(_JUDGED * len(patterns))
                    for pattern, inner in patterns.items():
                        if self._judge({"type": "string", "pattern": pattern}, name):
                            known.append(inner)
                    for inner in known or [schema.get("additionalProperties", True)]:
                        yield valid(each, inner)
            case list():
                yield _between(len(value), schema, "minItems", "maxItems")
                first, rest = schema.get("prefixItems", []), schema.get("items", True)
                if isinstance(rest, list):  # as in older drafts
                    first, rest = rest, schema.get("additionalItems", True)
                for place, each in enumerate(value):
                    yield valid(each, first[place] if place < len(first) else rest)
            case str():
                yield _between(len(value), schema, "minLength", "maxLength")
                leaf = {name: schema[name] for name in schema if name in ("pattern", "format")}
                self._spend(_JUDGED if leaf else 0)
                yield not leaf or self._judge({"type": "string", **leaf}, value)
            case int() | float() if not isinstance(value, bool):
                step = schema.get("multipleOf")
                yield _between(value, schema, "minimum", "maximum", -math.inf)
                yield "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]
                yield "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"]
                yield not step or _is_multiple(value, step)


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        return math.isclose(value / step, round(value / step), rel_tol=1e-9)
    except (OverflowError, ValueError):  # it is infinite, or nearly so
        return False


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
