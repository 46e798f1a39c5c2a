"""The pocket model as a source of scores: its slots, and what it remembers of those that closed.

A prompt that begins like one that was read before starts from a copy of the keys and values
of that one. Nothing here knows text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .blas import one_thread
from .network import Network, Shape, Stretch
from .weights import Array

KEPT = 32
"""Closed slots that are remembered."""
ROOM = 64
"""Tokens a slot has room for at first; it doubles when it is full."""


class Pocket:
    """A `ScoringModel` over the network. It is used from one thread."""

    def __init__(self, network: Network, *, kept: int = KEPT) -> None:
        self._network = network
        self._most = kept
        self._slots: OrderedDict[int, Memory] = OrderedDict()
        self._open: set[int] = set()

    @property
    def context(self) -> int:
        """Positions there are."""
        return self._network.shape.max_position_embeddings

    def open(self, ids: Sequence[int]) -> Memory:
        """A slot that has read as much of the prompt as any slot before, but for its last id."""
        prompt = np.array(ids[:-1], np.int32)
        memory = Memory(self._network.shape)
        best, shared = None, 0
        for known in self._slots.values():
            if (common := known.common(prompt)) > shared:
                best, shared = known, common
        if best is not None:
            memory.copy(best, shared)
            self._slots.move_to_end(id(best))
        self._slots[id(memory)] = memory
        self._open.add(id(memory))
        return memory

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Array]:
        """Read new ids in each slot, and score what follows the last of them."""
        stretches = [slot.stretch(ids) for slot, ids in work]
        with one_thread():
            scores = self._network(stretches)
        for slot, ids in work:
            slot.read(ids)
        return list(scores)

    def close(self, slot: Any) -> None:
        """Remember a slot for prompts that begin alike; the one not used for longest is dropped."""
        self._open.discard(id(slot))
        self._slots.move_to_end(id(slot))
        closed = [key for key in self._slots if key not in self._open]
        for key in closed[: max(0, len(closed) - self._most)]:
            del self._slots[key]


class Memory:
    """One sequence: the ids that were read, and their keys and values in every layer."""

    def __init__(self, shape: Shape) -> None:
        self.length = 0
        self._most = shape.max_position_embeddings
        heads = (shape.num_hidden_layers, 2, shape.num_key_value_heads)
        self._values: Array = np.empty((*heads, ROOM, shape.head_dim), np.float32)
        self._ids: NDArray[np.int32] = np.empty(ROOM, np.int32)

    def common(self, ids: NDArray[np.int32]) -> int:
        """How many ids at the start are the same."""
        most = min(self.length, len(ids))
        different = self._ids[:most] != ids[:most]
        return int(different.argmax()) if different.any() else most

    def copy(self, other: Memory, length: int) -> None:
        """Begin with what another sequence has read."""
        self._reserve(length)
        self._values[..., :length, :] = other._values[..., :length, :]
        self._ids[:length] = other._ids[:length]
        self.length = length

    def stretch(self, ids: Sequence[int]) -> Stretch:
        """The new ids with room for their keys and values. Raises ValueError beyond the context."""
        end = self.length + len(ids)
        if end > self._most:
            raise ValueError(f"{end} tokens are more than the {self._most} this model can read")
        self._reserve(end)
        return Stretch(ids, self.length, self._values)

    def read(self, ids: Sequence[int]) -> None:
        """The new ids have been read."""
        end = self.length + len(ids)
        self._ids[self.length : end] = ids
        self.length = end

    def _reserve(self, length: int) -> None:
        """Make room, at least twice as much as before."""
        room = self._values.shape[-2]
        if length <= room:
            return
        room = min(max(length, 2 * room), self._most)
        old_values, old_ids, used = self._values, self._ids, self.length
        shape = (*old_values.shape[:-2], room, old_values.shape[-1])
        self._values, self._ids = np.empty(shape, np.float32), np.empty(room, np.int32)
        self._values[..., :used, :] = old_values[..., :used, :]
        self._ids[:used] = old_ids[:used]
