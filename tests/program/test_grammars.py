"""What is enforced or verified matches its grammar, by a judge of our own.

It recognises nodes by Python's regular expressions and `jsonschema`, and knows neither llguidance
nor what nodes are lowered to.
"""

import asyncio
import json as stdlib_json
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.engines.child import Limits
from dragoman.engines.script import Script
from dragoman.program import (
    Model,
    ProgramError,
    assistant,
    capture,
    gen,
    json,
    lark,
    match,
    program,
    regex,
    repeat,
    search,
    select,
    substring,
    user,
)
from dragoman.program.grammar import MISSING, find, regular
from dragoman.program.nodes import (
    Bound,
    Gen,
    Join,
    Json,
    Lark,
    Literal,
    Node,
    Regex,
    Repeat,
    Rule,
    Select,
    Substring,
)
from tests.agent.stage import Model as Stage
from tests.cost import seconds
from tests.program.test_properties import NODES, example
from tests.samples import samples

FIXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@program(stateless=True)
def nested(lm, left="(", right=")"):
    """Brackets in one another, around a letter."""
    return lm + select(["x", left + nested(left, right) + right])


LARK = {
    'start: A b*\nA: "x" | "y"\nb: /[0-9]+/ ";"': "[xy](?:[0-9]+;)*",
    'root ::= "a" [b-d]{1,2} end?\nend ::= "." | "!"': "a[b-d]{1,2}[.!]?",
}
"""Grammars, and what they come to."""
MEANING = {lark(text).text: pattern for text, pattern in LARK.items()}
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "array", "items": {"enum": ["x", 1, None]}, "maxItems": 3, "minItems": 1},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 4}]},
    {"type": "integer", "minimum": -5, "maximum": 99},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string", "pattern": "^[a-c]+$"}},
        "$defs": {"b": {"type": "array", "items": {"type": "null"}, "maxItems": 2}},
        "required": ["b"],
    },
]
VALUES = ["1", "[1]", '["x", null]', '{"a": 1}', '{"a": [null], "b": "ab"}', "true", '"abc"', "{}"]

LEAVES = st.one_of(
    st.sampled_from(sorted(LARK)).map(lark),
    st.sampled_from(SCHEMAS).map(lambda schema: json(schema=schema)),
    st.sampled_from(["one two three", "a b"]).map(substring),
    st.sampled_from([nested(), nested("[", "]")]),
    st.sampled_from(".;").map(lambda stop: gen(stop=stop) + stop),
)
MIXED = st.one_of(
    LEAVES,
    # Between terminals the longest text counts: what could swallow its neighbour is kept apart.
    st.tuples(NODES, LEAVES, NODES).map(lambda three: three[0] + "|" + three[1] + "|" + three[2]),
    st.lists(NODES | LEAVES, min_size=1, max_size=3).map(select),
    st.tuples(LEAVES, st.integers(0, 1), st.integers(1, 2)).map(
        lambda each: repeat(each[0], each[1], each[1] + each[2])
    ),
    LEAVES.map(lambda each: capture(each, "inner")),
)


def accepted(node: Node, text: str) -> bool:
    """Whether a text matches a node."""
    return len(text) in ends(node, text, 0)


