"""OpenAI's Responses API and Open Responses: `POST /responses`, over HTTP and WebSocket.

Unknown fields travel in `extra` under the name of this wire and are encoded on it only.
"""

from dragoman.wire import json
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
    count_path="/responses/input_tokens",
    count_fields=frozenset(
        ("model", "instructions", "input", "tools", "tool_choice", "reasoning", "text")
    ),
    encode_count=lambda tokens: json.dump(
        {"object": "response.input_tokens", "input_tokens": tokens}
    ),
)
"""The protocol of OpenAI's Responses API and of Open Responses."""
