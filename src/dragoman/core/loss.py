"""Losses: fields that could not be carried unchanged, and the list that collects them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Loss(Struct, frozen=True):
    """One field that was emulated by other means, or dropped.

    `field` is the client's own name for it, as a path (`tools[0].format`).
    """

    field: str
    action: Literal["emulated", "dropped"]
    why: str


def path(field: str, place: tuple[int, ...]) -> str:
    """A field's name with its places filled in, from the left.

    >>> path("tools[*].tools[*].format", (2, 0))
    'tools[2].tools[0].format'
    """
    for number in place:
        field = field.replace("[*]", f"[{number}]", 1)
    return field


class LossList(Struct, eq=False):
    """Losses in the order of their first occurrence.

    >>> found = LossList()
    >>> found.note("input[*].phase", "dropped", "no phase here", (3,))
    >>> [loss.field for loss in found.losses()]
    ['input[3].phase']
    >>> found.note("input[*].phase", "dropped", "no phase here", (5,))
    >>> [loss.field for loss in found.losses()]
    ['input[*].phase']
    """

    _losses: dict[tuple[str, str], Loss] = {}

    def note(
        self,
        field: str,
        action: Literal["emulated", "dropped"],
        why: str,
        place: tuple[int, ...] = (),
    ) -> None:
        """Add a loss. One that occurs in several places is listed once, without a place."""
        known = self._losses.get((field, why))
        if known is None:
            self._losses[field, why] = Loss(path(field, place), action, why)
        elif known.field != field and known.field != path(field, place):
            self._losses[field, why] = Loss(field, action, why)

    def contains(self, field: str, why: str) -> bool:
        """Whether this loss is in the list."""
        return (field, why) in self._losses

    def losses(self) -> tuple[Loss, ...]:
        """All losses."""
        return tuple(self._losses.values())
