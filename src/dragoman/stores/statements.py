"""Statements, and what they are given: lists of values, and texts that a database can hold."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Row = Sequence[Any]
Values = Sequence[object]
Steps = Generator[tuple[str, Values], Sequence[Row], T]
"""The statements of a transaction, one by one."""
Insert = tuple[str, Values]
"""A statement that inserts one row, and its values."""

LISTED = 250
"""Values that one statement lists."""


def places(length: int, first: int = 1) -> str:
    """The places of a list of values in a statement.

    >>> places(3, 2)
    '$2, $3, $4'
    """
    return ", ".join(f"${number}" for number in range(first, first + length))


def chunks(values: Iterable[T], size: int = LISTED) -> Iterator[list[T]]:
    """The values in lists of this size."""
    found = list(values)
    for start in range(0, len(found), size):
        yield found[start : start + size]


def bound(values: Iterable[object]) -> list[object]:
    """Values for a statement, the texts among them as a database can hold them."""
    return [
        value
        if type(value) is not str or value.isprintable()  # then there is nothing strange in it
        else value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
        for value in values
    ]


def clean(text: str) -> str:
    """An id without NUL and halves of surrogate pairs, which databases refuse; others unchanged.

    >>> clean("a\\0b"), clean("\\ud83d")
    ('a\\\\x00b', '\\\\ud83d')
    """
    return str(bound((text,))[0])
