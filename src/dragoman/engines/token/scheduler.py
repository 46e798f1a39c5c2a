"""One thread that runs a model, and the sequences that take turns in it.

In every round each sequence that can go on gets its next token, and what is left of long prompts is
read a stretch at a time, so that nobody waits for anybody's prompt. A sequence whose reader is slow
is passed over until it has caught up; one that was given up is closed before the next round. The
scheduler knows ids, not text.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from dragoman.core.error import Fault, FaultError

from .mailbox import Mailbox
from .member import Member, Reader
from .run import Job, Written
from .source import NamingModel, ScoringModel

STRETCH = 512
"""Tokens of prompts read in one round, all prompts together."""
GRACE = 10.0
"""Seconds a model may take for the step it is in when it is put away."""

_log = logging.getLogger("dragoman")

BUSY = Fault(
    "overloaded",
    "The model has more requests waiting than it takes. Ask again in a moment.",
    retry_after="1",
)
CLOSED = Fault("shutting_down", "The model has been put away.")
DIED = Fault("internal", "The thread that ran the model has died.")


class Scheduler:
    """Runs sequences on a model, `concurrency` at a time; so many more as `queue` may wait.

    `describe` gives the text of a token, for log-probabilities. The thread starts with the first
    sequence and ends with `close`.
    """

    def __init__(
        self,
        model: ScoringModel | NamingModel,
        describe: Callable[[int], Any],
        *,
        concurrency: int,
        queue: int,
    ) -> None:
        self._model = model
        self._describe = describe
        self._concurrency = concurrency
        self._queue = queue
        self._change = threading.Condition()
        self._arrivals: deque[Member] = deque()
        self._poked = False
        self._closing = False
        self._busy = False
        self._thread: threading.Thread | None = None
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._waiting: deque[Member] = deque()
        self._active: list[Member] = []

    # ---- on the event loop ---------------------------------------------------------------

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Written], None]:
        """What is written in each sequence, by its place among the jobs, until all are over.

        The first news is empty: the jobs are taken. Raises FaultError when too many wait already.
        Closing the generator gives them up.
        """
        reader = Reader(jobs, asyncio.get_running_loop(), self._poke)
        self._submit(reader.members)
        try:
            yield 0, Written([], [])
            while reader.open:
                place, written = await reader.next()
                yield place, written
                reader.heard(place, written)
        finally:
            for member in reader.members:
                member.given_up = True
            self._poke()

    async def close(self) -> None:
        """Fail what is still being written and end the thread, once the model lets go of it.

        A model that does not within `GRACE` seconds keeps its thread, which ends with the process.
        """
        with self._change:
            self._closing = True
            self._change.notify()
        thread, loop = self._thread, asyncio.get_running_loop()
        deadline = loop.time() + GRACE
        while thread is not None and thread.is_alive():  # not joined: nobody could give that up
            if loop.time() > deadline:
                self._leave_behind()
                break
            await asyncio.sleep(0.005)

    def _leave_behind(self) -> None:
        """The thread does not come back: tell the readers in its place."""
        _log.warning("the model was left behind in the midst of a step")
        with self._change:
            left = [*self._active, *self._waiting, *self._arrivals]
        for member in left:
            self._mailbox(member.reader.loop).post([(member, Written([], [], CLOSED))])

    def _submit(self, members: list[Member]) -> None:
        with self._change:
            if self._closing:
                raise FaultError(CLOSED)
            free = self._concurrency - len(self._active)
            if len(self._arrivals) + len(self._waiting) + len(members) > self._queue + free:
                raise FaultError(BUSY)
            self._arrivals += members
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dragoman-model")
                self._thread.daemon = True
                self._thread.start()
            self._poked = True
            self._change.notify()

    def _poke(self) -> None:
        with self._change:
            self._poked = True
            self._change.notify()

    # ---- on the thread -------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._undisturbed or self._rest():
                self._admit()
                self._busy = self._round()
                self._deliver()
        finally:
            self._bury()

    @property
    def _undisturbed(self) -> bool:
        """Whether there was work a moment ago and nobody wants anything: just go on then."""
        return self._busy and not self._poked and not self._closing

    def _rest(self) -> bool:
        """Wait until there is something to do; False when that is to stop."""
        with self._change:
            while not (self._poked or self._closing or self._can_go_on):
                self._change.wait()
            self._poked = False
            self._waiting += self._arrivals
            self._arrivals.clear()
            if self._closing:
                return False
        self._drop_given_up()
        return True

    @property
    def _can_go_on(self) -> bool:
        if self._waiting and len(self._active) < self._concurrency:
            return True
        return any(member.ready for member in self._active)

    def _drop_given_up(self) -> None:
        for member in [m for m in self._active if m.given_up or m.forsaken]:
            self._leave(member)
        if any(m.given_up for m in self._waiting):
            self._waiting = deque(m for m in self._waiting if not m.given_up)

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._concurrency:
            member = self._waiting.popleft()
            self._active.append(member)
            try:
                member.open(self._model, self._describe)
            except Exception as error:
                member.fail(error)

    def _leave(self, member: Member) -> None:
        """The sequence is over: the slot is free before anything else happens."""
        self._active.remove(member)
        self._put_away(member)

    def _put_away(self, member: Member) -> None:
        try:
            member.close(self._model)
        except Exception:  # the answer is whole all the same, so it is told to the operator only
            _log.exception("the model could not let go of a sequence")

    def _round(self) -> bool:
        """A token for everyone who can go on; False when nobody can."""
        going = [m for m in self._active if m.ready]
        reading = sum(m.reading for m in going)
        share = max(STRETCH // reading, 1) if reading else 0
        work = [(member, member.unread(share)) for member in going]
        if not work:
            return False
        for (member, ids), outcome in zip(work, self._step(work), strict=True):
            try:
                member.take(ids, outcome)
            except Exception as error:
                member.fail(error)
        return True

    def _step(self, work: list[tuple[Member, Sequence[int]]]) -> Sequence[Any]:
        """What the model says to each. Where a whole batch fails, each is tried alone: what is
        wrong with one is no reason to fail the others."""
        try:
            outcomes = self._model.step([(member.slot, ids) for member, ids in work])
            if len(outcomes) == len(work):
                return outcomes
            raise ValueError("the model answered for another number of sequences")
        except Exception as error:
            if len(work) == 1:
                return [error]
            return [self._alone(member, len(ids), error) for member, ids in work]

    def _alone(self, member: Member, share: int, failure: Exception) -> Any:
        """One sequence again, from where the model says that it has read to."""
        if not (left := member.unread(share)):
            return failure
        try:
            (outcome,) = self._model.step([(member.slot, left)])
        except Exception as error:
            return error
        return outcome

    def _deliver(self) -> None:
        """Post what is new, all readers of a loop in one go, and let those go that are done."""
        posts: dict[asyncio.AbstractEventLoop, list[tuple[Member, Written]]] = {}
        for member in tuple(self._active):
            if member.over:
                self._leave(member)
            if (letter := member.letter()) is not None:
                posts.setdefault(member.reader.loop, []).append((member, letter))
        for loop, letters in posts.items():
            if not self._mailbox(loop).post(letters):
                self._forsake(loop)

    def _forsake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody can read any more what is written for this loop."""
        for member in (*self._active, *self._waiting):
            member.given_up = member.given_up or member.reader.loop is loop
        self._poked = True

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        found = self._mailboxes.get(loop)
        if found is None:
            for gone in [each for each in self._mailboxes if each.is_closed()]:
                del self._mailboxes[gone]
            found = self._mailboxes[loop] = Mailbox(loop)
        return found

    def _bury(self) -> None:
        """The thread ends, on purpose or not: nobody may wait for it, and another may begin."""
        with self._change:
            left = [*self._active, *self._waiting, *self._arrivals]
            self._active = []
            self._waiting.clear()
            self._arrivals.clear()
            if not self._closing:
                self._thread = None
        fault = CLOSED if self._closing else DIED
        for member in left:
            member.fail(FaultError(fault))
            self._put_away(member)
            if (letter := member.letter()) is not None:
                self._mailbox(member.reader.loop).post([(member, letter)])
