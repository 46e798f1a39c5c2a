"""Responses: `POST /responses`, whole and streamed, heard and told."""

from dragoman.wire.codec import Wire

from . import request
from .decoder import Decoder
from .encoder import Encoder, encode_response
from .extras import WIRE

RESPONSES = Wire(
    name=WIRE,
    path="/responses",
    decode_request=request.decode,
    encode_request=request.encode,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
)
"""The protocol of OpenAI's Responses API and of Open Responses."""
