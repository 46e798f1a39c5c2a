"""Tells a stream of server-sent events from an answer given whole, byte by byte.

A server that was asked for a stream may send plain JSON, a web page or nothing at all. Only the
first byte is looked at; what any of it means is the decoder's business.
"""

from __future__ import annotations

from dragoman.wire.body import MAX_ANSWER
from dragoman.wire.sse import SSEDecoder

_BEFORE = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first byte that tells: a byte order mark, blanks, blank lines."""

_FIELDS = b"deir:"
"""How the lines of a stream begin: data, event, id, retry, or a comment."""

_HEAD = 2048


class Incoming:
    """Feed it bytes; it gives the events of a stream, and keeps everything else.

    >>> incoming = Incoming()
    >>> incoming.feed(b'data: {"n": 1}\\n\\n'), incoming.feed(b"data: 2")
    ([('', b'{"n": 1}')], [])
    >>> incoming.close(), incoming.whole
    ([('', b'2')], None)
    """

    __slots__ = ("_begun", "_head", "_heard", "_sse", "_whole")

    def __init__(self) -> None:
        self._begun = False
        self._sse: SSEDecoder | None = None
        self._whole = bytearray()  # as long as it is no stream
        self._head = b""  # of a stream, as long as no event came
        self._heard = False

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that are whole now. Raises ValueError for what is too large."""
        if not self._begun:
            data = data.lstrip(_BEFORE)
            if data:
                self._begun = True
                self._sse = SSEDecoder() if data[0] in _FIELDS else None
        if self._sse is None:
            self._whole += data
            if len(self._whole) > MAX_ANSWER:
                raise ValueError(f"an answer that is larger than {MAX_ANSWER} bytes")
            return []
        if not self._heard:
            self._head = (self._head + data)[:_HEAD]
        return self._noted(self._sse.feed(data))

    def close(self) -> list[tuple[str, bytes]]:
        """The last event of a stream, if it ended without a blank line."""
        return self._noted(self._sse.close()) if self._sse is not None else []

    @property
    def whole(self) -> bytes | None:
        """What came instead of a stream; of one without a single event, its beginning."""
        if self._sse is None:
            return bytes(self._whole)
        return None if self._heard else self._head

    def _noted(self, events: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        self._heard = self._heard or bool(events)
        return events
