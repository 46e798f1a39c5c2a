"""The table decides: what it calls carried is passed over, wherever it is found."""

import pytest

from dragoman.core.error import FaultError
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Reasoning, Unknown
from dragoman.wire.loss_table import UNKNOWN, Row, Table
from dragoman.wire.losses import Account, message_numbers

OTHER = Row(UNKNOWN, "dropped", "who knows")


def table(*rows: Row) -> Table:
    return {row.key: row for row in (*rows, OTHER)}


@pytest.mark.parametrize("fate", ["carried", "emulated", "told", "refused"])
def test_p37_a_change_of_fate_is_a_change_of_one_word(fate: str) -> None:
    account = Account(table(Row("seed", fate, "why")), "responses")
    if fate == "refused":
        with pytest.raises(FaultError, match="seed: cannot be carried: why"):
            account.note("seed")
        return
    account.note("seed")
    expected = [] if fate == "carried" else [("seed", fate)]
    assert [(loss.field, loss.action) for loss in account.losses()] == expected


def test_unknown_fields_inside_known_ones_are_found() -> None:
    account = Account(table(Row("text", "carried", "why")), "chat")
    account.unknown({"responses": {"text": {"a": 1, "b": None}, "c": 0, "d": None}}, "")
    account.unknown({"chat": {"own": 1}, "turn": {"new": True}, "upstream": {"id": "1"}}, "")
    account.unknown(None, "")
    assert [loss.field for loss in account.losses()] == ["text.a", "c"]


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
    account = Account(table(), "responses", items)
    for index, item in enumerate(items):
        account.unknown(item.extra, "messages[*]", index)
    fields = [loss.field for loss in account.losses()]
    assert fields[-1] == "messages[19999].x19999"
