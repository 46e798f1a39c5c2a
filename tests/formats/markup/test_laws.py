"""What holds for every family, whatever a model writes."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.event import Failed, Finished, Started
from dragoman.core.item import FunctionCall, Message, Reasoning, Thought
from dragoman.core.lifecycle import check as check_events
from dragoman.core.request import Request
from dragoman.engines.token.engine import raw_ids
from dragoman.formats.markup.families import BY_NAME
from dragoman.formats.markup.format import Markup
from dragoman.formats.markup.profile import all_marks
from dragoman.formats.prompt import ByteTokenizer
from tests.formats.markup.parsing import FAMILIES, TOOLS, Parsed, deltas, parse, parse_ids, tokens
from tests.samples import samples

WORDS = (
    *("get_weather", "now", "nobody", "hello", " ", "\n", "  \n\n", "é😀", "<", "[", "{", "}", "]"),
    *('{"name": "now"}', '{"name": "get_weather", "arguments": {"city": "Rome"}}', '"', "\\"),
    *('{"name": "now", "parameters": {}}', '{"arguments": {"a": [1, "}"]}, "name": "now"}'),
    *('{"name": "Bob"}', "[now(), get_weather(city='x')]", "[", "now(", "a=1", ")", ";", ","),
    *('{"a": "', "</", "<tool", "_call>", "<|", "```json\n", "```", ">", "null", "3", "print(1)"),
)


def soup(family: str) -> st.SearchStrategy[list[str]]:
    """Marks of the family and words in any order."""
    known = sorted({*all_marks(BY_NAME[family]), *BY_NAME[family].controls})
    return st.lists(st.sampled_from(known) | st.sampled_from(WORDS), max_size=14)


any_soup = st.sampled_from(FAMILIES).flatmap(
    lambda family: st.tuples(st.just(family), soup(family))
)
cuts = st.lists(st.integers(0, 1000), max_size=12)
tools = st.sampled_from([TOOLS, ()])
reasons = st.sampled_from(["stop", "length"])


def check(outcome: Parsed) -> None:
    """The events of one answer are legal, and its deltas are what is said in the end."""
    check_events(outcome.events)
    assert isinstance(outcome.events[0], Started)
    assert isinstance(outcome.events[-1], Finished)
    assert not any(isinstance(event, Failed) for event in outcome.events)
    said = [words for _, words in outcome.said if words]
    assert [words for _, words in deltas(outcome.events) if words] == said


@settings(max_examples=samples(30, 20_000))
@given(any_soup, cuts, tools, reasons)
def test_p5_any_split_of_a_text_gives_the_same_items(mixed, places, offered, reason) -> None:
    family, words = mixed
    text = "".join(words)
    whole = parse(family, text, tools=offered, reason=reason)
    check(whole)
    for cut in (1, places):
        split = parse(family, text, cut, tools=offered, reason=reason)
        assert (split.said, split.warnings) == (whole.said, whole.warnings)
        assert (split.statuses, split.reason) == (whole.statuses, whole.reason)
        check(split)


def written(family: str, thought: str = "hm", text: str = "Ok. ") -> str:
    """What a model of the family writes, with reasoning, text and two calls."""
    items = (
        *([Reasoning((Thought(thought),))] if thought else []),
        *([Message("assistant", text)] if text else []),
        FunctionCall("c1", "get_weather", '{"city": "Rome"}'),
        FunctionCall("c2", "now", "{}"),
    )
    format, user = Markup(family), Message("user", "hi")
    prompt = format.render(Request(model="m", items=(user,))).text
    whole = format.render(Request(model="m", items=(user, *items))).text
    return whole[len(prompt) :].partition(BY_NAME[family].ends[0])[0]


damages = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 9), st.integers(0, 2**16)), max_size=4
)


@settings(max_examples=samples(25, 20_000))
@given(st.sampled_from(FAMILIES), damages, cuts, reasons)
def test_a_damaged_call_is_read_alike_by_bytes_by_characters_and_whole(
    family, damage, places, reason
) -> None:
    text, words = written(family), (*WORDS, *sorted(all_marks(BY_NAME[family])))
    for place, size, number in damage:
        place, word = place % (len(text) + 1), words[number % len(words)]
        text = text[:place] + word + text[place + size :]
    whole = parse(family, text, reason=reason)
    check(whole)
    tokenizer = ByteTokenizer()
    for other in (
        parse(family, text, 1, reason=reason),
        parse(family, text, places, reason=reason),
        parse_ids(family, tokenizer.encode(text), tokenizer, reason=reason),
        parse_ids(family, tokenizer.encode(text), tokenizer, 7, reason=reason),
    ):
        assert (other.said, other.warnings) == (whole.said, whole.warnings)
        assert (other.statuses, other.reason) == (whole.statuses, whole.reason)
        check(other)


@pytest.mark.parametrize("family", FAMILIES)
def test_f9_an_answer_cut_anywhere_shows_no_markup(family) -> None:
    thinks = not family.startswith("llama")
    text = written(family, "hm" if thinks else "", "" if family == "llama" else "Ok. ")
    ids, tokenizer = tokens(family, text)
    whole = parse(family, text)
    assert [name for name, _ in whole.said][-2:] == ["get_weather", "now"]
    for answer in (
        *(parse(family, text[:end], reason="length") for end in range(len(text))),
        *(parse_ids(family, ids[:end], tokenizer, reason="length") for end in range(len(ids))),
    ):
        said = dict(answer.said)
        if BY_NAME[family].bare and "{" in said.get("text", ""):
            continue  # what may be an answer in JSON is shown
        for part, expected in (("text", "Ok."), ("thought", "hm")):  # one character is no markup
            assert expected.startswith(said.get(part, "").rstrip("<[ \n"))
        assert said.keys() <= {"text", "thought", "get_weather", "now"}
        assert '{"city": "Rome"}'.startswith(said.get("get_weather", ""))
        assert said.get("now", "{}") in ("{}", "{", "")


@settings(max_examples=samples(30, 20_000))
@given(any_soup, st.integers(2, 9), tools, reasons)
def test_any_grouping_of_tokens_gives_the_same_events(mixed, size, offered, reason) -> None:
    family, words = mixed
    ids, tokenizer = tokens(family, "".join(words))
    one = parse_ids(family, ids, tokenizer, tools=offered, reason=reason)
    many = parse_ids(family, ids, tokenizer, size, tools=offered, reason=reason)
    assert (many.events, many.warnings) == (one.events, one.warnings)
    assert many.reasoning == one.reasoning <= len(ids)
    check(one)


@settings(max_examples=samples(12, 1_000))
@given(st.sampled_from(FAMILIES), st.integers(0, 2**32), tools, reasons)
def test_nothing_is_raised_on_any_tokens(family, seed, offered, reason) -> None:
    """A hundred token soups for each example."""
    known = sorted({*all_marks(BY_NAME[family]), *BY_NAME[family].controls, "<|other|>"})
    tokenizer = ByteTokenizer(known)
    format, dice = Markup(family), random.Random(seed)
    for _ in range(100):
        ids = [
            dice.randrange(256, tokenizer.size) if dice.random() < 0.5 else dice.randrange(260)
            for _ in range(dice.randrange(25))
        ]
        outcome = parse_ids(format, ids, tokenizer, 3, tools=offered, reason=reason)
        check(outcome)
        spelled = bytes(each for each in ids if each < 256).decode(errors="replace")
        for mark in {*known}.difference(BY_NAME[family].tags, BY_NAME[family].fragments):
            if len(mark) > 1 and mark not in spelled:  # bytes that spell one are text
                assert not any(mark in words for kind, words in outcome.said if kind == "text")


plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
safe = plain.map(lambda text: "".join(char for char in text if char not in "<[{｜\0")).map(
    str.strip
)
values = st.recursive(
    st.booleans() | st.integers(-(10**6), 10**6) | plain | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(plain, values, max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["get_weather", "now"]), arguments), max_size=3)


@settings(max_examples=samples(25, 5_000))
@given(st.sampled_from(FAMILIES), safe, safe, calls, st.integers(1, 9))
def test_rendered_items_are_parsed_to_the_same(family, thought, text, called, size) -> None:
    if BY_NAME[family].syntax.argument:  # bare text has no types but those of the schema
        called = [(name, {"city": str(args.get("city", "x"))}) for name, args in called[:2]]
        called = [(name, args) for name, args in called if name == "get_weather"]
    if family == "llama" and called:
        text = ""  # its calls have no mark, and are the whole message
    if family.startswith("llama"):
        thought = ""  # they do not think
    items = [
        *([Reasoning((Thought(thought),))] if thought else []),
        *([Message("assistant", text)] if text else []),
        *(
            FunctionCall(f"call_{number}", name, json.dumps(args))
            for number, (name, args) in enumerate(called)
        ),
    ]
    if not items:
        return
    format = Markup(family)
    user = Message("user", "hi")
    prefix = format.render(Request(model="m", items=(user,)))
    whole = format.render(Request(model="m", items=(user, *items)))
    tokenizer = ByteTokenizer(format.profile.controls)
    suffix = raw_ids(format.profile.layout.assistant.partition("{}")[0], tokenizer)
    ids = whole.ids(tokenizer)[len(prefix.ids(tokenizer)) : -len(suffix) or None]
    outcome = parse_ids(family, ids, tokenizer, size)
    expected = [
        *([("thought", thought)] if thought else []),
        *([("text", text)] if text else []),
        *((name, json.dumps(args)) for name, args in called),
    ]
    assert [*outcome.said] == expected
    assert not outcome.warnings


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cost_grows_with_the_length_only(family, monkeypatch) -> None:
    from dragoman.formats.markup import parser as module

    steps = 0
    step = module.MarkupParser._step

    def counted(self, text, at):
        nonlocal steps
        steps += 1
        return step(self, text, at)

    monkeypatch.setattr(module.MarkupParser, "_step", counted)
    mark = sorted(BY_NAME[family].tags or all_marks(BY_NAME[family]))[-1]
    unit = f'a < b [ {mark}{{"name": "now", "arguments": {{"a": "x"}}}}\n'
    counts = []
    for size in (50, 200):
        steps = 0
        parse(family, unit * size, 7)
        counts.append(steps)
    assert counts[1] < counts[0] * 4.5
