"""The schema door: what can be enforced passes, what cannot is named by its place."""

import json
import random
from collections import UserDict
from collections.abc import KeysView
from itertools import product
from typing import Any

import jsonschema
import pytest

from dragoman.core.error import FaultError
from dragoman.core.request import JSONSchema, Request
from dragoman.engines.token.constraints import GrammarCompiler, matches
from dragoman.formats.format import Grammar
from dragoman.formats.grammar.demand import JSONBody, unenforced
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.grammar.schema import (
    FORMATS,
    NOT_ENFORCED,
    enforceable,
    inside,
    too_large,
    valid,
)
from dragoman.formats.prompt import ByteTokenizer
from tests.cases import cases
from tests.formats.grammar.accepts import verdict
from tests.formats.grammar.schemas import schema
from tests.samples import samples

BYTES = GrammarCompiler(ByteTokenizer())

CASES = cases(__file__, "schemas")


@pytest.mark.parametrize(("refused", "place"), CASES["refused"])
def test_p34_a_keyword_that_cannot_be_enforced_is_refused_by_its_place(refused, place) -> None:
    with pytest.raises(FaultError) as raised:
        enforceable(refused, "format.schema")
    fault = raised.value.fault
    assert (fault.code, fault.param) == ("invalid_request", f"format.schema.{place}")
    assert fault.message.startswith(f"format.schema.{place}: ")


@pytest.mark.parametrize(("format", "text", "fits"), CASES["values"])
def test_f12_texts_of_a_format_are_what_they_are_called(format, text, fits) -> None:
    asked = {"type": "string", "format": format, "allOf": [{"minLength": 1}]}
    schema = enforceable(asked, "")
    assert (verdict(grammar(schema), json.dumps(text)) == "whole") is fits

    def judge(leaf: dict[str, Any], string: str) -> bool:
        return verdict(grammar(leaf), json.dumps(string)) == "whole"

    assert valid(text, schema, judge) is fits


def grammar(schema: dict[str, Any]) -> Grammar:
    writer = Writer()
    return writer.grammar(writer.body(JSONBody("", schema)))


A = {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]}
ROOT = {"type": "object", "$defs": {"a": A}}


@pytest.mark.parametrize(("left", "right"), CASES["apart"])
def test_f17_alternatives_of_which_only_one_can_fit_are_enforced(left, right) -> None:
    fitted = enforceable({"properties": {"x": {"oneOf": [left, right]}}, **ROOT}, "")
    BYTES.constrain(grammar(fitted))


@pytest.mark.parametrize(("left", "right"), CASES["overlapping"])
def test_f17_alternatives_that_may_both_fit_are_refused(left, right) -> None:
    with pytest.raises(FaultError, match=r"x\.oneOf: . and . may both fit.* write anyOf"):
        enforceable({"properties": {"x": {"oneOf": [left, right]}}, **ROOT}, "")


def test_f17_what_fits_an_enforced_alternative_fits_exactly_one() -> None:
    enforced = 0
    for left, right in product(CASES["alternatives"], repeat=2):
        asked = {"oneOf": [left, right]}
        try:
            fitted = enforceable(asked, "")
        except FaultError:
            continue
        enforced += 1
        judge = jsonschema.Draft202012Validator(asked)
        for value in CASES["instances"]:
            if any(valid(value, each, lambda *_: True, fitted) for each in fitted["oneOf"]):
                assert judge.is_valid(value), (left, right, value)
    assert enforced > 250


def test_f17_of_a_schema_that_is_not_strict_what_can_be_is_enforced() -> None:
    loose = {"properties": {"a": {"uniqueItems": True, "minItems": 2}}, "not": {}}
    fitted = enforceable(loose, "", strict=False)
    assert fitted == {"properties": {"a": {"minItems": 2}}, "additionalProperties": False}
    with pytest.raises(FaultError, match=r"a\.minItems: must be a number"):
        enforceable({"properties": {"a": {"uniqueItems": True, "minItems": "2"}}}, "", strict=False)
    places = ["format.schema.properties.a.uniqueItems", "format.schema.not"]
    for strict, lost in ((False, places), (None, []), (True, [])):
        request = Request(model="m", format=JSONSchema("n", loose, strict=strict))
        assert [loss.field for loss in unenforced(request)] == lost


def test_all_such_keywords_are_named_at_once() -> None:
    with pytest.raises(FaultError) as raised:
        enforceable({"not": {}, "items": {"if": {}}}, "format.schema")
    assert "items.if" in raised.value.fault.message


URIS = (
    "http://a",
    "https://u:p@a.b:80/c//d?e/?f#g?",
    "mailto:a@b",
    "urn:a:b",
    "ldap://[2001:db8::7]/",
)
URIS += ("http://[::ffff:1.2.3.4]", "file:///a", "a:", "http://a/%2f", "tel:+1-2", "a:/?b")
NO_URIS = (
    "",
    "a",
    "//a/b",
    "/a",
    "http:// a",
    "http://a b",
    "http://a/%zz",
    "http://a/\u00e9",
    "1:a",
)
NO_URIS += ("http://[::1::]", "http://[1:2]", "http://a|b", "http://a#b#c", "a://h:x", "a_b:c")


