"""The log: a line for each request, and errors with their time and request, as text or as JSON."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from threading import Event, Lock, Thread

from msgspec import Struct, field

from dragoman.core.event import Failed, Finished
from dragoman.core.interfaces import Secret
from dragoman.core.response import Usage
from dragoman.wire import json

LONGEST = 200
"""Characters of a path or of a model's name in a line."""
MOST = 16 * 1024
"""Characters of an error in the log."""
DISCONNECTED = 499
"""The status for a client that disconnected before the response."""
SHORTEST_SECRET = 8
"""Keys shorter than this are not redacted: they may be words of a path."""
WAITING = 10_000
"""Queued lines; beyond that, lines are dropped and counted."""

_log = logging.getLogger("dragoman.server")


class Lines:
    """Writes lines to stderr, in order, on a thread of its own: if the reader of the pipe (a log
    collector) hangs, lines are lost and the server runs on."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Reset the queue; also called after a fork, as threads are not inherited."""
        self._waiting: SimpleQueue[str | Event] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._left_out = 0

    def write(self, text: str) -> None:
        """Queue a line, or several."""
        with self._lock:
            if self._waiting.qsize() >= WAITING:
                self._left_out += 1
                return
            self._waiting.put(text)
            if self._thread is None:
                thread = Thread(target=self._run, name="dragoman-log", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: the next line tries again
                    thread.start()
                    self._thread = thread

    def wait(self, seconds: float = 1.0) -> None:
        """Wait until the queue so far is written, or this long."""
        if self._thread is not None:
            self._waiting.put(written := Event())
            written.wait(seconds)

    def _run(self) -> None:
        while True:
            text = self._waiting.get()
            if isinstance(text, Event):
                text.set()
                continue
            lost = 0
            try:
                _put_out(text)
            except (OSError, ValueError):  # a broken pipe, a full disk, or closed
                lost = 1
            with self._lock:
                self._left_out += lost
                left_out = 0 if lost else self._left_out
                self._left_out -= left_out
            if left_out:
                _log.warning("lines of the log left out, as stderr took no more: %d", left_out)


def _put_out(text: str) -> None:
    """Write a text to stderr, without its buffer: a blocked write to the buffer would hold its lock
    and keep the interpreter from exiting."""
    stream = sys.stderr
    try:
        file = stream.fileno()
    except (AttributeError, OSError, ValueError):  # replaced by something else
        stream.write(text)
        return
    data = text.encode(stream.encoding, "backslashreplace")
    while data:
        data = data[os.write(file, data) :]


LINES = Lines()
"""The lines of the log of this process."""
atexit.register(LINES.wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LINES._begin)


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
            LINES.write(json.dump(known).decode() + "\n")
            return
        counts = [fields.pop(name) for name in ("input_tokens", "output_tokens")]
        fields["ms"] = f"{fields['ms']} ms"
        tokens = "+".join("?" if count is None else str(count) for count in counts)
        fields["model"] = f"{fields['model']} {tokens} tokens" if usage else fields["model"]
        for name in ("key", "upstream"):
            fields[name] = fields[name] and f"{name}={fields[name]}"
        LINES.write(" ".join(str(value) for value in fields.values() if value) + "\n")

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
    """Write errors and warnings to stderr in this format, unless the program has configured
    logging."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(LINES)
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
