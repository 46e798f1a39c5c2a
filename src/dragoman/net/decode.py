"""Undoes content codings (gzip, deflate, any chain of them) piece by piece.

What comes out of one call is bounded whatever went in, so that a small body cannot fill the
memory. It knows nothing of connections or messages.
"""

import zlib
from collections.abc import Iterable, Iterator

from .errors import RemoteProtocolError, TooLargeError

_PIECE = 64 * 1024
LARGEST_READ = 16 * 1024 * 1024
"""Bytes that one read may be decoded to."""
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits choose the container


class Decoder:
    """The inverse of a list of codings, given in the order they were applied.

    `feed` and `finish` raise RemoteProtocolError for a coding that is not known and for
    bytes that are not what the coding says.
    """

    def __init__(self, codings: Iterable[str]) -> None:
        self._stages = [_Inflate(coding) for coding in codings]
        self._stages.reverse()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes into pieces, none of them empty; read them all."""
        pieces = iter((data,))
        for stage in self._stages:
            pieces = stage.feed(pieces)
        return pieces

    def decode(self, data: bytes, *, end: bool) -> bytes:
        """Decode what one read gave, in one piece; `end` says that no more bytes will come. Raises
        TooLargeError beyond `LARGEST_READ`: a small body must not fill the memory."""
        decoded: list[bytes] = []
        size = 0
        for piece in self.feed(data) if data else ():
            size += len(piece)
            if size > LARGEST_READ:
                raise TooLargeError(f"one read was decoded to more than {LARGEST_READ} bytes")
            decoded.append(piece)
        if end:
            self.finish()
        return b"".join(decoded)

    def finish(self) -> None:
        """Say that no more bytes will come; a coding cut short is an error."""
        for stage in self._stages:
            stage.finish()


class _Inflate:
    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._held = b""  # the first byte of a deflate body: zlib or raw is told by two
        self._begun = False
        self._inflater = None if coding == "deflate" else zlib.decompressobj(_GZIP)

    def feed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if self._coding not in ("gzip", "x-gzip", "deflate"):
            raise RemoteProtocolError(f"unknown content coding {self._coding[:40]!r}")
        for piece in pieces:
            self._begun = True
            try:
                yield from self._inflate(piece)
            except zlib.error:
                raise RemoteProtocolError(f"the body is not valid {self._coding}") from None

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        inflater = self._inflater
        if inflater is None:
            data = self._held + data
            if len(data) < 2:
                self._held = data
                return
            inflater = self._inflater = zlib.decompressobj(_deflate_window(data))
        out = b""
        while data or len(out) == _PIECE:
            if inflater.eof:
                # Another gzip member may follow the first; anything else there is padding.
                if self._coding == "deflate" or not data.startswith(b"\x1f"):
                    return
                inflater = self._inflater = zlib.decompressobj(_GZIP)
            out = inflater.decompress(data, _PIECE)
            data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if out:
                yield out

    def finish(self) -> None:
        if self._begun and (self._inflater is None or not self._inflater.eof):
            raise RemoteProtocolError(f"the {self._coding} body ends too early")


def _deflate_window(head: bytes) -> int:
    """HTTP's deflate is zlib by the book and a raw stream from some servers."""
    by_the_book = head[0] & 0x0F == 8 and int.from_bytes(head[:2]) % 31 == 0
    return _ZLIB if by_the_book else _RAW
