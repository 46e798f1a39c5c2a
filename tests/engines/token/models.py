"""Models for tests: small, deterministic, and open about what was done with them."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines.token.plain import END, TOY


class Slot:
    def __init__(self, ids: Sequence[int], reused: int) -> None:
        self.prompt = tuple(ids)
        self.ids = list(ids[:reused])

    @property
    def length(self) -> int:
        return len(self.ids)


class Table:
    """Scores that depend on the last tokens only, by a fixed random table.

    With `reuse` it remembers what it has read, and reads no prompt's known beginning again.
    """

    def __init__(
        self, *, size: int = TOY.size, context: int | None = None, reuse: bool = False
    ) -> None:
        self.context = context
        self.table = np.random.default_rng(7).normal(0, 2, (64, size))
        self.table[:, END] = -20.0
        self.opened: list[Slot] = []
        self.live: list[Slot] = []
        self.steps: list[list[int]] = []  # how many tokens each slot read, by step
        self.threads: set[str] = set()
        self._reuse = reuse
        self._read: list[list[int]] = []

    def open(self, ids: Sequence[int]) -> Slot:
        known = max((_shared(ids, read) for read in self._read), default=0) if self._reuse else 0
        slot = Slot(ids, min(known, len(ids) - 1))
        self.opened.append(slot)
        self.live.append(slot)
        return slot

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> list[NDArray[np.float64]]:
        self.threads.add(threading.current_thread().name)
        self.steps.append([len(ids) for _, ids in work])
        for slot, ids in work:
            assert len(ids)
            slot.ids.extend(ids)
        return [self.scores(slot.ids) for slot, _ in work]

    def close(self, slot: Slot) -> None:
        self.live.remove(slot)
        self._read.append(slot.ids)

    def scores(self, ids: Sequence[int]) -> NDArray[np.float64]:
        return self.table[sum(ids[-3:]) % len(self.table)]


class Says(Table):
    """Writes a text, whatever it is asked; then the end."""

    def __init__(self, text: str | bytes, **options: Any) -> None:
        super().__init__(**options)
        data = text.encode() if isinstance(text, str) else text
        self.ids = [*data, END]

    def scores(self, ids: Sequence[int]) -> NDArray[np.float64]:
        slot = next(each for each in self.live if each.ids is ids)
        written = max(0, len(ids) - len(slot.prompt))  # a long prompt is read in pieces
        scores = np.full(TOY.size, -50.0)
        scores[self.ids[min(written, len(self.ids) - 1)]] = 50.0
        return scores


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def writes(text: str) -> Callable[[list[int], object], int]:
    """A next-token function that writes a text after the last line break of the prompt."""
    data = [*text.encode(), END]

    def function(ids: list[int], sampling: object) -> int:
        newline = len(ids) - 1 - ids[::-1].index(10)
        return data[len(ids) - newline - 1]

    return function
