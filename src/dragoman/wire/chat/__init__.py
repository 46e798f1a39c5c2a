"""Chat Completions: `POST /chat/completions`, whole and streamed, heard and told.

`request` and `response` are the two sides of an exchange, `encoder` and `decoder` the stream in
each direction; the other rooms hold one kind of thing each, both ways. What this wire does not
know is kept under its name (`extras`) and said again on it.
"""

from dragoman.wire.protocol import Wire

from .losses import LOSSES, spelling
from .request import decode, encode
from .response import Encoder
from .response import encode as encode_response
from .stream import Decoder

CHAT = Wire(
    name="chat",
    path="/chat/completions",
    decode_request=decode,
    encode_request=encode,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    id_prefix="chatcmpl-",
)
"""The wire as one value."""
