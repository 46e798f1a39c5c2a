"""Arguments as bare text, typed by their schema."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.formats.markup.calls import bare, typed

DEFS = {"Day": {"enum": [1, 2]}, "Loop": {"$ref": "#/$defs/Loop"}}


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        ({"type": "integer"}, " 3 ", "3"),
        ({"type": "integer"}, "3.5", '"3.5"'),
        ({"type": "integer"}, "three", '"three"'),
        ({"type": "number"}, "3", "3"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": ["integer", "null", 5]}, "None", "null"),
        ({"type": "object"}, '{"a":  1}', '{"a":  1}'),
        ({"type": "array"}, "[1]", "[1]"),
        ({"type": "array"}, "[" * 100_000, json.dumps("[" * 100_000)),
        ({"type": "string"}, "3", '"3"'),
        ({"type": "string"}, "é", '"é"'),
        ({"enum": [1, None]}, "1", "1"),
        ({"enum": ["1"]}, "1", '"1"'),
        ({"const": 4}, "4", "4"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "4", "4"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "x", '"x"'),
        ({"$ref": "#/$defs/Day"}, "2", "2"),
        ({"$ref": "#/$defs/Loop"}, "2", '"2"'),
        ({"$ref": "#/$defs/None/x"}, "2", '"2"'),
        ({"properties": {}}, "{}", "{}"),
        ({"items": {}}, "[]", "[]"),
        ({"description": "?"}, "2", '"2"'),
        (True, "2", '"2"'),
    ],
)
def test_typed(schema: object, text: str, said: str) -> None:
    assert typed(text, "a", {"properties": {"a": schema}, "$defs": DEFS}) == said


@pytest.mark.parametrize("schema", [None, {}, {"properties": []}, {"properties": {"b": {}}}])
def test_without_a_schema_it_is_a_string(schema: object) -> None:
    assert typed("1", "a", schema) == '"1"'


@given(st.integers() | st.lists(st.integers()) | st.text() | st.booleans() | st.none())
def test_what_is_bare_is_typed_again(value: object) -> None:
    kinds = ["integer", "array", "boolean", "null"]
    schema = {"properties": {"a": {"type": "string" if isinstance(value, str) else kinds}}}
    assert json.loads(typed(bare(value), "a", schema)) == value
