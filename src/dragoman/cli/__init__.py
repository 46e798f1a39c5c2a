"""The command `dragoman`."""

from .main import main

__all__ = ["main"]