def ends(node: Node, text: str, start: int) -> set[int]:
    """Where the texts end that match a node from a place on."""
    match node:
        case Literal(text=said):
            return {start + len(said)} if text.startswith(said, start) else set()
        case Regex(pattern=pattern):
            return matched(pattern, text, start)
        case Lark(text=said):
            return matched(MEANING[said], text, start)
        case Gen(stop=stops):
            return matched(f"[^{re.escape(''.join(stops))}]*" if stops else "(?s:.*)", text, start)
        case Bound(body=body):
            return ends(body, text, start)
        case Join(parts=parts):
            found = {start}
            for part in parts:
                found = {after for at in found for after in ends(part, text, at)}
            return found
        case Select(options=options):
            return {after for option in options for after in ends(option, text, start)}
        case Repeat(body=body, least=least, most=most):
            return repeated(body, text, start, least, most)
        case Substring(chunks=chunks):
            spans = ((a, b) for a in range(len(chunks)) for b in range(a, len(chunks) + 1))
            stretches = {"".join(chunks[a:b]) for a, b in spans}
            return {start + len(s) for s in stretches if text.startswith(s, start)}
        case Rule(build=build):
            return ends(build(), text, start) if start < len(text) else set()
        case Json(schema=schema):
            places = range(start + 1, len(text) + 1)
            return {at for at in places if valid(schema, text[start:at])}
    raise TypeError(node)


def matched(pattern: str, text: str, start: int) -> set[int]:
    whole = re.compile(pattern)
    return {at for at in range(start, len(text) + 1) if whole.fullmatch(text, start, at)}


def repeated(body: Node, text: str, start: int, least: int, most: int | None) -> set[int]:
    found, now, count = ({start} if least == 0 else set()), {start}, 0
    while now and (most is None or count < most) and count <= len(text) + least:
        now, count = {after for at in now for after in ends(body, text, at)}, count + 1
        if count >= least:
            found |= now
    return found


def valid(schema: dict, text: str) -> bool:
    try:
        value = stdlib_json.loads(text)
    except ValueError:
        return False
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def drawn(node: Node, chance: random.Random) -> str:
    """A text of a node."""
    match node:
        case Lark():
            return chance.choice(["x1;22;", "y", "abc!", "ad"])
        case Substring(chunks=chunks):
            first = chance.randrange(len(chunks))
            return "".join(chunks[first : chance.randint(first, len(chunks))])
        case Json():
            return chance.choice(VALUES)
        case Gen():
            return chance.choice(["ab", "", "c d"])
        case Rule():
            return chance.choice(["x", "((x))", "[x]", "(x"])
        case Join(parts=parts):
            return "".join(drawn(part, chance) for part in parts)
        case Select(options=options):
            return drawn(chance.choice(options), chance)
        case Repeat(body=body, least=least, most=most):
            return "".join(drawn(body, chance) for _ in range(chance.randint(least, most or least)))
        case Bound(body=body):
            return drawn(body, chance)
    return example(node, chance)


def spoilt(text: str, chance: random.Random) -> Iterator[str]:
    """A text, and others that are like it."""
    yield text
    at = chance.randint(0, len(text))
    yield text[:at] + chance.choice('ab07x.;(")] ') + text[at:]
    yield text[:at] + text[at + 1 :]
    yield text + text


def test_the_judge_knows_texts_from_others() -> None:
    date = Join((Regex("[0-9]{2}"), Literal("-"), Select((Literal("a"), nested()))))
    assert accepted(date, "12-((x))")
    assert not accepted(date, "12-((x)")
    assert accepted(json(schema=SCHEMAS[0]), '{"a": 1}')
    assert not accepted(json(schema=SCHEMAS[0]), '{"a": "1"}')
    assert accepted(repeat(lark(next(iter(LARK))), 2, 3), "x1;y")


@given(NODES | MIXED, st.randoms(use_true_random=False))
@settings(max_examples=samples(15, 500))
def test_what_matches_is_accepted_by_the_judge(node, chance) -> None:
    for text in spoilt(drawn(node, chance), chance):
        found, ours = match(node, text) is not None, accepted(node, text)
        assert ours or not found, (node, text)
        if regular(node) is not None:  # between terminals the longest text counts
            assert found == ours, (node, text)


@pytest.mark.parametrize("before", ["", "b" * 200])
def test_a_grammar_that_has_no_end_of_its_own_is_a_grammar(before) -> None:
    """Between terminals the longest text counts, so nothing may follow the first."""
    node = lark(f'start: MANY AS "a"\nMANY: /[b-z]{{{len(before)}}}/\nAS: /a+/')
    assert match(node, before + "aaa") is None
    assert match(lark("start: AS\nAS: /a+/"), "aaa") is not None


