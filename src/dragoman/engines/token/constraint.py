"""What bounds the choice of the next token, seen from the sampler.

Which grammar stands behind a constraint and who checks it is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .source import Logits


class Constraint(Protocol):
    """A grammar in motion, for one sequence."""

    def mask(self, logits: Logits) -> None:
        """Set the scores of tokens that may not come next to minus infinity, in place."""
        ...

    def accept(self, ids: Sequence[int]) -> None:
        """These tokens came."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, one way only; empty where there is a choice."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing but the end may follow."""
        ...
