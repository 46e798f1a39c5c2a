"""A table of limited weight, which forgets what was used the longest ago.

What its values are, and what they weigh, is known to whoever puts them there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """Keys and values of which the latest are kept, as many as weigh no more than `most`.

    >>> table = Bounded[str, int](2)
    >>> for name in "abc":
    ...     table.put(name, ord(name), 1)
    >>> table.get("a"), table.get("c"), len(table)
    (None, 99, 2)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value. One that is too heavy by itself is not kept, and what had its key goes."""
        old = self._held.pop(key, None)
        self._weight += weight - (0 if old is None else old[1])
        self._held[key] = value, weight
        while self._weight > self._most:
            _, (_, gone) = self._held.popitem(last=False)
            self._weight -= gone

    def get(self, key: K) -> V | None:
        """The value, which is now the latest used; None where there is none, or no longer."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        return held[0]
