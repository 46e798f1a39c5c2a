"""Stores the events of this server's answers while they are generated, from the first to the last.

A run is a sink between an engine and its readers. In the foreground events are sent to the client
as they come and stored a moment later, except the last ones: when a client has the end, the answer
is stored. In the background they are stored before they are sent. `Runs` also keeps leases.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Event, Failed, Finished, Started
from dragoman.core.fold import Fold, fold
from dragoman.core.interfaces import ANYONE, Caller, Engine, Handle, Sink
from dragoman.core.item import Item
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.engines.base import Driver, fault_from, new_id, start
from dragoman.server.cancellation import CANCELLED, DELETED, DIED, FORGOTTEN, TERMINAL, end_for
from dragoman.server.exchange import Held
from dragoman.server.limits import SMALL, Budget, Gate, values_in, weight_of
from dragoman.stores.base import ConflictError, LogSegment, OutboxMessage, Record, StoreError, named
from dragoman.stores.serialize import size_of
from dragoman.stores.sql import Store

T = TypeVar("T")

Batches = AsyncGenerator[list[Event], None]
"""Batches of events, each with all that are available."""

Announce = Callable[[Record, Response], Sequence[OutboxMessage]]
"""The messages that announce the end of a run in the background."""

Put = Callable[[Record, Sequence[Item], Sequence[OutboxMessage]], Awaitable[None]]
"""Stores an answer that has ended, as `Store.put` does."""

BEHIND = 0.25
"""Seconds a foreground run's events may wait before they are stored."""
LEASE = 30.0
"""Seconds a lease lasts."""
LOOK = 10.0
"""Seconds to wait for more of a run elsewhere before checking that it is running."""
SEGMENTS = 4
"""Segments of a log that are read at once for a client that may read slowly."""
PIECE = 1024 * 1024
"""Bytes of an answer that are stored at once, while it is generated; about as many."""
MANY = 640
"""Values and text of an event after which a client is waited for."""
PATIENCE = 5.0
"""Seconds to wait for the end of a run that was cancelled."""
RETRY = 0.5
"""Seconds between attempts with a failing store, for work that can wait."""
FOLLOWED = 30.0
"""Seconds that followers of a run wait for a failing store."""
HELD = 600.0
"""Seconds that the end of a background run waits for a failing store."""

NOT_STORED = Loss("store", "dropped", "this response could not be stored")
SHUT_DOWN = Fault("shutting_down", "The server was shut down before the answer's end.", "server")

_log = logging.getLogger("dragoman.server")


