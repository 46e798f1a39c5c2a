"""Applies the policy table to what was found: nothing, an entry in the account, or a refusal.

It knows the fates and how a client counts its fields; which fields a value has is found elsewhere.
"""

from __future__ import annotations

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import (
    JSON,
    CustomToolCall,
    Extra,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Unknown,
)
from dragoman.core.ledger import Ledger, path
from dragoman.core.loss import Loss

from .policy import UNKNOWN, Row, Table


class Account:
    """The losses of one crossing, as they are found."""

    __slots__ = ("_items", "_ledger", "_numbers", "_table", "target")

    def __init__(self, table: Table, target: str, items: tuple[Item, ...] = ()) -> None:
        self.target = target
        self._table = table
        self._items = items
        self._ledger = Ledger()
        self._numbers: list[int] | None = None  # of the messages the items came in, once asked

    def note(self, key: str, *place: int) -> None:
        """The case of this row has come up at this place. Raises FaultError if it is refused."""
        row = self._table[key]
        self._apply(row, row.field, place)

    def note_in(self, field: str, key: str, *place: int) -> None:
        """The same for a field that stands elsewhere than the row says, such as deeper."""
        self._apply(self._table[key], field, place)

    def unknown(self, extra: Extra | None, where: str, *place: int) -> None:
        """Fields that only another wire has a word for."""
        for wire, fields in (extra or {}).items():
            if wire != self.target and wire in _WIRES:
                self._unknown(fields, where, place)

    def _unknown(self, fields: dict[str, JSON], where: str, place: tuple[int, ...]) -> None:
        for name, value in fields.items():
            field = f"{where}.{name}" if where else name
            row = self._table.get(field, self._table[UNKNOWN])
            if row.fate == "carried" and isinstance(value, dict):
                self._unknown(value, field, place)  # what is left over inside a known object
            elif value is not None:
                self._apply(self._table[UNKNOWN] if row.fate == "carried" else row, field, place)

    def losses(self) -> tuple[Loss, ...]:
        """What was found, a kind of field named once."""
        return self._ledger.losses()

    def _apply(self, row: Row, field: str, place: tuple[int, ...]) -> None:
        if row.fate == "refused":
            where = path(field, self._counted(field, place))
            raise FaultError(unsupported(f"cannot be carried: {row.why}", where))
        if row.fate == "carried" or row.quiet:
            return
        if not self._ledger.knows(field, row.why):
            place = self._counted(field, place)
        self._ledger.note(field, row.fate, row.why, place)

    def _counted(self, field: str, place: tuple[int, ...]) -> tuple[int, ...]:
        """The place as the client counts, where it counts messages and not items."""
        if place and field.startswith("messages["):
            if self._numbers is None:
                self._numbers = message_numbers(self._items)
            return (self._numbers[place[0]], *place[1:])
        return place


_WIRES = frozenset(("chat", "responses"))


def message_numbers(items: tuple[Item, ...]) -> list[int]:
    """The number of the Chat message that each item came in.

    A turn of the assistant is one message of several items: reasoning, text, calls. A mark in
    `extra["turn"]` tells where a turn begins right after another one.

    >>> turn = (Message("user", "?"), Reasoning(), Message("assistant", "!"), Message("user"))
    >>> message_numbers(turn)
    [0, 1, 1, 2]
    """
    numbers: list[int] = []
    number, inside = -1, False
    for item in items:
        turn = _of_a_turn(item)
        if not (inside and turn) or (item.extra is not None and "turn" in item.extra):
            number += 1
        inside = turn
        numbers.append(number)
    return numbers


def _of_a_turn(item: Item) -> bool:
    match item:
        case Message(role=role):
            return role == "assistant"
        case _:
            return isinstance(item, Reasoning | FunctionCall | CustomToolCall | Unknown)
