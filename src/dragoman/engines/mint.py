"""Makes what the core may not: the id of a new answer, and the time it began.

Every engine takes both from here, so that there is one kind of id, and one clock to look at.
"""

from __future__ import annotations

import secrets
import time


def new_id() -> str:
    """A fresh id without a prefix; wires add theirs."""
    return secrets.token_hex(16)


def now() -> int:
    """The time in Unix seconds."""
    return int(time.time())
