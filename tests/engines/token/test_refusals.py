"""Refusals of schemas, expressions and grammars: in our words, and at their place."""

from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.core.error import FaultError
from dragoman.formats.grammar.demand import JSONBody, Lark, Regex
from dragoman.formats.grammar.lark import Writer
from dragoman.formats.prompt import ByteTokenizer

pytest.importorskip("llguidance")

from dragoman.engines.token.constraints import GrammarCompiler

NONE = {"type": "string", "minLength": 5, "maxLength": 2}


def closed(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, **fields}


TOO_SHORT = "no value fits: minLength (5) is greater than maxLength (2)"
SCHEMAS: list[tuple[dict[str, Any], str, str]] = [
    (NONE, "", TOO_SHORT),
    (
        closed(properties={"a": {"type": "array", "items": NONE, "minItems": 1}}, required=["a"]),
        ".properties.a.items",
        TOO_SHORT,
    ),
    (
        closed(properties={"a": {"type": "array", "items": False, "minItems": 1}}, required=["a"]),
        ".properties.a",
        "no value fits: required item is unsatisfiable",
    ),
    ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": NONE}}, ".$defs.a", TOO_SHORT),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "", "no value fits: incompatible types"),
    ({"properties": {"a": {"pattern": r"^\w\b\w$"}}}, ".properties.a", "cannot be enforced"),
    ({"properties": {"a": {"pattern": r"\p{Foo}"}}}, ".properties.a", "is no regular expression:"),
    ({"items": {"$id": "http://x/", "$ref": "y"}}, ".items", "refers to http://x/y, which is not"),
    ({"$ref": "#"}, "", "nothing can match it"),
    (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        ".$defs.b",
        "nothing can match it",
    ),
    (
        {"properties": {"a": {"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}}},
        ".properties.a",
        "a property may fit both ^a and ^ab: write",
    ),
    (
        closed(
            properties={"a": {"type": "string", "format": "date", "pattern": "^x"}}, required=["a"]
        ),
        ".properties.a",
        "no value fits: no text is all that is demanded",
    ),
    ({"items": {"type": "number", "minimum": 1e308}}, ".items", "its range of numbers cannot be"),
]
OTHERS: list[tuple[Any, str]] = [
    (Regex("x", "(("), "is no regular expression: unclosed group"),
    (Regex("x", r"\bfoo"), "has an anchor or a word boundary, which cannot be enforced"),
    (Regex("x", "(?=a)b"), "is no regular expression: look-around"),
    (Regex("x", r"[^\s\S]"), "nothing can match it"),
    (Lark("x", "start: start"), "nothing can match it"),
    (Lark("x", 'start: "a"\n  | /((/'), "line 1, column 8: is no regular expression: unclosed"),
    (Lark("x", "start: foo"), 'line 1, column 8: unknown name: "foo"'),
    (Lark("x", "start: ("), r"line 1, column 9: expected ')', and found '\n'"),
    (Lark("x", "start: <|nope|>"), 'unknown special token: "<|nope|>"'),
    (Lark("x", "%import foo.BAR\nstart: BAR"), "Unknown common regex: foo.BAR"),
]
INTERNAL = ("NoExtension", "SearchRegex", "in regex)", "lookarounds", "EOS", "Resource", "disjoint")
"""Words of the library, which no client knows."""


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(ByteTokenizer(["<|end|>"]))
    yield compiler
    compiler.close()


def refusal(compiler: GrammarCompiler, body: Any) -> tuple[str | None, str]:
    writer = Writer()
    with pytest.raises(FaultError) as caught:
        compiler.constrain(writer.grammar(writer.body(body)))
    fault = caught.value.fault
    assert fault.code == "invalid_request"
    assert not [word for word in INTERNAL if word in fault.message]
    return fault.param, fault.message


@pytest.mark.parametrize(("schema", "place", "words"), SCHEMAS)
def test_schema_is_refused_at_its_place(compiler, schema, place, words) -> None:
    param, message = refusal(compiler, JSONBody("x", schema))
    assert param == f"x{place}"
    assert words in message


@pytest.mark.parametrize(("body", "words"), OTHERS)
def test_expression_or_grammar_is_refused_in_plain_words(compiler, body, words) -> None:
    param, message = refusal(compiler, body)
    assert param == "x"
    assert words in message


def test_a_place_is_looked_for_only_so_long(compiler) -> None:
    schema = {
        "properties": {
            **{f"p{n}": {"type": "null"} for n in range(200)},
            "a": {"pattern": r"\p{Foo}"},
        }
    }
    assert refusal(compiler, JSONBody("x", schema))[0] == "x"
