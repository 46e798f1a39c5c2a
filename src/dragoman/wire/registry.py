"""What every wire offers, as one value: decode and encode, of requests and of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.interfaces import Decoder, Encoder
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import Turn

from .dialect import Dialect


class Passing(Protocol):
    """Watches a streamed answer that passes through as it is. `ended` once it said its end."""

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now, unchanged. Raises ValueError for what is no event."""
        ...

    def close(self, fault: Fault) -> tuple[bytes, Finished | Failed]:
        """What is to be said yet, and how it ended; `fault` is why it did if it did not say."""
        ...


class Through(Struct, frozen=True, kw_only=True):
    """How answers of a wire pass through without being decoded.

    - `passes(request, body, dialect)` tells whether the body says to a server of that dialect what
      the request, encoded for it, would say.
    - `passing()` watches a stream.
    - `whole(body)` gives the end of a whole answer, or None if the body is none.
    """

    passes: Callable[[Request, bytes, Dialect], bool]
    passing: Callable[[], Passing]
    whole: Callable[[bytes], Finished | None]


class Wire(Struct, frozen=True, kw_only=True):
    """One protocol. `name` is its key in every `extra`; `path` follows the base URL.

    - `decode_request(body)` raises FaultError when the body is not a request.
    - `encode_request(request, dialect)` gives the body and what it could not carry as it stood;
      it raises FaultError where a loss would change the answer.
    - `encoder(request, dialect)` says events as a stream, `encode_response` says them whole.
    - `decoder(turn)` hears an answer, streamed or whole, into a turn.
    - `through` is how its answers pass undecoded; None if they never do.
    """

    name: str
    path: str
    decode_request: Callable[[bytes], Request]
    encode_request: Callable[[Request, Dialect], tuple[bytes, tuple[Loss, ...]]]
    encoder: Callable[[Request, Dialect], Encoder]
    encode_response: Callable[[Response, Request, Dialect], bytes]
    decoder: Callable[[Turn], Decoder]
    through: Through | None = None
