"""Harmony, the token format of gpt-oss: messages with a role, a channel and a recipient in each
header."""

from .format import HARMONY, Harmony
from .parse import HarmonyParser

__all__ = ["HARMONY", "Harmony", "HarmonyParser"]
