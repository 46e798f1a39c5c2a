"""A cache of decoded and encoded values, by their source bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Cache(Generic[_T]):
    """Expensive values by key, with a `limit` in bytes; the least recently used are evicted.

    Keys are bytes that a client sent, and values immutable: tenants may share them, as only
    the timing of a response could reveal what another has sent.

    >>> cache = Cache[str](limit=10)
    >>> cache.put("a", "A", 6); cache.put("b", "B", 6); cache.get("a"), cache.get("b")
    (None, 'B')
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        # The least recently used first. Large bodies are decoded in threads: each step on the
        # entries is atomic.
        self._entries = OrderedDict[Hashable, tuple[_T, int]]()

    def get(self, key: Hashable) -> _T | None:
        """The value, which becomes the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        with suppress(KeyError):  # another thread may have evicted it just now
            self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Hashable, value: _T, size: int) -> None:
        """Store a value of `size` bytes."""
        entry = (value, size)
        if self._entries.setdefault(key, entry) is entry:
            self._size += size
        while self._size > self._limit and self._entries:
            self._size -= self._entries.popitem(last=False)[1][1]
