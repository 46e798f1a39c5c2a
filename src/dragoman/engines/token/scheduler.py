"""Schedules sequences over a source of scores: fair turns, prefix reuse, cancellation."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Token

from .source import Job, NamingModel, ScoringModel, Slot, Tally, Written, failed

AGAIN = 0.001
"""Seconds until the loop looks again."""


class Addressee(Protocol):
    """Who gets letters."""

    def arrive(self, written: Written) -> None:
        """Something new; called on the loop."""
        ...


class Mailbox:
    """Hands over what was written to addressees on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._letters: dict[Addressee, Written] = {}
        self._looking = False

    def post(self, letters: Sequence[tuple[Addressee, Written]]) -> bool:
        """Have these handed over soon; from any thread. False when the loop is closed for good."""
        with self._lock:
            looking, self._looking = self._looking, True
            for addressee, written in letters:
                before = self._letters.setdefault(addressee, written)
                if before is not written:
                    before.add(written)
        if looking:
            return not self._loop.is_closed()
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _open(self) -> None:
        with self._lock:
            letters, self._letters = self._letters, {}
            self._looking = bool(letters)
        if letters:
            self._loop.call_later(AGAIN, self._open)
        for addressee, written in letters.items():
            addressee.arrive(written)


if TYPE_CHECKING:
    from .sampler import Sampler

AHEAD = 64
"""Tokens a sequence may be ahead of its reader."""


