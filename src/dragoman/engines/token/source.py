"""What a model must offer to be run here: scores for the next token, of several sequences at once.

A model that gives scores (logits) gets exact sampling, log-probabilities and grammars; one that
only names the next token is a `NamingModel`. All methods are called from one thread, never from
the event loop. Vectors are numpy arrays, so numpy is needed where a model gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.core.request import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Logits = NDArray[Any]
    """Scores of every token of the vocabulary, floats, before the softmax."""


class Slot(Protocol):
    """One sequence inside a model: its keys and values, wherever the model keeps them."""

    @property
    def length(self) -> int:
        """How many tokens the model has read in this sequence; right after `open` the number of
        leading tokens of the prompt that it need not read again (a reused prefix)."""
        ...


class ScoringModel(Protocol):
    """A model that scores the next token.

    The caller opens a slot for a prompt, then calls `step` with the ids each slot has not read yet
    (the rest of the prompt first, then each sampled or forced token), and closes the slot at the
    end. The model may keep a closed slot's keys and values for prompts that begin alike.
    """

    @property
    def context(self) -> int | None:
        """The greatest number of tokens in a sequence; None when it is unknown."""
        ...

    def open(self, ids: Sequence[int]) -> Slot:
        """A slot for a prompt. At least the last id is always left to be read by `step`."""
        ...

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Sequence[Logits]:
        """Read new ids in each slot and score what follows the last of them."""
        ...

    def close(self, slot: Slot) -> None:
        """The sequence is over."""
        ...


Named = int | None | Exception
"""What a naming model says comes next: an id, None for the end, or why it cannot say."""


class NamingModel:
    """A model that names the next token and keeps its scores to itself.

    It samples for itself, with the settings it is given, and gives no log-probabilities; no grammar
    can bind it. A subclass says in `obeys` which fields of the sampling it honours, None meaning
    that it sees them all, and in `concurrency` how many sequences it can write at a time.
    """

    context: int | None = None
    concurrency: int | None = None
    obeys: frozenset[str] | None = None

    def open(self, ids: Sequence[int], sampling: Sampling) -> Slot:
        """A slot for a prompt."""
        raise NotImplementedError

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Named]:
        """Read new ids in each slot and name what follows the last of them."""
        raise NotImplementedError

    def close(self, slot: Slot) -> None:
        """The sequence is over."""
