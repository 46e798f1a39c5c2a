"""Several choices from an engine that gives one: asks several times and merges the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from itertools import repeat

from msgspec.structs import asdict, replace

from dragoman.core.error import MAX_ITEMS, TOO_MANY, Fault, FaultError
from dragoman.core.event import (
    Delta,
    Event,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    Progress,
    Started,
)
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import Item
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Usage
from dragoman.net.threads import TenantLock, reading

from .base import fault_from, is_cancelled

Ask = Callable[[Request], AsyncGenerator[Event, None]]

AT_ONCE = 8
"""Concurrent requests; the others wait for one to end."""
MORE = 256
"""Concurrent requests beside one for each answer, of all answers: for these, tenants take turns."""
_more = TenantLock(MORE, MORE, left=MORE // 4)

_SEVERAL = Loss("n", "emulated", "the model's server gives one answer; it was asked several times")


MOST_SENT = 64 * 1024 * 1024
"""The most bytes of all the requests together."""
MOST_MERGED = 64 * 1024 * 1024
"""The most characters of all the answers together."""
_ENDING = (GeneratorExit, KeyboardInterrupt, SystemExit)
_TOO_MUCH = Fault(
    "upstream_error",
    f"All choices together are more than {MOST_MERGED} characters. Ask for fewer.",
    "upstream",
)


def fan_out(ask: Ask, request: Request, caller: Caller = ANYONE) -> AsyncGenerator[Event, None]:
    """Ask `request.sampling.n` times, and answer with that many choices. Raises FaultError where
    the requests are too large, or there is no room for them."""
    count, size = request.sampling.n or 1, caller.size
    if count * size > MOST_SENT:
        problem = (
            f"n: the model's server gives one choice at a time, and {count} requests of {size} "
            f"bytes are more than the {MOST_SENT} that are sent for one. Ask for fewer."
        )
        raise FaultError(Fault("too_large", problem, "client", "n"))
    if size and caller.count is not None:  # each is held until its answer begins
        caller.count(min(count, AT_ONCE) * size)
    return gather(lambda number: ask(alternative(request, number)), count, (_SEVERAL,))


def alternative(request: Request, number: int) -> Request:
    """The request for one of several choices."""
    seed = request.sampling.seed
    seed = None if seed is None else seed + number
    return replace(request, sampling=replace(request.sampling, n=None, seed=seed))


async def gather(
    ask: Callable[[int], AsyncGenerator[Event, None]], count: int, losses: tuple[Loss, ...] = ()
) -> AsyncGenerator[Event, None]:
    """Ask `count` times, up to `AT_ONCE` at a time, and merge the answers as choices of one.

    The first failure fails the whole; usage is the sum of what was reported, and each loss is
    reported once.
    """
    queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue(maxsize=64)
    choices = iter(range(count))

    async def run(place: AbstractAsyncContextManager[None]) -> None:
        async with place:
            for choice in choices:
                try:
                    async with aclosing(ask(choice)) as events:
                        async for event in events:
                            await queue.put((choice, event))
                except BaseException as error:  # the reader of the queue would wait forever
                    if is_cancelled() or isinstance(error, _ENDING):
                        raise
                    await queue.put((choice, Failed(fault_from(error))))

    tasks = [asyncio.ensure_future(run(nullcontext()))]
    for _ in range(min(count, AT_ONCE) - 1):
        tasks.append(asyncio.ensure_future(run(_more.turn(reading.get()))))
    try:
        merge = Merge(count, losses)
        while not merge.over:
            choice, event = await queue.get()
            for merged in merge.feed(choice, event):
                yield merged
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Merge:
    """Renumbers the events of `count` answers as choices of one. `losses` are reported beside those
    of the first answer to begin."""

    def __init__(self, count: int, losses: tuple[Loss, ...] = ()) -> None:
        self.over = False
        self._started = False
        self._next = 0
        self._indices: dict[tuple[int, int], int] = {}
        self._owners: dict[str, int] = {}
        self._ends: dict[int, Finished] = {}
        self._count = count
        self._losses = losses
        self._left = MOST_MERGED
        self._room = repeat(None, 2 * (MAX_ITEMS + count))  # items and parts; each has one

    def feed(self, choice: int, event: Event) -> list[Event]:
        """The events of the one answer for an event of this alternative."""
        match event:
            case Started():
                if self._started:
                    return []
                self._started = True
                return [replace(event, losses=(*event.losses, *self._losses))]
            case Failed():
                self.over = True
                return [event]
            case Finished():
                self._ends[choice] = event
                return self._finish() if len(self._ends) == self._count else []
            case Progress(index=None):
                return [event]
            case ItemAdded() | PartAdded() if next(self._room, self) is self:
                self.over = True
                return [Failed(TOO_MANY)]
            case ItemAdded():
                self._indices[choice, event.index] = self._next
                self._next += 1
                item = self._distinct(choice, event.item)
                return [replace(event, index=self._next - 1, choice=choice, item=item)]
            case ItemDone():
                index = self._indices[choice, event.index]
                return [replace(event, index=index, item=self._distinct(choice, event.item))]
            case Delta(data=str(data)):
                self._left -= len(data)
                if self._left < 0:
                    self.over = True
                    return [Failed(_TOO_MUCH)]
        return [replace(event, index=self._indices[choice, event.index or 0])]

    def _distinct(self, choice: int, item: Item) -> Item:
        """The item with ids that are unique among the choices: some servers count from zero."""
        ids = {}
        for name in ("id", "call_id"):
            if id := getattr(item, name, None):
                first = self._owners.setdefault(id, choice)
                ids[name] = id if first == choice else f"{id}_{choice}"
        return replace(item, **ids)

    def _finish(self) -> list[Event]:
        self.over = True
        ends = [self._ends[choice] for choice in range(self._count)]
        status = next((end.status for end in ends if end.status != "completed"), "completed")
        reasons = tuple(end.reasons[0] for end in ends)
        usage = add_usage([end.usage for end in ends if end.usage is not None])
        losses = tuple(dict.fromkeys(loss for end in ends for loss in end.losses))
        return [replace(ends[0], status=status, reasons=reasons, usage=usage, losses=losses)]


def add_usage(usages: list[Usage]) -> Usage | None:
    """The sum of several usages; fields without any value are None.

    >>> usage = add_usage([Usage(input_tokens=1), Usage(input_tokens=2, output_tokens=5)])
    >>> usage.input_tokens, usage.output_tokens, usage.cached_tokens
    (3, 5, None)
    """
    if not usages:
        return None
    totals: dict[str, int] = {}
    for usage in usages:
        for name, value in asdict(usage).items():
            if isinstance(value, int):
                totals[name] = totals.get(name, 0) + value
    return Usage(**totals, extra=usages[0].extra)
