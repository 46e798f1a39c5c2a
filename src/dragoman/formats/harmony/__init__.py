"""Harmony, the token format of gpt-oss: each message has a role, a channel and a recipient."""

from .format import HARMONY, Harmony
from .parse import HarmonyParser

__all__ = ["HARMONY", "Harmony", "HarmonyParser"]
