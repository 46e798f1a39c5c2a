"""What was asked and could not be carried as it stood.

A `Loss` says which field met which fate. The table that decides the fate belongs to the wires;
here is only the value, so that events can carry it to whoever asked.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Loss(Struct, frozen=True):
    """One field that was emulated by other means, or dropped and told.

    `field` is the client's own name for it, as a path (`tools[0].format`).
    """

    field: str
    action: Literal["emulated", "told"]
    why: str
