"""A model whose weights are random: whatever is right about its answers is due to a grammar.

Scores depend on the last few tokens, as a model's do, and nothing but the seed decides them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.engines.token.source import ScoringModel, Slot


class _Slot:
    def __init__(self, ids: Sequence[int]) -> None:
        self.ids: list[int] = list(ids[:-1])
        self.origin = sum(ids)

    @property
    def length(self) -> int:
        return len(self.ids)


class RandomModel(ScoringModel):
    """Embeds the last tokens, mixes them once, and scores the vocabulary. Never ends by itself
    more often than by chance."""

    context = None

    def __init__(self, size: int, seed: int, *, width: int = 24, memory: int = 8) -> None:
        chance = np.random.default_rng(seed)
        self._embedding = chance.standard_normal((size, width))
        self._mixing = chance.standard_normal((memory, width))
        self._phase = chance.standard_normal(width)
        self._memory = memory

    def open(self, ids: Sequence[int]) -> Slot:
        return _Slot(ids)

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Sequence[NDArray[Any]]:
        scores: list[NDArray[Any]] = []
        for slot, ids in work:
            slot.ids.extend(ids)
            last = self._embedding[slot.ids[-self._memory :]]
            mixed = np.tanh((last * self._mixing[-len(last) :]).sum(0) / 2)
            # Else greedy sampling runs in circles.
            mixed = mixed + np.cos(self._phase * (slot.origin + len(slot.ids)))
            scores.append(self._embedding @ mixed)
        return scores

    def close(self, slot: Slot) -> None:
        pass
