"""The JSON Schema Test Suite: what a grammar lets through is valid, and so is what we find valid.

The suite is that which the source of jsonschema ships. A schema that is refused costs nothing here:
`tests/formats/grammar` has what must not be.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import program
from dragoman.core.error import FaultError
from dragoman.formats.format import Grammar
from dragoman.formats.grammar.schema import enforceable, objects, valid
from tests.formats.grammar.accepts import guide, verdict
from tests.oracles.conftest import FOLDER

FILES = sorted((FOLDER / "suite" / "tests" / "draft2020-12").glob("*.json"))
NARROWED = {
    "additionalProperties": "objects that list properties are closed unless they say otherwise",
    "allOf": "so are those",
    "anyOf": "so are those",
    "properties": "so are those",
    "const": "a value is written in one way: 1 and not 1.0, properties in their order",
    "enum": "so are these",
    "type": "an integer is written without a fraction",
    "format": "a format that we know is enforced, where the standard makes it a note",
}
"""Where valid values are not among those that a grammar has, and why."""
UNRESOLVED = {
    "anchor": "a reference by anchor",
    "ref": "a reference by URI, or with %-escapes",
    "additionalProperties": NARROWED["additionalProperties"],
    "anyOf": NARROWED["anyOf"],
    "properties": NARROWED["properties"],
    "format": NARROWED["format"],
}
"""Where our validator finds valid values wrong, and for want of what."""


def cases(path: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The schemas of a file that can be enforced, each with its tests."""
    found = []
    for group in json.loads(path.read_text()):
        if isinstance(group["schema"], dict):
            try:
                schema = enforceable(group["schema"], "schema")
                guide().constrain(Grammar(f"start: %json {json.dumps(schema)}"))
            except FaultError:
                continue
            found.append((schema, group["tests"]))
    return found


def fits(leaf: dict[str, Any], text: str) -> bool:
    return re.search(leaf.get("pattern", ""), text) is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_p34_what_is_enforced_is_valid(path) -> None:
    for schema, tests in cases(path):
        grammar = Grammar(f"start: %json {json.dumps(schema)}")
        for test in tests:
            whole = verdict(grammar, json.dumps(test["data"], ensure_ascii=False)) == "whole"
            ours = valid(test["data"], schema, fits)
            where = schema, test["data"]
            assert test["valid"] or not (whole or ours), where
            assert whole or not test["valid"] or path.stem in NARROWED, where
            assert ours or not test["valid"] or path.stem in UNRESOLVED, where


def test_most_keywords_are_enforced() -> None:
    count = Counter({path.stem: len(cases(path)) for path in FILES})
    assert count.total() > 150, count
    for keyword in ("allOf", "anyOf", "enum", "items", "pattern", "properties", "ref", "required"):
        assert count[keyword], keyword


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_programs_keep_a_schema_or_refuse_a_keyword_by_its_name(path) -> None:
    """`json(schema=…)`: what it matches is valid, and the error names a keyword that is there."""
    for group in json.loads(path.read_text()):
        schema, refused = group["schema"], ""
        try:
            node = program.json(schema=schema)
        except ValueError as error:
            refused = str(error)
        if refused:
            named = {*re.split(r"\W+", refused)}
            assert schema is False or named & {*words(schema)}, (schema, refused)
            continue
        for test in group["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            assert test["valid"] or program.match(node, text) is None, (schema, text)


def words(schema: object) -> Iterator[str]:
    """The keys of a schema, as words."""
    for each in objects(schema):
        for key in each:
            yield from filter(None, re.split(r"\W+", key))
