"""Completions, `POST /completions`, the legacy protocol of bare prompts.

A bare prompt is no conversation: requests are decoded to a `Completion`, and nothing else can be
encoded.
"""

from dragoman.wire.protocol import Wire

from .losses import LOSSES, spelling
from .request import NAME, decode_request, encode_request
from .response import Decoder, Encoder, encode_response

COMPLETIONS = Wire(
    name=NAME,
    path="/completions",
    decode_request=decode_request,
    encode_request=encode_request,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    id_prefix="cmpl-",
    conversation=False,
)
"""The wire as one value."""
