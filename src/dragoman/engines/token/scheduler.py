"""Schedules sequences on a model's thread: fair turns, prefix reuse, backpressure, cancellation."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from inspect import signature
from time import monotonic
from typing import TYPE_CHECKING, Any

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Token
from dragoman.engines.base import request_id

from .masks import Masks
from .next_token import NextTokenModel
from .source import Job, NewTokens, ScoringModel, Slot, TokenCounter, model_fault

if TYPE_CHECKING:
    from .sampler import Sampler

AHEAD = 64
"""Tokens a sequence may be ahead of its reader (backpressure)."""
POLL = 0.001
"""Seconds between two deliveries to a loop: tokens of one moment arrive together."""
PREFILL = 512
"""Prompt tokens read in one round, all prompts together, so that a long prompt stalls no others."""
SPARE = 8
"""For so many places there is one more, for tenants of which nothing runs."""
SLOW, MASKS = 0.002, 0.02
"""Seconds of a mask after which a sequence is slow, and those that the masks of slow ones take in
one round, or one of them: together they hold up the others no longer. Where others have work, all
of a tenant whose masks take more are slow."""
REST = 5
"""After how many times as long as they took slow masks of a tenant may follow, while others have
work."""
GRACE = 10.0
"""Seconds a model may take for its current step when it is closed."""

_log = logging.getLogger("dragoman")

BUSY = Fault(
    "overloaded",
    "The model has more requests waiting than it takes. Ask again in a moment.",
    retry_after="1",
)
CLOSED = Fault("shutting_down", "The model has been closed.")
UNREAD = Fault("internal", "The model's step did not add what it read to the slot's length.")
DIED = Fault("internal", "The thread that ran the model has died.")


class ThreadQueue:
    """Delivers new tokens from the model's thread to sequences on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._batches: dict[RunningSequence, NewTokens] = {}
        self._scheduled = False

    def put(self, batches: Sequence[tuple[RunningSequence, NewTokens]]) -> bool:
        """Deliver these soon; from any thread. False if the loop is closed for good."""
        with self._lock:
            scheduled, self._scheduled = self._scheduled, True
            for sequence, new in batches:
                before = self._batches.setdefault(sequence, new)
                if before is not new:
                    before.add(new)
        if scheduled:
            return not self._loop.is_closed()
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _deliver(self) -> None:
        with self._lock:
            batches, self._batches = self._batches, {}
            self._scheduled = bool(batches)
        if batches:
            self._loop.call_later(POLL, self._deliver)
        for sequence, new in batches.items():
            sequence.receive(new)


