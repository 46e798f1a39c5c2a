"""A causal language model of the `transformers` library as a source of scores.

Each sequence has its own keys and values; those of a closed one are kept for a while, for a prompt
that begins like it. Nothing here knows text, files or devices. torch is handed in, never imported.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from dragoman.core.error import Fault, FaultError

KEPT = 4
"""Closed sequences whose keys and values are kept."""
CONCURRENCY = 8
"""Sequences written at a time: each has keys and values of its own in the device's memory."""
MEMORY = Fault(
    "overloaded",
    "The device has no memory left for this sequence. Ask for less, or later.",
    retry_after="5",
)


class Causal:
    """A `ScoringModel` over a network that gives `logits` and takes `past_key_values`.

    `new_memory` makes an empty cache; `size` is how many ids the vocabulary has, which may be fewer
    than the network has rows. Sequences are computed one after the other: their memories are of
    different lengths, and padding them to one would be copied at every step. It is used from one
    thread. Raises ValueError for a network that remembers in another way.
    """

    concurrency = CONCURRENCY

    def __init__(
        self,
        torch: ModuleType,
        network: Any,
        new_memory: Any,
        *,
        size: int,
        context: int | None = None,
        kept: int = KEPT,
    ) -> None:
        self.context = context
        self._torch = torch
        self._network = network
        self._new_memory = new_memory
        self._size = size
        self._closed: deque[Slot] = deque(maxlen=kept)
        takes = inspect.signature(network.forward).parameters
        if "past_key_values" not in takes:
            raise ValueError(f"{type(network).__name__} takes no keys and values to go on from.")
        # Most networks can leave out the scores of all but the last position.
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def open(self, ids: Sequence[int]) -> Slot:
        """A slot that goes on from the closed sequence that has read most of the prompt; one that
        has read a few words of it only is left for its own conversation."""
        useful = [each for each in self._closed if 2 * each.shared(ids) > len(ids)]
        if not useful:
            return Slot([], self._new_memory())
        found = max(useful, key=lambda each: each.shared(ids))
        self._closed.remove(found)
        found.cut(found.shared(ids))
        return found

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Any]:
        """Read new ids in each slot and score what follows, or say why one could not be read."""
        with self._torch.inference_mode():
            return [self._read(slot, ids) for slot, ids in work]

    def close(self, slot: Any) -> None:
        """Keep what was read, if it was read without trouble."""
        if slot.length and not slot.broken:
            self._closed.append(slot)

    def _read(self, slot: Slot, ids: Sequence[int]) -> Any:
        torch = self._torch
        slot.broken = True  # until all layers have read it
        try:
            said = self._network(
                input_ids=torch.tensor([list(ids)], device=self._network.device),
                past_key_values=slot.memory,
                use_cache=True,
                **self._options,
            )
            scores = said.logits[0, -1, : self._size].to(torch.float32).cpu().numpy()
        except torch.OutOfMemoryError:
            return FaultError(MEMORY)
        except Exception as error:
            return error
        slot.ids += ids
        slot.broken = False
        return scores


class Slot:
    """One sequence: the ids that were read, and their keys and values."""

    __slots__ = ("broken", "ids", "memory")

    def __init__(self, ids: list[int], memory: Any) -> None:
        self.ids = ids
        self.memory = memory
        self.broken = False

    @property
    def length(self) -> int:
        """How many ids have been read."""
        return len(self.ids)

    def shared(self, prompt: Sequence[int]) -> int:
        """How many ids of a prompt need not be read again; its last one always must."""
        most = min(len(self.ids), len(prompt) - 1)
        same = next((at for at in range(most) if self.ids[at] != prompt[at]), most)
        return same if same == len(self.ids) or _can_be_cut(self.memory) else 0

    def cut(self, length: int) -> None:
        """Forget what was read after so many ids."""
        if length < len(self.ids):
            self.memory.crop(length - len(self.ids))  # a negative number is so many to remove
            del self.ids[length:]


def _can_be_cut(memory: Any) -> bool:
    """Whether a cache has all its positions: one that slides or sums up has lost the first ones."""
    lost = (*getattr(memory, "is_sliding", ()), *getattr(memory, "is_linear", ()))
    return not any(lost)
