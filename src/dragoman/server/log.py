"""The log: a line for each request, and errors with their time and request, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct, field

from dragoman.core.event import Failed, Finished
from dragoman.core.interfaces import Secret
from dragoman.core.response import Usage
from dragoman.wire import json

LONGEST = 200
"""Characters of a path or of a model's name that are shown."""
MOST = 16 * 1024
"""Characters of an error in the log."""
DISCONNECTED = 499
"""The status of a request whose client disconnected before there was one."""
SHORTEST_SECRET = 8
"""Characters below which a key may well be a word of a path."""


class RequestLog(Struct, frozen=True):
    """How requests are logged. `key_name` is what the key of a tenant is called, and
    `upstream_name` the upstream that a model is behind."""

    as_json: bool
    key_name: Callable[[str], str]
    upstream_name: Callable[[str], str]


class Entry(Struct):
    """What is known of a request beside its head and its status. `end` is a fault's code, or empty
    for a good end; `key` is the one that was presented, which is not shown."""

    log: RequestLog
    model: str = ""
    end: str = ""
    usage: Usage | None = None
    tenant: str = ""
    key: Secret | None = None
    since: float = field(default_factory=time.monotonic)

    def note(self, last: Finished | Failed) -> None:
        """Note how the answer ended."""
        self.usage = last.usage
        self.end = last.fault.code if isinstance(last, Failed) else ""

    def write(self, method: str, path: str, status: int | str, id: str) -> None:
        """Write the line: when, what, how it ended, what it took, for whom, by whom."""
        log, usage = self.log, self.usage
        fields = {
            "time": stamp(time.time()),
            "method": method,
            "path": self._shown(path),
            "status": status or DISCONNECTED,
            "fault": self.end,
            "ms": round((time.monotonic() - self.since) * 1000),
            "model": self._shown(self.model),
            "input_tokens": usage and usage.input_tokens,
            "output_tokens": usage and usage.output_tokens,
            "key": log.key_name(self.tenant),
            "upstream": self.model and self._shown(log.upstream_name(self.model)),
            "request": id,
        }
        if log.as_json:
            known = {name: value for name, value in fields.items() if value not in ("", None)}
            sys.stderr.write(json.dump(known).decode() + "\n")
            return
        counts = [fields.pop(name) for name in ("input_tokens", "output_tokens")]
        fields["ms"] = f"{fields['ms']} ms"
        tokens = "+".join("?" if count is None else str(count) for count in counts)
        fields["model"] = f"{fields['model']} {tokens} tokens" if usage else fields["model"]
        for name in ("key", "upstream"):
            fields[name] = fields[name] and f"{name}={fields[name]}"
        sys.stderr.write(" ".join(str(value) for value in fields.values() if value) + "\n")

    def _shown(self, text: str) -> str:
        """Some text of a client's on one line, without the key."""
        if self.key is not None and len(key := self.key.reveal()) >= SHORTEST_SECRET:
            text = text.replace(key, str(self.key))
        return printable(text[:LONGEST])


class ErrorFormat(logging.Formatter):
    """What happens beside requests, with its time. In text the lines after the first are indented,
    and control characters escaped: nothing that is quoted there looks like a line of ours."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """The line or lines of a record."""
        moment, text = stamp(record.created), within(super().format(record))
        if self._as_json:
            request = getattr(record, "request", "")
            message = text.encode(errors="replace").decode()  # JSON has no lone surrogates
            fields = {"time": moment, "level": record.levelname, "message": message}
            return json.dump(fields | ({"request": request} if request else {})).decode()
        lines = [printable(line.expandtabs()) for line in text.split("\n")]
        return f"{moment} {record.levelname} " + "\n  ".join(lines)


def log_errors(*, as_json: bool) -> None:
    """Have errors and warnings written to stderr in this format, unless the program around us has
    said where logs go."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(ErrorFormat(as_json=as_json))
        root.addHandler(handler)


def within(text: str) -> str:
    """The text, or the beginning and the end of one that is long: it may quote what a client sent.

    >>> len(within("a" * 10**6)), within("short")
    (16387, 'short')
    """
    half = MOST // 2
    return text if len(text) <= MOST else f"{text[:half]}\n…\n{text[-half:]}"


def stamp(moment: float) -> str:
    """A time in UTC.

    >>> stamp(1_700_000_000.25)
    '2023-11-14T22:13:20.250Z'
    """
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def printable(text: str) -> str:
    r"""Text on one line, without what commands a terminal.

    >>> printable("a\r\n\x1b[2Jb")
    'a???[2Jb'
    """
    return "".join(char if char.isprintable() else "?" for char in text)
