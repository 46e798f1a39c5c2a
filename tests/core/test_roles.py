"""Roles alternate whatever was said, and nothing of it is lost."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.item import (
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Reasoning,
    Text,
    Thought,
)
from dragoman.core.request import Request
from dragoman.core.roles import ALTERNATING, NO_SYSTEM, alternating, strictness
from dragoman.wire.protocol import Dialect
from dragoman.wire.registry import WIRES

CALLED = (FunctionCall("c1", "ls", "{}"), FunctionCallOutput("c1", "a.py"))
THOUGHT = Reasoning((Thought("t"),))


def spoken(messages: list[Any]) -> list[str]:
    """The roles that a template counts: not those of calls and of their results."""
    found = [each for each in messages if each["role"] != "tool" and not each.get("tool_calls")]
    return [each["role"] for each in found]


def test_what_is_no_text_is_joined_too() -> None:
    seen = Message("user", (Image("https://example.com/cat.png"),), name="ann")
    (made,) = alternating(Request(model="m", items=(seen, Message("user", "What is it?")))).items
    assert made == replace(seen, content=(*seen.parts, Text("\n\n"), Text("What is it?")))


_ITEMS: st.SearchStrategy[tuple[Item, ...]] = st.sampled_from(
    [
        (Message("user", "u"),),
        (Message("assistant", "a"),),
        (Message("system", "s"),),
        (THOUGHT, Message("assistant", "a")),
        CALLED,
        (THOUGHT, *CALLED),
    ]
)


@given(st.lists(_ITEMS, max_size=9), st.sampled_from([ALTERNATING, NO_SYSTEM]))
def test_roles_alternate_whatever_was_said(groups, strict) -> None:
    items = tuple(item for group in groups for item in group)
    if strict == ALTERNATING:  # these were placed in front before
        items = tuple(each for each in items if each != Message("system", "s"))
    asked = Request(model="m", items=items, instructions="Be kind.")
    made = alternating(asked, strict)
    body = json.loads(WIRES["chat"].encode_request(made, Dialect())[0])
    roles = spoken(body["messages"][strict == ALTERNATING :])
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    assert [each for each in made.items if not isinstance(each, Message)] == [
        each for each in items if not isinstance(each, Message)
    ], "calls, results and thoughts are as they were"
    words = "".join(each.text for each in made.items if isinstance(each, Message))
    for word in "uas":
        said = sum(isinstance(each, Message) and each.text == word for each in items)
        for own in ("Understood.", "Continue.", "Be kind."):
            words = words.replace(own, "")
        assert words.count(word) == said
    assert alternating(made, strict) is made


def test_refusals_of_any_length_are_read() -> None:
    assert strictness("roles must alternate" + "x" * 10**6) == ALTERNATING
    assert strictness("x" * 10**6 + "roles must alternate") == 0
    assert strictness("Only user and assistant roles are supported, got system.") == NO_SYSTEM


def test_what_an_assistant_said_and_thought_before_a_call_is_no_turn_of_its_own() -> None:
    look, stop = Message("user", "Look."), Message("user", "Stop.")
    said, understood = Message("assistant", "I look."), Message("assistant", "Understood.")
    begun = (look, THOUGHT, said, *CALLED)
    assert alternating(Request(model="m", items=(*begun, stop))).items == (*begun, understood, stop)
    greeted = alternating(Request(model="m", items=(THOUGHT, said)))
    assert greeted.items == (Message("user", "Continue."), THOUGHT, said)
