"""Schemas are narrowed to alternatives that their first character tells apart."""

from __future__ import annotations

import json

import pytest

from dragoman.core.item import JSON
from dragoman.formats.grammar import narrow
from dragoman.formats.grammar.narrow import narrowed
from dragoman.formats.grammar.schema import find, objects, valid

NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}
MANY = {f"p{n}": {"type": "null"} for n in range(narrow.MAX_OPTIONAL + 2)}


def one(schema: dict[str, JSON]) -> dict[str, JSON]:
    return next(narrowed([schema]))


def kept(schema: dict[str, JSON]) -> dict[str, JSON]:
    """A narrowed schema without what the model alone reads."""
    found = one(schema)
    for each in objects(found):
        each.pop("description", None)
    return found


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "integer"},
        {"type": "string", "format": "date-time"},
        {"const": {"a": 1}},
        {"enum": ["a", 1, None]},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 100},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"type": "string"}, {"type": "array"}]},
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
        {"type": "object", "additionalProperties": {"type": "null"}},
        {"type": "object", "properties": {}, "required": [], "additionalProperties": True},
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    ],
    ids=json.dumps,
)
def test_alternatives_that_one_character_decides_are_kept(schema) -> None:
    assert one(schema) == schema


@pytest.mark.parametrize(
    ("schema", "narrower"),
    [
        ({"type": "string", "pattern": "a", "minLength": 3}, {"type": "string"}),
        ({"type": "string", "format": "uri"}, {"type": "string"}),
        ({"enum": list(range(33))}, {"type": ["number"]}),
        ({"enum": [*map(str, range(33)), None]}, {"type": ["null", "string"]}),
        ({"enum": []}, {}),
        ({"anyOf": []}, {}),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"type": ["number"]}),
        ({"anyOf": [{"const": 1}, {"enum": [2]}]}, {"type": ["number"]}),
        ({"anyOf": [{"type": "null"}, {}]}, {}),
        ({"anyOf": [{"type": "null"}, True]}, {}),
        ({"anyOf": [{"type": "null"}, {"type": "odd"}]}, {}),
        (
            {"type": ["integer", "null"], "minimum": 3},
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ),
        ({"type": ["null", "null"]}, {"type": ["null"]}),
        ({"items": True}, {"type": "array"}),
        ({"items": [{"const": 1}]}, {"type": "array", "prefixItems": [{"const": 1}]}),
        ({"prefixItems": [{}] * 33}, {"type": "array"}),
        ({"type": "array", "minItems": 101, "maxItems": True}, {"type": "array"}),
        ({"allOf": [{"const": 1}]}, {"const": 1}),
        ({"allOf": [{"const": 1}, {"const": 2}]}, {}),
        ({"properties": MANY, "required": ["p0", {}, "p0"] * 30}, {"type": "object"}),
        (
            {"properties": {"a": True}, "required": "a", "additionalProperties": False},
            {
                "type": "object",
                "properties": {"a": {}},
                "required": [],
                "additionalProperties": False,
            },
        ),
        (
            {"properties": {"a" * 2001: {}}, "additionalProperties": True},
            {"type": "object", "properties": {"a" * 2001: {}}, "required": []},
        ),
        ({"$ref": "#"}, {}),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"const": 1}}}, None),
        (
            {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 1}}},
            {"$defs": {"a/b": {"const": 1}}},
        ),
        (
            {"anyOf": [{"anyOf": [{"const": 1}, {"const": "a"}]}, {"const": 2}]},
            {"type": ["number", "string"]},
        ),
        (
            {
                "anyOf": [
                    {"allOf": [{"const": 1}]},
                    {"additionalProperties": {}},
                    {"type": ["null"]},
                ]
            },
            {
                "anyOf": [
                    {"const": 1},
                    {"type": "object", "additionalProperties": {}},
                    {"anyOf": [{"type": "null"}]},
                ]
            },
        ),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_one_character_does_not_decide_is_left_out(schema, narrower) -> None:
    if narrower is None:
        narrower = {
            "type": "object",
            "properties": {"a": {}, "b": {"const": 1}},
            "required": [],
        }
    assert kept(schema) == narrower


