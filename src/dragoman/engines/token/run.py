"""One sequence being written: what was asked of it, and when it is over.

It counts tokens and knows which of them end it. Who writes it (a thread with a model, a stream of
ids) and who reads it is not known here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import index
from traceback import format_tb
from typing import Any

from msgspec import Struct

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Token
from dragoman.core.request import Sampling

from .constraint import Constraint

_log = logging.getLogger("dragoman")


class Job(Struct, frozen=True, kw_only=True):
    """What a sequence is to be: its prompt, how to choose its tokens, and what ends it.

    `limit` is the most tokens to be written, `ends` are the ids that end it, `size` is that of the
    vocabulary. `scored` asks for the probabilities of the prompt's own tokens too.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    ends: frozenset[int]
    limit: int
    size: int
    constraint: Constraint | None = None
    scored: bool = False


class Written(Struct):
    """What was written since one last looked.

    `tokens` are the same ids with their probabilities, where those were asked for; `prompt` are
    those of the prompt. `end` is the finish reason, or the fault that ended it. `cached` is how
    much of the prompt was read before. The reader sets `enough` when it wants no more.
    """

    ids: list[int]
    tokens: list[Token]
    end: str | Fault | None = None
    cached: int | None = None
    enough: bool = False
    prompt: list[Token] | None = None

    def add(self, later: Written) -> None:
        """What was written after this."""
        self.ids += later.ids
        self.tokens += later.tokens
        self.end = later.end
        self.cached = later.cached
        self.prompt = self.prompt or later.prompt


class Tally:
    """Counts what is written and says when that is enough."""

    __slots__ = ("_job", "count", "end")

    def __init__(self, job: Job) -> None:
        self._job = job
        self.count = 0
        self.end: str | None = None

    def take(self, id: int) -> int:
        """One more token, as a plain integer. Raises FaultError where it is none."""
        id = _checked(id, self._job.size)
        self.count += 1
        if id in self._job.ends:
            self.end = "stop"
        elif self.count >= self._job.limit:
            self.end = "length"
        return id


def _checked(id: Any, size: int) -> int:
    try:
        number = index(id)
    except TypeError:
        raise FaultError(
            Fault("internal", f"The model named {type(id).__name__}, no id.")
        ) from None
    if not 0 <= number < size:
        raise FaultError(Fault("internal", f"The model named {number}, which is no id of {size}."))
    return number


def overflow(tokens: int, context: int, model: str) -> Fault:
    """The fault of a prompt that is too long."""
    return Fault(
        "invalid_request",
        f"The prompt has {tokens} tokens, instructions and tools included, and the model "
        f"{model!r} has a context of {context} tokens, of which at least one must be left for the "
        "answer. Shorten the conversation, or ask a model with a larger context.",
        "client",
        upstream_code="context_length_exceeded",
    )


def room(
    prompt: Sequence[int], context: int | None, asked: int | None, default: int, model: str
) -> int:
    """How many tokens may be written. Raises FaultError where there is no room at all."""
    most = default if asked is None else asked
    if context is None:
        return most
    if len(prompt) >= context:
        raise FaultError(overflow(len(prompt), context, model))
    left = context - len(prompt)
    return left if asked is None else min(asked, left)


def failed(error: Exception) -> Fault:
    """The fault of a model that raised. Told, and logged, without its words: they may quote a
    prompt."""
    if isinstance(error, FaultError):
        return error.fault
    kind = type(error).__name__
    _log.error("the model failed with %s:\n%s", kind, "".join(format_tb(error.__traceback__)))
    return Fault("internal", f"The model failed with {kind}; this server's log says where.")
