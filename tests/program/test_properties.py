"""What holds for any program: texts match their grammars, branches are independent, snapshots end
at the final state, and it makes no difference whether an engine is here or behind a server.
"""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engines.script import Script
from dragoman.program import (
    Model,
    assistant,
    capture,
    gen,
    json,
    match,
    optional,
    regex,
    repeat,
    select,
    system,
    user,
)
from dragoman.program.grammar import choices, regular, to_gbnf, to_lark
from dragoman.program.nodes import Join, Literal, Node, Regex, Repeat, Select
from tests.samples import samples

WORDS = st.text("ab c.,", min_size=1, max_size=4)
PATTERNS = st.sampled_from(["[0-9]{2}", "a+", "(x|y)z?", "[a-c]{1,3}", r"\d", "", "é."])


def grammars(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(select),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Join(tuple(parts))),
        st.tuples(inner, st.integers(0, 2), st.integers(1, 2)).map(
            lambda each: repeat(each[0], each[1], each[1] + each[2])
        ),
        inner.map(optional),
        inner.map(lambda each: capture(each, "inner")),
    )


NODES = st.recursive(WORDS.map(Literal) | PATTERNS.map(Regex), grammars, max_leaves=6)


def example(node: Node, chance: random.Random) -> str:
    """A text of a grammar."""
    match node:
        case Literal(text=text):
            return text
        case Regex(pattern=pattern):
            return {
                "[0-9]{2}": "07",
                "a+": "aa",
                "(x|y)z?": chance.choice(["x", "yz"]),
                "[a-c]{1,3}": chance.choice(["a", "cb"]),
                r"\d": "5",
                "": "",
                "é.": "é!",
            }[pattern]
        case Join(parts=parts):
            return "".join(example(part, chance) for part in parts)
        case Select(options=options):
            return example(chance.choice(options), chance)
        case Repeat(body=body, least=least, most=most):
            times = chance.randint(least, most or least)
            return "".join(example(body, chance) for _ in range(times))
    return example(node.body, chance)


@given(NODES, st.randoms(use_true_random=False))
@settings(max_examples=samples(12, 500))
def test_a_text_of_a_grammar_matches_it_and_every_beginning_is_a_partial_match(
    node, chance
) -> None:
    text = example(node, chance)
    found = match(node, text)
    assert found is not None
    assert not found.partial
    assert all(value in text for value in found.captures.values())
    for end in range(len(text)):
        assert match(node, text[:end], allow_partial=True) is not None
    assert match(node, text + "#") is None


@given(NODES, st.randoms(use_true_random=False))
@settings(max_examples=samples(20, 500))
def test_lowering_to_another_notation_never_raises(node, chance) -> None:
    assert to_lark(node, "before ").startswith("start: ")
    assert regular(node) is not None
    assert (to_gbnf(node) or "root").startswith("root")
    texts = choices(node)
    assert texts is None or example(node, chance) in texts


@given(st.lists(st.tuples(st.booleans(), WORDS), max_size=12))
def test_branches_never_see_each_other(steps) -> None:
    """Steps go to one of two branches of one model; each has exactly its own."""
    with user():
        both = [Model("script") + "begin"] * 2
        said = ["begin", "begin"]
        for left, text in steps:
            both[left] += text
            said[left] += text
    assert [each.items[0].text for each in both] == said


@given(st.lists(st.sampled_from(["one.", "two three", "", " four"]), min_size=1, max_size=4))
@settings(max_examples=samples(6, 200))
def test_snapshots_grow_and_end_at_the_final_state(answers) -> None:
    lm = Model(Script(*answers))
    nodes = ["Well: "]
    nodes += [gen(f"g{n}", stop="." if n % 2 else None) + "; " for n in range(len(answers))]
    with assistant():
        stream = lm.stream(*nodes)
        seen = [(delta.text, delta.model) for delta in stream]
        again = Model(Script(*answers))
        for each in nodes:
            again += each
    states = [str(model) for _, model in seen]
    assert all(later.startswith(earlier[:-11]) for earlier, later in pairwise(states))
    assert states[-1] == str(stream.model) == str(again)
    assert seen[-1][1].captures == stream.model.captures == again.captures
    assert "".join(text for text, _ in seen) == again.items[0].text


ANSWERS = ("rude", "of the word. Truly", "1815", '{"a": [1]}', "x y")


def classic(lm: Model) -> Model:
    """A program with something of everything."""
    with system():
        lm += "You classify."
    with user():
        lm += "Is it friendly?"
    with assistant():
        lm += "It is " + select(["friendly", "rude"], name="mood") + ", because "
        lm += gen("why", stop=".", save_stop_text=True) + "."
    with user():
        lm += "More!"
    with assistant():
        lm += regex("[0-9]{4}", name="year") + ": " + json("data", schema=dict[str, list[int]])
        lm += gen("end", max_tokens=5)
    return lm


def shown(lm: Model) -> object:
    guarantees = {name: lm.guarantee(name) for name in lm.captures}
    return str(lm), lm.captures, guarantees, lm.items


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_a_program_does_the_same_here_and_behind_a_server(wire, serve_engine) -> None:
    here = classic(Model(Script(*ANSWERS)))
    with serve_engine(Script(*ANSWERS)) as url:
        there = classic(Model(url, wire=wire))
    assert shown(there) == shown(here)
    assert here["year"] == "1815"


def test_a_server_enforces_what_the_engine_behind_it_can(pocket, serve_engine) -> None:
    limits = {"temperature": 0, "max_tokens": 12}
    here = classic(Model(pocket, **limits))
    assert here.guarantee("mood") == "enforced"
    with serve_engine(pocket) as url:
        for wire in ("chat", "responses"):
            assert shown(classic(Model(url, wire=wire, **limits))) == shown(here)
