"""What every wire offers, as one value: decode and encode, of requests and of answers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from dragoman.core.interfaces import Decoder, Encoder
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import Turn

from .dialect import Dialect


class Wire(Struct, frozen=True, kw_only=True):
    """One protocol. `name` is its key in every `extra`; `path` follows the base URL.

    - `decode_request(body)` raises FaultError when the body is not a request.
    - `encode_request(request, dialect)` gives the body and what it could not carry as it stood;
      it raises FaultError where a loss would change the answer.
    - `encoder(request, dialect)` says events as a stream, `encode_response` says them whole.
    - `decoder(turn)` hears an answer, streamed or whole, into a turn.
    """

    name: str
    path: str
    decode_request: Callable[[bytes], Request]
    encode_request: Callable[[Request, Dialect], tuple[bytes, tuple[Loss, ...]]]
    encoder: Callable[[Request, Dialect], Encoder]
    encode_response: Callable[[Response, Request, Dialect], bytes]
    decoder: Callable[[Turn], Decoder]
