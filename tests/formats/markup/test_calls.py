"""Calls in Python and arguments as bare text, parsed into JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.fold import fold
from dragoman.core.item import FunctionCall, Message, Reasoning, Thought
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.markup.calls import DEEPEST, bare, calls, typed
from dragoman.formats.markup.emitter import Emitter
from dragoman.formats.markup.format import Markup
from tests.cases import cases
from tests.cost import is_square

CASES = cases(__file__, "calls")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["city", "days", "_x", "straße"])


@given(st.dictionaries(names, values, max_size=3), st.sampled_from([repr, json.dumps]))
def test_literals_of_python_and_json_are_read(arguments, write) -> None:
    said = ", ".join(f"{name}={write(value)}" for name, value in arguments.items())
    found = calls(f"[f({said}), g.h( {said} )]")
    assert [name for name, _ in found[0]] == ["f", "g.h"]
    assert [json.loads(text) for _, text in found[0]] == [arguments, arguments]


@given(st.text(st.sampled_from("[](){}'\"\\fa=1,;:. \n")))
def test_anything_else_raises_nothing(text) -> None:
    for body in (text, f"[f({text})]", f"f(a={text})"):
        found = calls(body)
        assert found is None or all(isinstance(said, str) for _, said in found[0])


@pytest.mark.parametrize(("said", "value"), CASES["values"])
def test_python_literal_becomes_its_json_value(said, value) -> None:
    found = calls(f"f(a={said})")
    assert json.loads(found[0][0][1]) == {"a": value}


def test_keys_of_a_dict_are_strings_or_become_some() -> None:
    assert calls('f(a={"k": 1, 2: 3})') == ([("f", '{"a": {"k": 1, "2": 3}}')], "")


@pytest.mark.parametrize(
    "said",
    [
        *("a=b", "1", "a", "a=1 b=2", "a={1 2}", "a=[1 2]", "a=1e999", "a=x()", "=1", "a=1+2"),
        "a=" + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        "a=" + "9" * 5000,
    ],
)
def test_arguments_that_cannot_be_read_stay_as_they_are(said) -> None:
    assert calls(f"f({said})") == ([("f", said)], "")


@pytest.mark.parametrize("text", ["", "[", "[]", "f", "f(", "[f(] x", "1", "[f(), 1]"])
def test_text_that_is_no_call(text) -> None:
    assert calls(text) is None


def test_text_behind_calls_is_returned() -> None:
    assert calls("[f()] and so") == ([("f", "{}")], " and so")
    assert calls("f(a=1,) and so") == ([("f", '{"a": 1}')], " and so")
    assert calls("[f() g()]") == ([("f", "{}")], " g()")
    assert calls("f(); g() and so") == ([("f", "{}"), ("g", "{}")], " and so")


DEFS = {"Day": {"enum": [1, 2]}, "Loop": {"$ref": "#/$defs/Loop"}}


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [*CASES["typed"], ({"type": "array"}, "[" * 100_000, json.dumps("[" * 100_000))],
)
def test_text_becomes_a_value_of_its_schemas_type(schema, text, said) -> None:
    assert typed(text, "a", {"properties": {"a": schema}, "$defs": DEFS}) == said


@pytest.mark.parametrize("schema", [None, {}, {"properties": []}, {"properties": {"b": {}}}])
def test_without_a_schema_it_is_a_string(schema) -> None:
    assert typed("1", "a", schema) == '"1"'


@given(st.integers() | st.lists(st.integers()) | st.text() | st.booleans() | st.none())
def test_bare_value_is_typed_to_the_same(value) -> None:
    kinds = ["integer", "array", "boolean", "null"]
    schema = {"properties": {"a": {"type": "string" if isinstance(value, str) else kinds}}}
    assert json.loads(typed(bare(value), "a", schema)) == value


def test_a_call_without_a_name_is_text() -> None:
    turn = Turn("1", 0, "m", think=None)
    emitter = Emitter(turn, {})
    emitter.open_call("")
    emitter.add_arguments("{}")
    emitter.close_call()
    emitter.finish("stop")
    assert fold(turn.take()).text == "{}"
    assert emitter.warnings == ["a call without a name: {}"]


def test_an_assistant_that_called_nothing_is_rendered() -> None:
    items = (Message("user", "Hi"), Message("assistant", "Hello."), Message("user", "Bye"))
    assert "Hello." in Markup("hermes").render(Request(model="m", items=items)).text


def test_what_led_to_a_call_is_rendered_before_it() -> None:
    thought = Reasoning(content=(Thought("Hm."),))
    items = (Message("user", "Hi"), thought, FunctionCall("c", "f", "{}"))
    text = Markup("hermes").render(Request(model="m", items=items)).text
    assert "<think>\nHm.\n</think>\n\n<tool_call>" in text


def test_strings_beside_each_other_are_one() -> None:
    ((name, arguments),) = calls("f(a='x' \"y\"\n'''z''', b=['1' r'\\d'])")[0]
    assert (name, json.loads(arguments)) == ("f", {"a": "xyz", "b": ["1\\d"]})


@pytest.mark.uncounted
def test_many_strings_beside_each_other_take_linear_time() -> None:
    assert not is_square(lambda count: calls("f(a=" + "'x' " * count + ")"), 8_000)