class Run:
    """Passes the events of one answer on to the store and to its readers.

    `events` are the last ones: earlier ones are only in the store. The first `visible` of all may
    be sent. `ended`: nothing more comes and everything possible is stored. With `put` the answer
    cannot be retrieved before its end, and is stored in one write.
    """

    ended = False
    lost = False  # in the background: its end, if there is one, is another server's
    response: Response | None = None  # once it has
    losses: tuple[Loss, ...] = ()  # those before the engine was called
    task: asyncio.Task[None] | None = None  # of a run in the background
    hold: Held | None = None  # of its request, in the background
    turn: asyncio.Future[None] | None = None  # that it has or waits for, in the background
    _ending: asyncio.Future[Any] | None = None

    def __init__(
        self, record: Record, runs: Runs, turn: tuple[Item, ...] = (), put: Put | None = None
    ) -> None:
        self.record = record
        self.events: list[Event] = []
        self.visible = 0
        self.begun = False  # it is in the store
        self._runs = runs
        self._turn = turn  # what its request adds to the conversation
        self._put = put
        self._sink: Sink | None = None
        self._handle: Handle | None = None
        self._beginning: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None  # set for new events, where a reader waits
        self._appended = 0  # what `_size` was when all its events were stored last
        self._tried: tuple[int, int] | None = None  # events of a write, `_appended` after it
        self._size = 0  # bytes of a large answer
        self._count: Callable[[int], None] | None = None  # of the caller
        self.fold = Fold()
        self._folded = 0  # how many events it has
        self.first = 0  # how many events came before `events`
        self._stored = 0  # how many events the store has
        self._broken = False  # the store failed: continue without it
        self._complete = False  # all events were received

    # ---- the handle, for the reader -------------------------------------------------------

    def start(self, engine: Engine, request: Request, caller: Caller, sink: Sink | None) -> Handle:
        """Start the engine, for this reader: none in the background, where the run is stored."""
        if self._complete:  # it was stopped before its turn
            return self
        self._sink = sink
        self._runs.live[self.record.id] = self
        if not (self.record.background or self._put):
            self._beginning = asyncio.ensure_future(self._runs.store.begin(self.record))
            self._beginning.add_done_callback(self._began)
        # With the record's id in its items' ids the store needs no index to find them.
        self._count = caller.count
        caller = replace(caller, response=self.record.id, count=self._counted)
        self._handle = start(engine, request, caller, self)
        return self

    def _counted(self, more: int) -> None:
        """Account for more bytes of a large answer. Raises FaultError for no room."""
        if self._count is not None:
            self._count(more)
        self._size += more

    def pause(self) -> None:
        """Pause the engine until `resume`."""
        if self._handle is not None:
            self._handle.pause()

    def resume(self) -> None:
        """Resume the engine."""
        if self._handle is not None:
            self._handle.resume()

    def cancel(self) -> None:
        """The reader is gone."""
        self.abandon(CANCELLED)

    def abandon(self, fault: Fault) -> None:
        """Detach the reader. What came is stored, with this end, unless the reader got nothing."""
        self._sink = None
        self.stop(fault)

    def stop(self, fault: Fault = CANCELLED) -> None:
        """End the run for this reason. Its readers get the end once that is stored."""
        if self._complete:
            return
        if self._handle is not None:
            self._handle.cancel()
        if self.visible or self.record.background:
            if not (self.first or self.events):
                self.events.append(self._started())
            self.events.append(end_for(fault))
            self._end()
        else:
            self._withdraw([Failed(fault)])

    def lose(self, taken: bool) -> None:
        """It was cancelled or deleted; or another server took it, and its client reads on."""
        self._broken = self._broken or taken
        if self.record.background or not taken:
            self.stop()

    # ---- the sink, for the engine ---------------------------------------------------------

    def receive(self, events: list[Event]) -> None:
        """Store events, and pass them on."""
        if self._complete:
            return
        if not (self.first or self.events):
            first = events[0]
            if isinstance(first, Started):  # the response has the id it is stored under
                record, losses = self.record, self.losses + first.losses
                own = replace(first, id=record.id, created_at=record.created_at, losses=losses)
                events = [own, *events[1:]]
            elif not self.record.background and isinstance(first, Failed):
                self._withdraw(events)
                return
            else:
                events = [self._started(), *events]
        self.events += events
        if isinstance(events[-1], TERMINAL):  # the end is sent once everything is stored
            self._end()
        elif self.record.background:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.get_running_loop().create_task(self._write_ahead())
        elif self.begun or self._broken or self._put:
            self.visible = self.first + len(self.events)
            if self._sink is not None:
                self._sink.receive(events)
            if self._changed is not None:
                self._changed.set()
            if self.begun and self not in self._runs.behind:
                self._runs.write_soon(self)

    def _started(self) -> Event:
        record = self.record
        return Started(record.id, record.created_at, record.request.model, self.losses)

    def _withdraw(self, events: list[Event]) -> None:
        """End without storing: the answer never began, and its id was not sent."""
        self._complete = True
        if self._sink is not None:
            self._sink.receive(events)
        if self._beginning is None and not self.begun:
            self._close()
        else:
            self._ending = asyncio.ensure_future(self._delete())

    def _show(self, count: int) -> None:
        """Make so many events visible to readers."""
        if count > self.visible:
            events = self.events[self.visible - self.first : count - self.first]
            self.visible = count
            if self._sink is not None:
                self._sink.receive(events)
        if self._changed is not None:
            self._changed.set()

    # ---- storing --------------------------------------------------------------------------

    def _began(self, beginning: asyncio.Future[None]) -> None:
        self._beginning = None
        self.begun = not beginning.cancelled() and beginning.exception() is None
        self._broken = not self.begun
        if self.events and not self._complete:
            self._show(len(self.events))
            self._runs.write_soon(self)

    def write_behind(self) -> None:
        """Store the events since the last time, if there are any."""
        if self._complete or self._broken or self._stored == self.first + len(self.events):
            return
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())
        else:
            self._runs.write_soon(self)

    async def _write_ahead(self) -> None:
        """Store the new events, then make them visible; the last are stored with the response."""
        while self._stored < self.first + len(self.events) and not (self._broken or self._complete):
            await self._write()
            self._show(self._stored)
            if self._tried:  # the store failed: the events wait here
                await asyncio.sleep(RETRY)

    async def _write(self) -> None:
        if self._complete:
            return
        # Drop what the last write stored: followers have had time to read it.
        del self.events[: self._stored - self.first]
        self.first = self._stored
        coming = iter(self.events[self._folded - self.first :])
        try:
            self.fold.feed_all(coming)
        except Exception as error:
            self._cut(error, len(tuple(coming)))
            return
        self._folded = self.first + len(self.events)
        # What failed is tried again alone: what came since would be packed again each time.
        self._tried = count, appended = self._tried or self._piece()
        record, size = self.record, self._size - self._appended
        segment = LogSegment(self._stored, tuple(self.events[:count]), self._runs.owner)
        try:
            await self._runs.store.append(record.id, segment, size, record.tenant)
        except StoreError as error:  # a conflict: it was deleted, or ended elsewhere
            self._broken |= isinstance(error, ConflictError)
        else:
            self._appended, self._tried = appended, None
            self._stored += count
        if not record.background:
            self._writing = None
            if self._tried:
                self._runs.write_soon(self)
            elif self._stored < self._folded:
                self.write_behind()

    def _piece(self) -> tuple[int, int]:
        """How many events are stored next, of much that waits by their mean size."""
        count, most = len(self.events), PIECE * self._folded // (self._size or 1) or 1
        whole = count <= most or self._size - self._appended <= PIECE
        return (count, self._size) if whole else (most, self._appended)

    def _cut(self, error: Exception, left: int) -> None:
        """Drop an event that is out of order, and all that follow it; the run ends there."""
        fault = fault_from(error)
        del self.events[-1 - left :]
        self._folded = self.first + len(self.events)
        self.visible = min(self.visible, self._folded)
        if self._complete:
            self.events.append(end_for(fault))
            self.fold.feed(self.events[-1])
        else:
            self.stop(fault)

    def _end(self, earlier: asyncio.Future[None] | None = None) -> None:
        """Store the end, once the earlier events are stored."""
        self._complete = True
        if self._beginning is not None:
            self._beginning.add_done_callback(self._end)
            return
        if self._writing is not None and not self._writing.done():
            self._writing.add_done_callback(self._end)
            return
        coming = iter(self.events[self._folded - self.first :])
        try:
            self.fold.feed_all(coming)
        except Exception as error:
            self._cut(error, len(tuple(coming)))
        record, response = self.record, self.fold.response
        self.response = response
        adds = record.conversation is not None and response.status == "completed"
        turn = self._turn + response.output if adds else ()  # for its conversation
        if self._broken:
            self._ended()
            return
        messages = self._runs.announce(record, response) if record.background else ()
        ending: Awaitable[bool | None]
        if self._put is not None:
            size = record.size + self._size
            whole = replace(record, status=response.status, response=response, size=size)
            ending = self._put(whole, turn, messages)
        else:
            left = tuple(self.events[self._stored - self.first :])
            rest = LogSegment(self._stored, left, self._runs.owner)
            size = self._size + (record.size if turn else 0)
            given = record.id, response, rest, turn, messages, size, record.tenant, record.place
            finish = partial(self._runs.store.finish, *given)
            ending = self._runs.held(finish, HELD) if record.background else finish()
        self._ending = asyncio.ensure_future(ending)
        self._ending.add_done_callback(self._ended)

    def _ended(self, ending: asyncio.Future[bool | None] | None = None) -> None:
        """Send the end; where the store failed, it is a failure."""
        stored, background = False, self.record.background
        try:
            stored = ending is not None and ending.result() is not False
            self.lost = background and not stored
        except (StoreError, asyncio.CancelledError) as error:
            self.lost = background and isinstance(error, ConflictError)
        except Exception as error:  # the client must not wait forever for what it has
            fault_from(error)
        last = self.events[-1]
        if not stored and background:
            _log.warning("The background response %s could not be stored.", self.record.id)
        if not stored and isinstance(last, Finished) and self.response is not None:
            self.events[-1] = replace(last, losses=(*last.losses, NOT_STORED))
            self.response = replace(self.response, losses=(*self.response.losses, NOT_STORED))
        self._close()

    async def _delete(self) -> None:
        with suppress(StoreError):
            if self._beginning is not None:
                await self._beginning
            await self._runs.store.delete(self.record.tenant, self.record.id)
        self._close()

    def _close(self) -> None:
        self.ended = True
        if self.hold is not None:
            self.hold.close()
        if self.turn is not None:
            self.turn.cancel()  # if it was not received
        self._handle = None  # a reference cycle
        self._runs.live.pop(self.record.id, None)
        self._show(self.visible if self.lost else self.first + len(self.events))
        self._sink = self._count = None  # reference cycles

    # ---- reading --------------------------------------------------------------------------

    async def finished(self) -> None:
        """Return when the run has ended."""
        while not self.ended:
            await self.changed()

    async def changed(self) -> None:
        """Return when there may be more events, or the end."""
        if self._changed is None:
            self._changed = asyncio.Event()
        self._changed.clear()
        await self._changed.wait()


