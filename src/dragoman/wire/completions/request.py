"""Completions requests, decoded and encoded."""

from __future__ import annotations

from dragoman.core.error import FaultError, unsupported
from dragoman.core.item import JSON, Extra
from dragoman.core.loss import Loss, LossList
from dragoman.core.request import Completion, Prompt, Request, Sampling, StreamOptions
from dragoman.core.turn import MAX_CHOICES
from dragoman.wire import json
from dragoman.wire.choices import logit_bias, merge, stop
from dragoman.wire.json import Fields
from dragoman.wire.losses import judge
from dragoman.wire.protocol import Dialect

from .losses import LOSSES

NAME = "completions"
"""The key of this wire in every `extra`."""


def to_extra(rest: dict[str, JSON]) -> Extra | None:
    """The extra that holds unknown fields; None if there are none."""
    return {NAME: rest} if rest else None


def from_extra(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(NAME, {}) if extra else {}


# ---- decoding ----------------------------------------------------------------------------


def decode_request(data: bytes) -> Completion:
    """The prompts and the request in a body. Raises FaultError naming the field that is wrong."""
    fields = json.parse(data)
    model, prompts = fields.need("model"), _prompts(fields)
    echo = fields.boolean("echo") or False
    _refuse_suffix(fields)
    sampling = _sampling(fields)
    _check_counts(fields, len(prompts), sampling.n or 1)
    return Completion(
        model=model,
        prompts=prompts,
        echo=echo,
        sampling=sampling,
        max_output_tokens=fields.integer("max_tokens", 0 if echo else 1),
        stream=fields.boolean("stream") or False,
        stream_options=_stream_options(fields),
        user=fields.string("user"),
        extra=to_extra(fields.rest()),  # last, as it takes what the others left
    )


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    """Text, ids, or a list of either."""
    match fields.any("prompt"):
        case None:
            raise fields.wrong("prompt", "is missing")
        case str(text):
            return (text,)
        case [int(), *_] as ids:
            return (_ids(fields, "prompt", ids),)
        case [_, *_] as several:
            return tuple(_prompt(fields, number, each) for number, each in enumerate(several))
        case []:
            raise fields.wrong("prompt", "is empty")
        case value:
            problem = f"is {json.kind(value)}, and must be a string, token ids or a list of those"
            raise fields.wrong("prompt", problem)


def _prompt(fields: Fields, number: int, value: JSON) -> Prompt:
    name = f"prompt[{number}]"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return _ids(fields, name, value)
    given = "an empty array" if value == [] else json.kind(value)
    raise fields.wrong(name, f"is {given}, and must be a string or token ids")


def _ids(fields: Fields, name: str, values: list[JSON]) -> tuple[int, ...]:
    for number, value in enumerate(values):
        if type(value) is not int or value < 0:
            raise fields.wrong(f"{name}[{number}]", "must be a token id, like those before it")
    return tuple(values)


def _refuse_suffix(fields: Fields) -> None:
    if fields.any("suffix") not in (None, ""):
        problem = "cannot be carried: models here continue a prompt, and do not fill in a gap"
        raise FaultError(unsupported(problem, "suffix"))


def _check_counts(fields: Fields, prompts: int, n: int) -> None:
    best_of = fields.integer("best_of", 1)
    if best_of is not None and best_of < n:
        raise fields.wrong("best_of", f"is {best_of}, and must be at least n, which is {n}")
    if best_of is not None and best_of > n:
        problem = "cannot be carried: no choice is thrown away here; ask for n and choose yourself"
        raise FaultError(unsupported(problem, "best_of"))
    if prompts * n > MAX_CHOICES:
        problem = f"makes {prompts * n} choices with n, and they may be {MAX_CHOICES} at the most"
        raise fields.wrong("prompt", problem)


def _sampling(fields: Fields) -> Sampling:
    top = fields.integer("logprobs", 0, 20)
    repetition = fields.number("repetition_penalty", 0)
    if repetition is None:
        repetition = fields.number("repeat_penalty", 0)
    return Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1),
        top_k=fields.integer("top_k", -1),
        min_p=fields.number("min_p", 0, 1),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        repetition_penalty=repetition,
        seed=fields.integer("seed"),
        stop=stop(fields),
        logit_bias=logit_bias(fields),
        logprobs=None if top is None else True,
        top_logprobs=top,
        n=fields.integer("n", 1, 128),
    )


def _stream_options(fields: Fields) -> StreamOptions | None:
    given = fields.object("stream_options")
    if given is None:
        return None
    usage, obfuscation = given.boolean("include_usage"), given.boolean("include_obfuscation")
    return StreamOptions(usage, obfuscation, to_extra(given.rest()))


# ---- encoding ----------------------------------------------------------------------------


def encode_request(request: Request, dialect: Dialect) -> tuple[bytes, tuple[Loss, ...]]:
    """The body that asks this of a server, and what it could not carry as it stood.

    Only what was asked for is in it. The limit is always `max_tokens` here: Chat's newer name for
    it never came to this protocol. Raises FaultError for a request that has no prompts.
    """
    if not isinstance(request, Completion):
        problem = "cannot be carried: this protocol takes a prompt; a format would make one of it"
        raise FaultError(unsupported(problem, "items"))
    judged, ledger = judge(request, LOSSES), LossList()
    sampling, prompts = request.sampling, request.prompts
    fields: dict[str, JSON] = {
        "model": request.model,
        "prompt": prompts[0] if len(prompts) == 1 else prompts,
        "echo": request.echo or None,
        "max_tokens": request.max_output_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        dialect.repetition_penalty: sampling.repetition_penalty,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "logit_bias": sampling.logit_bias,
        "logprobs": (sampling.top_logprobs or 0) if sampling.logprobs else None,
        "n": sampling.n,
        "user": request.user,
        **_stream(request, dialect, ledger),
    }
    body = merge({n: v for n, v in fields.items() if v is not None}, from_extra(request.extra))
    for name in sorted(dialect.drop & body.keys()):
        del body[name]
        ledger.note(name, "dropped", "this server does not take it")
    return json.dump(body), judged + ledger.losses()


def _stream(request: Request, dialect: Dialect, ledger: LossList) -> dict[str, JSON]:
    options = request.stream_options
    if not request.stream:
        if options is not None:
            ledger.note("stream_options", "dropped", "the answer is not streamed")
        return {}
    options = options or StreamOptions()
    usage = True if dialect.ask_usage else options.include_usage
    given = {"include_usage": usage, "include_obfuscation": options.include_obfuscation}
    encoded = merge({n: v for n, v in given.items() if v is not None}, from_extra(options.extra))
    return {"stream": True} | ({"stream_options": encoded} if encoded else {})
