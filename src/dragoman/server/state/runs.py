"""The runs of this server: leases, background work, orphans of other servers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed, Started
from dragoman.core.interfaces import Caller, Handle, Sink
from dragoman.core.item import Item
from dragoman.core.request import Request
from dragoman.engines.base import fault_from, new_id
from dragoman.server.cancellation import TERMINAL, UNFINISHED
from dragoman.stores.base import LogSegment, Record, Store, StoreError

from .run import Announce, Batches, Run, announce_nothing, refolded

LEASE = 30.0
"""Seconds a lease lasts."""
SWEEP = 600.0
"""Seconds between two sweeps of the store."""
LOOK = 10.0
"""Seconds to wait for more of a run elsewhere before looking whether it goes on."""
PATIENCE = 5.0
"""Seconds to wait until a run that shall end has ended."""

DIED = Fault(
    "internal",
    "The server that was giving this answer stopped before its end. Ask again.",
    "server",
)
SHUT_DOWN = Fault("shutting_down", "The server was shut down before the answer's end.", "server")


Launch = Callable[[Run, Request | None, Caller], Coroutine[Any, Any, None]]
"""Carries out a run in the background: the request, or without one what its record asked for."""

_log = logging.getLogger("dragoman.server")


class Runs:
    """The runs of this server.

    With `requeue`, a background run whose server died before it had an event is begun again instead
    of ended. One that has events never is: nothing is answered twice. `launch` is set by the
    responder, which has the engine.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease: float = LEASE,
        upkeep: bool = True,
        announce: Announce = announce_nothing,
        requeue: bool = False,
    ) -> None:
        self.owner = new_id()
        self.launch: Launch | None = None
        self._requeue = requeue
        self._store = store
        self._lease = lease
        self._announce = announce
        self._live: dict[str, Run] = {}
        self._with_upkeep = upkeep
        self._upkeep: asyncio.Task[None] | None = None

    def open(self, record: Record, turn: tuple[Item, ...] = (), *, whole: bool = False) -> Run:
        """A run for a record, whose lease is renewed from its beginning to its end."""
        self.begin()
        return Run(record, self._store, turn, self._announce, self._live, whole=whole)

    async def begin_in_background(self, run: Run, request: Request, caller: Caller) -> None:
        """Store a run and start it."""
        await self._store.begin(run.record)
        self._launch(run, request, caller)

    def _launch(self, run: Run, request: Request | None, caller: Caller) -> None:
        if self.launch is None:
            raise RuntimeError("there is no engine to answer in the background")
        run.begun = True
        self._live[run.record.id] = run
        run.task = asyncio.get_running_loop().create_task(self.launch(run, request, caller))

    def until(self) -> float:
        """When a lease that begins now ends."""
        return time.time() + self._lease

    async def follow(self, record: Record) -> Batches:
        """The events of a run from the first on, wherever it runs, to its end."""
        run = self._live.get(record.id)
        if run is not None:
            async for batch in run.follow():
                yield batch
            return
        place, running = 0, record.running
        while True:
            for segment in await self._store.log(record.id, place):
                place += len(segment.events)
                yield list(segment.events)
                if isinstance(segment.events[-1], TERMINAL):
                    return
            if not running:
                return
            await self._store.wait(record.id, place, LOOK)
            now = await self._store.get(record.tenant, record.id)
            running = now is not None and now.running

    def send(self, record: Record, sink: Sink) -> Handle:
        """Have a sink receive the events of a run from the first on, wherever it runs."""
        return Follower(self.follow(record), sink)

    async def cancel(self, record: Record) -> Record:
        """End a run, wherever it runs; the record as it is after that."""
        run = self._live.get(record.id)
        if run is not None and not run.ended:
            run.stop()
            await run.finished()
        elif record.running:
            await self._store.request_cancel(record.tenant, record.id)
            await self._ended(record)
        return await self._store.get(record.tenant, record.id) or record

    async def _ended(self, record: Record) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                async for _ in self.follow(record):
                    pass

    # ---- upkeep --------------------------------------------------------------------------

    def begin(self) -> None:
        """Renew leases, and end the runs of dead servers, from now on."""
        if self._with_upkeep and (self._upkeep is None or self._upkeep.done()):
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    @property
    def background(self) -> int:
        """How many answers are being given here in the background."""
        return len(self._in_background())

    def stop_all(self) -> None:
        """Stop what runs in the background now."""
        for run in self._in_background():
            run.stop(SHUT_DOWN)

    async def drain(self, patience: float) -> None:
        """Let what runs in the background end within `patience` seconds, then stop it."""
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
        return [run for run in self._live.values() if run.record.background and not run.ended]

    async def close(self) -> None:
        """Stop what still runs, wait until that is stored, and end the upkeep."""
        if self._upkeep is not None:
            self._upkeep.cancel()
        runs = tuple(self._live.values())
        for run in runs:
            run.stop(SHUT_DOWN)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                for run in runs:
                    await run.finished()

    async def _keep_up(self) -> None:
        swept, trouble = 0.0, ""
        while True:
            try:
                await self._renew()
                await self._end_orphans()
                if time.monotonic() - swept > SWEEP:
                    swept = time.monotonic()
                    await self._store.sweep(time.time())
                trouble = ""
            except StoreError as error:  # requests get their own errors; this is tried again
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("%s", trouble)
            except Exception:
                _log.exception("The upkeep of runs failed, and goes on.")
            await asyncio.sleep(min(1.0, self._lease / 4))

    async def _renew(self) -> None:
        own = [run for run in self._live.values() if run.begun and not run.ended]
        if not own:
            return
        unwanted = await self._store.renew_leases([run.record.id for run in own], self.until())
        for run in own:
            if run.record.id in unwanted:
                run.stop()

    async def _end_orphans(self) -> None:
        """End the runs that nobody goes on with: their servers died, or, where it was this one,
        their end could not be stored."""
        for record in await self._store.take_orphans(self.owner, time.time(), self.until()):
            if record.id in self._live:
                continue
            log = await self._store.log(record.id)
            events = [event for segment in log for event in segment.events]
            stored = len(events)
            if not events and record.background and self._requeue and self.launch is not None:
                turn = record.request.items if record.conversation is not None else ()
                run = Run(record, self._store, turn, self._announce, self._live)
                self._launch(run, None, Caller(tenant=record.tenant))
                continue
            if not events:
                events.append(Started(record.id, record.created_at, record.request.model))
            events.append(Failed(DIED))
            response, rest = refolded(events).response, LogSegment(stored, tuple(events[stored:]))
            messages = self._announce(record, response)
            await self._store.finish(record.id, response, rest, messages=messages)


class Follower:
    """A handle of one task that reads the events of a run for a sink."""

    def __init__(self, batches: Batches, sink: Sink) -> None:
        self._batches = batches
        self._sink: Sink | None = sink  # None once nothing more is wanted
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._task = asyncio.get_running_loop().create_task(self._read())

    def cancel(self) -> None:
        """Read no more; the run goes on."""
        self._sink = None
        self._resumed.set()
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def pause(self) -> None:
        """Read no more until `resume`."""
        self._resumed.clear()

    def resume(self) -> None:
        """Read again."""
        self._resumed.set()

    async def _read(self) -> None:
        last: Event | None = None
        try:
            async with aclosing(self._batches) as batches:
                async for batch in batches:
                    last = batch[-1]
                    if self._sink is None:
                        return
                    self._sink.receive(batch)
                    await self._resumed.wait()
            if not isinstance(last, TERMINAL) and self._sink is not None:
                self._sink.receive([Failed(UNFINISHED)])
        except Exception as error:
            if self._sink is not None:
                self._sink.receive([Failed(fault_from(error))])