def test_each_type_of_several_has_its_own_description() -> None:
    listed = {"type": ["string", "object", "null"], "properties": {"a": {}}, "pattern": "a"}
    text, thing, none = one(listed)["anyOf"]
    assert text == {"type": "string", "description": 'Must fit {"pattern": "a"}'}
    assert thing == {"type": "object", "properties": {"a": {}}, "required": []}
    assert none == {"type": "null"}


def test_a_schema_that_refers_to_itself_alone_is_any() -> None:
    turning = {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}
    assert kept({"$ref": "#/$defs/a", "$defs": turning}) == {"$defs": {"a": {}}}


def test_the_description_has_what_was_left_out() -> None:
    schema = {"type": "string", "description": "A name.", "pattern": "a", "title": "Name"}
    described = 'A name.\nMust fit {"pattern": "a"}'
    assert one(schema) == {"type": "string", "description": described, "title": "Name"}
    assert "description" not in one({"oneOf": [{"type": "null"}, {"type": "string"}]})
    assert one({"anyOf": [{"type": "null"}], "not": {}})["description"] == 'Must fit {"not": {}}'


def test_descriptions_of_what_was_left_out_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(narrow._Room, "characters", 10)
    first, second = narrowed([{"type": "string", "pattern": "a" * 30}] * 2)
    assert "description" in first
    assert second == {"type": "string"}


def test_all_schemas_of_a_request_have_one_bound(monkeypatch) -> None:
    monkeypatch.setattr(narrow._Room, "schemas", 20)
    wide = {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(14)}}
    first, second, third = narrowed([wide, wide, wide])
    assert len(first["properties"]) == 14
    assert [each["type"] for each in (second, third)] == ["object", "object"]
    assert "properties" not in second
    assert '"properties"' in second["description"]


def test_nested_lists_of_types_and_alternatives_end() -> None:
    kinds: list[JSON] = ["object", "array"]
    deep: JSON = {"type": "string"}
    for _ in range(13):
        deep = {"type": kinds, "properties": {"a": deep}, "items": deep}
    assert isinstance(deep, dict)
    assert kept(deep) == {"type": "object"}
    wide: JSON = {"type": "string"}
    for _ in range(4):
        wide = {"anyOf": [wide] * 12}
    assert isinstance(wide, dict)
    assert kept(wide) == {"type": "object"}


def test_levels_beyond_the_bound_are_any() -> None:
    deep: JSON = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    assert isinstance(deep, dict)
    found, levels = one(deep), 0
    while "items" in found:
        found, levels = found["items"], levels + 1
    assert levels == narrow.MAX_LEVELS + 1
    assert found == {}


def test_each_reference_is_followed_once(monkeypatch) -> None:
    followed: list[JSON] = []

    def counted(root: JSON, to: JSON) -> JSON:
        followed.append(to)
        return find(root, to)

    monkeypatch.setattr(narrow, "find", counted)
    chain: dict[str, JSON] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(50)}
    listed: dict[str, JSON] = {f"p{n}": {"$ref": "#/$defs/d0"} for n in range(30)}
    found = one({"properties": listed, "$defs": {**chain, "d50": {"type": "null"}}})
    assert found["properties"] == listed
    assert len(followed) == len(chain) + 1


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_alternatives_deep_in_references_are_any(keyword) -> None:
    chain: dict[str, JSON] = {}
    for number in range(9):
        deep: JSON = {"$ref": f"#/$defs/d{number + 1}"}
        for _ in range(95):
            deep = {keyword: [deep]}
        chain[f"d{number}"] = deep
    found = kept({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": chain})
    assert {"properties": {"a": {}}, **found}["properties"] == {"a": {}}


def test_values_of_a_schema_fit_the_narrower_one() -> None:
    schema = {
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]+$"},
            "size": {"enum": list(range(40))},
            "node": {"$ref": "#/$defs/node"},
            "either": {"oneOf": [{"const": "a"}, {"type": "string", "maxLength": 3}]},
        },
        "required": ["name"],
        "$defs": {"node": NODE},
    }
    for value in (
        {"name": "a", "size": 3, "node": {"next": {"next": None}}, "either": "bc"},
        {"name": "b"},
    ):
        assert valid(value, schema, lambda schema, text: True)
        assert valid(value, one(schema), lambda schema, text: True)
