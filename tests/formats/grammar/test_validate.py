"""Our validator agrees with jsonschema on all that a grammar can enforce."""

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from dragoman.formats.grammar.schema import valid
from tests.formats.grammar.schemas import schema
from tests.samples import samples


def judge(leaf: dict[str, Any], text: str) -> bool:
    return re.search(leaf.get("pattern", ""), text) is not None


VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, 2.5, -3, 30, "", "a", "abcdef", "é", [], [1], [1, 2, 3], ["a", 1],
    {}, {"a": 1}, {"a": "x", "b": None}, {"b": 1}, {"x1": 2}, {"a": {"a": {}}}, [[True], [1]],
]  # fmt: skip

SCHEMAS: list[Any] = [
    True, False, {}, {"type": "integer"}, {"type": "number"}, {"type": ["string", "null"]},
    {"type": "boolean"}, {"type": "object"}, {"type": "array"},
    {"enum": [1, "a", [1], {"a": 1}]}, {"const": True}, {"const": 1}, {"const": [[True], [1]]},
    {"const": {"a": 1}}, {"minLength": 1, "maxLength": 2}, {"pattern": "^a"},
    {"minimum": 1, "maximum": 3}, {"exclusiveMinimum": 1}, {"exclusiveMaximum": 1},
    {"multipleOf": 3}, {"multipleOf": 0.5}, {"minItems": 1, "maxItems": 2},
    {"items": {"type": "integer"}}, {"prefixItems": [{"type": "string"}], "items": False},
    {"items": {"items": {"type": "boolean"}}}, {"required": ["a"]},
    {"properties": {"a": {"type": "string"}}}, {"additionalProperties": False},
    {"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
    {"patternProperties": {"^x": {"maximum": 1}}, "additionalProperties": False},
    {"minProperties": 1, "maxProperties": 1}, {"anyOf": [{"type": "string"}, {"minimum": 2}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 1}]}, {"allOf": [{"minimum": 0}, {"maximum": 1}]},
    {"properties": {"a": {"$ref": "#"}}, "maxProperties": 1, "type": ["object", "integer"]},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
]  # fmt: skip


@pytest.mark.parametrize("given", SCHEMAS, ids=json.dumps)
def test_it_agrees_with_jsonschema(given) -> None:
    for value in VALUES:
        told = jsonschema.Draft202012Validator(given).is_valid(value)
        assert valid(value, given, judge) == told, value


def test_items_may_be_a_list_as_in_older_drafts() -> None:
    older = {"items": [{"type": "string"}], "additionalItems": False}
    assert [valid(v, older, judge) for v in (["a"], [1], ["a", 1])] == [True, False, False]


def test_unknown_type_fits_nothing() -> None:
    assert not any(valid(value, {"type": "thing"}, judge) for value in VALUES)


def test_a_reference_that_leads_nowhere_or_in_circles_fits_nothing() -> None:
    assert not valid(1, {"$ref": "#/$defs/none"}, judge)
    assert not valid(1, {"$ref": "#"}, judge)


def test_it_agrees_on_random_schemas_and_values_near_them() -> None:
    chance = random.Random(1)
    for seed in range(samples(60, 600)):
        asked = schema(random.Random(seed))
        validator = jsonschema.Draft202012Validator(asked)
        for value in VALUES:
            near = {key: chance.choice(VALUES) for key in asked["properties"]}
            for each in (value, near):
                assert valid(each, asked, judge) == validator.is_valid(each), (asked, each)
