"""From a worker thread to an event loop, many letters with one wake.

The loop is woken by the first letter and looks again a moment later, unasked, as long as it finds
something. So a slow writer is heard at once, a fast one costs one wake a moment, and what belongs
together arrives in one piece.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Protocol

from .run import Written

AGAIN = 0.001
"""Seconds until the loop looks again."""


class Addressee(Protocol):
    """Who gets letters."""

    def arrive(self, written: Written) -> None:
        """Something new; called on the loop."""
        ...


class Mailbox:
    """Hands over what was written to addressees on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._letters: dict[Addressee, Written] = {}
        self._looking = False

    def post(self, letters: Sequence[tuple[Addressee, Written]]) -> bool:
        """Have these handed over soon; from any thread. False when the loop is closed for good."""
        with self._lock:
            looking, self._looking = self._looking, True
            for addressee, written in letters:
                before = self._letters.setdefault(addressee, written)
                if before is not written:
                    before.add(written)
        if looking:
            return not self._loop.is_closed()
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _open(self) -> None:
        with self._lock:
            letters, self._letters = self._letters, {}
            self._looking = bool(letters)
        if letters:
            self._loop.call_later(AGAIN, self._open)
        for addressee, written in letters.items():
            addressee.arrive(written)
