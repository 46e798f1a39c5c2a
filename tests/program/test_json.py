"""JSON: keywords of a schema are kept or refused by name, and no wrong answer is accepted."""

import datetime
import json
import random

import jsonschema
import pytest

from dragoman import program as p
from dragoman.formats.grammar.schema import NOT_ENFORCED
from tests.formats.grammar import test_validate
from tests.formats.grammar.schemas import schema
from tests.samples import samples

SCHEMAS = [each for each in test_validate.CASES["schemas"] if isinstance(each, dict)]


@pytest.mark.parametrize("keyword", sorted(NOT_ENFORCED))
def test_a_keyword_that_is_not_kept_is_refused_by_its_name(keyword) -> None:
    value = {"minContains": 1, "maxContains": 1, "uniqueItems": True}.get(keyword, {"a": {}})
    value = {"$dynamicRef": "#a", "$recursiveRef": "#", "dependentRequired": {"a": ["b"]}}.get(
        keyword, value
    )
    with pytest.raises(ValueError, match=keyword.replace("$", "\\$")):
        p.json(schema={"properties": {"x": {keyword: value}}})


def test_what_matches_is_valid() -> None:
    """An answer that is accepted fits the schema, by the reference implementation."""
    chance = random.Random(2)
    count = 0
    asked = [*chance.sample(SCHEMAS, min(samples(10, 1_000), len(SCHEMAS)))]
    asked += [schema(random.Random(seed)) for seed in range(samples(5, 300))]
    for each in asked:
        try:
            node = p.json(schema=each)
        except ValueError:
            continue
        for value in test_validate.VALUES:
            if p.match(node, json.dumps(value, ensure_ascii=False)) is not None:
                count += 1
                assert jsonschema.Draft202012Validator(each).is_valid(value), (each, value)
    assert count


@pytest.mark.parametrize(
    ("kind", "good"), [(datetime.datetime, "2026-01-01T12:00:00"), (datetime.time, "12:00:00")]
)
def test_times_are_enforced_and_their_seconds_end(kind, good) -> None:
    node = p.json(schema=kind)
    for text in ("Z", "+01:00", ".123456789-05:30"):
        assert p.match(node, json.dumps(good + text)) is not None
    for text in ("unknown", good, f"{good}.{'1' * 10}Z", f"{good}."):
        assert p.match(node, json.dumps(text)) is None
