"""The demo engine: deterministic answers that keep to the request, and say what they are."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.event import Delta
from dragoman.core.item import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemReference,
    Message,
    Reasoning,
    Summary,
    Text,
    Thought,
)
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    Sampling,
    UnknownTool,
)
from dragoman.core.response import Response, Usage
from dragoman.engines import script
from dragoman.engines.script import demo, demo_answer, fill, length, words
from tests.cases import cases
from tests.engines.stage import answered, heard
from tests.strategies import json as json_values
from tests.strategies import word

WEATHER = FunctionTool(
    "get_weather",
    "Get the current weather for a location",
    {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
)
TIME = FunctionTool("localTime", "The hour somewhere", {"properties": {"zone": {"enum": ["UTC"]}}})
SHELL = CustomTool("shell", "Runs a command")
QUESTION = "What's the weather like in San Francisco?"


async def ask(*said: str | Item, **settings: Any) -> Response:
    items = tuple(Message("user", each) if isinstance(each, str) else each for each in said)
    return await answered(demo(0), Request(model="script", items=items, **settings))


def call_of(response: Response) -> FunctionCall:
    (call,) = response.calls
    assert isinstance(call, FunctionCall)
    return call


# ---- text --------------------------------------------------------------------------------


async def test_answer_says_that_it_is_no_model_and_quotes_the_question() -> None:
    said = (await ask("Hello!")).text
    assert "demo, not a model" in said
    assert "Hello!" in said
    assert "You said nothing" in (await ask()).text


async def test_long_question_is_quoted_in_part() -> None:
    assert len((await ask("x" * 100_000)).text) < 1_000


async def test_image_is_accepted_and_counted() -> None:
    shown = Message("user", (Text("What is this?"), Image("data:image/png;base64,AA==")))
    response = await ask(shown)
    assert response.status == "completed"
    assert "1 image(s)" in response.text


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Count to 3", "1, 2, 3."),
        ("please count up to four!", "1, 2, 3, 4."),
        ("Count from 1 to 2", "1, 2."),
        ("count to 999999", ", ".join(map(str, range(1, 1001))) + "."),
    ],
)
async def test_question_to_count_is_answered(question, answer) -> None:
    assert (await ask(question)).text == answer


async def test_same_question_has_the_same_answer() -> None:
    one, two = await ask("Hello!"), await ask("Hello!")
    assert one.id != two.id
    assert (one.text, one.usage) == (two.text, two.usage)


async def test_choices_of_the_demo_engine_differ() -> None:
    response = await ask("Hello!", sampling=Sampling(n=3))
    assert response.choices == (0, 1, 2)
    assert response.reasons == ("stop",) * 3
    assert len({item.text for item in response.output if isinstance(item, Message)}) == 3
    assert len({item.id for item in response.output}) == 3


async def test_stop_string_ends_the_answer() -> None:
    response = await ask("count to 9", sampling=Sampling(stop=("", "5", "7")))
    assert (response.text, response.reasons) == ("1, 2, 3, 4, ", ("stop",))


async def test_reasoning_is_given_on_request_only() -> None:
    assert (await ask("Hello!", reasoning=ReasoningOptions("none"))).reasoning == ""
    assert (await ask("Hello!", reasoning=ReasoningOptions())).reasoning == ""
    response = await ask("Hello!", reasoning=ReasoningOptions("high", "auto"))
    thought = response.output[0]
    assert isinstance(thought.content[0], Thought)
    assert isinstance(thought.summary[0], Summary)
    assert (await ask("Hello!", reasoning=ReasoningOptions("low"))).output[0] != thought


async def test_v12_logprobs_are_zero() -> None:
    events = await heard(
        demo(0),
        Request(
            model="script",
            items=(Message("user", "count to 2"),),
            sampling=Sampling(logprobs=True, top_logprobs=1),
        ),
    )
    tokens = [e.tokens[0] for e in events if isinstance(e, Delta)]
    assert [(t.text, t.logprob, t.bytes) for t in tokens] == [
        ("1,", 0.0, b"1,"),
        (" 2.", 0.0, b" 2."),
    ]
    assert [t.top[0].text for t in tokens] == ["1,", " 2."]
    plain = await ask("count to 2", sampling=Sampling(logprobs=True))
    assert plain.output[0].parts[0].tokens[0].top == ()


# ---- limits and counts -------------------------------------------------------------------


async def test_token_limit_counts_words() -> None:
    response = await ask("count to 9", max_output_tokens=3)
    assert (response.text, response.status) == ("1, 2, 3,", "incomplete")
    assert response.reasons == ("length",)
    assert response.usage == Usage(3, 3, 6, reasoning_tokens=0)
    assert (await ask("count to 3", max_output_tokens=3)).status == "completed"


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"reasoning": ReasoningOptions("low", "auto")}, Reasoning),
        ({"tools": (WEATHER,), "tool_choice": "required"}, FunctionCall),
        ({"tools": (SHELL,), "tool_choice": "required"}, CustomToolCall),
    ],
)
async def test_item_at_the_limit_is_incomplete(settings, kind) -> None:
    last = (await ask("In San Francisco", max_output_tokens=1, **settings)).output[-1]
    assert isinstance(last, kind)
    assert last.status == "incomplete"


async def test_usage_counts_words() -> None:
    response = await ask(
        Message("developer", "be kind"),
        Message("user", "call it"),
        FunctionCall("c", "f", '{"a": 1}'),
        FunctionCallOutput("c", "it is done"),
        CustomToolCallOutput("d", (Text("two words"),)),
        ItemReference("x"),
        instructions="three more words",
        reasoning=ReasoningOptions("low"),
    )
    usage = response.usage
    assert usage.input_tokens == 2 + 2 + 2 + 3 + 2 + 0 + 3
    assert usage.reasoning_tokens == len(response.reasoning.split())
    assert usage.output_tokens == len(response.text.split()) + usage.reasoning_tokens
    other = await ask("x", instructions=(Message("system", "one two"),))
    assert other.usage.input_tokens == 3


# ---- tools -------------------------------------------------------------------------------


async def test_tool_named_in_the_question_is_called() -> None:
    response = await ask(QUESTION, tools=(TIME, WEATHER))
    call = call_of(response)
    assert (call.name, call.arguments) == ("get_weather", '{"location": "San Francisco"}')
    assert response.reasons == ("tool_calls",)
    assert (await ask("Hello!", tools=(TIME, WEATHER))).calls == ()


async def test_tool_is_found_by_its_description_or_the_word_tool() -> None:
    assert call_of(await ask("At what hour?", tools=(WEATHER, TIME))).name == "localTime"
    assert call_of(await ask("Use a tool!", tools=(WEATHER, TIME))).name == "get_weather"
    bare = FunctionTool("restart")
    assert call_of(await ask("restart it", tools=(bare,))).arguments == "{}"


async def test_p7_two_tools_are_called_in_parallel_unless_disabled() -> None:
    both = "The weather and the time, please"
    asked = {"tools": (WEATHER, TIME)}
    assert [c.name for c in (await ask(both, **asked)).calls] == ["get_weather", "localTime"]
    assert call_of(await ask(both, **asked, parallel_tool_calls=False)).name == "get_weather"
    assert call_of(await ask(both, **asked, max_tool_calls=1)).name == "get_weather"


async def test_tool_choice_is_obeyed() -> None:
    tools = (WEATHER, TIME, SHELL, UnknownTool("responses", "web_search", {}))
    assert (await ask(QUESTION, tools=tools, tool_choice="none")).calls == ()
    assert call_of(await ask("Hi", tools=tools, tool_choice="required")).name == "get_weather"
    assert call_of(await ask("Hi", tools=tools, tool_choice=NamedTool("localTime"))).name == (
        "localTime"
    )
    (custom,) = (await ask("Hi", tools=tools, tool_choice=NamedTool("shell", "custom"))).calls
    assert isinstance(custom, CustomToolCall)
    named = (NamedTool("localTime"), UnknownTool("responses", "web_search", {}))
    assert call_of(
        await ask(QUESTION, tools=tools, tool_choice=AllowedTools("required", named))
    ).name == "localTime"  # fmt: skip
    assert (await ask(QUESTION, tools=tools, tool_choice=AllowedTools("auto", named))).calls == ()
    assert (await ask("Hi", tool_choice="required")).calls == ()


async def test_namespaced_tool_is_called() -> None:
    space = Namespace("city", (WEATHER, SHELL, UnknownTool("responses", "x", {})))
    call = call_of(await ask(QUESTION, tools=(space,)))
    assert (call.namespace, call.name) == ("city", "get_weather")
    choice = NamedTool("get_weather", namespace="elsewhere")
    assert (await ask("Hi", tools=(space,), tool_choice=choice)).calls == ()


async def test_tool_results_are_quoted() -> None:
    history = (
        QUESTION,
        FunctionCall("c", "get_weather", "{}"),
        FunctionCallOutput("c", "sunny"),
        CustomToolCall("d", "shell", "ls"),
        CustomToolCallOutput("d", (Text("a.txt"),)),
        FunctionCallOutput("unknown", "?"),
    )
    response = await ask(*history, tools=(WEATHER,))
    assert response.calls == ()
    for told in ("get_weather returned sunny", "shell returned a.txt", "a tool returned ?"):
        assert told in response.text
    assert call_of(await ask(*history, QUESTION, tools=(WEATHER,))).name == "get_weather"


# ---- forms -------------------------------------------------------------------------------


async def test_schema_is_filled_in() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
        "required": ["city", "days"],
    }
    value = json.loads((await ask("A week in Rome", format=JSONSchema("trip", schema))).text)
    jsonschema.validate(value, schema)
    assert value["city"] == "Rome"
    assert json.loads((await ask("Hi", format=JSONObject())).text)["demo"] is True
    forced = await ask("Hi", format=JSONObject(), tools=(WEATHER,), tool_choice="required")
    assert call_of(forced).name == "get_weather"


# ---- values that fit a schema ------------------------------------------------------------


@pytest.mark.parametrize("schema", cases(__file__, "schemas"), ids=str)
def test_filled_value_fits_its_schema(schema) -> None:
    value = fill(schema)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert fill(schema) == value


keywords = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "anyOf", "allOf", "$ref"),
        *("enum", "minItems", "maxItems", "minLength", "minimum", "exclusiveMaximum"),
        *("multipleOf", "format", "default"),
    ]
)
values = json_values | st.sampled_from(["object", "array", "integer", "#", "#/properties/a", 1e300])
broken = st.recursive(
    st.dictionaries(keywords, values, max_size=4) | values,
    lambda inside: st.dictionaries(
        keywords, inside | st.lists(inside, max_size=3) | st.dictionaries(word, inside), max_size=4
    ),
    max_leaves=8,
)


@given(broken)
def test_fill_never_raises(schema) -> None:
    fill(schema)


def test_endless_schemas_are_bounded() -> None:
    wide: dict[str, Any] = {"type": "object"}
    wide["properties"] = {f"p{n}": {"$ref": "#"} for n in range(9)}
    assert fill(wide)
    wide["required"] = list(wide["properties"])
    assert fill(wide)
    assert fill({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}) == "example"
    assert len(fill({"type": "array", "minItems": 10**9})) == 100
    assert len(fill({"type": "string", "minLength": 10**9})) == 10_000


def test_large_values_of_a_schema_are_not_repeated_without_end() -> None:
    large = {"const": {"a": ["x" * 100_000]}}
    schema = {"type": "array", "minItems": 100, "items": {"type": "array", "minItems": 100}}
    for each in (large, {"enum": [large["const"]]}, {"default": large["const"]}):
        schema["items"]["items"] = each
        assert len(json.dumps(fill(schema))) < 300_000


def test_of_a_long_question_the_beginning_is_read() -> None:
    long = "count to two " + "ab " * 200_000
    response = demo_answer(Request(model="script", items=(Message("user", long),)))
    assert response.text == "1, 2."
    assert response.usage.input_tokens == 200_004


def test_many_choices_for_a_long_question_are_made_of_one_text(monkeypatch) -> None:
    made: list[str] = []
    text = script._text

    def noted(request: Request, question: str) -> str:
        made.append(question)
        return text(request, question)

    monkeypatch.setattr(script, "_text", noted)
    long = "what? " * 200_000
    for format, most in ((None, 1_000), (JSONObject(), 600)):
        sampling = Sampling(n=128)
        items = (Message("user", long),)
        request = Request(model="script", items=items, sampling=sampling, format=format)
        output = demo_answer(request).output
        assert len({item.id for item in output}) == len(output) == 128
        assert len({item.text for item in output}) == (1 if format else 128)
        assert max(len(item.text) for item in output) < most
    assert len(made) == 2


def test_results_of_tools_are_quoted_in_part() -> None:
    call = FunctionCall("c", "look", "{}")
    items = Message("user", "Look."), call, FunctionCallOutput("c", "x" * 1_000_000)
    assert len(demo_answer(Request(model="script", items=items)).text) < 3_000


@given(st.text(alphabet=" \n\x1c\u2003ab"))
def test_words_are_counted_as_they_are_given(text: str) -> None:
    assert length(Message("user", text)) == len(words(text))
