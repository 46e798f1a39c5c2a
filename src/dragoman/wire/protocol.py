"""What every wire offers as one value, and the dialects it may be spoken in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.interfaces import Decoder, Encoder, Model
from dragoman.core.item import JSON
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import Turn

from . import json
from .error import encode_error
from .losses import Losses


class Dialect(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How one particular other side encodes and decodes a wire."""

    # Chat requests: the names and fields this upstream wants.
    max_tokens: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    """The field past reasoning goes back in on assistant messages."""
    reasoning_echo: Literal["must", "may", "never"] = "may"
    """Whether past reasoning goes back: `must` is for servers that refuse a message with calls and
    without the reasoning that led to them, `never` for those that refuse the field."""
    repetition_penalty: str = "repetition_penalty"
    content_parts: bool = True
    """Whether content may be a list of parts where it is all text."""
    ask_usage: bool = True
    """Whether a stream is asked to report usage, whatever the client asked."""
    drop: frozenset[str] = frozenset()
    """Request fields (by this wire's names) this upstream refuses: dropped and reported."""

    # Messages requests.
    cache_control: bool = False
    """Whether a prefix is marked to be cached where the client marks none."""

    # Chat answers.
    reasoning_out: tuple[str, ...] = ("reasoning", "reasoning_content")
    """The fields reasoning is shown in."""

    # Completions requests with a prompt that a format made.
    prompt_options: tuple[tuple[str, bool], ...] = ()
    """Fields by which control tokens are read in a prompt and shown in the answer."""
    shown_controls: str | None = None
    """The field that lists the control tokens to be shown in the answer."""

    # Responses answers.
    reasoning_events: Literal["reasoning_text", "reasoning"] = "reasoning_text"
    """OpenAI's event names, or Open Responses' shorter ones."""
    error_event: Literal["flat", "nested"] = "flat"


STANDARD = Dialect()


def encode_model(model: Model) -> bytes:
    """One model, as `GET /models/{id}` shows it."""
    return json.dump(_model(model))


def encode_models(models: Sequence[Model]) -> bytes:
    """All models, as `GET /models` lists them."""
    return json.dump({"object": "list", "data": list(map(_model, models))})


def encode_count(tokens: int) -> bytes:
    """The number of tokens of a prompt."""
    return json.dump({"input_tokens": tokens})


def _model(model: Model) -> dict[str, JSON]:
    return {
        **(model.extra or {}).get("models", {}),
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
    }


class DecodeRequest(Protocol):
    """Decodes the body of a request, which may have as much in it as the limits say."""

    def __call__(self, data: bytes, limits: json.Limits = json.LIMITS, /) -> Request:
        """Raises FaultError when the body is not a request, or has more than it may."""
        ...


class Wire(Struct, frozen=True, kw_only=True):
    """One protocol. `name` is its key in every `extra`; the paths follow the base URL.

    - `decode_request(body, limits)` raises FaultError when the body is not a request.
    - `encode_request(request, dialect)` gives the body and what it could not carry as it stood,
      fields named as in the core; it raises FaultError where a loss would change the answer.
    - `encoder(request, dialect)` encodes an answer as a stream, `encode_response` as a whole.
    - `decoder(turn)` decodes an answer, streamed or whole, into a turn.
    - `losses` says which fields of the core the wire cannot carry, and what happens then.
    - `spelling(request)` gives the function from the core's name of a field in this request
      (`items[3].role`) to the name that clients of this wire know it by.
    - `id_prefix` is what the wire puts before the id of a response.
    - `conversation` is false where requests are bare prompts, which are never stored.
    - `stored_by_default` says what an absent `store` means.
    - `websocket` says whether requests may come over a WebSocket on the same path, too.
    - `count_path`, which is below `path`, is where the tokens of a request are counted; empty where
      the wire has no such endpoint. `encode_count` encodes their number, and `count_fields` are the
      fields of a request that the endpoint takes.
    - `encode_error(fault, request_id)` gives the status and the body of an answer that is a fault.
    - `client_header` is the request header, in lower case, that tells the wire's clients from those
      of others on paths that wires share: the model listing, and paths of none.
    - `request_id_header` is the answer's header in which its clients look for the request's id.
    - `request_headers` are headers of a client's request that travel on, where the upstream is
      spoken to over the same wire; `upstream_headers` go with every request to an upstream, with
      the client's own values where it sent the same header.
    """

    name: str
    path: str
    decode_request: DecodeRequest
    encode_request: Callable[[Request, Dialect], tuple[bytes, tuple[Loss, ...]]]
    encoder: Callable[[Request, Dialect], Encoder]
    encode_response: Callable[[Response, Request, Dialect], bytes]
    decoder: Callable[[Turn], Decoder]
    losses: Losses
    spelling: Callable[[Request], Callable[[str], str]]
    encode_error: Callable[[Fault, str], tuple[int, bytes]] = encode_error
    models_path: str = "/models"
    encode_models: Callable[[Sequence[Model]], bytes] = encode_models
    encode_model: Callable[[Model], bytes] = encode_model
    id_prefix: str = ""
    conversation: bool = True
    stored_by_default: bool = False
    websocket: bool = False
    count_path: str = ""
    encode_count: Callable[[int], bytes] = encode_count
    count_fields: frozenset[str] = frozenset()
    client_header: str = ""
    request_id_header: str = "x-request-id"
    request_headers: tuple[str, ...] = ()
    upstream_headers: tuple[tuple[str, str], ...] = ()


LONGEST_STOP = 4_096
"""Characters of a stop string, which each part of an answer is compared with."""
MOST_STOP = 16_384
"""Characters of all stop strings together: where all but the last of one has come, the next part of
an answer is compared with each of its beginnings."""


def check_stop(path: str, stop: Collection[str], limits: json.Limits) -> None:
    """Raise FaultError for more stop strings, or longer ones, than there may be."""
    if len(stop) > limits.max_stop:
        raise json.too_many(path, limits.max_stop, "max_stop")
    if max(map(len, stop)) > LONGEST_STOP:
        problem = f"has a string of more than {LONGEST_STOP} characters, which is the limit"
        raise FaultError(bad_request(problem, path))
    if sum(map(len, stop)) > MOST_STOP:
        problem = f"has strings of more than {MOST_STOP} characters together, which is the limit"
        raise FaultError(bad_request(problem, path))
