"""Weights are sane, and fitting leaves whole turns out, the oldest first, in linear work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.item import (
    Audio,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import FunctionTool, Request
from dragoman.engines import compaction
from dragoman.engines.compaction import estimate, fit, weight


@pytest.mark.parametrize(
    ("item", "tokens"),
    [
        (Message("user", "12345"), 6),
        (Message("user", (Text("1234"), Refusal("1234"), Image(url="x"))), 806),
        (Message("user", (Audio(data="a" * 8000, transcript="1234"), File(data="12345678"))), 9),
        (Message("user", (UnknownPart("chat", {"type": "x"}),)), 19),
        (Reasoning((Thought("1234"),)), 5),
        (Reasoning(summary=(Summary("1234"),)), 5),
        (Reasoning(encrypted="12345678"), 6),
        (FunctionCall("c", "f", "{}"), 6),
        (CustomToolCall("c", "f", "1234"), 6),
        (FunctionCallOutput("c", "1234"), 5),
        (CustomToolCallOutput("c", (Text("12345678"),)), 6),
        (Compaction("1234"), 5),
        (Unknown("chat", "x", {}), 17),
    ],
)
def test_estimate_of_an_item_follows_its_text(item, tokens) -> None:
    assert weight(item) == pytest.approx(tokens, abs=1)


def test_half_of_a_surrogate_pair_has_a_weight() -> None:
    assert weight(Unknown("responses", "vendor", {"a": "\ud83d"})) > 0


def test_estimate_of_a_request_adds_up_its_items_and_tools() -> None:
    asked = Request(model="m", items=(Message("user", "1234"),))
    plain = estimate(asked)
    told = Request(model="m", items=asked.items, instructions="1234")
    assert estimate(told) == plain + 5
    items = Request(model="m", items=asked.items, instructions=(Message("system", "1234"),))
    assert estimate(items) == plain + 5
    tooled = Request(model="m", items=asked.items, tools=(FunctionTool("f"),))
    assert estimate(tooled) > plain


ITEMS = st.lists(
    st.one_of(
        st.builds(Message, st.sampled_from(["user", "assistant", "system"]), st.text(max_size=40)),
        st.builds(FunctionCall, st.sampled_from("abc"), st.just("f"), st.just("{}")),
        st.builds(FunctionCallOutput, st.sampled_from("abc"), st.text(max_size=40)),
        st.builds(lambda text: Reasoning((Thought(text),)), st.text(max_size=40)),
    ),
    max_size=30,
)


def pairs(items: tuple[Item, ...]) -> set[str]:
    """The outputs that stand behind no call of theirs."""
    calls: set[str] = set()
    orphans: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCall):
            calls.add(item.call_id)
        elif isinstance(item, FunctionCallOutput) and item.call_id not in calls:
            orphans.add(item.call_id)
    return orphans


@given(ITEMS, st.integers(0, 400))
def test_fit_gives_the_latest_whole_turns(items, budget) -> None:
    kept = fit(items, budget)
    rules = [i for i in items if isinstance(i, Message) and i.role == "system"]
    assert [i for i in kept if isinstance(i, Message) and i.role == "system"] == rules
    rest = [i for i in items if i not in rules]
    said = [i for i in kept if i not in rules]
    assert said == rest[len(rest) - len(said) :]
    if pairs(tuple(items)) == set():
        assert pairs(kept) == set()
    if sum(map(weight, items)) <= budget:
        assert kept == tuple(items)


@given(ITEMS)
def test_larger_budget_never_fits_less(items) -> None:
    sizes = [len(fit(items, budget)) for budget in range(0, 400, 25)]
    assert sizes == sorted(sizes)


def test_turns_are_dropped_whole() -> None:
    items = [
        Message("developer", "rules"),
        Message("user", "first " * 20),
        Reasoning((Thought("hm"),)),
        FunctionCall("c", "f", "{}"),
        FunctionCallOutput("c", "result"),
        Message("assistant", "done"),
        Message("user", "second"),
        Message("assistant", "yes"),
        Message("user", "third"),
    ]
    assert fit(items, 10_000) == tuple(items)
    assert fit(items, 40) == (items[0], *items[6:])
    assert fit(items, 0) == (items[0], items[8])
    assert fit([], 0) == ()


def test_a_turn_that_fits_exactly_is_left_in() -> None:
    items = [Message("user", "old " * 20), Message("user", "first"), Message("assistant", "yes")]
    budget = weight(items[1]) + weight(items[2])
    assert fit(items, budget) == tuple(items[1:])
    assert fit(items, budget - 1) == tuple(items[1:])  # the last turn stays in any case
    items.append(Message("user", "last"))
    budget += weight(items[3])
    assert fit(items, budget) == tuple(items[1:])
    assert fit(items, budget - 1) == (items[3],)


def test_an_output_behind_its_call_does_not_bind_the_turns_before() -> None:
    turn = [FunctionCall("c", "f", "{}"), FunctionCallOutput("c", "result")]
    items = [Message("user", "old " * 50), Message("user", "first"), *turn, Message("user", "last")]
    assert fit(items, sum(map(weight, items[1:]))) == tuple(items[1:])


def test_a10_a_turn_is_not_begun_between_a_call_and_its_output() -> None:
    """The output of a call that was left out would be an orphan, which servers refuse."""
    call, output = FunctionCall("c", "f", "{}"), FunctionCallOutput("c", "result")
    last = [Message("user", "last")]
    items = [Message("user", "old " * 50), call, Message("user", "between"), output, *last]
    budget = sum(map(weight, items[2:]))  # room for all from the middle on
    assert fit(items, budget) == tuple(last)


def test_a10_what_fits_exactly_is_unchanged_whatever_it_begins_with() -> None:
    items = [Message("assistant", "Welcome!"), Message("user", "Hi"), Message("assistant", "Yes?")]
    assert fit(items, sum(map(weight, items))) == tuple(items)


def test_conversation_without_a_user_message_is_unchanged() -> None:
    items = [Message("assistant", "a" * 400), Message("assistant", "b")]
    assert fit(items, 1) == tuple(items)


def test_fit_estimates_each_item_once(monkeypatch) -> None:
    counted = 0
    real = compaction.weight

    def counting(item: Item) -> int:
        nonlocal counted
        counted += 1
        return real(item)

    monkeypatch.setattr(compaction, "weight", counting)
    fit([Message("user", "word")] * 2000, 500)
    assert counted == 2000
