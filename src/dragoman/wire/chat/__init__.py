"""Chat Completions, `POST /chat/completions`, as one value: requests and answers, both ways.

Fields that this wire does not know are stored under its name in `extra` and encoded again on it.
"""

from dragoman.wire.protocol import Wire

from .losses import LOSSES, spelling
from .request import decode_request, encode_request
from .response import Encoder, encode_response
from .stream import Decoder

CHAT = Wire(
    name="chat",
    path="/chat/completions",
    decode_request=decode_request,
    encode_request=encode_request,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    id_prefix="chatcmpl-",
)
"""The wire as one value."""
