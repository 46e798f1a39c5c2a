"""Forms filled in: every value fits its schema, and no schema breaks the filler."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engines.script import fill
from tests.strategies import json, word

TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}},
    "required": ["value"],
}
SCHEMAS: list[Any] = [
    {},
    True,
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}},
    {"type": "object", "required": ["a"]},
    {"required": ["a"], "properties": {"a": {"type": "null"}}},
    {"type": "array", "items": {"type": "number", "minimum": 2.5}},
    {"type": "array", "minItems": 3, "maxItems": 3, "items": {"type": "integer"}},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]},
    {"type": "array", "maxItems": 0},
    {"type": "string", "minLength": 20, "maxLength": 22},
    {"type": "string", "maxLength": 3},
    *({"type": "string", "format": f} for f in ("date", "date-time", "email", "uri", "uuid")),
    {"type": "integer", "minimum": 5, "maximum": 6},
    {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
    {"type": "integer", "multipleOf": 7, "minimum": 8},
    {"type": "integer", "maximum": -3},
    {"type": "integer", "multipleOf": 5, "maximum": -3},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "multipleOf": 0.5, "minimum": 0.7},
    {"minimum": 3},
    {"enum": ["red", "green"]},
    {"const": None},
    {"type": "string", "default": "x"},
    {"type": "string", "examples": ["y"]},
    {"type": ["null", "string"]},
    {"type": ["null"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"oneOf": [{"const": 1}, {"const": 2}]},
    {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b", "a"]},
        ],
        "type": "object",
    },
    {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["child"],
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_form_is_filled_in_as_its_schema_wants(schema: Any) -> None:
    value = fill(schema)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert fill(schema) == value


def test_free_text_says_the_words_given() -> None:
    assert fill({"properties": {"city": {"type": "string"}}}, "Paris") == {"city": "Paris"}


keywords = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "anyOf", "allOf", "$ref"),
        *("enum", "minItems", "maxItems", "minLength", "minimum", "exclusiveMaximum"),
        *("multipleOf", "format", "default"),
    ]
)
values = json | st.sampled_from(["object", "array", "integer", "#", "#/properties/a", 1e300])
broken = st.recursive(
    st.dictionaries(keywords, values, max_size=4) | values,
    lambda inside: st.dictionaries(
        keywords, inside | st.lists(inside, max_size=3) | st.dictionaries(word, inside), max_size=4
    ),
    max_leaves=8,
)


@given(broken)
def test_no_schema_breaks_the_filler(schema: Any) -> None:
    fill(schema)


def test_schemas_that_never_end_are_left_unfinished() -> None:
    wide: dict[str, Any] = {"type": "object"}
    wide["properties"] = {f"p{n}": {"$ref": "#"} for n in range(9)}
    assert fill(wide)
    wide["required"] = list(wide["properties"])
    assert fill(wide)
    assert fill({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}) == "example"
    assert len(fill({"type": "array", "minItems": 10**9})) == 100
    assert len(fill({"type": "string", "minLength": 10**9})) == 10_000
