"""Writes events for people: reasoning dim, calls by name, faults on stderr.

Colours are only for those who look; where output goes to a file there are none.
"""

from __future__ import annotations

import sys

from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, ItemDone
from dragoman.core.item import CustomToolCall, FunctionCall, Message, Reasoning

_DIM, _CALL, _BAD, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[31m", "\x1b[0m"


class Pen:
    """Writes to the terminal, changing colour only where there is one to change."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours
        self._colour = _PLAIN
        self._at_start = True

    def event(self, event: Event) -> None:
        """Write what an event says."""
        match event:
            case Delta(kind="reasoning" | "summary", data=str(text)):
                self.write(text, _DIM)
            case Delta(kind="text" | "refusal", data=str(text)):
                self.write(text)
            case ItemAdded(item=Message() | Reasoning()):
                self.line("")
            # Calls may come interleaved, so each is shown when it is whole.
            case ItemDone(item=FunctionCall(name=name, arguments=said)):
                self.line(f"[{name}] {said}", _CALL)
            case ItemDone(item=CustomToolCall(name=name, input=said)):
                self.line(f"[{name}] {said}", _CALL)
            case Finished(status="incomplete", reasons=reasons):
                self.line(f"(cut short: {', '.join(reasons)})", _BAD)
            case Failed(fault=fault):
                self.line("")
                print(f"dragoman: {fault.message}", file=sys.stderr, flush=True)

    def write(self, text: str, colour: str = _PLAIN) -> None:
        """Write on."""
        if self._colours and colour != self._colour:
            sys.stdout.write(_PLAIN + colour)
            self._colour = colour
        sys.stdout.write(text)
        sys.stdout.flush()
        if text:
            self._at_start = text.endswith("\n")

    def line(self, text: str, colour: str = _PLAIN) -> None:
        """Write on a line of its own."""
        if not self._at_start:
            self.write("\n", self._colour)
        self.write(text, colour)
        if self._colours:
            sys.stdout.write(_PLAIN)
            self._colour = _PLAIN
