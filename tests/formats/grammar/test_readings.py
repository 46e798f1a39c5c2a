"""In how many ways a grammar may read one text: what one step of the library may cost."""

import pytest

from dragoman.core.item import JSON
from dragoman.formats.grammar.demand import _LITERALS, RULE, recursive
from dragoman.formats.grammar.readings import MAX_IN_SCHEMA, of_lark, of_schema

ONE_OF_THREE = "start: s\ns: A | B | C\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('start: "a"', 0),
        (ONE_OF_THREE, 1 * 3),
        (ONE_OF_THREE + "t: s s", 3 * 3),
        ("start: t\nt: (s)\ns: A | B", 1 + 2 * 2),  # `t` is but another name
        ("a: b\nb: a", 1 * 2 + 1 * 2),
        ('start: s\ns: "x|y" | /|/ | // s s s s\n', 3),
        ('start: %json {"anyOf": [{}, {"items": {"$ref": "#"}}]}', 4),
        ('start: %json {"anyOf": [', 0),
        ("%ignore /x/", 0),
        ("_1: A | B", 0),
    ],
)
def test_alternatives_of_rules_count_as_often_as_they_are_named(text: str, count: int) -> None:
    assert of_lark(text, _LITERALS, RULE) == count


def test_rules_that_come_again_in_themselves_are_recursive() -> None:
    assert recursive("start: a\na: b\nb: A a | C")
    assert not recursive("start: a\na: b b\nb: A | C")


def arrays(count: int, to: str = "#") -> dict[str, JSON]:
    return {"anyOf": [{}, *({"items": {"$ref": to}, "minItems": n} for n in range(count))]}


RING = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
THREE = {"anyOf": [{"const": n} for n in range(3)]}


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({}, 0),
        (True, 0),
        (THREE, 0),
        (arrays(4), 4 * 5),
        (arrays(4, "#/$defs/x") | {"$defs": {"x": {"$ref": "#"}}}, 4 * 5 + 5),
        ({"$ref": "#/$defs/a", "$defs": RING}, 6),  # what is looked at counts, too
        ({"$ref": "#/$defs/x", "$defs": {"x": {"allOf": [THREE, THREE]}}}, 3 * 3),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"oneOf": [THREE, True]}}}, 6),
        ({"$ref": "#/$defs/x", "$defs": {"x": {**THREE, "allOf": [True]}}}, 5),
    ],
)
def test_alternatives_of_a_schema_count_as_often_as_they_are_referred_to(schema, count) -> None:
    assert of_schema(schema) == count


def test_a_reference_by_an_anchor_may_lead_anywhere() -> None:
    assert of_schema({"$anchor": "a", **arrays(4, "#a")}) > 4 * 5


def test_what_takes_too_much_to_count_is_too_much() -> None:
    assert of_schema(arrays(300)) > MAX_IN_SCHEMA
    deep: JSON = THREE
    for _ in range(400):
        deep = {"anyOf": [deep, {}]}
    assert of_schema({"$ref": "#/$defs/x", "$defs": {"x": deep}}) > MAX_IN_SCHEMA
    many = {f"d{n}": arrays(40, f"#/$defs/d{n}") for n in range(30)}
    assert of_schema({"$defs": many}) > MAX_IN_SCHEMA
