"""Ids of new responses, and the time they began.

Every engine takes both from here, so that there is one kind of id and one clock.
"""

from __future__ import annotations

import os
import time

_RANDOM = 10  # random bytes of an id
_pool: list[str] = []  # random parts made ahead: one system call serves many ids


def new_id() -> str:
    """A new id without a prefix: 48 bits of the time in milliseconds, then 80 random bits.

    Ids grow with time, so that a database adds new rows at the end of its indexes and can list
    responses by age without one; 80 bits are too many to guess. Wires add their prefixes.
    """
    if not _pool:
        random = os.urandom(_RANDOM * 64).hex()
        _pool.extend(random[at : at + 2 * _RANDOM] for at in range(0, len(random), 2 * _RANDOM))
    return f"{time.time_ns() // 1_000_000:012x}{_pool.pop()}"


def now() -> int:
    """The time in Unix seconds."""
    return int(time.time())


if hasattr(os, "register_at_fork"):  # two processes must not continue with the same random parts
    os.register_at_fork(after_in_child=_pool.clear)
