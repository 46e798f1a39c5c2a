"""Hears an answer of this wire: chunks of text, or one object where a stream was asked for.

All that is common to streams of chunks stands in `wire.chunked`; what a chunk says, in `chunks`.
"""

from __future__ import annotations

from dragoman.core.turn import Turn
from dragoman.wire.chunked import ChunkedDecoder

from .chunks import Reader


class Decoder(ChunkedDecoder):
    """Hears one answer into a turn, in pieces of any size."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn, Reader(turn))
