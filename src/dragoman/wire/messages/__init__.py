"""Anthropic's Messages, `POST /messages`, as one value: requests and answers, both ways.

Fields that this wire does not know are stored under its name in `extra` and encoded again on it.
"""

from dragoman.wire.protocol import Wire

from .blocks import NAME
from .losses import LOSSES, spelling
from .request import MAX_TOKENS, decode_request, encode_request
from .response import (
    ID_PREFIX,
    Encoder,
    encode_error,
    encode_model,
    encode_models,
    encode_response,
)
from .stream import Decoder

MESSAGES = Wire(
    name=NAME,
    path="/messages",
    decode_request=decode_request,
    encode_request=encode_request,
    encoder=Encoder,
    encode_response=encode_response,
    decoder=Decoder,
    losses=LOSSES,
    spelling=spelling,
    encode_error=encode_error,
    encode_models=encode_models,
    encode_model=encode_model,
    id_prefix=ID_PREFIX,
    count_path="/messages/count_tokens",
    count_fields=frozenset(
        ("model", "system", "messages", "tools", "tool_choice", "thinking", "output_config")
    ),
    client_header="anthropic-version",
    request_id_header="request-id",
    max_tokens=MAX_TOKENS,
    request_headers=("anthropic-beta", "anthropic-version"),
    upstream_headers=(("anthropic-version", "2023-06-01"),),
)
"""The wire as one value."""