def test_addresses_are_enforced_by_a_pattern_alone() -> None:
    """There is an llguidance that does not have their format."""
    body = JSONBody("", enforceable({"type": "string", "format": "uri", "maxLength": 40}, ""))
    assert "format" not in body.schema
    for text in (*URIS, *NO_URIS, f"http://{'a' * 40}"):
        assert matches(body, json.dumps(text)) == (text in URIS), text


@pytest.mark.parametrize("levels", [200, 900])
def test_a_schema_without_end_is_refused(levels) -> None:
    deep: dict[str, Any] = {}
    for _ in range(levels):
        deep = {"items": deep}
    with pytest.raises(FaultError, match="nested too deeply"):
        enforceable(deep, "format.schema")


def test_notes_pass_and_orders_to_the_grammar_do_not() -> None:
    noted = {
        "title": "T",
        "description": "d",
        "default": 1,
        "examples": [{"not": 1}],
        "x-vendor": {"not": {}},
        "x-guidance": {"lenient": True},
        "uniqueItems": False,
        "format": "color",
        "type": "integer",
        "minProperties": 1,
    }
    assert list(enforceable(noted, "")) == [
        "title", "description", "default", "examples", "x-vendor", "type", "minProperties"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bounds",
    [
        {"exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 0.5, "minimum": 0},
        {"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]},
        {"exclusiveMaximum": 0, "minimum": -0.5},
        {"exclusiveMaximum": 0, "exclusiveMinimum": -0.5, "maximum": 0},
    ],
)
def test_a_zero_that_is_excluded_is_no_answer(bounds) -> None:
    enforced = grammar(enforceable({"type": "number", **bounds}, "s"))
    texts = ("0", "-0", "0.0", "-0.00", "0.25", "-0.25", "0.6", "-0.6")
    sign = "-" if bounds.get("exclusiveMaximum") == 0 else ""
    assert [text for text in texts if verdict(enforced, text) == "whole"] == [f"{sign}0.25"]


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), [{"id": 2**60}]])
def test_a_whole_number_that_a_grammar_would_change_is_refused(value) -> None:
    for keyword, given in (("const", value), ("enum", ["a", value])):
        with pytest.raises(FaultError, match=rf"s\.properties\.id\.{keyword}.* above 2\^53"):
            enforceable({"properties": {"id": {keyword: given}}}, "s")
    exact = grammar(enforceable({"enum": [2**53, {"id": -(2**53)}]}, "s"))
    assert verdict(exact, "9007199254740992") == "whole"


def test_objects_that_list_properties_are_closed_unless_they_say_so() -> None:
    listed = {"properties": {"a": {"properties": {"b": {}}}}}
    assert enforceable(listed, "")["additionalProperties"] is False
    assert enforceable(listed, "")["properties"]["a"]["additionalProperties"] is False
    for free in CASES["open"]:
        assert enforceable(free, "") == free


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    odd = {"properties": {"properties": {"type": "string"}, "not": {}}, "required": ["not"]}
    assert enforceable(odd, "") == {**odd, "additionalProperties": False}
    assert enforceable({"const": {"properties": {"a": 1}}}, "") == {
        "const": {"properties": {"a": 1}}
    }


def test_p36_no_listed_keyword_is_one_the_grammar_does_not_know() -> None:
    """Every keyword we let through compiles, in a schema where it says something."""
    examples: dict[str, Any] = {
        "type": "string", "enum": [1], "const": 1, "properties": {"a": {}}, "required": ["a"],
        "additionalProperties": False, "patternProperties": {"^a$": {}}, "maxProperties": 3,
        "minProperties": 1, "items": {}, "additionalItems": False, "prefixItems": [{}],
        "minItems": 1, "maxItems": 2, "minLength": 1, "maxLength": 2, "pattern": "a",
        "format": "date", "minimum": 1, "maximum": 2, "exclusiveMinimum": 1, "multipleOf": 2,
        "exclusiveMaximum": 2, "anyOf": [{}], "oneOf": [{}], "allOf": [{}], "$ref": "#/$defs/x",
        "$defs": {}, "definitions": {},
    }  # fmt: skip
    constraining = jsonschema.Draft202012Validator.VALIDATORS.keys()
    assert constraining - NOT_ENFORCED <= examples.keys()
    assert not examples.keys() & NOT_ENFORCED
    for keyword, value in examples.items():
        said = {keyword: value, **({"$defs": {"x": {}}} if keyword == "$ref" else {})}
        BYTES.constrain(Grammar(f"start: %json {json.dumps(enforceable(said, ''))}"))
    for name in FORMATS:
        BYTES.constrain(Grammar(f'start: %json {{"type": "string", "format": "{name}"}}'))


