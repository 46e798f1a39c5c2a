"""The request log: one line about each request on stderr, without content, keys or queries."""

from __future__ import annotations

import sys
import time

from msgspec import Struct, field

from dragoman.core.event import Failed, Finished
from dragoman.core.response import Usage

LONGEST = 200
"""Characters of a path or of a model's name that are shown."""
DISCONNECTED = 499
"""The status of a request whose client disconnected before there was one."""


class Entry(Struct):
    """What is known of a request beside its head and its status. `end` is a fault's code, or empty
    for a good end."""

    model: str = ""
    end: str = ""
    usage: Usage | None = None
    since: float = field(default_factory=time.monotonic)

    def note(self, last: Finished | Failed) -> None:
        """Note how the answer ended."""
        self.usage = last.usage
        self.end = last.fault.code if isinstance(last, Failed) else ""

    def write(self, method: str, path: str, status: int, id: str) -> None:
        """Write the line: `POST /v1/responses 200 840 ms small 12+34 tokens req_1`."""
        words = [
            method,
            _printable(path),
            str(status or DISCONNECTED),
            self.end,
            f"{(time.monotonic() - self.since) * 1000:.0f} ms",
            _printable(self.model),
            _tokens(self.usage),
            id,
        ]
        sys.stderr.write(" ".join(word for word in words if word) + "\n")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:LONGEST])


def _tokens(usage: Usage | None) -> str:
    if usage is None:
        return ""
    counts = (usage.input_tokens, usage.output_tokens)
    return "+".join("?" if count is None else str(count) for count in counts) + " tokens"
