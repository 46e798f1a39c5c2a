"""JSON schemas in the syntax of TypeScript, as harmony shows them."""

import time
from textwrap import dedent

import pytest
from hypothesis import given

from dragoman.core.error import FaultError
from dragoman.core.item import JSON
from dragoman.formats.harmony.tools import free, function
from tests.strategies import json

STRING = {"type": "string"}
NUMBER = {"type": "number"}


def shape(schema: JSON) -> str:
    """The type of a parameter `a` with this schema."""
    text = function("f", None, {"type": "object", "properties": {"a": schema}})
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


TYPES: list[tuple[JSON, str]] = [
    (STRING, "a?: string,"),
    ({"type": "integer"}, "a?: number,"),
    ({"type": "boolean"}, "a?: boolean,"),
    ({"type": "null"}, "a?: null,"),
    ({}, "a?: any,"),
    (True, "a?: any,"),
    (False, "a?: never,"),
    ({"type": "weird"}, "a?: any,"),
    ({"type": ["string", "null"]}, "a?: string | null,"),
    ({"type": "string", "nullable": True}, "a?: string | null,"),
    ({"type": ["string", "null"], "nullable": True}, "a?: string | null,"),
    ({"nullable": True}, "a?: any,"),
    ({"enum": ["x", "y"], "type": "string"}, 'a?: "x" | "y",'),
    ({"enum": [1, 2.5, None, "x", True]}, 'a?: 1 | 2.5 | null | "x" | true,'),
    ({"enum": []}, "a?: any,"),
    ({"const": "x"}, 'a?: "x",'),
    ({"const": None}, "a?: null,"),
    ({"enum": ['say "x"']}, r'a?: "say \"x\"",'),
    ({"type": "array", "items": STRING}, "a?: string[],"),
    ({"type": "array"}, "a?: Array<any>,"),
    ({"type": "array", "items": {"enum": ["x", "y"]}}, 'a?: ("x" | "y")[],'),
    ({"type": ["array", "null"], "items": STRING}, "a?: string[] | null,"),
    ({"type": "array", "prefixItems": [STRING, NUMBER], "items": False}, "a?: [string, number],"),
    ({"type": "array", "prefixItems": [STRING]}, "a?: [string, ...Array<any>],"),
    ({"type": "object"}, "a?: {\n    },"),
    ({"properties": {"b": STRING}}, "a?: {\n    b?: string,\n    },"),
    (
        {"type": ["object", "null"], "properties": {"b": STRING}, "required": ["b"]},
        "a?: {\n    b: string,\n    } | null,",
    ),
    (
        {"type": "object", "additionalProperties": NUMBER},
        "a?: {\n    [key: string]: number,\n    },",
    ),
    ({"anyOf": [STRING, {"type": "null"}]}, "a?: string | null,"),
    ({"anyOf": [STRING, {"type": ["string", "number"]}]}, "a?: string | number,"),
    ({"oneOf": [STRING, NUMBER]}, "a?:\n | string\n | number\n,"),
    ({"oneOf": [STRING], "nullable": True}, "a?:\n | string\n | null\n,"),
    (
        {"anyOf": [{**STRING, "description": "a name"}, {**NUMBER, "default": 3}, True]},
        "a?:\n | string // a name\n | number // default: 3\n | any\n,",
    ),
    (
        {"oneOf": [STRING, {"properties": {"b": STRING}}], "default": "x"},
        '// default: "x"\na?:\n | string\n | {\n   b?: string,\n   }\n,',
    ),
    ({"allOf": [STRING]}, "a?: string,"),
    ({"allOf": [{"enum": ["x", "y"]}, STRING]}, 'a?: (("x" | "y") & string),'),
    (
        {"properties": {"b": STRING}, "anyOf": [{"required": ["b"]}]},
        "a?: {\n    b?: string,\n    },",
    ),
    ({"$ref": "https://elsewhere"}, "a?: any,"),
    ({"$ref": "#/$defs/nothing"}, "a?: any,"),
    ({"$ref": "#/properties/a/oneOf/7"}, "a?: any,"),
    ({"type": "string", "default": "x"}, 'a?: string, // default: "x"'),
    ({"enum": ["x"], "default": "x"}, 'a?: "x", // default: x'),
    ({"enum": ["x\n"], "default": "x\n"}, 'a?: "x\\n", // default: "x\\n"'),
    ({"type": "number", "default": None}, "a?: number, // default: null"),
    ({"type": "string", "description": "one\ntwo"}, "// one\n// two\na?: string,"),
    ({"type": "string", "title": "T", "description": "D"}, "// T\n//\n// D\na?: string,"),
    (
        {"type": "string", "description": "D", "examples": ["x", 1]},
        '// D\n// Examples:\n// - "x"\n// - 1\na?: string,',
    ),
    (
        {"type": "array", "description": "All.", "items": {**STRING, "description": "Each."}},
        "// All.\n// Each.\na?: string[],",
    ),
]


