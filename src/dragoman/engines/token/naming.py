"""Plain functions as models: one that names the next token, or one that does so for a whole batch.

A function is asked for one token at a time with all tokens so far; what it keeps between two calls
is its own affair. Asynchronous ones are at home in `streaming`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dragoman.core.request import Sampling

from .source import Named, NamingModel, Slot
from .streaming import StreamModel, from_async_next_token

NextToken = Callable[[list[int], Sampling], int | None]
"""All ids so far and the settings asked for; gives the next id, or None for the end."""

Step = Callable[[list[list[int]], list[Sampling]], Sequence[int | None]]
"""The same for several sequences: as many ids as sequences."""

OPENAI_DEFAULT = 1.0
"""The temperature where none was asked for."""


class _Written:
    """A sequence of a function: all its ids."""

    def __init__(self, ids: Sequence[int], sampling: Sampling) -> None:
        self.ids = list(ids[:-1])  # the last one is left to be read
        self.sampling = sampling

    @property
    def length(self) -> int:
        return len(self.ids)


class _Functional(NamingModel):
    """A model that reads nothing: its function is given every id every time."""

    def __init__(self, context: int | None) -> None:
        self.context = context

    def open(self, ids: Sequence[int], sampling: Sampling) -> Slot:
        return _Written(ids, sampling)

    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Sequence[Named]:
        for slot, ids in work:
            slot.ids.extend(ids)
        return self.name([slot for slot, _ in work])

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        """What comes next in each."""
        raise NotImplementedError


class _One(_Functional):
    """A function called for one sequence after the other."""

    def __init__(self, function: NextToken, context: int | None) -> None:
        super().__init__(context)
        self._function = function

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        return [self._ask(slot) for slot in slots]

    def _ask(self, slot: _Written) -> Named:
        try:
            return self._function(slot.ids, slot.sampling)
        except Exception as error:  # of this sequence alone; the others go on
            return error


class _Stateful(_Functional):
    """A function `(tokens, temperature, new_request) -> id` with one state of its own.

    It is told of a new request whenever it is asked about another sequence than the last time.
    Since it must then read everything again, one sequence is written at a time.
    """

    concurrency = 1
    obeys = frozenset(("temperature",))

    def __init__(
        self, function: Callable[[list[int], float, bool], int | None], context: int | None
    ) -> None:
        super().__init__(context)
        self._function = function
        self._last: _Written | None = None

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        return [self._ask(slot) for slot in slots]

    def _ask(self, slot: _Written) -> Named:
        new, self._last = slot is not self._last, slot
        asked = slot.sampling.temperature
        try:
            return self._function(slot.ids, OPENAI_DEFAULT if asked is None else asked, new)
        except Exception as error:  # its state is unknown now
            self._last = None
            return error

    def close(self, slot: Slot) -> None:
        if slot is self._last:
            self._last = None


class _Batch(_Functional):
    """A function called once for all sequences."""

    def __init__(self, function: Step, context: int | None) -> None:
        super().__init__(context)
        self._function = function

    def name(self, slots: list[_Written]) -> Sequence[Named]:
        named = self._function([slot.ids for slot in slots], [slot.sampling for slot in slots])
        if len(named) != len(slots):
            raise ValueError(f"the step function named {len(named)} tokens for {len(slots)}")
        return named


def from_next_token(
    function: Callable[..., Any], *, context: int | None = None
) -> NamingModel | StreamModel:
    """A model out of `function(ids, sampling) -> id`, which may give None for the end.

    `ids` holds the prompt and all that was written since; it must not be changed, nor kept. Also
    taken is `function(tokens, temperature, new_request) -> id`. It runs in a thread of its own,
    never on the event loop, unless it is asynchronous itself. `context`
    is the greatest number of tokens in a sequence.

    >>> model = from_next_token(lambda ids, sampling: ids[-1] + 1)
    >>> model.step([(model.open([1, 2], Sampling()), [2])])
    [3]
    """
    if inspect.iscoroutinefunction(function):
        return from_async_next_token(function, context)
    if "new_request" in inspect.signature(function).parameters or _takes(function, 3):
        return _Stateful(function, context)
    return _One(function, context)


def from_step(function: Step, *, context: int | None = None) -> NamingModel:
    """A model out of `function(sequences, samplings) -> ids`, called once for all sequences that
    are being written."""
    return _Batch(function, context)


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function must be given so many arguments."""
    empty = inspect.Parameter.empty
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(each.kind in kinds and each.default is empty for each in parameters) == count
