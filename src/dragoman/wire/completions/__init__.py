"""Completions: `POST /completions`, the protocol from before there were messages.

A prompt goes in, text that goes on from it comes out. `request` and `response` are the two sides
of an exchange, `encoder` and `decoder` the stream in each direction. A bare prompt is no
conversation: what is decoded here is a `Completion`, and nothing else can be encoded.
"""

from dragoman.wire.protocol import Wire

from .losses import LOSSES, spelling
from .request import NAME, decode, encode
from .response import Decoder, Encoder, encode_response

COMPLETIONS = Wire(
    name=NAME,
    path="/completions",
    decode_request=decode,
    encode_request=encode,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    id_prefix="cmpl-",
    conversation=False,
)
"""The wire as one value."""
