"""One recorded answer: its events, those who follow them, and its replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Encoder
from dragoman.core.item import Item
from dragoman.core.loss import Loss
from dragoman.core.response import Response
from dragoman.engines.base import fault_from
from dragoman.server.cancellation import TERMINAL, UNFINISHED, Watch, end_for
from dragoman.stores.base import LogSegment, OutboxMessage, Record, Store, StoreError
from dragoman.wire import sse

Batches = AsyncGenerator[list[Event], None]
"""Events, as many at a time as there are."""

Announce = Callable[[Record, Response], Sequence[OutboxMessage]]
"""The letters that tell others of a run that ends so."""

BEHIND = 0.25
"""Seconds a foreground run's events may wait before they are written."""

NOT_KEPT = Loss("store", "dropped", "this response could not be kept")
CANCELLED = Fault("cancelled", "The answer was cancelled.", "client")


def silent(record: Record, response: Response) -> tuple[OutboxMessage, ...]:
    """Nobody is told."""
    return ()


class Run:
    """The events of one answer, and those who follow them.

    `events` grows while the run goes on; the first `visible` of them may be shown. `ended` is true
    once nothing more comes.
    """

    def __init__(
        self,
        record: Record,
        store: Store,
        turn: tuple[Item, ...] = (),
        announce: Announce = silent,
        going: dict[str, Run] | None = None,
    ) -> None:
        self.record = record
        self.events: list[Event] = []
        self.visible = 0
        self.begun = False  # the store knows of it
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self.stopped: Fault | None = None
        self.watch: Watch | None = None  # over the work for a client
        self._store = store
        self._turn = turn  # what the request adds to its conversation
        self._announce = announce
        self._going = {} if going is None else going  # where it stands while it goes on
        self._kept = 0  # how many events the store has
        self._begun: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[Event] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._broken = False  # the store failed: go on without it
        self._more = asyncio.Event()
        self._at_work = False
        self._unwanted = False
        self._complete = False  # all events have come

    # ---- in the foreground ---------------------------------------------------------------

    async def recorded(self, batches: Batches) -> Batches:
        """The same events, recorded on their way. The last one comes once all is kept."""
        # Whoever waits for the store may be cancelled; what is being written is written all the
        # same, or else nobody would know what the store has.
        loop = asyncio.get_running_loop()
        self._going[self.record.id] = self
        self._begun = loop.create_task(self._begin())
        try:
            async with aclosing(batches):
                async for batch in batches:
                    if not self.events:
                        await asyncio.shield(self._begun)
                        if isinstance(batch[0], Failed):  # it never began; nobody knows its id
                            yield batch
                            return
                        batch = [self._own(batch[0]), *batch[1:]]
                    self.events += batch
                    if isinstance(batch[-1], TERMINAL):
                        self._ending = loop.create_task(self._end(batch[-1]))
                        yield [*batch[:-1], await asyncio.shield(self._ending)]
                        return
                    self.visible = len(self.events)
                    if self._timer is None:
                        self._timer = loop.call_later(BEHIND, self._write_behind)
                    if self._waiting:
                        self._wake()
                    yield batch
            self.stopped = UNFINISHED
        except Exception as error:
            self.stopped = fault_from(error)
            raise
        finally:
            if self._ending is None:
                self.task = loop.create_task(self._abandon())

    async def _begin(self) -> None:
        try:
            await self._store.begin(self.record)
            self.begun = True
        except StoreError:
            self._broken = True

    def _write_behind(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._broken:
            return
        if self._writing is None or self._writing.done():
            self._writing = loop.create_task(self._try_to_write())
        else:
            self._timer = loop.call_later(BEHIND, self._write_behind)

    async def _try_to_write(self) -> None:
        try:
            await self._write()
        except StoreError:
            self._broken = True

    async def _abandon(self) -> None:
        """The client is served no longer: the record says why, unless nothing came of it."""
        if self.events:
            watched = None if self.watch is None else self.watch.fault
            await self._end(end_for(watched or self.stopped))
            return
        if self._begun is not None:
            await self._begun
        with suppress(StoreError):
            await self._store.delete(self.record.tenant, self.record.id)
        self._over()

    # ---- in the background ---------------------------------------------------------------

    async def work(self, batches: Batches) -> None:
        """Record the events to their end, with nobody waiting. Cancel the task to stop it."""
        self.begun = True
        writing = asyncio.get_running_loop().create_task(self._write_ahead())
        last: Event = Failed(UNFINISHED)
        try:
            async with aclosing(batches):
                self._at_work = True
                if self._unwanted:
                    raise asyncio.CancelledError
                async for batch in batches:
                    if not self.events:
                        batch = [self._own(batch[0]), *batch[1:]]
                    self.events += batch
                    self._more.set()
                    if isinstance(batch[-1], TERMINAL):
                        break
        except asyncio.CancelledError:
            last = end_for(self.stopped)
        except Exception as error:  # an engine that breaks its promise; the record says so
            last = Failed(fault_from(error))
        self._complete = True
        self._more.set()
        await writing
        await self._end(last)

    async def _write_ahead(self) -> None:
        """Write what has come, and show it then; all but the end, which is kept with the rest."""
        while True:
            await self._more.wait()
            self._more.clear()
            if self._complete:
                return
            if not self._broken:
                await self._try_to_write()
                self.visible = self._kept
                self._wake()

    # ---- both ----------------------------------------------------------------------------

    def stop(self, fault: Fault | None = None) -> None:
        """End a run: cancelled, or failed with this fault."""
        if self._unwanted or self._complete or self.ended:
            return
        if self.watch is not None:
            self.watch.stop(fault or CANCELLED)
            return
        self._unwanted, self.stopped = True, fault
        if self._at_work and self.task is not None:  # a task that has not begun would never begin
            self.task.cancel()

    async def follow(self) -> Batches:
        """All events from the first on: those that came, and those that come."""
        place = 0
        while True:
            if place < self.visible:
                batch = self.events[place : self.visible]
                place += len(batch)
                yield batch
            elif self.ended:
                return
            else:
                await self._changed()

    async def _changed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    async def finished(self) -> None:
        """Return when the run has ended."""
        while not self.ended:
            await self._changed()

    @property
    def snapshot(self) -> Response:
        """What has come of it so far."""
        if self.visible:
            return folded(self.events[: self.visible])
        record = self.record
        return Response(
            id=record.id,
            created_at=record.created_at,
            model=record.request.model,
            status="queued" if record.status == "queued" else "in_progress",
        )

    def _own(self, first: Event) -> Event:
        """The first event, with the id the response is kept under: the one it is known by."""
        if isinstance(first, Started):
            return replace(first, id=self.record.id, created_at=self.record.created_at)
        self.events.append(self._started())
        return first

    def _started(self) -> Started:
        return Started(self.record.id, self.record.created_at, self.record.request.model)

    async def _write(self) -> None:
        """Give the store what it does not have, but for the end."""
        events = tuple(self.events[self._kept :])
        if events and isinstance(events[-1], TERMINAL):
            events = events[:-1]
        if events:
            await self._store.append(self.record.id, LogSegment(self._kept, events))
            self._kept += len(events)

    async def _end(self, last: Event) -> Event:
        """Keep the end (this one, unless there is one already) and tell those who follow. Gives
        the last event, with the loss in it where the store failed."""
        self._complete = True
        if not self.events:
            self.events.append(self._started())
        if not isinstance(self.events[-1], TERMINAL):
            self.events.append(last)
        if self._timer is not None:
            self._timer.cancel()
        last = self.events[-1]
        kept = not self._broken and await self._keep()
        if not kept and isinstance(last, Finished):
            last = self.events[-1] = replace(last, losses=(*last.losses, NOT_KEPT))
        self._over()
        return last

    def _over(self) -> None:
        self.visible, self.ended = len(self.events), True
        self._going.pop(self.record.id, None)
        self._wake()

    async def _keep(self) -> bool:
        if self._writing is not None:
            await self._writing
        response = folded(self.events)
        rest = LogSegment(self._kept, tuple(self.events[self._kept :]))
        turn = self._turn + response.output if response.status == "completed" else ()
        letters = self._announce(self.record, response)
        try:
            return await self._store.finish(self.record.id, response, rest, turn, letters)
        except StoreError:
            return False

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


def folded(events: Sequence[Event]) -> Response:
    """What the events of a run add up to."""
    fold = Fold()
    fold.feed_all(events)
    return fold.response


_BLANK_LINE = b"\n\n"


class Replay:
    """An encoder that keeps silent about the events up to, and with, the number `after`.

    Every frame of the encoder inside has the next number from 0; `[DONE]` has none.
    """

    def __init__(self, encoder: Encoder, after: int = -1) -> None:
        self._encoder = encoder
        self._skip = after + 1

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events, but for what the reader has."""
        return self._new(self._encoder.feed(events))

    def _new(self, said: bytes) -> bytes:
        place = 0
        while self._skip and place < len(said) and not said.startswith(sse.DONE, place):
            place = said.index(_BLANK_LINE, place) + len(_BLANK_LINE)
            self._skip -= 1
        return said[place:] if place else said

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment: an event would take a number, and the recorded ones would not fit any more."""
        return self._encoder.heartbeat()