class RunningSequence:
    """One sequence. The thread calls `open`, then `unread` and `take` by turns, then `close`."""

    def __init__(
        self,
        job: Job,
        index: int,
        loop: asyncio.AbstractEventLoop,
        inbox: asyncio.Queue[tuple[int, NewTokens]],
    ) -> None:
        self.job = job
        self.loop = loop
        self.cancelled = False  # set on the loop
        self.consumed = 0  # set on the loop: tokens the reader is done with
        self.behind = False
        self.over = False
        self.reading = True  # the prompt is not read to its end
        self.round = 0  # its last one, among slow ones
        self.slot: Any = None
        self._trace = request_id.get()  # which the model's thread does not know
        self.request = id(inbox)  # the same for all sequences of a request
        self._index = index
        self._inbox = inbox
        self._counter = TokenCounter(job)
        self._ids: list[int] = []  # filled by `open`: many may wait
        self._read = 0  # what the slot's length must be after the step
        self._due: deque[int] = deque()
        self._sampler: Sampler | None = None
        self._cached: int | None = None
        self._scores: list[Token] | None = None  # of the prompt
        self._new = NewTokens([], [])

    @property
    def ready(self) -> bool:
        """Whether it can continue: not over, its reader not too far behind, its grammar free."""
        if self.over or self.busy:
            return False
        self.behind = True  # set first, so that a reader that catches up now wakes us
        self.behind = self._counter.count - self.consumed >= AHEAD and not self.cancelled
        return not self.behind

    @property
    def busy(self) -> bool:
        """Whether slow masks of its grammar are being computed."""
        return self.job.constraint is not None and self.job.constraint.compiled.busy > 0

    @property
    def unmasked(self) -> bool:
        """Whether its next mask may be slow, and is not there."""
        constraint = self.job.constraint
        if constraint is None or self.over or self._due or not constraint.compiled.slow:
            return False
        return not (constraint.looked or constraint.compiled.busy)

    @property
    def took(self) -> float:
        """Seconds of the processor for its last mask."""
        return 0.0 if self.job.constraint is None else self.job.constraint.took

    def open(
        self,
        model: ScoringModel | NextTokenModel,
        describe: Callable[[int], Token],
        apart: bool = False,
    ) -> None:
        """Get a slot of the model; of one that keeps tenants `apart`, for its tenant."""
        job = self.job
        self._ids = list(job.prompt)
        if isinstance(model, NextTokenModel):
            self.slot = model.open(job.prompt, job.sampling)
        else:
            from .sampler import Sampler

            self._sampler = Sampler(job.sampling, job.prompt, describe, job.bias)
            # A prompt to be scored is read from its beginning: a single id leaves nothing to reuse.
            prompt = job.prompt[:1] if job.scored else job.prompt
            whose: dict[str, Any] = {"tenant": job.tenant} if apart else {}
            self.slot = model.open(prompt, **whose)
            self._cached = self.slot.length
            self._scores = [describe(job.prompt[0])] if job.scored else None
        if job.limit == 0 and not job.scored:
            self._end("length")
        elif job.constraint is not None:
            self._force(None)

    def unread(self, share: int) -> Sequence[int]:
        """What the model must read next: a part of the prompt, or the new tokens."""
        slot: Slot = self.slot
        start = slot.length
        count = 1 if self._scores is not None else share
        ids = self._ids[start : start + count if self.reading else None]
        self._read = start + len(ids)
        return ids

    def take(self, ids: Sequence[int], outcome: Any) -> None:
        """Process the model's output for these ids."""
        if isinstance(outcome, BaseException):
            raise outcome
        slot: Slot = self.slot
        if slot.length < self._read:  # it would be asked for the same for ever
            raise FaultError(UNREAD)
        sampler = self._sampler
        if self.reading:
            if self._scores is not None and sampler is not None:
                self._score(sampler, self._scores, outcome)
            self.reading = slot.length < len(self._ids)
            if self.reading or self._new.end is not None:
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

    def close(self, model: ScoringModel | NextTokenModel) -> None:
        """Free its slot. An error of the model changes nothing: the answer is complete."""
        slot, self.slot, self.over = self.slot, None, True
        try:
            if slot is not None:
                model.close(slot)
        except BaseException:
            _log.exception("the model could not close a slot")

    def fail(self, error: BaseException) -> None:
        self._end(model_fault(error, self._trace))

    def take_new(self) -> NewTokens | None:
        """The new tokens, to be delivered on the reader's loop."""
        new = self._new
        if self.cancelled or not (new.ids or new.end or new.prompt):
            return None
        new.cached = self._cached
        self._new = NewTokens([], [])
        return new

    def receive(self, new: NewTokens) -> None:
        self._inbox.put_nowait((self._index, new))

    # ---- inside --------------------------------------------------------------------------

    def _score(self, sampler: Sampler, scores: list[Token], outcome: Any) -> None:
        """The log-probability of the prompt's next token."""
        prompt = self.job.prompt
        if len(scores) < len(prompt):
            scores.append(sampler.with_logprobs(prompt[len(scores)], outcome))
        if len(scores) == len(prompt):
            self._new.prompt, self._scores = scores, None
            if self.job.limit == 0:
                self._end("length")

    def _write(self, id: int, scores: Any, *, forced: bool = False) -> None:
        id = self._counter.add(id)
        self._ids.append(id)
        self._new.ids.append(id)
        if self._sampler is not None:
            self._sampler.count(id)
            if self.job.sampling.logprobs and scores is not None:
                self._new.tokens.append(self._sampler.with_logprobs(id, scores, forced=forced))
        constraint = self.job.constraint
        if constraint is not None and self._counter.end != "stop":
            constraint.accept([id])
            if constraint.over:
                self._counter.end = "stop"
        if self._counter.end is not None:
            self._end(self._counter.end)

    def _force(self, scores: Any) -> None:
        """Write the tokens that the grammar forces, as many as are read in one round at the most.
        Where log-probabilities are requested, each is scored first."""
        constraint, left = self.job.constraint, PREFILL
        while constraint is not None and not self.over and left and (ids := constraint.forced()):
            if self.job.sampling.logprobs:
                self._due.extend(ids)
                return
            for id in ids[:left]:
                if not self.over:
                    self._write(id, None, forced=True)
            left -= min(left, len(ids))

    def _end(self, end: str | Fault) -> None:
        if not self.over:
            self.over = True
            self._new.end = end


