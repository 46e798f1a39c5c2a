"""Agents: models with tools, in a loop with limits."""

from .agent import Agent, Run, RunStream
from .loop import Budget, Loop, Meter, Price

__all__ = ["Agent", "Budget", "Loop", "Meter", "Price", "Run", "RunStream"]