@given(NODES | MIXED, st.randoms(use_true_random=False))
@settings(max_examples=samples(15, 500))
def test_what_is_verified_is_accepted_by_the_judge(node, chance) -> None:
    """An engine that nothing binds says something like what is asked for, and is searched."""
    said = [*spoilt(drawn(node, chance), chance)]
    said.append(f"Well, {said[0]}, I think.")
    with assistant():
        try:
            lm = Model(Stage(*chance.sample(said, 3))) + capture(node, "all")
        except ProgramError:
            return
    capture_ = lm.capture("all")
    assert capture_.guarantee in ("verified", None)
    assert accepted(node, capture_.value), (node, capture_.value)


@given(NODES | MIXED)
@settings(FIXED, max_examples=samples(6, 500))
def test_what_pocket_is_bound_to_is_accepted_by_the_judge(pocket, node) -> None:
    lm = Model(pocket, temperature=1.0, seed=1, max_tokens=40)
    with user():
        lm += "What is it?"
    with assistant():
        lm += "So: " + capture(node, "all")
    found = lm.capture("all")
    assert str(lm).endswith(f"So: {found.value}<|im_end|>\n")
    if found.end == "stop":
        assert found.guarantee in ("enforced", None)
        assert accepted(node, found.value), (node, found.value)


@pytest.mark.uncounted
@given(NODES | MIXED)
@settings(FIXED, max_examples=samples(6, 500))
def test_what_llamacpp_is_bound_to_is_accepted_by_the_judge(llamacpp, node) -> None:
    lm = Model(llamacpp.base_url, temperature=0, max_tokens=40)
    with user():
        lm += "Hello!"
    with assistant():
        try:
            lm += capture(node, "all")
        except ProgramError:
            return  # it has no such grammar in its notation, and the tiny model says no such thing
        finally:
            lm.close()
    found = lm.capture("all")
    if found.end == "stop":
        assert accepted(node, found.value), (node, found.value)


def test_half_a_surrogate_pair_matches_no_expression() -> None:
    assert match(Regex("."), "\ud800") is None


# ---- what is found in answers that were made to take long ------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("So: ```json\n[1] \t\n  ``` or ```\n[2]```", "[1] \t"),
        ("[[[x [1, {}", None),
        ("[[[x [1, 2] ]", "[1, 2]"),
        ("[" * 5_000 + " [1]", None),
    ],
)
def test_json_is_found_in_an_answer(text, found) -> None:
    assert find(json(schema=list[int]), text) == found


@pytest.mark.uncounted
def test_json_that_does_not_end_is_not_read_again_for_each_of_its_brackets() -> None:
    def look(brackets: int) -> None:
        assert find(json(), ("[" + "1," * 400) * brackets) is None

    assert seconds(look, 900) < 40 * max(seconds(look, 30), 0.001)


@pytest.mark.uncounted
def test_a_stop_regex_is_not_looked_for_in_all_of_a_long_answer_with_each_piece() -> None:
    def ask(count: int) -> float:
        begun = time.process_time()  # the program runs in another thread
        with assistant():
            found = Model(Stage("several " * count)) + gen("it", stop_regex="[yz][yz]")
        assert len(found["it"]) == 8 * count
        return time.process_time() - begun

    assert any(ask(16_000) < 8 * ask(4_000) for _ in range(3))


def test_a_stop_regex_is_looked_for_seldom_where_that_takes_long(monkeypatch) -> None:
    looked = []

    async def first(pattern: str, text: str) -> None:
        looked.append(text)
        await asyncio.sleep(0.02)

    monkeypatch.setattr("dragoman.program.search.first", first)
    with assistant():
        found = Model(Stage("several " * 400)) + gen("it", stop_regex="[yz][yz]")
    assert len(found["it"]) == 3_200
    assert len(looked) < 20  # and not 90, each of which is a process
    assert looked[-1] == found["it"]


