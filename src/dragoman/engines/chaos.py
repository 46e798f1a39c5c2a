"""An engine that misbehaves on purpose, the same way again for the same seed.

It spoils the answers of the engine inside as real upstreams do: late, refused, cut, out of order,
without usage, with an exception. It works on events; broken bytes are for tests of the wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, ItemAdded
from dragoman.core.interfaces import ANYONE, Caller, Engine
from dragoman.core.item import CustomToolCall, FunctionCall
from dragoman.core.request import Request

from .base import Wrapper

LIMITED = Fault(
    "rate_limited", "Too many requests (chaos).", "upstream", status=429, retry_after="1"
)
BROKEN = Fault("upstream_error", "The model's server broke (chaos).", "upstream", status=500)


class Mischief(Struct, frozen=True, kw_only=True):
    """How likely each fault is, between 0 and 1.

    `slow`: the answer begins `seconds` late. `limited` and `broken`: it is refused with 429 (and
    a Retry-After) or 500. `cut`: it stops without an end, after some event. `crash`: it raises
    there. `interleave`: calls come mixed. `silent`: no usage is reported.
    """

    slow: float = 0.0
    seconds: float = 1.0
    limited: float = 0.0
    broken: float = 0.0
    cut: float = 0.0
    crash: float = 0.0
    interleave: float = 0.0
    silent: float = 0.0


class Chaos(Wrapper):
    """The engine inside, with some mischief. The n-th answer depends on the seed and n alone.

    Cut and crash break the contract of engines on purpose: what follows must cope with both.
    """

    def __init__(self, engine: Engine, mischief: Mischief, *, seed: int = 0) -> None:
        super().__init__(engine)
        self.mischief = mischief
        self._seed = seed
        self._count = 0

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """Answer, more or less."""
        dice = Random(f"{self._seed}:{self._count}")  # noqa: S311 - seeded on purpose, no secret
        self._count += 1
        fate = _Fate(self.mischief, dice)
        if fate.slow:
            await asyncio.sleep(self.mischief.seconds)
        if fate.refusal is not None:
            yield Failed(fate.refusal)
            return
        given = 0
        async with aclosing(super().stream(request, caller)) as events:
            async for event in events:
                for spoilt in fate.spoil(event):
                    if given == fate.last and fate.crash:
                        raise ConnectionResetError("chaos")
                    if given == fate.last:
                        return
                    given += 1
                    yield spoilt


class _Fate:
    """What will happen to one answer. Every die is cast, so that no fault shifts another."""

    def __init__(self, mischief: Mischief, dice: Random) -> None:
        self.slow = dice.random() < mischief.slow
        limited, broken = dice.random() < mischief.limited, dice.random() < mischief.broken
        self.refusal = LIMITED if limited else BROKEN if broken else None
        cut, self.crash = dice.random() < mischief.cut, dice.random() < mischief.crash
        place = dice.randint(1, 8)
        self.last = place if cut or self.crash else None
        self._silent = dice.random() < mischief.silent
        self._mixer = _Mixer() if dice.random() < mischief.interleave else None

    def spoil(self, event: Event) -> list[Event]:
        """What becomes of an event."""
        if isinstance(event, Finished) and self._silent:
            event = replace(event, usage=None)
        return [event] if self._mixer is None else self._mixer.feed(event)


class _Mixer:
    """Holds back calls that follow one another, and gives them mixed."""

    def __init__(self) -> None:
        self._held: dict[int, list[Event]] = {}

    def feed(self, event: Event) -> list[Event]:
        """The events to give now."""
        match event:
            case ItemAdded(index=added, item=FunctionCall() | CustomToolCall()):
                self._held[added] = [event]
                return []
        index = getattr(event, "index", None)  # None for what concerns the whole answer
        if index in self._held:
            self._held[index].append(event)
            return []
        return [*self._mixed(), event]

    def _mixed(self) -> list[Event]:
        """One event of each call in turn, until there are none."""
        queues, self._held = list(self._held.values()), {}
        mixed: list[Event] = []
        while any(queues):
            mixed += [queue.pop(0) for queue in queues if queue]
        return mixed
