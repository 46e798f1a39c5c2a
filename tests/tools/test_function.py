"""Tools from functions: the schema of their types, the arguments of models, and their results."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import functools
import json
import math
import os
import threading
from array import array
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from dragoman.core.item import CustomToolCall, FunctionCall, Image, Message, Text
from dragoman.core.request import CustomTool, FunctionTool
from dragoman.tools import function
from dragoman.tools.function import OutputType, PythonTool, as_tool, plain_schema, tool
from dragoman.tools.run import Context, Result, Runner, ToolError


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    loud: bool


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


class Inner(pydantic.BaseModel):
    z: int


class Person(pydantic.BaseModel):
    age: int
    inner: Inner | None = None


def properties(function: Any) -> dict[str, Any]:
    spec = as_tool(function).spec
    assert isinstance(spec, FunctionTool)
    return spec.parameters["properties"]


async def ran(function: Any, arguments: str | dict[str, Any] = "{}", name: str = "f") -> Result:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    made = FunctionCall("c1", as_tool(function).spec.name, text)
    return await Runner([as_tool(function)]).run(made, Context(made))


async def output(function: Any, arguments: str | dict[str, Any] = "{}") -> Any:
    result = await ran(function, arguments)
    assert not result.error, result.output
    return result.output.output


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (list[float], {"type": "array", "items": {"type": "number"}}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Color, {"enum": ["blue", "red"]}),
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (Annotated[str, "its name"], {"type": "string", "description": "its name"}),
        (
            Options,
            {"type": "object", "properties": {"loud": {"type": "boolean"}}, "required": []},
        ),
        (
            Point,
            {
                "type": "object",
                "properties": {
                    "x": {"type": "integer"},
                    "y": {"type": "number", "default": 0.0},
                },
                "required": ["x"],
            },
        ),
        (Inner, {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}),
    ],
)
def test_the_schema_is_that_of_the_types(kind, schema) -> None:
    def f(given): ...

    f.__annotations__ = {"given": kind}
    assert properties(f) == {"given": schema}


def test_types_that_hold_themselves_stay_definitions() -> None:
    def f(node: Node, person: Person) -> None: ...

    parameters = as_tool(f).spec.parameters
    assert parameters["properties"]["node"] == {"$ref": "#/$defs/Node"}
    assert list(parameters["$defs"]) == ["Node"]
    assert "title" not in json.dumps(parameters)
    inner = parameters["properties"]["person"]["properties"]["inner"]
    assert inner["anyOf"][0]["properties"] == {"z": {"type": "integer"}}


def test_definitions_used_twice_stay_at_the_root() -> None:
    schema = {
        "properties": {
            "a": {"$ref": "#/$defs/X"},
            "b": {"$ref": "#/definitions/X"},
            "c": {"$ref": "https://example.com/other"},
        },
        "definitions": {"X": {"type": "string", "title": "X"}},
        "enum": [{"title": "kept"}],
    }
    assert plain_schema(schema) == {
        "properties": {
            "a": {"$ref": "#/$defs/X"},
            "b": {"$ref": "#/$defs/X"},
            "c": {"$ref": "https://example.com/other"},
        },
        "enum": [{"title": "kept"}],
        "$defs": {"X": {"type": "string"}},
    }


def test_parameters_with_defaults_are_optional_and_show_them() -> None:
    def f(a: int, b: str = "x", c: Color = Color.RED, d: str = None) -> None: ...  # noqa: RUF013

    spec = as_tool(f).spec
    assert spec.parameters["required"] == ["a"]
    assert {name: each.get("default", "-") for name, each in properties(f).items()} == {
        "a": "-",
        "b": "x",
        "c": "red",
        "d": None,
    }


GOOGLE = """Find trains.

    Only direct ones.

    Args:
        origin: where it
            leaves from
        target (str): where it goes

    Returns:
        a list: of trains
    """
SPHINX = """Find trains.

    Only direct ones.

    :param origin: where it
        leaves from
    :param str target: where it goes
    :returns: a list
    """


NUMPY = """Find trains.

    Only direct ones.

    Parameters
    ----------
    origin : str
        where it
        leaves from
    target : str, optional
        where it goes

    Returns
    -------
    list : of trains
        none of them late
    """


@pytest.mark.parametrize("docstring", [GOOGLE, SPHINX, NUMPY])
def test_docstrings_describe_the_tool_and_its_parameters(docstring) -> None:
    def trains(origin: str, target: str, day: Annotated[str, "the day"] = "today") -> None: ...

    trains.__doc__ = docstring
    assert as_tool(trains).spec.description == "Find trains.\n\nOnly direct ones."
    assert [each.get("description") for each in properties(trains).values()] == [
        "where it leaves from",
        "where it goes",
        "the day",
    ]


def no_type(a) -> None: ...
def positional(a: int, /) -> None: ...
def variadic(*a: int) -> None: ...
def keywords(**a: int) -> None: ...
def unknown(a: Missing) -> None: ...  # noqa: F821
def odd(a: threading.Thread) -> None: ...
def two(a: str, b: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_type, "no_type: a has no type"),
        (positional, "a is positional only"),
        (variadic, "variadic: a is variadic"),
        (keywords, "is variadic"),
        (unknown, "types cannot be looked up: name 'Missing'"),
        (odd, "odd: .*Thread"),
        (lambda: None, "'<lambda>' is no name for a tool"),
        (7, "int is neither a tool nor a function"),
    ],
)
def test_functions_without_a_schema_are_refused_when_they_are_made(function, problem) -> None:
    with pytest.raises(TypeError, match=problem):
        as_tool(function)


async def test_arguments_come_in_the_types_of_the_parameters() -> None:
    seen: dict[str, Any] = {}

    @tool
    def f(color: Color, point: Point, person: Person, numbers: list[int] = []) -> None:  # noqa: B006
        seen.update(color=color, point=point, person=person, numbers=numbers)

    given = {"color": "red", "point": {"x": "1"}, "person": {"age": 3}, "numbers": ["1", 2.0]}
    assert await output(f, given) == ""
    assert seen == {
        "color": Color.RED,
        "point": Point(1),
        "person": Person(age=3),
        "numbers": [1, 2],
    }


def add(a: int, b: int = 1) -> int:
    return a + b


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('{"a": 2}', "3"),
        ('{"a": "2", "b": 2.0}', "4"),
        ('"{\\"a\\": 2}"', "3"),
    ],
)
async def test_arguments_are_read_as_small_models_write_them(text, result) -> None:
    assert await output(add, text) == result


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "missing required field `a`"),
        ('{"a": 1', "The arguments of 'add' are no JSON: Expecting"),
        ("[1]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ('{"a": "x"}', r"do not fit its parameters: Expected `int`, got `str` - at `\$.a`"),
        ('{"a": 1, "c": 1}', "unknown field `c`"),
        ("[" * 100_000, "are no JSON"),
    ],
)
async def test_invalid_arguments_are_an_error_for_the_model(text, problem) -> None:
    result = await ran(add, text)
    assert result.error
    assert result.retry
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(result.output.output)
    assert "Traceback" not in result.output.output


async def test_pydantic_says_what_does_not_fit() -> None:
    def f(person: Person) -> None: ...

    result = await ran(f, {"person": {"age": "old"}})
    assert "valid integer" in result.output.output


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        ("text", "text"),
        (b"bytes", "bytes"),
        ({"a": Color.RED}, '{"a":"red"}'),
        (Person(age=1), '{"age":1,"inner":null}'),
        ([Point(1)], '[{"x":1,"y":0.0}]'),
        ({("a", 1): 2, frozenset("b"): 3}, """{"('a', 1)":2,"frozenset({'b'})":3}"""),
        (os.getpid, '"<built-in function getpid>"'),
        (Text("a"), (Text("a"),)),
        (["see", Image("data:,")], (Text("see"), Image("data:,"))),
        (Message("user", "hi"), (Text("hi"),)),
    ],
)
async def test_results_are_text_parts_or_json(value, expected) -> None:
    def f() -> Any:
        return value

    assert await output(f) == expected


async def test_bytes_that_are_no_text_are_an_error() -> None:
    def f() -> bytes:
        return b"\xff\xfe"

    assert (await ran(f)).output.output == "It gave 2 bytes, which are no text."


async def test_functions_run_in_threads_with_their_context_and_coroutines_on_the_loop() -> None:
    here = threading.get_ident()
    name: ContextVar[str] = ContextVar("name", default="")
    name.set("Ada")

    def blocking(context: Context) -> list[Any]:
        return [threading.get_ident() == here, name.get(), context.call.call_id]

    async def native(*, about: Context) -> list[Any]:
        return [threading.get_ident() == here, name.get(), about.call.call_id]

    def either() -> Any:
        return native(about=Context(FunctionCall("c2", "f", "")))

    assert json.loads(await output(blocking)) == [False, "Ada", "c1"]
    assert json.loads(await output(native)) == [True, "Ada", "c1"]
    assert json.loads(await output(either)) == [True, "Ada", "c2"]
    assert properties(blocking) == properties(native) == {}


async def test_a_custom_tool_takes_text_or_text_of_a_grammar() -> None:
    @tool(custom=True)
    def free(text: str) -> str:
        "Any text."
        return text[::-1]

    @tool(grammar=("regex", "[0-9]+"), name="digits")
    def ruled(text: str, context: Context) -> str:
        return f"{text} of {context.call.name}"

    assert free.spec == CustomTool("free", "Any text.")
    assert ruled.spec == CustomTool("digits", None, "regex", "[0-9]+")
    runner = Runner([free, ruled])
    for made, expected in [("free", "olleh"), ("digits", "hello of digits")]:
        asked = CustomToolCall("c1", made, "hello")
        assert (await runner.run(asked, Context(asked))).output.output == expected
    with pytest.raises(TypeError, match="nothing else"):
        tool(custom=True)(two)


def test_a_tool_is_called_like_its_function() -> None:
    made = tool(name="plus", description="Adds.", strict=True)(add)
    assert isinstance(made, PythonTool)
    assert (made(1, b=2), made.__name__) == (3, "add")
    assert made.spec.name == "plus"
    assert made.spec.description == "Adds."
    assert made.spec.strict
    assert tool(schema={"type": "object"})(add).spec.parameters == {"type": "object"}
    assert as_tool(made) is made


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Point, '{"x": 1}', Point(1)),
        (Person, '```json\n{"age": 4}\n```', Person(age=4)),
        (int, '{"value": 3}', 3),
        (list[str], '{"value": ["a"]}', ["a"]),
    ],
)
def test_answers_in_a_type_are_that_type(kind, text, value) -> None:
    typed = OutputType(kind)
    assert typed.value(text) == value
    assert typed.format.schema["type"] == "object"
    with pytest.raises(ToolError, match="is no JSON"):
        typed.value("Well,")
    with pytest.raises(ToolError, match="does not fit"):
        typed.value('{"x": "y", "age": "z", "value": {}}')


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (dict, '{"value": {"a": 1}}', {"a": 1}),
        (dict, '{"a": 1}', {"a": 1}),
        (dict, '{"value": 1, "unit": "m"}', {"value": 1, "unit": "m"}),
        (dict[str, int], '{"value": 1}', {"value": 1}),
        (Inner | None, '{"value": {"z": 3}}', Inner(z=3)),
        (Options | None, '{"value": {"loud": true}}', {"loud": True}),
        (Options | None, '{"loud": true}', {"loud": True}),
    ],
)
def test_answers_of_types_that_take_any_object_are_what_was_written(kind, text, value) -> None:
    assert OutputType(kind).value(text) == value


def test_a_typed_answer_keeps_the_definitions_it_needs() -> None:
    schema = OutputType(Node).format.schema
    assert schema["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/Node"}
    assert list(schema["$defs"]) == ["Node"]


async def test_a_thread_that_outlives_its_call_is_harmless() -> None:
    gate = threading.Event()

    @tool(seconds=0.01)
    def slow() -> None:
        gate.wait(30)

    result = await ran(slow)
    assert result.output.output == "The tool 'slow' failed. It did not end within 0.01 seconds."
    gate.set()
    await asyncio.sleep(0)


async def test_stop_iteration_is_an_error_like_others() -> None:
    def f() -> None:
        next(iter(()))

    assert "StopIteration" in (await ran(f)).output.output


# ---- types that pydantic reads ---------------------------------------------------------------


class First(pydantic.BaseModel):
    class Inner(pydantic.BaseModel):
        a: int

    inner: Inner
    again: Inner | None = None


class Second(pydantic.BaseModel):
    class Inner(pydantic.BaseModel):
        b: str

    inner: Inner
    again: Inner | None = None


class Odd(pydantic.BaseModel):
    @pydantic.model_validator(mode="before")
    @classmethod
    def fail(cls, _: Any) -> Any:
        raise RuntimeError("odd")


def test_definitions_of_one_name_stay_apart() -> None:
    def f(first: First, second: Second) -> None: ...

    parameters = as_tool(f).spec.parameters
    names = [each["properties"]["inner"]["$ref"] for each in parameters["properties"].values()]
    assert names == ["#/$defs/Inner", "#/$defs/Inner_"]
    assert [list(each["properties"]) for each in parameters["$defs"].values()] == [["a"], ["b"]]


async def test_fields_of_pydantic_bound_and_describe_parameters() -> None:
    def f(
        a: Annotated[int, pydantic.Field(gt=0, description="how many")],
        b: int = pydantic.Field(5),
        c: int = pydantic.Field(),
    ) -> int:
        return a + b + c

    assert properties(f)["a"] == {
        "description": "how many",
        "exclusiveMinimum": 0,
        "type": "integer",
    }
    assert as_tool(f).spec.parameters["required"] == ["a", "c"]
    assert await output(f, {"a": 1, "c": 1}) == "7"
    result = await ran(f, {"a": -1, "c": 1})
    assert "Input should be greater than 0" in result.output.output
    assert "http" not in result.output.output


async def test_unions_that_only_pydantic_can_tell_apart_are_read() -> None:
    def f(either: Person | Point | None, odd: Odd | None = None) -> str:
        return type(either).__name__

    assert await output(f, {"either": {"age": 1}}) == "Person"
    assert await output(f, {"either": {"x": 1}}) == "Point"
    assert "RuntimeError: odd" in (await ran(f, {"either": None, "odd": {}})).output.output


def test_a_parameter_may_have_a_type_with_the_name_of_its_function() -> None:
    @tool(name="Point")
    def f(point: Point) -> None: ...

    assert properties(f)["point"]["required"] == ["x"]

    class answer(msgspec.Struct):
        x: int

    assert OutputType(answer).value('{"x": 1}') == answer(1)


# ---- callables of all kinds ------------------------------------------------------------------


class Adder:
    def __call__(self, a: int) -> int:
        return a + 1

    def method(self, a: int) -> int:
        return a + 2


@pytest.mark.parametrize(
    ("function", "result"),
    [(partial(add, b=5), "6"), (Adder(), "2"), (Adder().method, "3")],
)
async def test_partials_methods_and_callable_objects_are_tools(function, result) -> None:
    made = PythonTool(function, name="f")
    assert await output(made, {"a": 1}) == result


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: map(str, [1, 2]), '["1","2"]'),
        (lambda: {"a": 1}.keys(), '["a"]'),
        (lambda: {"a": 1}.values(), "[1]"),
        (lambda: {"a": 1}.items(), '[["a",1]]'),
        (lambda: {"rows": range(3)}, '{"rows":[0,1,2]}'),
        (lambda: MappingProxyType({"a": 1}), '{"a":1}'),
        (lambda: array("d", [1.5]), "[1.5]"),
        (lambda: {1: ["\udce9.txt"]}, '{"1": ["?.txt"]}'),
    ],
)
async def test_collections_of_all_kinds_are_lists_and_objects(value, expected) -> None:
    def given() -> Any:
        return value()

    assert await output(given) == expected


@pytest.mark.parametrize(("piece", "start"), [("ab", "abab"), (1, "[1,1"), ("", "")])
async def test_of_a_generator_without_an_end_the_beginning_is_shown(piece, start) -> None:
    @tool(auto_truncate=1000)
    def forever() -> object:
        while True:
            yield piece

    shown = await output(forever)
    assert shown.startswith(start)
    assert len(shown) <= 1000


async def test_generators_are_collected_and_asynchronous_ones_refused() -> None:
    def words() -> Any:
        yield from ("one ", "two")

    def numbers() -> Any:
        yield from (1, 2)

    async def later() -> Any:
        yield 1

    assert await output(words) == "one two"
    assert await output(numbers) == "[1,2]"
    with pytest.raises(TypeError, match="asynchronous generator"):
        as_tool(later)


async def test_a_wrapper_around_a_coroutine_function_is_awaited() -> None:
    async def inner(a: int) -> int:
        return a

    @functools.wraps(inner)
    def outer(a: int) -> Any:
        return inner(a)

    assert await output(outer, {"a": 1}) == "1"


def test_defaults_that_have_no_place_in_a_schema_are_left_out() -> None:
    def f(a: float = math.inf, b: Any = object(), c: Person = Person(age=1)) -> None: ...  # noqa: B008

    assert [each.get("default") for each in properties(f).values()] == [
        None,
        None,
        {"age": 1, "inner": None},
    ]


async def test_the_context_may_be_optional_or_annotated() -> None:
    def f(context: Context | None = None) -> str:
        return context.call.name

    def g(context: Annotated[Context, "it"]) -> str:
        return context.call.name

    assert [await output(f), await output(g)] == ["f", "g"]


def test_what_follows_the_arguments_belongs_to_the_description() -> None:
    def f(a: int) -> None:
        """Do it.

        Args:
            a: a number

        It never fails.
        """

    assert as_tool(f).spec.description == "Do it.\n\nIt never fails."


def test_a_misspelled_approval_or_next_speaker_is_refused() -> None:
    with pytest.raises(TypeError, match="add: seconds: is of type str, and must be Real"):
        tool(seconds="5")(add)
    with pytest.raises(TypeError, match="add: auto_truncate: is of type str, and must be Integral"):
        tool(auto_truncate="x")(add)
    with pytest.raises(ValueError, match="approval is 'ask'"):
        tool(approval="ask")(add)
    with pytest.raises(ValueError, match="after is 'users'"):
        tool(after="users")(add)


@pytest.mark.parametrize("text", ["7", "Well:\n```json\n7\n```\nThere.", '{"value": "7"}'])
def test_a_bare_answer_and_one_in_a_fence_are_read(text) -> None:
    assert OutputType(int).value(text) == 7


async def test_functions_that_hang_have_a_limit(monkeypatch) -> None:
    go = threading.Event()

    def hangs() -> str:
        go.wait()
        return "Done."

    asked = Context(FunctionCall("1", "hangs", "{}"))
    while function._threads._working:  # of tests before
        await asyncio.sleep(0.001)
    monkeypatch.setattr(function, "MOST_THREADS", 1)
    waiting = asyncio.ensure_future(as_tool(hangs).call("{}", asked))
    await asyncio.sleep(0)
    with pytest.raises(ToolError, match="1 calls are at work, or hang"):
        await as_tool(hangs).call("{}", asked)
    go.set()
    assert await waiting == "Done."
    assert await as_tool(hangs).call("{}", asked) == "Done."


class Slot(msgspec.Struct, tag=True):
    at: datetime.datetime
    after: Slot | None = None


class Day(msgspec.Struct, tag=True, array_like=True):
    hours: tuple[int, datetime.time]


@dataclasses.dataclass
class Plan:
    slots: list[Slot | datetime.datetime | None]
    day: Day
    by_name: dict[str, datetime.time]
    local: Annotated[datetime.datetime, msgspec.Meta(tz=False)]


def test_times_have_their_formats_wherever_they_are() -> None:
    def f(plan: Plan, at: datetime.datetime | None = None) -> None: ...

    schema = json.dumps(as_tool(f).spec.parameters)
    moment, hour = ({"type": "string", "format": each} for each in ("date-time", "time"))
    assert schema.count(json.dumps(moment)) == 3  # of `at`, of a slot, of its `at`
    assert schema.count(json.dumps(hour)) == 2
    assert schema.count('"format"') == 5  # a local time has none
    typed = OutputType(datetime.datetime)
    assert typed.value('{"value": "2026-01-01T12:00:00Z"}').tzinfo is datetime.UTC
    with pytest.raises(ToolError, match="RFC3339"):
        typed.value('{"value": "unknown"}')
