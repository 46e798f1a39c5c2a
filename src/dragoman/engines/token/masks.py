"""Computes masks that may be slow on threads of their own, so that a model waits for none."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

from .source import Job

MAX_MASKS = 3
"""Slow masks of a model that are computed at a time, of which a tenant has one."""
IDLE = 10.0
"""Seconds after which a thread ends for which there are none."""

_log = logging.getLogger("dragoman")


class Waiting(Protocol):
    """A sequence that waits for its mask, until it is cancelled."""

    job: Job
    cancelled: bool


class Masks:
    """Computes the next masks of sequences; tenants take turns. `done` is called, from any thread,
    where one of the sequences can continue.

    The copies of a grammar share a lock, for which llguidance would wait without letting any thread
    run: nothing may happen to one while it is `busy`, which is until all its masks are there.
    """

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._change = threading.Condition()
        self._lines: OrderedDict[str, deque[Waiting]] = OrderedDict()  # the next one first
        self._taken: set[str] = set()
        self._threads = self._idle = 0
        self._ended = False

    def compute(self, sequences: Iterable[Waiting]) -> None:
        """Compute the masks of these, soon."""
        with self._change:
            self._ended = False
            for each in sequences:
                if (constraint := each.job.constraint) is not None:
                    constraint.looked = True
                    constraint.compiled.busy += 1
                    self._lines.setdefault(each.job.tenant, deque()).append(each)
            if self._idle < len(self._lines) and self._threads < MAX_MASKS:
                self._threads += 1
                try:
                    threading.Thread(target=self._work, name="dragoman-masks", daemon=True).start()
                except RuntimeError:  # the system has no more
                    self._threads -= 1
            self._change.notify_all()
            waits = self._threads == 0
        if waits:
            self._drop()

    def end(self) -> None:
        """Let the threads end. What waits is computed where it is needed."""
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._drop()

    # ---- inside --------------------------------------------------------------------------

    def _drop(self) -> None:
        with self._change:
            left = [each for line in self._lines.values() for each in line]
            self._lines.clear()
        for each in left:
            self._finished(each)

    def _work(self) -> None:
        while (sequence := self._turn()) is not None:
            constraint = sequence.job.constraint
            try:
                if constraint is not None and not sequence.cancelled:
                    constraint.look()
            except BaseException:  # a library's panic is no Exception
                _log.exception("a mask could not be computed")
            with self._change:
                self._taken.discard(sequence.job.tenant)
            self._finished(sequence)

    def _turn(self) -> Waiting | None:
        """Wait for the next turn; None where there is none for long."""
        with self._change:
            self._idle += 1
            self._change.wait_for(lambda: self._ended or self._next() is not None, IDLE)
            self._idle -= 1
            tenant = self._next()
            if tenant is None:
                self._threads -= 1
                return None
            self._taken.add(tenant)
            line = self._lines.pop(tenant)
            sequence = line.popleft()
            if line:
                self._lines[tenant] = line  # behind the others
            return sequence

    def _next(self) -> str | None:
        """The tenant whose turn it is."""
        return next((each for each in self._lines if each not in self._taken), None)

    def _finished(self, sequence: Waiting) -> None:
        constraint = sequence.job.constraint
        if constraint is not None:
            with self._change:
                constraint.compiled.busy -= 1
                self._change.notify()  # the tenant's next turn
            if not constraint.compiled.busy:
                self._done()
