"""JSON schemas in the syntax of TypeScript, as harmony shows them."""

import re
import time
from textwrap import dedent

import pytest
from hypothesis import given

from dragoman.core.error import FaultError
from dragoman.core.item import JSON
from dragoman.formats.harmony.tools import free, function
from tests.cases import cases
from tests.cost import is_square
from tests.strategies import json as values

STRING = {"type": "string"}
NUMBER = {"type": "number"}


def shape(schema: JSON) -> str:
    """The type of a parameter `a` with this schema."""
    text = function("f", None, {"type": "object", "properties": {"a": schema}})
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


TYPES = cases(__file__, "types")


@pytest.mark.parametrize(("schema", "text"), TYPES)
def test_schema_becomes_a_type(schema, text) -> None:
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
    assert "type f_x_2 = string;" in text
    assert "type f_0 = number;" in text


@pytest.mark.uncounted
def test_many_required_properties_cost_no_more_than_others() -> None:
    names = [f"property_{number}" for number in range(4_000)]

    def once(required: list[str]) -> float:
        schema: JSON = {"properties": dict.fromkeys(names, STRING), "required": required}
        start = time.thread_time()
        function("f", None, schema)
        return time.thread_time() - start

    assert any(once(names) < 4 * once([]) for _ in range(3))


@pytest.mark.uncounted
def test_definitions_whose_names_become_the_same_take_linear_time() -> None:
    def write(count: int) -> None:
        names = [chr(0x2190 + number % 40) + chr(0x2190 + number // 40) for number in range(count)]
        list_of: dict[str, JSON] = {
            name: {"type": "array", "items": {"$ref": f"#/$defs/{name}"}} for name in names
        }
        text = function("f", None, {"properties": list_of, "$defs": list_of})
        assert len(set(re.findall(r"^type (f_\w+) =", text, re.MULTILINE))) == count

    assert not is_square(write, 300)


def test_too_large_a_schema_is_refused_by_name() -> None:
    schema = {"properties": {str(number): STRING for number in range(20_001)}}
    with pytest.raises(FaultError) as refused:
        function("f", None, schema, "tools[3].parameters")
    assert refused.value.fault.param == "tools[3].parameters"


@pytest.mark.parametrize(
    "long",
    [{"description": "\n" * 20_000}, {"title": "\n" * 20_000}, {"examples": [1] * 20_000}],
    ids=lambda long: "".join(long),
)
def test_many_lines_of_comments_are_refused(long) -> None:
    with pytest.raises(FaultError, match="too large"):
        shape(long)
    shape({name: value[:-100] for name, value in long.items()})


def test_too_deep_a_schema_ends_in_any() -> None:
    schema: JSON = STRING
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert shape(schema).startswith("a?: any[][]")
    cycle = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "allOf": [{"$ref": "#/$defs/a"}]}
    assert function("f", None, cycle).endswith("type f = (_: f_a) => any;")


@given(values, values, values)
def test_invalid_schema_is_written_without_an_error(one, two, three) -> None:
    for key in ("type", "enum", "anyOf", "allOf", "items", "$ref", "default", "required", "title"):
        shape({key: one, "properties": two, "description": three})
    function("f", "D", one)
