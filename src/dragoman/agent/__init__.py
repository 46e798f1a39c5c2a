"""Agents: models with tools, in a loop with limits."""

from .agent import Agent, Run, RunStream
from .budget import Budget, Meter, Price
from .loop import Loop

__all__ = ["Agent", "Budget", "Loop", "Meter", "Price", "Run", "RunStream"]
