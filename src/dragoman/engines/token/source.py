"""Protocols of models that give scores or tokens, and the values that describe a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from operator import index
from traceback import format_tb
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Token
from dragoman.core.request import Sampling
from dragoman.engines.base import new_id, request_id

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .constraints import GrammarState

    Logits = NDArray[Any]
    """Scores of every token of the vocabulary, floats, before the softmax."""


_log = logging.getLogger("dragoman")


class Slot(Protocol):
    """One sequence inside a model: its keys and values, wherever the model keeps them."""

    @property
    def length(self) -> int:
        """How many tokens the model has read; right after `open`, how many leading tokens of the
        prompt it need not read again (a reused prefix)."""
        ...


class ScoringModel(Protocol):
    """A model that scores the next token.

    The scheduler opens a slot for a prompt, calls `step` with the ids that each slot has not read
    yet (the rest of the prompt, then each sampled or forced token), and closes the slot at the end.
    The model may keep a closed slot's keys and values for prompts that begin alike. Its `open` has
    a second parameter `tenant` then: who has another may not find out what was kept.
    """

    @property
    def context(self) -> int | None:
        """The most tokens in a sequence; None if unknown."""
        ...

    def open(self, ids: Sequence[int]) -> Slot:
        """A slot for a prompt. At least the last id is always left to be read by `step`."""
        ...

    def step(self, work: Sequence[tuple[Slot, Sequence[int]]]) -> Sequence[Logits]:
        """Read new ids in each slot and score what follows the last of them."""
        ...

    def close(self, slot: Slot) -> None:
        """The sequence has ended."""
        ...


class Job(Struct, frozen=True, kw_only=True):
    """One sequence to run: its prompt, how to choose its tokens, and what ends it.

    `limit` is the most new tokens, `ends` are the ids that end it, `size` is that of the
    vocabulary. `scored` asks for the log-probabilities of the prompt's own tokens too. `bias` is
    what `logit_bias` adds to each score: made once, as it may be large, and there may be 128 jobs.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    ends: frozenset[int]
    limit: int
    size: int
    constraint: GrammarState | None = None
    scored: bool = False
    tenant: str = ""
    bias: NDArray[Any] | None = None


class NewTokens(Struct):
    """The tokens of a sequence since the last look.

    `tokens` are the same ids with log-probabilities, where requested; `prompt` are those of the
    prompt. `end` is the finish reason, or the fault that ended it. `cached` is how much of the
    prompt was reused. The reader sets `stopped` when it wants no more.
    """

    ids: list[int]
    tokens: list[Token]
    end: str | Fault | None = None
    cached: int | None = None
    stopped: bool = False
    prompt: list[Token] | None = None

    def add(self, later: NewTokens) -> None:
        """Append later tokens."""
        self.ids += later.ids
        self.tokens += later.tokens
        self.end = later.end
        self.cached = later.cached
        self.prompt = self.prompt or later.prompt

    def parts(self, size: int) -> Iterator[NewTokens]:
        """The same, so many tokens at a time. Once one is stopped, so is this, and no more come."""
        ids, last = self.ids, max(len(self.ids) - 1, 0) // size * size
        if not last:
            yield self
            return
        for at in range(0, last + 1, size):
            part = NewTokens(ids[at : at + size], self.tokens[at : at + size], None, self.cached)
            if at == 0:
                part.prompt = self.prompt
            if at == last:
                part.end = self.end
            yield part
            if part.stopped:
                self.stopped = True
                return


class TokenCounter:
    """Counts the new tokens of a sequence and says when it has ended."""

    __slots__ = ("_job", "count", "end")

    def __init__(self, job: Job) -> None:
        self._job = job
        self.count = 0
        self.end: str | None = None

    def add(self, id: int) -> int:
        """One more token, as an int. Raises FaultError where it is none."""
        try:
            id = index(id)
        except TypeError:
            problem = f"The model named {type(id).__name__}, no id."
            raise FaultError(Fault("internal", problem)) from None
        if not 0 <= id < self._job.size:
            problem = f"The model named {id}, which is no id of {self._job.size}."
            raise FaultError(Fault("internal", problem))
        self.count += 1
        if id in self._job.ends:
            self.end = "stop"
        elif self.count >= self._job.limit:
            self.end = "length"
        return id


def model_fault(error: BaseException, request: str | None = None) -> Fault:
    """The fault of a model that raised, which is logged with the id of the request. Neither has the
    exception's text, which may quote a prompt."""
    if isinstance(error, FaultError):
        return error.fault
    kind = type(error).__name__
    frames, id = "".join(format_tb(error.__traceback__)), f"err_{new_id()}"
    request = request_id.get() if request is None else request
    what = f"the model failed with {kind}{f' for {request}' if request else ''}"
    _log.error("%s: %s\nTraceback:\n%s", id, what, frames, extra={"request": request})
    return Fault("internal", f"The model failed with {kind}; the server's log has more under {id}.")
