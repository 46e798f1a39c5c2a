"""The `Wire` protocol that every wire implements, and its dialects."""

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
    """How one particular peer encodes and decodes a wire."""

    # Chat requests: the upstream's names and fields.
    max_tokens: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    """The field for past reasoning in assistant messages."""
    reasoning_echo: Literal["must", "may", "never"] = "may"
    """Whether past reasoning is sent back: `must` is for servers that refuse a message with calls,
    or any beside tools, without its reasoning, `never` for those that refuse it, but for what they
    encrypted."""
    call_extra: bool = True
    """Whether past calls keep the fields that the protocol does not have, as Gemini's signature."""
    call_stand_in: dict[str, JSON] | None = None
    """Fields that the first of a message's calls gets where none of them has these fields, as those
    of another model: Gemini 3 refuses calls without a signature, and has a word that stands for
    one."""
    call_id_length: int | None = None
    """The length of the ids of calls, of letters and digits alone; None: they may be anything."""
    user_behind_results: bool = True
    """Whether a user's message may follow results of tools; else the assistant says a word between
    them, and its messages without anything are left out."""
    repetition_penalty: str = "repetition_penalty"
    content_parts: bool = True
    """Whether content may be a list of parts where it is only text."""
    ask_usage: bool = True
    """Whether usage is always requested in a stream."""
    beside_continue: dict[str, JSON] | None = None
    """Fields without which the server refuses `continue_final_message`."""
    drop: frozenset[str] = frozenset()
    """Request fields (by this wire's names) that the upstream refuses: dropped and reported."""

    # Messages requests.
    cache_control: bool = False
    """Whether to mark a prefix for caching where the client marks none."""

    blank_texts: bool = True
    """Whether a text may be white space alone, as some models write before a call, and thinking may
    end a message."""
    closed_schemas: bool = False
    """Whether the objects of a schema that is enforced must be closed, and their values without
    limits."""

    # Chat answers.
    reasoning_out: tuple[str, ...] = ("reasoning", "reasoning_content")
    """The fields for reasoning."""

    # Completions requests with a prompt rendered by a format.
    prompt_options: tuple[tuple[str, bool], ...] = ()
    """Fields that enable control tokens in the prompt and in the answer."""
    shown_controls: str | None = None
    """The field for the control tokens that the answer must contain."""

    # Responses answers.
    reasoning_events: Literal["reasoning_text", "reasoning"] = "reasoning_text"
    """OpenAI's event names, or Open Responses' shorter ones."""
    error_event: Literal["flat", "nested"] = "flat"


STANDARD = Dialect()


def encode_model(model: Model) -> bytes:
    """One model, as in `GET /models/{id}`."""
    return json.dump(_model(model))


def encode_models(models: Sequence[Model]) -> bytes:
    """All models, as in `GET /models`."""
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
    """Decodes the body of a request, within the limits."""

    def __call__(self, data: bytes, limits: json.Limits = json.LIMITS, /) -> Request:
        """Raises FaultError when the body is not a request, or exceeds a limit."""
        ...


class Wire(Struct, frozen=True, kw_only=True):
    """One protocol. `name` is its key in every `extra`; the paths follow the base URL.

    - `decode_request(body, limits)` raises FaultError when the body is not a request.
    - `encode_request(request, dialect)` returns the body and the losses, with
      fields named as in the core; it raises FaultError where a loss would change the answer.
    - `encoder(request, dialect)` encodes an answer as a stream, `encode_response` as a whole.
    - `decoder(turn)` decodes an answer, streamed or whole, into a turn.
    - `losses` has the fields of the core that the wire cannot carry, and the actions.
    - `spelling(request)` returns a function from the core's name of a field in this request
      (`items[3].role`) to its name on this wire.
    - `id_prefix` is the wire's prefix of response ids.
    - `conversation` is false for a wire of bare prompts, which are never stored.
    - `stored_by_default` is the meaning of an absent `store`.
    - `websocket`: requests may come over a WebSocket on the same path, too.
    - `count_path`, which is below `path`, is where the tokens of a request are counted; empty where
      the wire has no such endpoint. `encode_count` encodes their number, and `count_fields` are the
      fields of a request that the endpoint takes.
    - `encode_error(fault, request_id)` returns the status and the body of an error response.
    - `client_header` is the request header, in lower case, that identifies the wire's clients
      on paths that wires share: the model listing, and unknown paths.
    - `request_id_header` is the response header from which its clients read the request's id.
    - `max_tokens` is the limit of an answer that is sent where a request has none, on a wire that
      demands one.
    - `request_headers` are headers of a client's request that are forwarded to an upstream of
      the same wire; `upstream_headers` are sent with every request to an upstream, with
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
    max_tokens: int | None = None
    request_headers: tuple[str, ...] = ()
    upstream_headers: tuple[tuple[str, str], ...] = ()


LONGEST_STOP = 4_096
"""Characters of a stop string: each part of an answer is compared with it."""
MOST_STOP = 16_384
"""Characters of all stop strings together: a partial match is compared with each prefix of
them."""


def check_stop(path: str, stop: Collection[str], limits: json.Limits) -> None:
    """Raise FaultError for too many, or too long, stop strings."""
    if len(stop) > limits.max_stop:
        raise json.too_many(path, limits.max_stop, "max_stop")
    if max(map(len, stop)) > LONGEST_STOP:
        problem = f"has a string of more than {LONGEST_STOP} characters, which is the limit"
        raise FaultError(bad_request(problem, path))
    if sum(map(len, stop)) > MOST_STOP:
        problem = f"has strings of more than {MOST_STOP} characters together, which is the limit"
        raise FaultError(bad_request(problem, path))