class Scheduler:
    """Runs sequences on a model, `concurrency` at a time; `queue` more may wait.

    The next to run is one of the tenant, and of the request, that has fewest running, or waited
    longest for one. No request has more than three quarters of the places: what is asked for beside
    it begins at once. For tenants of which nothing runs there are some places more (`SPARE`): all
    others may be taken for long, or by readers that take nothing.

    `describe` gives the text of a token, for log-probabilities. The thread starts with the first
    sequence and ends with `close`.
    """

    def __init__(
        self,
        model: ScoringModel | NextTokenModel,
        describe: Callable[[int], Any],
        *,
        concurrency: int,
        queue: int,
    ) -> None:
        self._model = model
        self._apart = "tenant" in signature(model.open).parameters
        self._describe = describe
        self._concurrency = concurrency
        self._queue = queue
        self._closing = False
        self._rounds = 0
        self._rests: dict[str, float] = {}  # until when a tenant's slow masks rest
        self._turns: dict[str | int, int] = {}  # when a tenant or request last got a place
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Begin with nothing to run, and no thread: a fork has none, and its parent's answers are
        not its own."""
        self._owner = os.getpid()
        self._change = threading.Condition()
        self._arrivals: deque[RunningSequence] = deque()
        self._woken = False
        self._thread: threading.Thread | None = None
        self._queues: dict[asyncio.AbstractEventLoop, ThreadQueue] = {}
        self._waiting: deque[RunningSequence] = deque()
        self._active: list[RunningSequence] = []
        self._masks = Masks(self._wake)

    # ---- on the event loop ---------------------------------------------------------------

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, NewTokens], None]:
        """The new tokens of each sequence, by its index, until all have ended.

        The first item is empty: the jobs are accepted. Raises FaultError when too many wait
        already. Closing the generator cancels them.
        """
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[tuple[int, NewTokens]]()
        sequences = [RunningSequence(job, index, loop, inbox) for index, job in enumerate(jobs)]
        self._submit(sequences)
        running = set(range(len(jobs)))
        try:
            yield 0, NewTokens([], [])
            while running:
                index, new = await inbox.get()
                if index not in running:
                    continue
                yield index, new
                sequence = sequences[index]
                sequence.consumed += len(new.ids)
                if new.end is not None or new.stopped:
                    running.discard(index)
                    sequence.cancelled = True
                if sequence.behind or new.stopped:
                    self._wake()
        finally:
            for sequence in sequences:
                sequence.cancelled = True
            self._wake()

    async def close(self) -> None:
        """Fail what is running and end the thread.

        A model that does not return within `GRACE` seconds keeps its thread, which ends with the
        process.
        """
        self.end()
        thread, loop = self._thread, asyncio.get_running_loop()
        deadline = loop.time() + GRACE
        while thread is not None and thread.is_alive():  # not joined: a join cannot be cancelled
            if loop.time() > deadline:  # end its readers in its stead
                _log.warning("the model did not finish its step; its thread was abandoned")
                with self._change:
                    left = [*self._active, *self._waiting, *self._arrivals]
                for sequence in left:
                    new = NewTokens([], [], CLOSED)
                    self._queue_of(sequence.loop).put([(sequence, new)])
                break
            await asyncio.sleep(0.005)

    def end(self) -> None:
        """Let the thread end, and wait for nothing."""
        with self._change:
            self._closing = True
            self._change.notify()

    def _submit(self, sequences: list[RunningSequence]) -> None:
        if self._owner != os.getpid():
            self._begin_anew()
        with self._change:
            if self._closing:
                raise FaultError(CLOSED)
            free = self._concurrency - len(self._active)
            waiting = [*self._arrivals, *self._waiting]
            tenant = sequences[0].job.tenant
            # A queue that others have filled is no reason to refuse who has nothing in it.
            first = not any(each.job.tenant == tenant for each in (*waiting, *self._active))
            most = self._queue + (max(free, self._concurrency) if first else free)
            if len(waiting) + len(sequences) > most:
                raise FaultError(BUSY)
            self._arrivals += sequences
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dragoman-model")
                self._thread.daemon = True
                self._thread.start()
            self._woken = True
            self._change.notify()

    def _wake(self) -> None:
        with self._change:
            self._woken = True
            self._change.notify()

    # ---- on the thread -------------------------------------------------------------------

    def _work(self) -> None:
        busy = False
        try:
            # There was work a moment ago, and no request came or went: skip the lock.
            while (busy and not self._woken and not self._closing) or self._wait():
                while (sequence := self._next()) is not None:
                    self._begin(sequence)
                busy = self._round()
                self._deliver()
        finally:
            self._end_thread()

    def _wait(self) -> bool:
        """Wait until there is work; False to stop."""
        with self._change:
            while not (
                self._woken
                or self._closing
                or self._next() is not None
                or any(sequence.ready for sequence in self._active)
            ):
                self._change.wait()
            self._woken = False
            self._waiting += self._arrivals
            self._arrivals.clear()
            if self._closing:
                return False
        for sequence in tuple(self._active):
            # A reader whose loop is closed stays behind for ever.
            if sequence.cancelled or (sequence.behind and sequence.loop.is_closed()):
                self._active.remove(sequence)
                sequence.close(self._model)
        if any(m.cancelled for m in self._waiting):
            self._waiting = deque(m for m in self._waiting if not m.cancelled)
        return True

    def _next(self) -> RunningSequence | None:
        """The sequence to run next, if there is a place for one."""
        full = len(self._active) - self._concurrency
        if not self._waiting or full >= self._concurrency // SPARE:
            return None
        turns = self._turns
        tenants = Counter(each.job.tenant for each in self._active)
        requests = Counter(each.request for each in self._active)
        share = self._concurrency - self._concurrency // 4
        return min(
            (
                each
                for each in self._waiting
                if not each.busy
                and requests[each.request] < share
                and (full < 0 or not tenants[each.job.tenant])
            ),
            key=lambda each: (
                *(tenants[each.job.tenant], turns.get(each.job.tenant, -1)),
                *(requests[each.request], turns.get(each.request, -1)),
            ),
            default=None,
        )

    def _begin(self, sequence: RunningSequence) -> None:
        """Give a sequence its place."""
        self._waiting.remove(sequence)
        self._active.append(sequence)
        turns, last = self._turns, max(self._turns.values(), default=-1)
        turns[sequence.job.tenant] = turns[sequence.request] = last + 1
        if len(turns) > 2 * len(self._waiting) + 2:  # of others nothing waits any more
            left = {name for each in self._waiting for name in (each.job.tenant, each.request)}
            self._turns = {name: turn for name, turn in turns.items() if name in left}
        try:
            sequence.open(self._model, self._describe, self._apart)
        except BaseException as error:
            sequence.fail(error)

    def _round(self) -> bool:
        """One token for every sequence that can continue; False when none can."""
        if unmasked := [m for m in self._active if m.unmasked]:
            self._masks.compute(unmasked)
        ready = [m for m in self._active if m.ready]
        spent = [m.took for m in ready]
        if len(ready) > 1 and (sum(spent) > MASKS or max(spent) > SLOW):
            ready = self._without_resting(ready)
        reading = sum(m.reading for m in ready)
        share = max(PREFILL // reading, 1) if reading else 0
        work = [(sequence, sequence.unread(share)) for sequence in ready]
        if not work:
            return False
        for (sequence, ids), outcome in zip(work, self._step(work), strict=True):
            try:
                sequence.take(ids, outcome)
            except BaseException as error:  # a library's panic is no Exception
                sequence.fail(error)
        return True

    def _without_resting(self, ready: list[RunningSequence]) -> list[RunningSequence]:
        """Those of a round whose grammars are quick, and the slow ones whose turn it is."""
        masks, now = defaultdict[str, float](float), monotonic()
        for each in ready:
            masks[each.job.tenant] += each.took
        alone = len(masks) == 1
        slow = [
            m
            for m in ready
            if m.took > SLOW or (m.took and not alone and masks[m.job.tenant] > MASKS)
        ]
        rests = {tenant: end for tenant, end in self._rests.items() if end > now}
        slow.sort(key=lambda each: (rests.get(each.job.tenant, 0.0), each.round))
        turn, left = [m for m in ready if m not in slow], MASKS
        if not turn:  # no other work needs the time of their rest: all may end sooner
            sooner = max(rests.get(slow[0].job.tenant, now) - now, 0.0)
            rests = {tenant: end - sooner for tenant, end in rests.items()}
        self._rounds, self._rests = self._rounds + 1, dict(rests)
        for each in slow:
            tenant = each.job.tenant
            resting = not alone and tenant in rests and turn
            if not resting and (left == MASKS or each.took <= left):
                turn.append(each)
                each.round, left = self._rounds, left - each.took
                if not alone:
                    self._rests[tenant] = self._rests.get(tenant, now) + REST * each.took
        return [m for m in ready if m in turn]

    def _step(self, work: list[tuple[RunningSequence, Sequence[int]]]) -> Sequence[Any]:
        """The model's output for each. Where a batch fails, each is tried alone: an error of one
        sequence must not fail the others."""
        try:
            outcomes = self._model.step([(sequence.slot, ids) for sequence, ids in work])
            if len(outcomes) == len(work):
                return outcomes
            raise ValueError("the model gave another number of results than sequences")
        except BaseException as error:
            if len(work) == 1:
                return [error]
            return [self._alone(sequence, len(ids), error) for sequence, ids in work]

    def _alone(self, sequence: RunningSequence, share: int, failure: BaseException) -> Any:
        """One sequence again, from where the model says that it has read to."""
        if not (left := sequence.unread(share)):
            return failure
        try:
            (outcome,) = self._model.step([(sequence.slot, left)])
        except BaseException as error:
            return error
        return outcome

    def _deliver(self) -> None:
        """Deliver new tokens, all readers of a loop together, and free the slots of what has
        ended."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[RunningSequence, NewTokens]]] = {}
        for sequence in tuple(self._active):
            if sequence.over:
                self._active.remove(sequence)
                sequence.close(self._model)
            if (new := sequence.take_new()) is not None:
                by_loop.setdefault(sequence.loop, []).append((sequence, new))
        for loop, batches in by_loop.items():
            if self._queue_of(loop).put(batches):
                continue
            for sequence in (*self._active, *self._waiting):  # the loop is closed: none is read
                sequence.cancelled = sequence.cancelled or sequence.loop is loop
            self._woken = True

    def _queue_of(self, loop: asyncio.AbstractEventLoop) -> ThreadQueue:
        found = self._queues.get(loop)
        if found is None:
            for gone in [each for each in self._queues if each.is_closed()]:
                del self._queues[gone]
            found = self._queues[loop] = ThreadQueue(loop)
        return found

    def _end_thread(self) -> None:
        """The thread ends, on purpose or not: end its readers, and let another begin."""
        with self._change:
            left = [*self._active, *self._waiting, *self._arrivals]
            self._active = []
            self._waiting.clear()
            self._arrivals.clear()
            if not self._closing:
                self._thread = None
        self._masks.end()
        fault = CLOSED if self._closing else DIED
        for sequence in left:
            sequence.fail(FaultError(fault))
            sequence.close(self._model)
            if (new := sequence.take_new()) is not None:
                self._queue_of(sequence.loop).put([(sequence, new)])
