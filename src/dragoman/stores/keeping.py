"""How long and how much a store keeps: stated here, enforced by every backend's sweep.

These are values; nothing is thrown away here.
"""

from __future__ import annotations

from msgspec import Struct

DAY = 86_400.0


class Keeping(Struct, frozen=True, kw_only=True):
    """The bounds of a store.

    Responses and conversations are kept `retention` seconds, the logs of ended runs `log_retention`
    seconds (without its log a response can be read, and no longer replayed), and at most
    `responses` responses in all.
    """

    retention: float = 30 * DAY
    log_retention: float = DAY
    responses: int = 100_000
