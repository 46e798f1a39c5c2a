"""Our validator agrees with jsonschema on all that a grammar can enforce."""

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from dragoman.formats.grammar.schema import valid
from tests.cases import cases
from tests.formats.grammar.schemas import schema
from tests.samples import samples


def judge(leaf: dict[str, Any], text: str) -> bool:
    return re.search(leaf.get("pattern", ""), text) is not None


CASES = cases(__file__, "validated")
VALUES: list[Any] = CASES["values"]


@pytest.mark.parametrize("given", CASES["schemas"], ids=json.dumps)
def test_validator_agrees_with_jsonschema(given) -> None:
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


def test_validator_agrees_on_random_schemas_and_values_near_them() -> None:
    chance = random.Random(1)
    for seed in range(samples(60, 600)):
        asked = schema(random.Random(seed))
        validator = jsonschema.Draft202012Validator(asked)
        for value in VALUES:
            near = {key: chance.choice(VALUES) for key in asked["properties"]}
            for each in (value, near):
                assert valid(each, asked, judge) == validator.is_valid(each), (asked, each)
