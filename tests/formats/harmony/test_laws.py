"""What holds for every answer in harmony: however it is cut, and whatever a model writes.

Answers are made of items and written as the format itself writes them, or are plain soup.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.item import CustomToolCall, FunctionCall, Item, Message, Reasoning, Text, Thought
from dragoman.core.loss import LossList
from dragoman.core.request import Request
from dragoman.formats.harmony import HARMONY
from dragoman.formats.harmony.format import history_message
from dragoman.formats.prompt import Piece, Prompt
from tests.samples import samples

from .parsing import BYTES, MARKS, TOOLS, parse, plain, read, spelt

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
said = words.map(lambda text: (Text(text),))
items: st.SearchStrategy[Item] = st.one_of(
    said.map(lambda parts: Message("assistant", parts, status="completed", phase="final_answer")),
    said.filter(lambda parts: parts[0].text).map(
        lambda parts: Message("assistant", parts, status="completed", phase="commentary")
    ),
    words.filter(bool).map(lambda text: Reasoning((Thought(text),), status="completed")),
    st.builds(
        FunctionCall,
        st.just(""),
        st.sampled_from(["f", "lookup"]),
        words.filter(str.strip),
        status=st.just("completed"),
    ),
    st.builds(
        FunctionCall,
        st.just(""),
        st.just("find"),
        words.filter(str.strip),
        st.just("crm"),
        status=st.just("completed"),
    ),
    st.builds(CustomToolCall, st.just(""), st.just("patch"), words, status=st.just("completed")),
)
answers = st.lists(items, min_size=1, max_size=5)

FRAGMENTS = [
    *(MARKS * 2),
    *("assistant", "user", "functions.f", " to=", "to=functions.f", " json", " code", "python"),
    *("analysis", "commentary", "final", "comment?", " ", "\n", "{}", '{"a":', "browser.search"),
    *("crm.find", "functions.patch", "a", "€", "<|", "|>", "<|en", "d|>", "Hello there"),
]
soup = st.lists(st.sampled_from(FRAGMENTS) | words, max_size=25)


def written(answer: Sequence[Item]) -> list[Piece]:
    """The answer as the prompt of a later turn has it, behind the role that is there already."""
    pieces: list[Piece] = []
    for item in answer:
        final = isinstance(item, Message) and item.phase == "final_answer"
        pieces += history_message(item, 0, final, LossList())
    return pieces[2:]


def as_ids(pieces: list[str]) -> list[int]:
    """Marks as control tokens, all else as bytes."""
    return [
        id
        for piece in pieces
        for id in ([BYTES.controls[piece]] if piece in MARKS else BYTES.encode(piece))
    ]


def groups(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """The ids, cut at these places."""
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:stop] for start, stop in pairwise(places)]


@given(answers)
def test_rendered_items_are_parsed_to_the_same(answer) -> None:
    ids = Prompt(tuple(written(answer))).ids(BYTES)
    parsed = parse([[id] for id in ids])
    assert parsed.items == [plain(item) for item in answer]
    assert not parsed.parser.warnings


SOUPS = 50


@settings(max_examples=samples(1_250, 100_000) // SOUPS)
@given(st.integers(0, 1 << 60), st.sampled_from(["stop", "length"]))
def test_any_tokens_are_parsed_the_same_in_any_grouping(seed, reason) -> None:
    random = Random(seed)
    for _ in range(SOUPS):
        ids = as_ids(random.choices(FRAGMENTS, k=random.randrange(16)))
        cuts = random.choices(range(100), k=3)
        one, other = parse([ids], reason=reason), parse(groups(ids, cuts), reason=reason)
        assert one.merged == other.merged
        assert one.parser.warnings == other.parser.warnings
        assert one.parser.reasoning_tokens == other.parser.reasoning_tokens <= len(ids)


@given(soup, st.lists(st.integers(0, 1 << 30), max_size=6))
def test_text_is_read_the_same_however_it_is_cut(pieces, cuts) -> None:
    text = "".join(pieces)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    chunks = [text[start:stop] for start, stop in pairwise(places)]
    one, other = read([text]), read(chunks)
    assert one.merged == other.merged
    assert one.parser.warnings == other.parser.warnings
    leaks = [mark for mark in MARKS[:-1] for said in one.deltas.values() if mark in said]
    assert not leaks


@given(st.lists(st.integers(0, BYTES.size + 3), max_size=40))
def test_any_ids_are_read(ids) -> None:
    parse([ids])


@given(soup)
def test_no_control_token_is_ever_emitted_as_text(pieces) -> None:
    marks = [
        piece if piece in MARKS else piece.replace("<", "").replace(">", "") for piece in pieces
    ]
    assert not [said for said in parse([as_ids(marks)]).deltas.values() if "<|" in said]


@given(st.lists(st.sampled_from(MARKS) | words, min_size=1, max_size=4))
def test_text_of_a_client_is_never_a_control_token(pieces) -> None:
    text = "".join(["say ", *pieces])
    conversation = (Message("user", "x"), Message("assistant", "x"), FunctionCall("c", "x", "x"))
    spoken = (Message("user", text), Message("assistant", text), FunctionCall("c", text, text))

    def controls(items: tuple[Item, ...], instructions: str) -> list[int]:
        request = Request(model="m", instructions=instructions, items=items)
        return [id for id in HARMONY.render(request).ids(BYTES) if id > 255]

    assert controls(spoken, text) == controls(conversation, "x")
    named = (replace(conversation[0], name=text), *conversation[1:])
    assert controls(named, "x") == controls(conversation, "x")


def steps(length: int) -> int:
    """How many lines of the project run to parse an answer of so many tokens, one by one."""
    text = (
        "<|channel|>analysis<|message|>" + "think " * length + "<|end|><|start|>assistant"
        "<|channel|>commentary to=python code<|message|>" + "1 + " * length + "<|call|><|start|>"
        "assistant<|channel|>final<|message|>" + "say " * length
    )
    count = 0

    def trace(frame: object, event: str, _: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    ids = [[id] for id in spelt(text)]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in [parse(ids, TOOLS)]:
            pass
    finally:
        sys.settrace(before)
    return count


def test_the_work_grows_with_the_length_only() -> None:
    short, long = steps(40), steps(160)
    assert long < short * 4.4
