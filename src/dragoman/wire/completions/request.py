"""Completions requests, decoded and encoded."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw

from dragoman.core.error import FaultError, bad_request, unsupported
from dragoman.core.item import JSON
from dragoman.core.loss import Loss
from dragoman.core.request import Completion, Prompt, Request
from dragoman.core.turn import MAX_CHOICES
from dragoman.wire import json
from dragoman.wire.choices import (
    ModelName,
    SamplingFields,
    decode_sampling,
    decode_stream_options,
    encode_body,
    encode_stream,
    stream_options,
)
from dragoman.wire.json import ABSENT, LIMITS, Limits, Reader
from dragoman.wire.losses import Note, judge
from dragoman.wire.protocol import Dialect

from .losses import LOSSES

NAME = "completions"
"""The key of this wire in every `extra`."""


# ---- decoding ----------------------------------------------------------------------------


class _Body(SamplingFields, kw_only=True):
    model: ModelName
    prompt: JSON = None
    suffix: str | None = None
    echo: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: Raw = ABSENT
    user: str | None = None


_body = Reader(_Body, stream_options=stream_options.strict | None)
_INTEGERS = ("max_tokens", "best_of", "logprobs", "n", "seed", "top_k")


def decode_request(data: bytes, limits: Limits = LIMITS) -> Completion:
    """The prompts and the request in a body. Raises FaultError naming the field that is wrong."""
    try:
        return _decode(data, limits)
    except (FaultError, *json.BROKEN, ValueError) as error:
        return _decode(json.mended(data, error, _INTEGERS), limits)


def _decode(data: bytes, limits: Limits) -> Completion:
    body, unknown = _body.read(data)
    prompts, n, top = _prompts(body.prompt, limits), body.n or 1, body.logprobs
    if body.suffix:
        problem = "cannot be carried: models here continue a prompt, and do not fill in a gap"
        raise FaultError(unsupported(problem, "suffix"))
    if body.best_of is not None and body.best_of < n:
        problem = f"is {body.best_of}, and must be at least n, which is {n}"
        raise FaultError(bad_request(problem, "best_of"))
    if body.best_of is not None and body.best_of > n:
        problem = "cannot be carried: no choice is thrown away here; ask for n and choose yourself"
        raise FaultError(unsupported(problem, "best_of"))
    if len(prompts) * n > MAX_CHOICES:
        problem = f"makes {len(prompts) * n} choices with n, and they may be {MAX_CHOICES}"
        raise FaultError(bad_request(f"{problem} at the most", "prompt"))
    if body.max_tokens == 0 and not body.echo:
        raise FaultError(bad_request("must be at least 1 without echo", "max_tokens"))
    sampling = decode_sampling(body, None if top is None else True, top, unknown, limits)
    return Completion(
        model=body.model,
        prompts=prompts,
        echo=body.echo or False,
        sampling=sampling,
        max_output_tokens=body.max_tokens,
        stream=body.stream or False,
        stream_options=decode_stream_options(body.stream_options, NAME),
        user=body.user,
        extra={NAME: unknown} if unknown else None,
    )


def _prompts(given: JSON, limits: Limits) -> tuple[Prompt, ...]:
    """Text, ids, or a list of either."""
    match given:
        case None | []:
            problem = "is missing" if given is None else "is empty"
            raise FaultError(bad_request(problem, "prompt"))
        case list() if type(given[0]) is not int:
            if len(given) > limits.max_inputs:
                raise json.too_many("prompt", limits.max_inputs, "max_inputs")
            return tuple([_prompt(f"prompt[{n}]", each) for n, each in enumerate(given)])
        case _:
            return (_prompt("prompt", given),)


def _prompt(path: str, given: JSON) -> Prompt:
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        what = "an empty array" if given == [] else json.kind(given)
        raise FaultError(bad_request(f"is {what}, and must be a string or token ids", path))
    for number, value in enumerate(given):
        if type(value) is not int or value < 0:
            problem = "must be a token id, like those before it"
            raise FaultError(bad_request(problem, f"{path}[{number}]"))
    return tuple(given)


# ---- encoding ----------------------------------------------------------------------------


def encode_request(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body of a request, and its losses.

    Absent fields are left out. The limit is always `max_tokens` here: this protocol does not have
    Chat's newer name. Raises FaultError for a request without prompts.
    """
    if not isinstance(request, Completion):
        problem = "cannot be carried: this protocol takes a prompt; a format would make one of it"
        raise FaultError(unsupported(problem, "items"))
    losses, sampling, prompts = judge(request, LOSSES), request.sampling, request.prompts
    notes: list[Note] = []
    fields: dict[str, JSON] = {
        "model": request.model,
        "prompt": prompts[0] if len(prompts) == 1 else prompts,
        "echo": request.echo or None,
        "max_tokens": request.max_output_tokens,
        "logprobs": (sampling.top_logprobs or 0) if sampling.logprobs else None,
        "top_logprobs": None,
        "user": request.user,
        **encode_stream(request, dialect, NAME, notes),
    }
    return encode_body(fields, request, dialect, NAME, losses, notes)
