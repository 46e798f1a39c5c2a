"""System messages reach each upstream in the role and at the place it can read."""

from typing import Any

import pytest

from dragoman.core.item import FunctionCall, Image, Item, Message, Text
from dragoman.core.loss import LossList
from dragoman.core.lower import lower_system
from dragoman.core.request import Request

USER = Message("user", "hi")
SYSTEM, DEVELOPER = Message("system", "Be kind."), Message("developer", "Be brief.")


def lowered(
    *items: Item, instructions: Any = None, **how: Any
) -> tuple[Request, list[tuple[str, str]]]:
    ledger = LossList()
    request = Request(model="m", instructions=instructions, items=items)
    how = {"role": "system", "front": True, **how}
    result = lower_system(request, ledger, **how)
    return result, [(loss.field, loss.action) for loss in ledger.losses()]


def test_p19_system_messages_are_joined_in_front_in_their_order() -> None:
    request, losses = lowered(SYSTEM, USER, DEVELOPER, USER, instructions="Be yourself.")
    assert request.instructions is None
    assert request.items == (
        Message("system", "Be yourself.\n\nBe kind.\n\nBe brief."),
        USER,
        USER,
    )
    assert losses == [("items", "emulated")]


def test_p19_a_late_message_moves_to_the_front() -> None:
    late = Message("developer", (Text("Be brief."),), name="Ada")
    request, losses = lowered(USER, late)
    assert request.items == (Message("system", late.content, name="Ada"), USER)
    assert losses == [("items", "emulated")]


def test_p19_a_developer_message_becomes_a_system_message() -> None:
    request, losses = lowered(USER, DEVELOPER, SYSTEM, front=False)
    assert request.items == (USER, Message("system", "Be brief."), SYSTEM)
    assert losses == [("items[1].role", "emulated")]
    request, losses = lowered(DEVELOPER, USER)
    assert request.items == (Message("system", "Be brief."), USER)
    assert losses == [("items[0].role", "emulated")]


def test_joined_system_messages_take_the_system_role() -> None:
    request, _ = lowered(DEVELOPER, DEVELOPER, role="developer")
    assert request.items[0].role == "developer"
    request, _ = lowered(DEVELOPER, SYSTEM, role="developer")
    assert request.items[0].role == "system"


def test_joined_content_with_other_parts_stays_parts() -> None:
    marked = Message("system", (Text("a", extra={"chat": {"mark": 1}}), Image("u")))
    request, losses = lowered(marked, Message("system", ""), DEVELOPER)
    (joined,) = request.items
    assert isinstance(joined, Message)
    assert joined.content == (*marked.parts, Text("\n\n"), Text("Be brief."))
    assert losses == [("items", "emulated")]


def test_text_in_parts_is_joined_to_a_string() -> None:
    request, _ = lowered(Message("system", (Text("a"), Text("b"))), SYSTEM)
    assert request.items == (Message("system", "ab\n\nBe kind."),)


def test_names_lost_in_joining_are_reported() -> None:
    _, losses = lowered(Message("system", "a", name="Ada"), SYSTEM)
    assert losses == [("items", "emulated"), ("items", "dropped")]


def test_instructions_given_as_items_are_joined_too() -> None:
    other = FunctionCall("c", "f", "{}")
    request, _ = lowered(SYSTEM, instructions=(DEVELOPER, other))
    assert request.items == (Message("system", "Be brief.\n\nBe kind."), other)


@pytest.mark.parametrize(
    ("items", "instructions", "how"),
    [
        ((USER,), "Be kind.", {}),
        ((SYSTEM, USER), None, {}),
        ((SYSTEM, USER), "", {}),
        ((USER, SYSTEM, DEVELOPER), "Be.", {"role": "developer", "front": False}),
        ((USER, SYSTEM), "Be.", {"front": False}),
    ],
    ids=["instructions only", "in front", "empty instructions", "native", "anywhere"],
)
def test_supported_system_messages_are_unchanged(
    items: tuple[Item, ...], instructions: str | None, how: dict[str, Any]
) -> None:
    request = Request(model="m", instructions=instructions, items=items)
    how = {"role": "system", "front": True, **how}
    assert lower_system(request, LossList(), **how) is request
