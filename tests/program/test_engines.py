"""What users of guidance have, area by area, on three engines: a script, the pocket model, and a
real llama.cpp server.
"""

import json as stdlib_json
from collections.abc import Callable

import msgspec
import pytest

from dragoman.core.error import FaultError
from dragoman.engines.script import Script
from dragoman.program import (
    Model,
    Tool,
    assistant,
    audio,
    block,
    capture,
    gen,
    gen_audio,
    grammar,
    image,
    json,
    lark,
    match,
    one_or_more,
    optional,
    program,
    regex,
    repeat,
    role,
    select,
    sequence,
    substring,
    system,
    token_limit,
    user,
    with_temperature,
    zero_or_more,
)
from tests.program.test_weaknesses import PIXEL

Row = Callable[[Model], None]
ROWS: dict[str, list[tuple[Row, str, tuple[str, ...]]]] = {}
"""Area -> what holds there after a question, whatever the model says; and what a script says."""


def row(area: str, *said: str, question: str = "Count to 3.") -> Callable[[Row], Row]:
    """Of an area."""

    def add(function: Row) -> Row:
        ROWS.setdefault(area, []).append((function, question, said))
        return function

    return add


def after(lm: Model, question: str) -> Model:
    with system():
        lm += "You are brief."
    with user():
        return lm + question


@row("the model as a value", "one two")
def value(lm: Model) -> None:
    start = lm
    with assistant():
        found = start + gen("it", max_tokens=4)
    assert "it" in found
    assert "it" not in start
    assert found["it"] == found.get("it") == str(found["it"])
    assert (found.get("no", 7), "it" in found.remove("it"), found.set("k", 1)["k"]) == (7, False, 1)
    assert len(found) == len(str(found)) > len(start)
    assert found.log_prob("it", default=0.0) <= 0
    assert found.usage.round_trips == 1
    with assistant():
        params = start.with_sampling_params(top_p=0.5, top_k=3, min_p=0.1) + gen("it", max_tokens=2)
    assert params.capture("it").end in ("stop", "length")


@row("roles", "one")
def roles(lm: Model) -> None:
    with role("assistant"):
        found = lm + gen("it", max_tokens=4)
    assert [item.role for item in found.items] == ["system", "user", "assistant"]
    with user(), pytest.raises(ValueError, match="cannot be inside"), assistant():
        pass


@row("gen", "one two")
def free(lm: Model) -> None:
    with assistant():
        found = lm + "Well: " + gen("it", max_tokens=6, temperature=0) + "!"
    assert found.items[-1].text == f"Well: {found['it']}!"
    assert len(found.items) == 3  # a turn is one turn


@row("gen", "1 2")
def stops(lm: Model) -> None:
    with assistant():
        node = gen("it", stop=["2", "!"], max_tokens=20, save_stop_text=True, suffix="; ")
        found = lm + node + gen("more", stop_regex="[a-z]", max_tokens=4)
    assert found.items[-1].text.startswith(f"{found['it']}; ")
    assert not set("2!") & set(found["it"])
    assert found["it_stop_text"] in ("2", "!", "")
    assert not any(letter.islower() for letter in found["more"])


@row("gen", "1815", "ab")
def pattern(lm: Model) -> None:
    with assistant():
        found = lm + "In " + regex("[0-9]{4}", name="it") + " or " + gen(regex="[a-z]{2}")
    assert match("In " + regex("[0-9]{4}") + " or " + regex("[a-z]{2}"), found.items[-1].text)
    assert found.guarantee("it") in ("enforced", "verified")


@row("gen", "a", "b")
def appended(lm: Model) -> None:
    with assistant():
        for _ in range(2):
            lm += gen("it", max_tokens=2, list_append=True) + " "
    assert lm.items[-1].text == "".join(f"{each} " for each in lm["it"])
    assert len(lm["it"]) == 2


@row("select", "rude", "2", "Rome")
def choice(lm: Model) -> None:
    with assistant():
        found = lm + "It is " + select(["friendly", "rude"], name="it") + ", "
        found += select([1, 2.5, "2"], name="number") + " "
        found += select(["", "Rome", regex("[A-B]{2}")], name="mixed", list_append=True)
    assert found["it"] in ("friendly", "rude")
    assert found["number"] in ("1", "2.5", "2")
    assert match(select(["", "Rome", regex("[A-B]{2}")]), found["mixed"][0]) is not None


@row("grammar", "ab;c", "yes", "a12", "xxyz", "aa", "aabb")
def rules(lm: Model) -> None:
    @program(stateless=True)
    def nested(lm):
        return lm + "a" + optional(nested()) + "b"

    nodes = [
        repeat(select(["ab", "c"]) + optional(";"), 1, 3),
        lark('start: "yes" | "no"'),
        lark('root ::= "a" [0-9]{1,3}'),
        grammar(one_or_more("x") + repeat("y", 0, 2) + zero_or_more("z") + sequence("", 0, 1)),
        repeat("a", 2, 2),
        nested(),
    ]
    with assistant():
        found = lm
        for number, node in enumerate(nodes):
            bounded = token_limit(with_temperature(node, 0), 60)
            found += capture(bounded, f"it{number}") + " "
    for number, node in enumerate(nodes):
        whole = found.capture(f"it{number}").end != "length"
        assert match(node, found[f"it{number}"], allow_partial=not whole) is not None, node


@row("grammar", "two three", "c,d", "bc")
def stretches(lm: Model) -> None:
    nodes = [
        substring("one two three"),
        substring("a,b,c,d", chunk=lambda text: ["a,", "b,", "c,", "d"]),
        substring("abc", chunk="character"),
    ]
    with assistant():
        found = lm
        for number, node in enumerate(nodes):
            found += capture(node, f"it{number}") + ". "
    assert all(match(node, found[f"it{number}"]) for number, node in enumerate(nodes))