class Reader:
    """Where the tokens of one request arrive, on its event loop. `open` are the places of the
    sequences that are not over."""

    def __init__(
        self, jobs: Sequence[Job], loop: asyncio.AbstractEventLoop, poke: Callable[[], None]
    ) -> None:
        self.loop = loop
        self.members = [Member(job, place, self) for place, job in enumerate(jobs)]
        self.open = set(range(len(jobs)))
        self._poke = poke
        self._inbox: deque[tuple[int, Written]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def arrive(self, place: int, written: Written) -> None:
        """Something new in one of them."""
        self._inbox.append((place, written))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> tuple[int, Written]:
        """What arrived first of what was not read yet."""
        while True:
            while not self._inbox:
                self._waiter = self.loop.create_future()
                await self._waiter
            place, written = self._inbox.popleft()
            if place in self.open:  # else it was enough
                return place, written

    def heard(self, place: int, written: Written) -> None:
        """The reader is done with this."""
        member = self.members[place]
        member.heard += len(written.ids)
        if written.end is not None or written.enough:
            self.open.discard(place)
            member.given_up = True
        if member.behind or written.enough:
            self._poke()


class Member:
    """One sequence. The thread calls `open`, then `unread` and `take` by turns, then `close`."""

    def __init__(self, job: Job, place: int, reader: Reader) -> None:
        self.job = job
        self.reader = reader
        self.given_up = False  # written on the loop
        self.heard = 0  # written on the loop: tokens the reader is done with
        self.behind = False
        self.over = False
        self.reading = True  # the prompt is not read to its end
        self.slot: Any = None
        self._place = place
        self._tally = Tally(job)
        self._ids: list[int] = list(job.prompt)
        self._due: deque[int] = deque()
        self._sampler: Sampler | None = None
        self._cached: int | None = None
        self._scores: list[Token] | None = None  # of the prompt
        self._news = Written([], [])

    @property
    def ready(self) -> bool:
        """Whether it can go on: not over, and its reader near enough."""
        if self.over:
            return False
        self.behind = True  # told first, so that a reader who catches up just now will poke
        self.behind = self._tally.count - self.heard >= AHEAD and not self.given_up
        return not self.behind

    @property
    def forsaken(self) -> bool:
        """Whether its reader is behind and will stay so, since its loop is closed."""
        return self.behind and self.reader.loop.is_closed()

    def open(self, model: ScoringModel | NamingModel, describe: Callable[[int], Token]) -> None:
        """Take a slot."""
        job = self.job
        if isinstance(model, NamingModel):
            self.slot = model.open(job.prompt, job.sampling)
        else:
            from .sampler import Sampler

            self._sampler = Sampler(job.sampling, job.prompt, describe)
            # A prompt to be scored is read from its beginning: a single id leaves nothing to reuse.
            self.slot = model.open(job.prompt[:1] if job.scored else job.prompt)
            self._cached = self.slot.length
            self._scores = [describe(job.prompt[0])] if job.scored else None
        if job.limit == 0 and not job.scored:
            self._end("length")
        elif job.constraint is not None:
            self._force(None)

    def unread(self, share: int) -> Sequence[int]:
        """What the model is to read next: a stretch of the prompt, or all that came since."""
        slot: Slot = self.slot
        ids = self._ids
        start = slot.length
        if not self.reading:
            return ids[start:]
        return ids[start : start + (1 if self._scores is not None else share)]

    def take(self, ids: Sequence[int], outcome: Any) -> None:
        """What the model said after these."""
        if isinstance(outcome, Exception):
            raise outcome
        sampler = self._sampler
        if self.reading:
            if self._scores is not None and sampler is not None:
                self._score(sampler, self._scores, outcome)
            slot: Slot = self.slot
            self.reading = slot.length < len(self._ids)
            if self.reading or self._news.end is not None:
                return
        if sampler is None:
            self._end("stop") if outcome is None else self._write(outcome, None)
            return
        forced = bool(self._due)
        constraint = self.job.constraint
        id = self._due.popleft() if forced else sampler.choose(outcome, constraint)
        self._write(id, outcome, forced=forced)
        if constraint is not None and not self.over and not self._due:
            self._force(outcome)

    def close(self, model: ScoringModel | NamingModel) -> None:
        """Give the slot back."""
        slot, self.slot, self.over = self.slot, None, True
        if slot is not None:
            model.close(slot)

    def fail(self, error: Exception) -> None:
        """It is over, and not well."""
        self._end(failed(error))

    def letter(self) -> Written | None:
        """What is new, to be handed over on the reader's loop."""
        news = self._news
        if self.given_up or not (news.ids or news.end or news.prompt):
            return None
        news.cached = self._cached
        self._news = Written([], [])
        return news

    def arrive(self, written: Written) -> None:
        """The letter has come; on the loop."""
        self.reader.arrive(self._place, written)

    # ---- inside --------------------------------------------------------------------------

    def _score(self, sampler: Sampler, scores: list[Token], outcome: Any) -> None:
        """The probability of the prompt's next token."""
        prompt = self.job.prompt
        if len(scores) < len(prompt):
            scores.append(sampler.told(prompt[len(scores)], outcome))
        if len(scores) == len(prompt):
            self._news.prompt, self._scores = scores, None
            if self.job.limit == 0:
                self._end("length")

    def _write(self, id: int, scores: Any, *, forced: bool = False) -> None:
        id = self._tally.take(id)
        self._ids.append(id)
        self._news.ids.append(id)
        if self._sampler is not None:
            self._sampler.wrote(id)
            if self.job.sampling.logprobs and scores is not None:
                self._news.tokens.append(self._sampler.told(id, scores, forced=forced))
        constraint = self.job.constraint
        if constraint is not None and self._tally.end != "stop":
            constraint.accept([id])
            if constraint.over:
                self._tally.end = "stop"
        if self._tally.end is not None:
            self._end(self._tally.end)

    def _force(self, scores: Any) -> None:
        """Write what the grammar leaves no choice about. Where probabilities are asked for, each is
        scored first."""
        constraint = self.job.constraint
        while constraint is not None and not self.over and (forced := constraint.forced()):
            if self.job.sampling.logprobs:
                self._due.extend(forced)
                return
            for id in forced:
                if not self.over:
                    self._write(id, None, forced=True)

    def _end(self, end: str | Fault) -> None:
        if not self.over:
            self.over = True
            self._news.end = end


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