@pytest.mark.parametrize(("schema", "text"), TYPES)
def test_types(schema: JSON, text: str) -> None:
    assert shape(schema) == text


def test_a_function_with_all_it_says() -> None:
    schema = {
        "type": "object",
        "description": "What to look for.",
        "properties": {
            "where": {
                "type": "object",
                "description": "A place.",
                "properties": {"city": {**STRING, "description": "Its name."}},
                "required": ["city"],
            },
            "how-many": NUMBER,
        },
        "required": ["where"],
    }
    expected = """\
        // Finds.
        // Quickly.
        // What to look for.
        type find = (_: {
        // A place.
        where: {
            // Its name.
            city: string,
            },
        "how-many"?: number,
        }) => any;"""
    assert function("find", "Finds.\nQuickly.", schema) == dedent(expected)


def test_a_description_is_not_repeated() -> None:
    assert (
        function("f", "D", {"description": "D", **STRING}) == "// D\ntype f = (_: string) => any;"
    )


def test_without_parameters_and_without_form() -> None:
    assert function("f", None, None) == "type f = () => any;"
    assert function("f", "", True) == "type f = (_: any) => any;"
    assert free("f", "D") == "// D\ntype f = (_: string) => any;"


def test_a_definition_used_once_stands_in_its_place() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"description": "A place.", "enum": ["x", "y"]}},
    }
    text = function("f", None, schema)
    assert text == 'type f = (_: {\n// A place.\na?: "x" | "y",\n}) => any;'


def test_a_definition_used_often_or_by_itself_has_a_name() -> None:
    schema = {
        "properties": {"root": {"$ref": "#/$defs/Node"}, "next": {"$ref": "#"}},
        "$defs": {
            "Node": {
                "description": "A node.",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
            }
        },
    }
    expected = """\
        // A node.
        type f_Node = {
        children?: f_Node[],
        };

        type f_self = {
        root?: f_Node,
        next?: f_self,
        };

        type f = (_: {
        root?: f_Node,
        next?: f_self,
        }) => any;"""
    assert function("f", None, schema) == dedent(expected)


def test_names_of_definitions_differ() -> None:
    twice = {"enum": [1, 2]}
    schema = {
        "properties": {
            name: {"$ref": pointer}
            for name, pointer in (
                ("a", "#/$defs/x"),
                ("b", "#/$defs/x"),
                ("c", "#/definitions/x"),
                ("d", "#/definitions/x"),
                ("e", "#/definitions/a~1b/anyOf/0"),
            )
        },
        "$defs": {"x": twice},
        "definitions": {"x": STRING, "a/b": {"anyOf": [NUMBER]}},
    }
    text = function("f", None, schema)
    assert "type f_x = 1 | 2;" in text
    assert "type f_x_ = string;" in text
    assert "type f_0 = number;" in text


def test_many_required_properties_cost_no_more_than_others() -> None:
    names = [f"property_{number}" for number in range(4_000)]

    def once(required: list[str]) -> float:
        schema: JSON = {"properties": dict.fromkeys(names, STRING), "required": required}
        start = time.thread_time()
        function("f", None, schema)
        return time.thread_time() - start

    assert min(once(names) for _ in range(3)) < 4 * min(once([]) for _ in range(3))


def test_too_large_a_schema_is_refused_by_name() -> None:
    schema = {"properties": {str(number): STRING for number in range(20_001)}}
    with pytest.raises(FaultError) as refused:
        function("f", None, schema, "tools[3].parameters")
    assert refused.value.fault.param == "tools[3].parameters"


def test_too_deep_a_schema_ends_in_any() -> None:
    schema: JSON = STRING
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert shape(schema).startswith("a?: any[][]")
    cycle = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "allOf": [{"$ref": "#/$defs/a"}]}
    assert function("f", None, cycle).endswith("type f = (_: f_a) => any;")


@given(json, json, json)
def test_nonsense_is_written_too(one: JSON, two: JSON, three: JSON) -> None:
    for key in ("type", "enum", "anyOf", "allOf", "items", "$ref", "default", "required", "title"):
        shape({key: one, "properties": two, "description": three})
    function("f", "D", one)
