"""Harmony, the token format of gpt-oss: rendered and parsed, both ways by hand.

It is the one format with recipients and channels in its headers, which is why it has a room of its
own beside the engine of the markup families. Nothing here runs a model or a tool.
"""

from .format import HARMONY, Harmony
from .parse import HarmonyParser

__all__ = ["HARMONY", "Harmony", "HarmonyParser"]
