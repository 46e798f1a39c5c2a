"""What users of guidance have, row by row, on three engines: a script, the pocket model, and a real
llama.cpp server.
"""

from collections.abc import Callable

import pytest

from dragoman.engines.script import Script
from dragoman.program import (
    Model,
    assistant,
    block,
    capture,
    gen,
    json,
    lark,
    match,
    optional,
    program,
    regex,
    repeat,
    select,
    substring,
    system,
    token_limit,
    user,
    with_temperature,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"enum": [36, 40]}},
    "required": ["name", "age"],
}


def after(lm: Model, text: str = "Count to 3.") -> Model:
    with system():
        lm += "You are brief."
    with user():
        return lm + text


def mood(lm: Model) -> Model:
    with assistant():
        return lm + "It is " + select(["friendly", "rude"], name="it") + "."


def free(lm: Model) -> Model:
    with assistant():
        return lm + "Well: " + gen("it", max_tokens=6, temperature=0) + "!"


def stops(lm: Model) -> Model:
    with assistant():
        return lm + gen("it", stop=["2", "!"], max_tokens=20, save_stop_text=True) + ";"


def pattern(lm: Model) -> Model:
    with assistant():
        return lm + "In " + regex("[0-9]{4}", name="it") + " or " + gen(regex="[a-z]{2}") + "."


def data(lm: Model) -> Model:
    with assistant():
        return lm + json("it", schema=PERSON, max_tokens=60)


def rules(lm: Model) -> Model:
    with assistant():
        lm += repeat(select(["ab", "c"]) + optional(";"), 1, 3) + capture("!", "end")
        return lm + lark('start: "yes" | "no"', name="it")


def listed(lm: Model) -> Model:
    with assistant():
        for _ in range(2):
            lm += select(["x", "y"], name="it", list_append=True) + " "
        return lm


def limits(lm: Model) -> Model:
    with assistant():
        return lm + token_limit(with_temperature(gen("it"), 0), 4)


def blocks(lm: Model) -> Model:
    with assistant(), block("it", opener="<", closer=">"):
        return lm + "a" + select(["b"])


def piece(lm: Model) -> Model:
    with assistant():
        return lm + substring("one two three", name="it") + "."


@program
def inner(lm: Model, name: str) -> Model:
    return lm + f"So {select(['p', 'q'], name=name)}"


def function(lm: Model) -> Model:
    with assistant():
        return lm + inner("it") + "."


ROWS = [mood, free, stops, pattern, data, rules, listed, limits, blocks, piece, function]
SAID = {
    mood: ["rude"],
    free: ["one two"],
    stops: ["1 2"],
    pattern: ["1815", "ab"],
    data: ['{"name": "Ada", "age": 36}'],
    rules: ["ab;c", "yes"],
    listed: ["x", "y"],
    limits: ["one"],
    blocks: ["b"],
    piece: ["two three"],
    function: ["q"],
}
MATCHES = {
    mood: select(["friendly", "rude"]),
    pattern: regex("[0-9]{4}"),
    data: json(schema=PERSON),
    rules: lark('start: "yes" | "no"'),
    piece: substring("one two three"),
    function: select(["p", "q"]),
    blocks: "a" + select(["b"]),
}


def hold(row: Callable[[Model], Model], lm: Model) -> None:
    """What holds of a row, whatever the model says."""
    found = row(after(lm))
    value = found["it"]
    assert found.items[:2] == after(lm).items
    assert [item.role for item in found.items[2:]] == ["assistant"]  # a turn is one turn
    text = found.items[2].text
    if row in MATCHES:
        assert match(MATCHES[row], value) is not None
    match row.__name__:
        case "mood":
            assert text == f"It is {value}."
        case "free":
            assert text == f"Well: {value}!"
        case "stops":
            assert text == f"{value};"
            assert "2" not in value
            assert found["it_stop_text"] in ("2", "!", "")
        case "listed":
            assert value == [each for each in text.split() if each in "xy"]
            assert len(value) == 2
        case "blocks":
            assert text == "<ab>"
        case "rules":
            assert text.endswith("!" + value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_on_a_script(row) -> None:
    hold(row, Model(Script(*SAID[row])))


def test_on_pocket(pocket) -> None:
    lm = Model(pocket, temperature=0)
    for row in ROWS:
        hold(row, lm)


def test_on_llamacpp(llamacpp) -> None:
    lm = Model(llamacpp.base_url, temperature=0)
    for row in ROWS:
        hold(row, lm)
    assert mood(after(lm)).guarantee("it") == "enforced"
    assert pattern(after(lm)).guarantee("it") == "enforced"
    assert data(after(lm)).guarantee("it") == "enforced"
    assert free(after(lm)).log_prob("it") is not None
