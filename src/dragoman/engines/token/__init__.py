"""Engines over a next-token source: a format around a model that only knows ids.

The model runs on a thread of its own, its sequences take turns, and what it writes is parsed as it
comes. Nothing here knows a wire.
"""

from .engine import TokenEngine
from .next_token import from_next_token, from_step, from_stream

__all__ = ["TokenEngine", "from_next_token", "from_step", "from_stream"]
