"""Server-sent events: bytes in any pieces become events, and events become bytes.

The reader takes whatever line ends, comments and splits the other side chose; the writer always
says one block of `\\n` lines, meant for one write. What the data means is the business of a wire.
"""

from __future__ import annotations

MAX_EVENT = 16 * 1024 * 1024
"""The largest event that is read, in bytes."""

END = b"[DONE]"
"""The data of the event that ends a stream."""

_BOM = b"\xef\xbb\xbf"


class SSEDecoder:
    """Gives `(event name or "", data)` pairs as they become whole.

    >>> decoder = SSEDecoder()
    >>> decoder.feed(b"event: greeting\\r\\ndata: hel")
    []
    >>> decoder.feed(b"lo\\r\\n\\r\\n: a comment\\n\\ndata: {}"), decoder.close()
    ([('greeting', b'hello')], [('', b'{}')])
    """

    __slots__ = ("_after_cr", "_held", "_started")

    def __init__(self) -> None:
        self._held = bytearray()  # the event that is not whole yet, with LF line ends
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that are whole now. Raises ValueError for one larger than MAX_EVENT."""
        if self._after_cr or b"\r" in data:
            data = self._with_lf(data)
        held = self._held
        known = max(0, len(held) - 1)
        held += data
        end = held.rfind(b"\n\n", known)
        if end < 0:
            _bound(len(held))
            return []
        whole = bytes(held[:end])
        del held[: end + 2]
        _bound(len(held))
        return self._read(whole)

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
        events = []
        for block in whole.split(b"\n\n"):
            _bound(len(block))
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(("", block[6:]))
            elif (event := _parse(block)) is not None:
                events.append(event)
        return events


def _bound(size: int) -> None:
    if size > MAX_EVENT:
        raise ValueError(f"an event of the stream is larger than {MAX_EVENT} bytes")


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


def frame(data: bytes, event: str | None = None) -> bytes:
    """One event; `data` is a single line, as encoded JSON is.

    >>> frame(b"{}", "response.created")
    b'event: response.created\\ndata: {}\\n\\n'
    """
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that readers skip, and that shows proxies a living connection."""
    return b": " + text.encode() + b"\n\n"


DONE = frame(END)
"""The event that ends a stream, framed."""
