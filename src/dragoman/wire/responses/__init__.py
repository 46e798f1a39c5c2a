"""Responses: `POST /responses`, whole and streamed, heard and told.

`request` is how one asks and `snapshot` what is answered; `encoder` says an answer as a stream,
in the words of `wording`, and `decoder` hears one, item by item, through `families`, `hearing` and
`heard`. The other rooms hold one kind of thing each, both ways. What this wire does not know is
kept under its name (`extras`) and said again on it.
"""

from dragoman.wire.protocol import Wire

from . import request
from .decode import Decoder
from .encode import Encoder, encode_response
from .items import WIRE
from .losses import LOSSES, spelling

RESPONSES = Wire(
    name=WIRE,
    path="/responses",
    decode_request=request.decode,
    encode_request=request.encode,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    id_prefix="resp_",
    stored_by_default=True,
    websocket=True,
)
"""The protocol of OpenAI's Responses API and of Open Responses."""
