"""Records one answer: a sink between an engine and those who read it, which stores the events.

In the foreground events go to the client as they come and are stored a moment later, but the last
ones: a client that has the end can count on the whole being stored. In the background nobody sees
an event before it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import Fold
from dragoman.core.interfaces import Caller, Engine, Handle, Sink
from dragoman.core.item import Item
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.base import fault_from, start
from dragoman.server.cancellation import CANCELLED, TERMINAL, end_for
from dragoman.stores.base import LogSegment, OutboxMessage, Record, Store, StoreError

Batches = AsyncGenerator[list[Event], None]
"""Events, as many at a time as there are."""

Announce = Callable[[Record, Response], Sequence[OutboxMessage]]
"""The messages that announce a run which ends so."""

BEHIND = 0.25
"""Seconds a foreground run's events may wait before they are stored."""

NOT_STORED = Loss("store", "dropped", "this response could not be stored")


def announce_nothing(record: Record, response: Response) -> tuple[OutboxMessage, ...]:
    """There are no webhooks."""
    return ()


class Run:
    """The events of one answer, on their way into the store and to those who read them.

    `events` grows while the run goes on; the first `visible` of them may be shown. `ended` is true
    once nothing more comes and all is stored that could be. With `whole` nobody sees the answer
    before its end, and one write then stores it.
    """

    def __init__(
        self,
        record: Record,
        store: Store,
        turn: tuple[Item, ...] = (),
        announce: Announce = announce_nothing,
        live: dict[str, Run] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self.record = record
        self.events: list[Event] = []
        self.visible = 0
        self.begun = False  # the store knows of it
        self.ended = False
        self.task: asyncio.Task[None] | None = None  # of a run in the background
        self._store = store
        self._turn = turn  # what the request adds to its conversation
        self._announce = announce
        self._live = {} if live is None else live  # where it is listed while it goes on
        self._whole = whole
        self._fold = Fold()
        self._sink: Sink | None = None
        self._handle: Handle | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._stored = 0  # how many events the store has
        self._broken = False  # the store failed: go on without it
        self._complete = False  # all events have come

    # ---- as a handle: what the reader does ------------------------------------------------

    def start(self, engine: Engine, request: Request, caller: Caller, sink: Sink | None) -> Handle:
        """Have the engine answer, for this reader: none in the background, where the store knows of
        the run already."""
        if self._complete:  # it was stopped before its turn
            return self
        self._sink = sink
        self._live[self.record.id] = self
        if not (self.record.background or self._whole):
            self._beginning = asyncio.get_running_loop().create_task(self._begin())
        self._handle = start(engine, request, caller, self)
        return self

    def pause(self) -> None:
        """Produce as little as may be until `resume`."""
        if self._handle is not None:
            self._handle.pause()

    def resume(self) -> None:
        """Produce again."""
        if self._handle is not None:
            self._handle.resume()

    def cancel(self) -> None:
        """The reader is gone."""
        self.abandon(CANCELLED)

    def abandon(self, fault: Fault) -> None:
        """The reader is gone for this reason, and receives nothing more. What came is stored, with
        that end; of a run whose reader saw nothing, nothing remains."""
        self._sink = None
        self.stop(fault)

    def stop(self, fault: Fault = CANCELLED) -> None:
        """End the run for this reason. Its readers get the end once that is stored."""
        if self._complete:
            return
        if self._handle is not None:
            self._handle.cancel()
        if self.visible or self.record.background:
            end = end_for(fault)
            last: list[Event] = [end] if self.events else [self._started(), end]
            self._fold.feed_all(last)
            self.events += last
            self._end_soon()
        else:
            self._withdraw([Failed(fault)])

    # ---- as a sink: what the engine gives -------------------------------------------------

    def receive(self, events: list[Event]) -> None:
        """Store events, and pass them on."""
        if self._complete:
            return
        if not self.events:
            first = events[0]
            if isinstance(first, Started):  # the response is known by the id it is stored under
                own = replace(first, id=self.record.id, created_at=self.record.created_at)
                events = [own, *events[1:]]
            elif not self.record.background and isinstance(first, Failed):
                self._withdraw(events)
                return
            else:
                events = [self._started(), *events]
        try:
            self._fold.feed_all(events)
        except Exception as error:  # events out of order, which nothing could be made of
            self._fold = refolded(self.events)
            self.stop(fault_from(error))
            return
        self.events += events
        if isinstance(events[-1], TERMINAL):
            self._end_soon()
        elif self.record.background:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.get_running_loop().create_task(self._write_ahead())
        elif self.begun or self._broken or self._whole:
            self._show(len(self.events))
            if self._timer is None and self.begun:
                self._write_soon()

    def _started(self) -> Event:
        return Started(self.record.id, self.record.created_at, self.record.request.model)

    def _end_soon(self) -> None:
        """The last events have come; they are shown once all is stored."""
        self._complete = True
        if self._timer is not None:
            self._timer.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._end())

    def _withdraw(self, events: list[Event]) -> None:
        """The answer never began and nobody knows its id: nothing of it remains."""
        self._complete = True
        self._ending = asyncio.get_running_loop().create_task(self._delete())
        if self._sink is not None:
            self._sink.receive(events)

    def _show(self, count: int) -> None:
        """Let the readers have so many events."""
        if count > self.visible:
            events = self.events[self.visible : count]
            self.visible = count
            if self._sink is not None:
                self._sink.receive(events)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    # ---- storing --------------------------------------------------------------------------

    async def _begin(self) -> None:
        try:
            await self._store.begin(self.record)
            self.begun = True
        except StoreError:
            self._broken = True
        if self.events and not self._complete:
            self._show(len(self.events))
            self._write_soon()

    def _write_soon(self) -> None:
        """Write at the next tick: all runs have the same, so that they share a commit."""
        loop = asyncio.get_running_loop()
        tick = (loop.time() // BEHIND + 1) * BEHIND
        self._timer = loop.call_at(tick, self._write_behind)

    def _write_behind(self) -> None:
        self._timer = None
        if self._broken:
            return
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())
        else:
            self._write_soon()

    async def _write_ahead(self) -> None:
        """Store what has come, and show it then; the last events are stored with the response."""
        while self._stored < len(self.events) and not (self._broken or self._complete):
            await self._write()
            self._show(self._stored)

    async def _write(self) -> None:
        events = tuple(self.events[self._stored :])
        if self._complete:
            return
        try:
            await self._store.append(self.record.id, LogSegment(self._stored, events))
            self._stored += len(events)
        except StoreError:
            self._broken = True

    async def _end(self) -> None:
        """Store the end, and show it; where the store failed, it says so."""
        if self._beginning is not None:
            await self._beginning
        if self._writing is not None:
            await self._writing
        response, last, stored = self._fold.response, self.events[-1], False
        turn = self._turn + response.output if response.status == "completed" else ()
        if not self._broken:
            messages = self._announce(self.record, response)
            with suppress(StoreError):
                if self._whole:
                    whole = replace(self.record, status=response.status, response=response)
                    await self._store.put(whole, turn, messages)
                    stored = True
                else:
                    rest = LogSegment(self._stored, tuple(self.events[self._stored :]))
                    id = self.record.id
                    stored = await self._store.finish(id, response, rest, turn, messages)
        if not stored and isinstance(last, Finished):
            self.events[-1] = replace(last, losses=(*last.losses, NOT_STORED))
        self._close()

    async def _delete(self) -> None:
        if self._beginning is not None:
            await self._beginning
            with suppress(StoreError):
                await self._store.delete(self.record.tenant, self.record.id)
        self._close()

    def _close(self) -> None:
        self.ended = True
        self._handle = None  # it knows this sink
        self._live.pop(self.record.id, None)
        self._show(len(self.events))
        self._sink = None  # it knows this handle

    # ---- reading --------------------------------------------------------------------------

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

    async def finished(self) -> None:
        """Return when the run has ended."""
        while not self.ended:
            await self._changed()

    async def _changed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    @property
    def snapshot(self) -> Response:
        """The response as far as it may be shown."""
        seen = self.events[: self.visible]
        return refolded(seen).response if seen else unstarted(self.record)


def unstarted(record: Record) -> Response:
    """The response of a run without events."""
    return Response(
        id=record.id,
        created_at=record.created_at,
        model=record.request.model,
        status="queued" if record.status == "queued" else "in_progress",
    )


def refolded(events: Sequence[Event]) -> Fold:
    """What events of a run add up to."""
    fold = Fold()
    fold.feed_all(events)
    return fold
