"""Decodes and encodes server-sent events.

The decoder accepts any line ends, comments and splits of the bytes; `frame` writes `\\n` only.
The data is decoded by a wire.
"""

from __future__ import annotations

MAX_EVENT = 16 * 1024 * 1024
"""The largest event that is read, in bytes."""
MAX_LINES = 100_000
"""The most lines of an event: most have one or two."""

END = b"[DONE]"
"""The data of the event that ends a stream."""

_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data", b"event", b"id", b"retry", b":")


class SSEDecoder:
    """Returns `(event name or "", data)` pairs when they are complete.

    >>> decoder = SSEDecoder()
    >>> decoder.feed(b"event: greeting\\r\\ndata: hel")
    []
    >>> decoder.feed(b"lo\\r\\n\\r\\n: a comment\\n\\ndata: {}"), decoder.close()
    ([('greeting', b'hello')], [('', b'{}')])
    """

    __slots__ = ("_after_cr", "_held", "_lines", "_started")

    def __init__(self) -> None:
        self._held = bytearray()  # the incomplete event, with LF line ends
        self._lines = 0  # its length, about
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The complete events. Raises ValueError for one that is too large or long."""
        if self._after_cr or b"\r" in data:
            data = self._with_lf(data)
        held = self._held
        if not held and data[-2:] == b"\n\n":  # usually complete events and nothing else
            return self._read(data[:-2])
        known = max(0, len(held) - 1)
        if not held:
            self._lines = 0
        held += data
        end = held.rfind(b"\n\n", known)
        whole = bytes(held[: max(0, end)])
        del held[: end + 2 if end >= 0 else 0]
        if len(held) > MAX_EVENT:
            raise _too_large()
        self._lines = held.count(b"\n") if end >= 0 else self._lines + data.count(b"\n")
        if self._lines > MAX_LINES:
            raise ValueError(f"an event of more than {MAX_LINES} lines")
        return self._read(whole) if end >= 0 else []

    def release(self, most: int) -> bytes | None:
        """Return the incomplete event, to be fed again or decoded otherwise.

        None where a line end is half read, or for more than `most` bytes.
        """
        if self._after_cr or not self._started or len(self._held) > most:
            return None
        held = bytes(self._held)
        self._held.clear()
        return held

    def close(self) -> list[tuple[str, bytes]]:
        """The last event, if the stream ended without the blank line after it."""
        whole = bytes(self._held)
        self._held.clear()
        return self._read(whole)

    def _with_lf(self, data: bytes) -> bytes:
        """All line ends as LF; a CRLF may be split between two reads."""
        if not data:
            return data
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            self._after_cr = False
            return self._with_lf(data)
        self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, whole: bytes) -> list[tuple[str, bytes]]:
        if not self._started:
            self._started = True
            whole = whole.removeprefix(_BOM)
        lines = whole.split(b"\n")
        if not any(lines[1::2]) and len(whole) <= MAX_EVENT:
            # An empty line after every line: events of one line each, as in most streams.
            blocks = lines[::2]
            events = [("", block[6:]) for block in blocks if block.startswith(b"data: ")]
            if len(events) == len(blocks):
                return events
        blocks = whole.split(b"\n\n")
        if len(whole) > MAX_EVENT and max(map(len, blocks)) > MAX_EVENT:
            raise _too_large()
        return [event for block in blocks if (event := _parse(block)) is not None]


def _too_large() -> ValueError:
    return ValueError(f"an event that is larger than {MAX_EVENT} bytes")


def _parse(block: bytes) -> tuple[str, bytes] | None:
    """One block of lines; None when it carries no data (comments, ids, blank lines)."""
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return (name.decode("utf-8", "replace"), b"\n".join(data)) if data else None


def may_begin(head: bytes) -> bool:
    """Whether these first bytes are, or may become, a field of a server-sent event.

    >>> may_begin(b"da"), may_begin(b"event: x"), may_begin(b"<html>")
    (True, True, False)
    """
    return any(head.startswith(field) or field.startswith(head) for field in _FIELDS)


def frame(data: bytes, event: str | None = None) -> bytes:
    """One event; `data` is a single line, as encoded JSON is.

    >>> frame(b"{}", "response.created")
    b'event: response.created\\ndata: {}\\n\\n'
    """
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A comment line: clients ignore it, and proxies see a live connection."""
    return b": " + text.encode() + b"\n\n"


DONE = frame(END)
"""The event that ends a stream, framed."""


def unseen(data: bytes, skip: int) -> tuple[bytes, int]:
    """The frames after the first so many, and how many of these are still to come. Frames are
    numbered, except `[DONE]`.

    >>> unseen(comment("x") + frame(b"0") + frame(b"1") + DONE, 1), unseen(frame(b"0") + DONE, 2)
    ((b'data: 1\\n\\ndata: [DONE]\\n\\n', 0), (b'data: [DONE]\\n\\n', 1))
    """
    at = 0
    while skip and at < len(data) and not data.startswith(DONE, at):
        skip -= not data.startswith(b":", at)  # a comment has no number either
        at = data.index(b"\n\n", at) + 2
    return data[at:], skip