Launch = Callable[[Run, Request | None, Caller], Coroutine[Any, Any, None]]
"""Executes a run in the background: the request, or without one that of its record."""


class Runs:
    """The runs of this server.

    With `requeue`, a background run whose server died before it had an event is begun again instead
    of ended. One with events never is: nothing is answered twice. `launch` is set by the responder,
    and `requeue`, `budget`, which accounts for bytes, and `places`, a queue, by the application.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease: float = LEASE,
        upkeep: bool = True,
        announce: Announce = lambda record, response: (),
    ) -> None:
        self.owner = new_id()
        self.launch: Launch | None = None
        self.budget = Budget(1 << 62)
        self.places = Gate(1 << 30, 0, None)
        self.store = store
        self.announce = announce
        self.live: dict[str, Run] = {}
        self.requeue = False
        self.lease = lease
        self._over = False  # everything is released
        self._turn = asyncio.Lock()  # of readers of runs that have several
        self.behind: dict[Run, None] = {}  # those with events to store
        self._timer: asyncio.TimerHandle | None = None
        self._with_upkeep = upkeep
        self._upkeep: asyncio.Task[None] | None = None

    def open(self, record: Record, turn: tuple[Item, ...] = (), put: Put | None = None) -> Run:
        """A run for a record, whose lease is renewed from its beginning to its end."""
        if self._upkeep is None or self._upkeep.done():
            self.begin()
        return Run(record, self, turn, put)

    def write_soon(self, run: Run) -> None:
        """Schedule a run to store its events, with all others, so that they share a commit."""
        self.behind[run] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BEHIND, self._write_behind)

    def _write_behind(self) -> None:
        runs, self.behind, self._timer = self.behind, {}, None
        for run in runs:
            run.write_behind()

    async def begin_in_background(self, run: Run, request: Request, caller: Caller) -> None:
        """Store a run, and queue it. Raises FaultError where too many wait."""
        turn = self.places.queue(caller.tenant)
        try:
            await self.store.begin(run.record)
        except BaseException:
            self.places.give_up(caller.tenant, turn)
            raise
        self._launch(run, turn, request, caller)

    def _launch(
        self, run: Run, turn: asyncio.Future[None], request: Request | None, caller: Caller
    ) -> None:
        run.begun, run.turn = True, turn
        self.live[run.record.id] = run
        run.task = asyncio.create_task(self._when_due(run, turn, request, caller))

    async def _when_due(
        self, run: Run, turn: asyncio.Future[None], request: Request | None, caller: Caller
    ) -> None:
        """Execute a run when it has a place, unless it has ended before."""
        if self.launch is None:
            raise RuntimeError("there is no engine to answer in the background")
        try:
            await asyncio.wait((turn,))
            await self.launch(run, request, caller)
        finally:
            self.places.give_up(caller.tenant, turn)

    async def follow(self, record: Record, hold: Held | None = None) -> Batches:
        """All events of a run, wherever it runs; its log is read when `hold` has room for it."""
        place, running, run = 0, record.running, self.live.get(record.id)
        while True:
            if run is None or place < run.first:
                if hold is not None:
                    await self._fit(record.id, place, hold)
                more = partial(self.store.log, record.id, place, SEGMENTS)
                log = await self.held(more, FOLLOWED)
                for segment in log:
                    place += len(segment.events)
                    yield list(segment.events)
                    if isinstance(segment.events[-1], TERMINAL):
                        return
                if hold is not None:
                    hold.close()  # others wait for that
                if log:
                    continue
                if run is not None or not running:  # it was deleted, or has ended
                    return
                wait = partial(self.store.wait, record.id, place, LOOK)
                running = await self.held(wait, FOLLOWED)
            elif place < run.visible:
                batch = run.events[place - run.first : run.visible - run.first]
                place += len(batch)
                yield batch
            elif not run.ended:
                await run.changed()
            elif run.lost:
                run = None  # the rest is in the store
            else:
                return

    async def _fit(self, id: str, place: int, hold: Held) -> None:
        """Wait until there is room for what is read of a log at once."""
        size = await self.held(partial(self.store.size_of_log, id, place, SEGMENTS), FOLLOWED)
        while True:
            try:
                return hold.resize(min(size, self.budget.share // 2))  # others have some
            except FaultError:
                await asyncio.sleep(RETRY)

    def send(self, record: Record, sink: Sink, stop: Callable[[Fault], None]) -> Handle:
        """Send the events of a run to a sink from the first on; `stop` what cannot be read."""

        async def events() -> AsyncGenerator[Event, None]:
            event: Event | None = None
            hold = self.budget.hold(record.tenant)
            held = hold if record.running else None  # else what is read is held by who asked
            try:
                async with aclosing(self.follow(record, held)) as batches:
                    async for batch in batches:
                        async with self._turn:  # other runs wait for one batch, and not for all
                            await asyncio.sleep(0)
                        for event in batch:
                            yield event
                            if values_in((event,), MANY) > MANY:
                                await driver.wait_delivered()
                        await driver.wait_delivered()
                if not isinstance(event, TERMINAL):
                    now = partial(self.store.get, record.tenant, record.id)
                    if await self.held(now, FOLLOWED) is not None:  # its log is too old by now
                        raise FaultError(FORGOTTEN)
                    yield Failed(DELETED)
            except FaultError as error:  # no event of the response
                stop(error.fault)
            finally:
                hold.close()

        driver = Driver(events(), ANYONE, sink)
        return driver

    async def held(self, ask: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Call the store, with retries for a while, until a shutdown. Raises StoreError."""
        end = time.monotonic() + seconds
        while True:
            try:
                return await ask()
            except StoreError as error:
                if isinstance(error, ConflictError) or self._over or time.monotonic() > end:
                    raise
            await asyncio.sleep(RETRY)

    async def cancel(self, record: Record) -> Record:
        """End a run, wherever it runs; the record as it is after that."""
        run = self.live.get(record.id)
        with suppress(TimeoutError):  # its end is not stored yet
            async with asyncio.timeout(PATIENCE):
                if run is not None and not run.ended:
                    run.stop()
                    await run.finished()
                elif record.running:
                    await self.store.request_cancel(record.tenant, record.id)
                    async for _ in self.follow(record):
                        pass
        return await self.store.get(record.tenant, record.id) or record

    # ---- upkeep --------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the upkeep: renew leases, and end the runs of dead servers."""
        if self._with_upkeep and (self._upkeep is None or self._upkeep.done()):
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    @property
    def background(self) -> int:
        """The number of runs in progress in the background."""
        return len(self._in_background())

    def stop_all(self) -> None:
        """Cancel the background runs now."""
        self._over = True
        for run in self._in_background():
            run.stop(SHUT_DOWN)

    async def drain(self, patience: float) -> None:
        """Give background runs `patience` seconds to end, then cancel them."""
        timer = asyncio.get_running_loop().call_later(patience, self.stop_all)
        try:
            async with asyncio.timeout(patience + PATIENCE):
                while runs := self._in_background():
                    await runs[0].finished()
        except TimeoutError:
            _log.warning("%d background answers would not stop.", self.background)
        finally:
            timer.cancel()

    def _in_background(self) -> list[Run]:
        return [run for run in self.live.values() if run.record.background and not run.ended]

    async def close(self) -> None:
        """Cancel the remaining runs, wait until that is stored, and end the upkeep."""
        for timer in (self._upkeep, self._timer):
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._over = True
        for run in (runs := tuple(self.live.values())):
            run.stop(SHUT_DOWN)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                for run in runs:
                    await run.finished()

    async def _keep_up(self) -> None:
        # The store may have been away, or fail: owners get time to renew their leases.
        swept, calm, sweeping = -math.inf, time.monotonic() + self.lease, None
        await self._tended(self.store.clock())
        clock = self.store.now()
        try:
            while True:
                await self._tended(self._renew())
                before, clock = clock, self.store.now()
                if clock - before > max(self.lease / 2, 1):
                    # The clock was set, or this machine slept: owners have not renewed either.
                    calm = time.monotonic() + self.lease
                if time.monotonic() > calm and not await self._tended(self._end_orphans()):
                    calm = time.monotonic() + self.lease
                if sweeping is None or sweeping.done():  # leases do not wait for it
                    now = time.monotonic()
                    if self.store.is_crowded(now - swept):
                        swept, sweep = now, self._tended(self.store.sweep(self.store.now()))
                        sweeping = asyncio.get_running_loop().create_task(sweep)
                await asyncio.sleep(min(1.0, self.lease / 4))
        finally:
            if sweeping is not None:
                sweeping.cancel()

    async def _tended(self, work: Awaitable[object]) -> bool:
        """Run a part of the upkeep; False where the store fails, and it is tried again."""
        try:
            await work
        except StoreError:  # the store has logged it
            return False
        except Exception:
            _log.exception("The upkeep of runs failed, and is tried again.")
        return True

    async def _renew(self) -> None:
        own = {id: run for id, run in self.live.items() if run.begun and not run.ended}
        if own:
            until = await self.store.clock() + self.lease
            for id, taken in (await self.store.renew_leases(self.owner, list(own), until)).items():
                own[id].lose(taken)

    async def _end_orphans(self) -> None:
        """End orphaned runs: their servers died, or this one could not store their end."""
        now, due = await self.store.clock(), time.monotonic() + self.lease / 4
        async for record in self.store.take_orphans(self.owner, now, now + self.lease):
            if record.id not in self.live:
                await self._tended(self._end_orphan(record))  # one that fails holds up no other
            if time.monotonic() > due:
                break  # our own leases come before the others

    async def _end_orphan(self, record: Record) -> None:
        events = [event for segment in await self.store.log(record.id) for event in segment.events]
        stored, again = len(events), self.requeue and not record.cancelling
        if again and not events and record.background and self.launch is not None:
            items = record.request.items if record.conversation is not None else ()
            run = Run(record, self, named(items, record.id))
            hold = run.hold = self.budget.hold(record.tenant)
            try:
                hold.resize(await self.store.turns.take(weight_of, record.request))
                turn = self.places.queue(record.tenant)
            except FaultError as error:
                hold.close()
                if error.fault.code != "too_large":
                    return  # no room, or too many wait: its lease expires, then it is retried
            else:
                self._launch(run, turn, None, Caller(tenant=record.tenant, size=SMALL))
                return
        if not events:
            events.append(Started(record.id, record.created_at, record.request.model))
        events.append(end_for(CANCELLED if record.cancelling else DIED))
        response = await self.store.apart(8 * len(events), fold, events)  # many take long
        rest, size = LogSegment(stored, tuple(events[stored:]), self.owner), size_of(response)
        end = self.announce(record, response) if record.background else ()
        given = record.id, response, rest, (), end, size, record.tenant, record.place
        await self.store.finish(*given)
