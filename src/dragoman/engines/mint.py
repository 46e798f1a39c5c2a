"""Makes what the core may not: the id of a new answer, and the time it began.

Every engine takes both from here, so that there is one kind of id, and one clock to look at.
"""

from __future__ import annotations

import os
import time

_SIZE = 16  # bytes of an id
_pool: list[str] = []  # ids made ahead: one system call serves many answers


def new_id() -> str:
    """A fresh id that nobody can guess, without a prefix; wires add theirs."""
    if not _pool:
        random = os.urandom(_SIZE * 64).hex()
        _pool.extend(random[at : at + 2 * _SIZE] for at in range(0, len(random), 2 * _SIZE))
    return _pool.pop()


def now() -> int:
    """The time in Unix seconds."""
    return int(time.time())


if hasattr(os, "register_at_fork"):  # two processes must not go on with the same ids
    os.register_at_fork(after_in_child=_pool.clear)
