"""A sequence among those of a scheduler, seen from the model's thread and from its reader's loop.

Each field is written on one side only. The thread writes tokens and hands them over in letters; the
reader says how far it has come, and the thread passes over those who are too far behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.core.error import Fault
from dragoman.core.item import Token

from .run import Job, Tally, Written, failed
from .source import NamingModel, ScoringModel, Slot

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
