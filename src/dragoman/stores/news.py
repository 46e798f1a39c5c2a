"""Word of what has changed: told by one server, heard by those who wait, here and elsewhere.

What carries the word to other servers is for others to say. It may be lost: who waits looks again
after a while anyway.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from .store import StoreError


class News(ABC):
    """Names that are told and heard. Used by one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._untold: set[str] = set()
        self._teller: asyncio.Task[None] | None = None

    @abstractmethod
    async def publish(self, names: Sequence[str]) -> None:
        """Carry names to all servers. Raises StoreError."""

    @abstractmethod
    async def listen(self) -> None:
        """See that what others publish is heard from now on. Raises StoreError."""

    def tell(self, name: str) -> None:
        """Let everybody who waits for this name look again: here at once, elsewhere soon."""
        self.heard(name)
        self._untold.add(name)
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    def heard(self, name: str) -> None:
        """Wake those who wait here."""
        for event in self._waiting.get(name, ()):
            event.set()

    @asynccontextmanager
    async def hearing(self, name: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever this name is told, here or by another server."""
        event = asyncio.Event()
        self._waiting.setdefault(name, set()).add(event)
        try:
            await self.listen()
            yield event
        finally:
            waiting = self._waiting[name]
            waiting.discard(event)
            if not waiting:
                del self._waiting[name]

    async def close(self) -> None:
        """Tell what is still to be told."""
        if self._teller is not None:
            await self._teller

    async def _tell(self) -> None:
        with suppress(StoreError):  # who misses it looks again before long
            while self._untold:
                names, self._untold = list(self._untold), set()
                await self.publish(names)
