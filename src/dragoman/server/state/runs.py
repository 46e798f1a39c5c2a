"""The runs of this server: leases, background work, orphans of other servers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Started
from dragoman.core.item import Item
from dragoman.engines.base import new_id
from dragoman.server.cancellation import TERMINAL
from dragoman.stores.base import LogSegment, Record, Store, StoreError

from .run import Announce, Batches, Run, folded, silent

LEASE = 30.0
"""Seconds a promise holds."""
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


Again = Callable[[Record], Batches]
"""Asks the engine once more for what a record asked."""

_log = logging.getLogger("dragoman.server")


class Runs:
    """What is being answered and recorded here.

    With `requeue`, a background run whose server died before it said anything is begun again, by
    `again`, instead of ended. One that has said something never is: nothing is said twice.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease: float = LEASE,
        upkeep: bool = True,
        announce: Announce = silent,
        requeue: bool = False,
    ) -> None:
        self.owner = new_id()
        self.again: Again | None = None
        self._requeue = requeue
        self._store = store
        self._lease = lease
        self._announce = announce
        self._live: dict[str, Run] = {}
        self._kept_up = upkeep
        self._upkeep: asyncio.Task[None] | None = None

    def open(self, record: Record, turn: tuple[Item, ...] = ()) -> Run:
        """A run for a record, which is renewed from its beginning to its end."""
        self.begin()
        return Run(record, self._store, turn, self._announce, self._live)

    async def work(self, run: Run, batches: Batches) -> None:
        """Keep a run and start it in the background."""
        await self._store.begin(run.record)
        self._live[run.record.id] = run
        run.task = asyncio.get_running_loop().create_task(run.work(batches))

    def until(self) -> float:
        """The time a promise given now holds until."""
        return time.time() + self._lease

    async def follow(self, record: Record) -> Batches:
        """The events of a run from the first on, wherever it runs, to its end."""
        run = self._live.get(record.id)
        if run is not None:
            async for batch in run.follow():
                yield batch
            return
        place, going = 0, record.running
        while True:
            for stretch in await self._store.log(record.id, place):
                place += len(stretch.events)
                yield list(stretch.events)
                if isinstance(stretch.events[-1], TERMINAL):
                    return
            if not going:
                return
            await self._store.wait(record.id, place, LOOK)
            now = await self._store.get(record.tenant, record.id)
            going = now is not None and now.running

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
        """See to the runs from now on, those of dead servers among them."""
        if self._kept_up and (self._upkeep is None or self._upkeep.done()):
            self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())

    @property
    def background(self) -> int:
        """How many answers are being given here for nobody who waits."""
        return len(self._behind())

    def hurry(self) -> None:
        """Stop what runs in the background now."""
        for run in self._behind():
            run.stop(SHUT_DOWN)

    async def drain(self, patience: float) -> None:
        """Let what runs in the background end within `patience` seconds, then stop it."""
        timer = asyncio.get_running_loop().call_later(patience, self.hurry)
        try:
            async with asyncio.timeout(patience + PATIENCE):
                while runs := self._behind():
                    await runs[0].finished()
        except TimeoutError:
            _log.warning("%d background answers would not stop.", self.background)
        finally:
            timer.cancel()

    def _behind(self) -> list[Run]:
        return [run for run in self._live.values() if run.record.background and not run.ended]

    async def close(self) -> None:
        """Stop what still runs, wait until that is kept, and end the upkeep."""
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
                await self._bury()
                if time.monotonic() - swept > SWEEP:
                    swept = time.monotonic()
                    await self._store.sweep(time.time())
                trouble = ""
            except StoreError as error:  # whoever needs the store now is told; it is tried again
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

    async def _bury(self) -> None:
        """End the runs that nobody goes on with: their servers are no more, or, where it was this
        one, their end could not be kept."""
        for record in await self._store.take_orphans(self.owner, time.time(), self.until()):
            if record.id in self._live:
                continue
            log = await self._store.log(record.id)
            events = [event for stretch in log for event in stretch.events]
            kept = len(events)
            if not events and record.background and self._requeue and self.again is not None:
                self._begin_again(record, self.again(record))
                continue
            if not events:
                events.append(Started(record.id, record.created_at, record.request.model))
            events.append(Failed(DIED))
            response, rest = folded(events), LogSegment(kept, tuple(events[kept:]))
            letters = self._announce(record, response)
            await self._store.finish(record.id, response, rest, messages=letters)

    def _begin_again(self, record: Record, batches: Batches) -> None:
        turn = record.request.items if record.conversation is not None else ()
        run = Run(record, self._store, turn, self._announce, self._live)
        self._live[record.id] = run
        run.task = asyncio.get_running_loop().create_task(run.work(batches))