def test_a_string_that_never_ends_is_read_for_json_a_few_times(monkeypatch) -> None:
    starts = []
    decode = stdlib_json.JSONDecoder.raw_decode

    def raw_decode(decoder: stdlib_json.JSONDecoder, text: str, start: int = 0) -> object:
        starts.append(start)
        return decode(decoder, text, start)

    monkeypatch.setattr(stdlib_json.JSONDecoder, "raw_decode", raw_decode)
    assert find(json(), "[" * 900 + '"' + "a" * 200_000) is None
    assert 0 < len(starts) < 20


LOOPS = "a" * 40  # a word in which repeats of repeats look for what does not come


def test_a_pattern_that_takes_years_for_a_text_matches_nothing() -> None:
    assert find(regex("(a|a)*b"), LOOPS + "c") is None
    both = select([regex("(?:a|a)*b", name="x"), regex("a*c", name="y")])
    assert match(both, LOOPS + "c")["y"] == LOOPS + "c"


def test_a_stop_regex_that_takes_years_for_a_text_is_an_error() -> None:
    with assistant(), pytest.raises(ProgramError, match="takes more than 1 s"):
        Model(Stage(LOOPS)) + gen("it", stop_regex="(a|a)*b")


@pytest.mark.parametrize(
    "node",
    [
        gen(stop_regex="(a|a)*b"),
        regex("(?:a|a)*b"),
        select([regex("(?:a|a)*b", name="x"), regex("a*", name="y")]),
    ],
)
async def test_the_event_loop_goes_on_while_a_regex_is_looked_for(node) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async with assistant():
        ticking = asyncio.create_task(tick())
        with suppress(ProgramError):
            await Model(Stage(LOOPS)).run(node)
    ticking.cancel()
    assert ticks > 20  # and not 2: the search takes its second


async def test_a_cancelled_program_ends_its_search(monkeypatch) -> None:
    begun, ended = threading.Event(), threading.Event()
    ask = search._ask

    def observed(*given: str) -> list[search.Hit]:
        begun.set()
        try:
            return ask(*given)
        finally:
            ended.set()

    monkeypatch.setattr(search, "_LIMITS", Limits(100, search.MAX_MEMORY))
    monkeypatch.setattr(search, "_ask", observed)
    async with assistant():
        asking = asyncio.create_task(Model(Stage(LOOPS)).run(gen(stop_regex="(a|a)*b")))
    assert await asyncio.to_thread(begun.wait, 30)
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, 30)


def test_a_pattern_is_found_in_any_text() -> None:
    for text in ("\udcff 12-34", "\0\U0001f600 12-34", "x12-34 12-34", "- - - " * 5000 + "12-34"):
        assert find(regex("[0-9]*-[0-9]*"), text) == ("-" if text[0] == "-" else "12-34")


# ---- without the extra ----------------------------------------------------------------------


def test_without_llguidance_the_extra_of_grammars_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    repeated = repeat("a", 1)
    for use in (
        lambda: regex("a+"),
        lambda: lark('start: "a"'),
        lambda: json(schema={"type": "object"}),
        lambda: match(substring("a b"), "a"),
        lambda: gen(regex="a+"),
        lambda: match(repeated, "aa"),
        lambda: match(select([repeated, "b"], name="x"), "b"),
    ):
        with pytest.raises(ImportError) as raised:
            use()
        assert str(raised.value) == MISSING
    lm = Model(Script("It is ", "rude"))
    with assistant():
        lm += gen("free") + select(["friendly", "rude"], name="mood")
        with pytest.raises(ImportError, match="pip install"):
            lm += repeated
    assert (lm["free"], lm["mood"]) == ("It is ", "rude")