class Person(msgspec.Struct):
    name: str
    age: int


ADA = "Ada is 36 years old."
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"enum": [36, 40]}},
    "required": ["name", "age"],
}


@row("json", '{"name": "Ada", "age": 36}', '{"name":"Ada","age":36}', question=ADA)
def data(lm: Model) -> None:
    with assistant():
        found = lm + json("it", schema=PERSON, max_tokens=60)
    with assistant():
        closed = lm + json("it", schema=stdlib_json.dumps(PERSON), separators=(",", ":"))
    assert match(json(schema=PERSON), found["it"]) is not None
    assert stdlib_json.loads(closed["it"])["age"] in (36, 40)
    with assistant():
        typed = lm + json("it", schema=Person, max_tokens=60)
    if typed.capture("it").end == "stop":
        assert msgspec.json.decode(typed["it"], type=Person)
    with pytest.raises(ValueError, match="allows nothing"):
        json(schema=False)


@row("functions", "q")
def function(lm: Model) -> None:
    @program
    def inner(lm, name):
        return lm + f"So {select(['p', 'q'], name=name)}"

    with assistant():
        found = lm + inner("it") + "."
    assert found.items[-1].text == f"So {found['it']}."


@row("capture and block", "b", "and c")
def blocks(lm: Model) -> None:
    with assistant():
        found = lm
        with block("it", opener="<", closer=">"):
            found += "a" + select(["b"])
        found += capture("and " + select(["c"], name="inner"), "outer")
    assert found.items[-1].text == "<ab>and c"
    assert (found["it"], found["inner"], found["outer"]) == ("ab", "c", "and c")


@row("tools", "It is sunny.", question="What is the weather in Paris?")
def tools(lm: Model) -> None:
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"It is sunny in {city}."

    def run(input: str) -> str:
        """Runs."""
        return input

    offered = [
        get_weather,
        Tool.from_callable(run, name="first", description="Runs it."),
        Tool.from_regex("[0-9]+", run),
    ]
    with assistant():
        found = lm + gen("it", tools=offered, tool_choice="auto", max_tokens=80)
    assert found["it"] == found.items[-1].text
    assert found.capture("it").end in ("stop", "length")


def outcome(lm: Model, node: object) -> object:
    """What is captured, or whose fault it is that there is nothing."""
    try:
        return (lm + node)["it"]
    except FaultError as error:
        return f"fault of the {error.fault.blame}: {error.fault.message}"


@row("media", "A dot.", "Spoken.")
def media(lm: Model) -> None:
    """Who cannot see, hear or speak says so, and whose fault it is."""
    for nodes in ([image(PIXEL)], ["Hear: ", audio(b"RIFF0000WAVE")]):
        with user():
            shown = lm
            for node in nodes:
                shown += node
        with assistant():
            found = outcome(shown, gen("it", max_tokens=4))
        assert found
    with assistant():
        assert outcome(lm, gen_audio("it", voice="ash", max_tokens=4))[:4] in (b"RIFF", "faul")


@row("streaming", "one two three")
def streamed(lm: Model) -> None:
    with assistant():
        seen = list(lm.stream("So: ", gen("it", max_tokens=8), "."))
    final = seen[-1].model
    assert "".join(map(str, seen)) == final.items[-1].text
    lengths = [len(delta.model.get("it", "")) for delta in seen]
    assert lengths == sorted(lengths)


@row("what is seen", "yes")
def shown(lm: Model) -> None:
    with assistant():
        found = lm + select(["yes", "no"], name="it")
    assert found.html().count("<article>") == 3
    assert found["it"] in found.html()


@row("what it takes", "one two")
def metrics(lm: Model) -> None:
    with assistant():
        found = lm + gen("it", max_tokens=4) + " " + gen("more", max_tokens=4)
    used = found.usage
    assert used.round_trips == 2
    assert used.latency >= (used.time_to_first_token or 0) >= 0
    assert used.output_tokens is None or used.output_tokens <= 8 + 2


AREAS = [
    *("the model as a value", "roles", "gen", "select", "grammar", "json", "functions"),
    *("capture and block", "tools", "media", "streaming", "what is seen", "what it takes"),
]


def test_every_area_has_rows() -> None:
    assert list(ROWS) == AREAS


@pytest.mark.parametrize("area", ROWS)
def test_on_a_script(area) -> None:
    for holds, question, said in ROWS[area]:
        holds(after(Model(Script(*said)), question))


@pytest.mark.parametrize("area", ROWS)
def test_on_pocket(area, pocket) -> None:
    for holds, question, _ in ROWS[area]:
        holds(after(Model(pocket, temperature=0), question))


@pytest.mark.parametrize("area", ROWS)
def test_on_llamacpp(area, llamacpp) -> None:
    lm = Model(llamacpp.base_url, temperature=0)
    for holds, question, _ in ROWS[area]:
        holds(after(lm, question))
    lm.close()


def test_what_llamacpp_is_asked_for_is_enforced(llamacpp) -> None:
    lm = Model(llamacpp.base_url, temperature=0)
    found = after(lm, "Count to 3.")
    with assistant():
        found += "It is " + select(["friendly", "rude"], name="a") + " "
        found += regex("[0-9]{4}", name="b") + " " + gen("c", max_tokens=3)
    with assistant():  # right after another turn of its own
        found += json("d", schema=PERSON, max_tokens=60)
    assert [found.guarantee(name) for name in "abcd"] == ["enforced", "enforced", None, "enforced"]
    assert found.log_prob("c") is not None
    lm.close()
