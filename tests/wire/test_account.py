"""The table decides what the judge does, and the judge looks at a kind of item once."""

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Reasoning, Unknown
from dragoman.core.request import Request, Sampling
from dragoman.wire.chat.losses import message_numbers
from dragoman.wire.losses import Losses, Row, Table, judge
from dragoman.wire.registry import WIRES, spell_losses


def only(*rows: Row) -> Losses:
    return Losses("toy", Table(rows), Table())


@pytest.mark.parametrize("action", ["carried", "emulated", "dropped", "refused"])
def test_p37_a_change_of_action_is_a_change_of_one_word(action: str) -> None:
    request = Request(model="m", sampling=Sampling(seed=0))
    losses = only(Row("Sampling.seed", action, "why"))
    if action == "refused":
        with pytest.raises(FaultError, match="seed: cannot be carried: why"):
            judge(request, losses)
        return
    expected = [] if action == "carried" else [("seed", action)]
    assert [(loss.field, loss.action) for loss in judge(request, losses)] == expected


def test_unknown_fields_inside_known_ones_are_found() -> None:
    extra = {
        "responses": {"text": {"a": 1, "b": None}, "c": 0, "d": None},
        "toy": {"own": 1},
        "turn": {"new": True},
        "upstream": {"id": "1"},
    }
    losses = judge(Request(model="m", extra=extra), only())
    assert [loss.field for loss in losses] == ["text.a", "c"]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    items = (
        Message("user", "?"),
        Reasoning(),
        Message("assistant", "I look."),
        FunctionCall("c1", "f", ""),
        Unknown("chat", "odd", {}),
        FunctionCallOutput("c1", ""),
        FunctionCallOutput("c2", ""),
        Message("assistant", "So."),
        Message("assistant", "And.", extra={"turn": {"new": True}}),
        Message("system", "!"),
    )
    assert message_numbers(items) == [0, 1, 1, 1, 1, 2, 3, 4, 5, 6]


def test_places_are_counted_once_however_many_fields_are_lost() -> None:
    """A client may give each of its messages another unknown field."""
    items = tuple(Message("user", "?", extra={"chat": {f"x{n}": 1}}) for n in range(20_000))
    request = Request(model="m", items=items)
    losses = spell_losses(judge(request, WIRES["responses"].losses), request, "chat")
    assert losses[-1].field == "messages[19999].x19999"
