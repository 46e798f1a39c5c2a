"""One alternative of an answer while it is being put together: what is open in it, and how it ends.

Values and nothing else; `Turn` decides what becomes of them. A choice knows no other choice.
"""

from __future__ import annotations

from .assembly import OpenItem
from .calls import CallSorter, LooseCall
from .item import Token
from .think import ThinkSplitter

SHORT = ("length", "content_filter")
"""Finish reasons that leave what was being written incomplete."""


class Choice:
    """What is open in one alternative of the answer."""

    __slots__ = (
        "announced",
        "calls",
        "fed",
        "number",
        "open",
        "reason",
        "spoken",
        "think",
        "tokens",
    )

    def __init__(self, number: int, think: bool) -> None:
        self.number = number
        self.open: OpenItem | None = None  # the message or reasoning being written
        self.calls = CallSorter()
        self.announced: list[LooseCall] = []  # those that may be open, in order
        self.fed: dict[LooseCall, None] = {}  # those that got something since last looked at
        self.reason: str | None = None
        self.spoken = False
        self.think = ThinkSplitter() if think else None
        self.tokens: list[Token] = []  # of text that is held back

    @property
    def nameless(self) -> bool:
        """Whether a choice that was not cut short has a call that never got its name."""
        return self.reason not in SHORT and any(call.item is None for call in self.calls.calls)

    def take_fed(self) -> list[LooseCall]:
        """The calls that got something since last asked, in the order of the answer; those that
        were not announced yet stand nowhere, and come first."""
        fed, self.fed = self.fed, {}
        return sorted(fed, key=lambda call: -1 if call.item is None else call.item)