@pytest.mark.uncounted
def test_random_schemas_pass_and_mean_no_more_than_they_did() -> None:
    for seed in range(samples(50, 500)):
        asked = schema(random.Random(seed))
        jsonschema.Draft202012Validator.check_schema(enforceable(asked, ""))


def test_a_format_that_is_no_text_is_an_annotation() -> None:
    assert enforceable({"format": {}}, "") == {}


# ---- sizes ---------------------------------------------------------------------------------


def _chain(count: int) -> dict[str, Any]:
    steps = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{count}": {}}}


def _listed(count: int) -> dict[str, Any]:
    return {f"p{n}": {} for n in range(count)}


@pytest.mark.parametrize(
    ("place", "most", "more"),
    [
        (".items.enum", {"items": {"enum": [0] * 10_000}}, {"items": {"enum": [0] * 10_001}}),
        (".anyOf", {"anyOf": [{}] * 1_000}, {"anyOf": [{}] * 1_001}),
        (".pattern", {"pattern": "a" * 4_096}, {"pattern": "a" * 4_097}),
        (".patternProperties", {"patternProperties": _listed(32)},
         {"patternProperties": _listed(33)}),
        (".properties", {"properties": _listed(400)}, {"properties": _listed(401)}),
        (".properties", {"properties": _listed(2_000), "required": [*_listed(2_000)]},
         {"properties": _listed(2_001), "required": [*_listed(2_000)]}),
        (".multipleOf", {"multipleOf": 10_000}, {"multipleOf": 10_001}),
        ("", _chain(199), _chain(201)),
        ("", {"const": "a" * 262_000}, {"const": ["a" * 131_072, "a" * 131_072]}),
    ],
)  # fmt: skip
def test_what_is_larger_than_the_most_is_refused_by_its_place(place, most, more) -> None:
    assert enforceable(most, "schema")
    with pytest.raises(FaultError) as raised:
        enforceable(more, "schema")
    assert raised.value.fault.param == f"schema{place}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": {f"p{n}": {"not": {}} for n in range(400)}},
        {"properties": {"x" * 100_000: {"not": {}}}},
        {"$ref": "#/" + "a/" * 50_000},
    ],
)
def test_a_refusal_is_brief(wrong) -> None:
    with pytest.raises(FaultError) as raised:
        enforceable(wrong, "schema")
    assert len(raised.value.fault.message) < 1_000


def test_references_in_a_ring_are_followed_once() -> None:
    ring = {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}
    assert enforceable(ring, "schema") == ring


def test_schemas_in_a_schema_have_their_places() -> None:
    here = {
        "type": "object",
        "$ref": "#/$defs/a",
        "$defs": {"a": {"const": 1}},
        "anyOf": [{"const": 2}, True],
        "properties": {"b": {"const": 3}, "c": False},
        "additionalProperties": {"const": 4},
    }
    assert [(place, each["const"]) for place, each in inside(here, here, ".x")] == [
        (".$defs.a", 1),
        (".x.anyOf[0]", 2),
        (".x.properties.b", 3),
        (".x.additionalProperties", 4),
    ]


def test_levels_are_counted_with_those_that_are_referred_to() -> None:
    nested: dict = {"$ref": "#/$defs/a0"}
    for _ in range(50):
        nested = {"items": nested}
    definitions = {}
    for number in range(60):
        text = json.dumps(nested).replace("a0", f"a{number + 1}")
        definitions[f"a{number}"] = json.loads(text)
    problem = too_large({"$ref": "#/$defs/a0", "$defs": {**definitions, "a60": {}}})
    assert problem == "has more than 2000 levels, with those it refers to"
    del definitions["a30"]
    assert too_large({"$ref": "#/$defs/a0", "$defs": definitions}) is None


def test_alternatives_deep_in_references_may_both_fit() -> None:
    chain: dict[str, Any] = {"d9": {"type": "string"}}
    for number in range(9):
        deep: dict[str, Any] = {"$ref": f"#/$defs/d{number + 1}"}
        for _ in range(48):
            deep = {"anyOf": [deep]}
        chain[f"d{number}"] = deep
    with pytest.raises(FaultError, match="may both fit"):
        enforceable({"oneOf": [{"const": "x"}, {"$ref": "#/$defs/d0"}], "$defs": chain}, "schema")


def test_a_reference_with_a_number_of_many_digits_is_in_no_schema() -> None:
    schema = {"$ref": f"#/items/{'0' * 5_000}", "items": [{"type": "null"}]}
    with pytest.raises(FaultError) as raised:
        enforceable(schema, "schema")
    assert raised.value.fault.param == "schema.$ref"


def test_a_schema_is_not_copied_for_each_reference() -> None:
    class Counted(UserDict[str, Any]):
        copies = 0

        def keys(self) -> KeysView[str]:
            self.copies += 1
            return super().keys()

    schema = Counted({f"a{n}": {"$ref": f"#/a{n + 1}"} for n in range(50)})
    assert too_large(schema) is None
    assert schema.copies == 1
