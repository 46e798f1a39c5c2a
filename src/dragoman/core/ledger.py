"""Keeps the account of losses, one entry for each kind of field however often it occurs.

A conversation of a thousand items may lose the same field a thousand times; the caller wants to
read that once. Which field meets which fate is decided elsewhere.
"""

from __future__ import annotations

from typing import Literal

from .loss import Loss


def path(field: str, place: tuple[int, ...]) -> str:
    """A field's name with its places filled in, from the left.

    >>> path("tools[*].tools[*].format", (2, 0))
    'tools[2].tools[0].format'
    """
    for number in place:
        field = field.replace("[*]", f"[{number}]", 1)
    return field


class Ledger:
    """Losses in the order of their first occurrence.

    >>> ledger = Ledger()
    >>> ledger.note("input[*].phase", "told", "no phase here", (3,))
    >>> [loss.field for loss in ledger.losses()]
    ['input[3].phase']
    >>> ledger.note("input[*].phase", "told", "no phase here", (5,))
    >>> [loss.field for loss in ledger.losses()]
    ['input[*].phase']
    """

    __slots__ = ("_losses",)

    def __init__(self) -> None:
        self._losses: dict[tuple[str, str], Loss] = {}

    def note(
        self, field: str, action: Literal["emulated", "told"], why: str, place: tuple[int, ...] = ()
    ) -> None:
        """Enter a loss. What happened in several places is entered without a place."""
        known = self._losses.get((field, why))
        if known is None:
            self._losses[field, why] = Loss(path(field, place), action, why)
        elif known.field != field and known.field != path(field, place):
            self._losses[field, why] = Loss(field, action, why)

    def knows(self, field: str, why: str) -> bool:
        """Whether such a loss was entered before."""
        return (field, why) in self._losses

    def losses(self) -> tuple[Loss, ...]:
        """All that was entered."""
        return tuple(self._losses.values())
