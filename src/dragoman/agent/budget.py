"""Counts what an agent spends, in tokens, money, calls and time, against its budget."""

from __future__ import annotations

import time
from collections.abc import Mapping
from numbers import Number, Real
from types import NoneType
from typing import TypeVar

from msgspec import Struct

from dragoman.core.response import Usage
from dragoman.engines.fan_out import add_usage

_T = TypeVar("_T")


def checked(name: str, value: _T, *kinds: type) -> _T:
    """The value. Raises TypeError, which names it, for one of another type."""
    if not isinstance(value, kinds):
        known = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name}: is of type {type(value).__name__}, and must be {known}")
    return value


class Price(Struct, frozen=True):
    """What a million tokens of a model cost, in any currency. Without a price of their own, tokens
    from a cache cost what others do."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            checked(name, getattr(self, name), Real)
        for name in ("cached", "cache_write"):
            checked(name, getattr(self, name), Real, NoneType)

    def of(self, usage: Usage) -> float:
        """The cost of an answer.

        >>> Price(input=2.0, output=10.0, cached=0.5).of(
        ...     Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)
        ... )
        2.4
        """
        cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
        plain = max((usage.input_tokens or 0) - cached - written, 0)
        cost = plain * self.input + (usage.output_tokens or 0) * self.output
        cost += cached * (self.input if self.cached is None else self.cached)
        cost += written * (self.input if self.cache_write is None else self.cache_write)
        return round(cost / 1_000_000, 12)


class Budget(Struct, frozen=True):
    """What an agent may spend, in all its runs together: tokens, cost, calls of tools and of the
    model (`rounds`), and seconds of one run. None stands for no limit.

    It is checked before each call of the model and of a tool; nothing is begun then that it leaves
    no room for. What is under way is not cut off: agents that run side by side may exceed it by one
    call each. Where a server reports no usage, tokens are estimated.
    """

    tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    calls: int | None = None
    rounds: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in Budget.__struct_fields__:
            checked(name, getattr(self, name), Number, NoneType)


class Meter:
    """What has been spent, against a budget. Agents and their sub-agents may share one."""

    def __init__(self, budget: Budget | None = None, prices: Mapping[str, Price] = {}) -> None:
        self.budget = checked("budget", budget, Budget, NoneType) or Budget()
        self.usage = Usage()
        self.cost = 0.0
        self.calls = self.rounds = 0
        self._prices = checked("prices", prices, Mapping)
        for model, price in prices.items():
            checked(f"prices[{model!r}]", price, Price)

    @property
    def limited(self) -> bool:
        """Whether anything is limited."""
        return self.budget != Budget()

    def add(self, usage: Usage, model: str) -> float:
        """Count an answer of a model, and give its cost."""
        self.usage = add_usage([self.usage, usage]) or self.usage
        price = self.price(model)
        cost = price.of(usage) if price else 0.0
        self.cost += cost
        return cost

    def price(self, model: str) -> Price | None:
        """The price of a model."""
        return self._prices.get(model) or self._prices.get("*")

    def spent(self, began: float, call: bool = False) -> str:
        """Which part of the budget leaves no room for the next call of a tool (`call`) or of the
        model, in a sentence; empty where there is room. `began` is when the run did."""
        usage, budget = self.usage, self.budget
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        counts: list[tuple[str, float | None, float]] = [
            ("tokens", budget.tokens, tokens),
            ("input tokens", budget.input_tokens, usage.input_tokens or 0),
            ("output tokens", budget.output_tokens, usage.output_tokens or 0),
            ("cost", budget.cost, self.cost),
            ("seconds", budget.seconds, time.monotonic() - began),
        ]
        if call:
            counts.append(("calls of tools", budget.calls, self.calls))
        else:
            counts.append(("calls of the model", budget.rounds, self.rounds))
        for what, most, used in counts:
            if most is not None and used >= most:
                return f"The budget is used up: {what}, {used:g} of {most:g}."
        return ""
