"""Engines over a next-token source: a format around a model that reads and writes token ids."""

from .engine import TokenEngine
from .next_token import from_next_token, from_step, from_stream

__all__ = ["TokenEngine", "from_next_token", "from_step", "from_stream"]
