"""Chooses the next token from a model's scores, and gives its log-probability.

Each sequence has its own sampler and random stream, with one draw per token: the same seed gives
the same tokens, whatever else is running. The order is: bias, penalties, constraint, temperature,
min-p, top-k, top-p. Log-probabilities are those of the model itself, before all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.item import Token
from dragoman.core.request import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .constraints import GrammarState
    from .source import Logits

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, float("inf")),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
MAX_TOP = 128
"""The most alternatives of a token."""

MIN_LOGPROB = -9999.0
"""The log-probability of a token that cannot come: JSON has no minus infinity."""

Describe = Callable[[int], Token]
"""The token of an id, with its text and bytes and no log-probability yet."""


def check(sampling: Sampling, size: int) -> NDArray[Any] | None:
    """What `logit_bias` adds to each score. Raises FaultError, naming the field, for an invalid
    value; `size` is that of the vocabulary."""
    for name, (low, high) in _RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not low <= value <= high:
            raise FaultError(bad_request(f"{value} is not between {low:g} and {high:g}", name))
    if sampling.top_logprobs is not None and not 0 <= sampling.top_logprobs <= MAX_TOP:
        problem = f"{sampling.top_logprobs} is not between 0 and {MAX_TOP}"
        raise FaultError(bad_request(problem, "top_logprobs"))
    for key in sampling.logit_bias or {}:
        if not key.isascii() or not key.isdigit() or len(key) > 20 or int(key) >= size:
            problem = f"{key[:40]!r} is no token id of this model, which has {size}"
            raise FaultError(bad_request(problem, "logit_bias"))
    if not sampling.logit_bias:
        return None
    added = np.zeros(size)
    ids = np.fromiter(map(int, sampling.logit_bias), dtype=np.intp)
    np.add.at(added, ids, np.fromiter(sampling.logit_bias.values(), dtype=np.float64))
    return added


class Sampler:
    """Chooses the tokens of one sequence.

    >>> sampler = Sampler(Sampling(temperature=0), (), lambda id: Token(str(id)))
    >>> sampler.choose(np.array([0.5, 2.0, 1.0]))
    1
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        describe: Describe,
        bias: NDArray[Any] | None = None,
    ) -> None:
        self._describe = describe
        self._prompt = prompt
        self._counts: dict[int, int] = {}
        self._temperature = 1.0 if sampling.temperature is None else sampling.temperature
        self._top_p = 1.0 if sampling.top_p is None else sampling.top_p
        self._top_k = max(sampling.top_k or 0, 0)
        self._min_p = sampling.min_p or 0.0
        self._frequency = sampling.frequency_penalty or 0.0
        self._presence = sampling.presence_penalty or 0.0
        self._repetition = sampling.repetition_penalty or 1.0
        self._bias = bias
        self._top = sampling.top_logprobs or 0
        self._seen: np.ndarray | None = None
        seed = None if sampling.seed is None else sampling.seed % 2**64
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._plain = not (
            bias is not None or self._frequency or self._presence or self._repetition != 1.0
        )

    def choose(self, logits: Logits, constraint: GrammarState | None = None) -> int:
        """The id of the next token."""
        if not self._plain or constraint is not None:
            logits = np.array(logits, dtype=np.float64)
            self._adjust(logits)
            if constraint is not None:
                constraint.mask(logits)
        if self._temperature == 0 or self._top_k == 1:
            return int(logits.argmax())
        scores = np.asarray(logits, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._draw((scores - scores.max()) / self._temperature)

    def count(self, id: int) -> None:
        """A token was chosen or forced: penalties count it."""
        self._counts[id] = self._counts.get(id, 0) + 1
        if self._seen is not None:
            self._seen[id] = True

    def with_logprobs(self, id: int, logits: Logits, *, forced: bool = False) -> Token:
        """The token with its log-probability in the model's own distribution, and the likeliest
        alternatives."""
        scores = np.asarray(logits, dtype=np.float64)
        highest = scores.max()
        scores = scores - (highest + np.log(np.exp(scores - highest).sum()))
        top: tuple[Token, ...] = ()
        if self._top:
            count = min(self._top, len(scores))
            best = np.argpartition(-scores, count - 1)[:count]
            best = best[np.lexsort((best, -scores[best]))]
            top = tuple(self._with_logprob(int(each), scores) for each in best)
        return replace(self._with_logprob(id, scores), top=top, forced=forced)

    def _with_logprob(self, id: int, scores: Logits) -> Token:
        return replace(self._describe(id), logprob=max(float(scores[id]), MIN_LOGPROB))

    def _adjust(self, logits: Logits) -> None:
        """Apply bias and penalties, in place."""
        if self._bias is not None:
            logits[: len(self._bias)] += self._bias
        if self._repetition != 1.0:
            if self._seen is None:
                self._seen = np.zeros(len(logits), dtype=bool)
                self._seen[[id for id in self._prompt if id < len(logits)]] = True
                self._seen[list(self._counts)] = True
            scores, factor = logits[self._seen], self._repetition
            logits[self._seen] = np.where(scores > 0, scores / factor, scores * factor)
        if self._counts and (self._frequency or self._presence):
            ids = np.fromiter(self._counts.keys(), dtype=np.intp)
            counts = np.fromiter(self._counts.values(), dtype=np.float64)
            logits[ids] -= self._frequency * counts + self._presence

    def _draw(self, scores: Logits) -> int:
        """One token at random, weighted by the scores that are left; the best score is 0."""
        ids = None
        if 0 < self._top_k < len(scores):
            ids = np.argpartition(-scores, self._top_k - 1)[: self._top_k]
            scores = scores[ids]
        weights = np.exp(scores)
        if self._min_p:
            weights[weights < self._min_p] = 0.0
        if self._top_p < 1.0:
            order = np.argsort(-weights, kind="stable")
            total = np.cumsum(weights[order])
            last = int(np.searchsorted(total, self._top_p * total[-1]))
            weights[order[last + 1 :]] = 0.0
        total = np.cumsum(weights)
        if not total[-1] > 0:
            raise FaultError(Fault("internal", "The model's scores leave no token to choose."))
        place = int(np.searchsorted(total, self._random.random() * total[-1], side="right"))
        return place if ids is None else int(ids[place])
