"""Injects faults into the answers of an engine, reproducible by seed.

Answers are late, refused, cut, out of order, without usage, or raise, as from real
upstreams. It works on events; malformed bytes are for tests of the wires.
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
DAY = 86_400
"""The most seconds of a late answer."""


class Faults(Struct, frozen=True, kw_only=True):
    """The probability of each fault, between 0 and 1.

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

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, most = getattr(self, name), DAY if name == "seconds" else 1
            if not isinstance(value, int | float):
                problem = f"is of type {type(value).__name__}, and must be a number"
                raise TypeError(f"{name}: {problem}")
            if not 0 <= value <= most:
                raise ValueError(f"{name}: is {value}, and must be between 0 and {most}")


class Chaos(Wrapper):
    """The engine inside, with some faults. The n-th answer depends on the seed and n alone.

    Cut and crash break the contract of engines on purpose: consumers must handle both.
    """

    def __init__(self, engine: Engine, faults: Faults, *, seed: int = 0) -> None:
        if isinstance(engine, type) or not callable(getattr(engine, "stream", None)):
            problem = f"is {engine!r:.100}, and must be an engine, such as Script('Hello.')"
            raise TypeError(f"engine: {problem}")
        if type(faults) is not Faults:
            problem = f"is of type {type(faults).__name__}, and must be Faults(…)"
            raise TypeError(f"faults: {problem}")
        super().__init__(engine)
        self.faults = faults
        self._seed = seed
        self._count = 0

    async def stream(
        self, request: Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        """The answer, with faults."""
        faults = self.faults
        dice = Random(f"{self._seed}:{self._count}")  # noqa: S311 - seeded on purpose, no secret
        self._count += 1
        # Draw for every fault, so that the settings of one do not shift the others.
        rates = (faults.slow, faults.limited, faults.broken, faults.cut, faults.crash)
        slow, limited, broken, cut, crash = [dice.random() < rate for rate in rates]
        last = dice.randint(1, 8)
        silent, mixed = dice.random() < faults.silent, dice.random() < faults.interleave
        if slow:
            await asyncio.sleep(faults.seconds)
        if limited or broken:
            yield Failed(LIMITED if limited else BROKEN)
            return
        given = 0
        calls: dict[int, list[Event]] = {}  # those that follow one another, to be mixed
        async with aclosing(super().stream(request, caller)) as events:
            async for event in events:
                if isinstance(event, Finished) and silent:
                    event = replace(event, usage=None)
                match event:
                    case ItemAdded(index=added, item=FunctionCall() | CustomToolCall()) if mixed:
                        calls[added] = []
                index = getattr(event, "index", None)  # None for events of the whole answer
                if index in calls:
                    calls[index].append(event)
                    continue
                for each in (*_interleaved(list(calls.values())), event):
                    if given == last and crash:
                        raise ConnectionResetError("chaos")
                    if given == last and cut:
                        return
                    given += 1
                    yield each
                calls.clear()


def _interleaved(queues: list[list[Event]]) -> list[Event]:
    """One event of each call in turn, until there are none."""
    mixed: list[Event] = []
    while any(queues):
        mixed += [queue.pop(0) for queue in queues if queue]
    return mixed
