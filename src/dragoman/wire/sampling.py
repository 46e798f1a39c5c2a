"""How a request says how tokens are to be chosen, in the protocols that share those words.

Chat Completions and the older completions spell them alike, but for log-probabilities. What a value
means, and who can honour it, is not known here.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.request import Sampling

from .body import Fields


def decode(fields: Fields, *, logprobs: bool | None, top_logprobs: int | None) -> Sampling:
    """The sampling values of a body; those of log-probabilities were read before. Raises FaultError
    naming the field that is wrong.

    >>> decode(Fields({"stop": "x", "temperature": 0}), logprobs=None, top_logprobs=None).stop
    ('x',)
    """
    repetition = fields.number("repetition_penalty", 0)
    if repetition is None:
        repetition = fields.number("repeat_penalty", 0)
    chosen = Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1),
        top_k=fields.integer("top_k", -1),
        min_p=fields.number("min_p", 0, 1),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        repetition_penalty=repetition,
        seed=fields.integer("seed"),
        stop=_stop(fields),
        logit_bias=_logit_bias(fields),
        n=fields.integer("n", 1, 128),
    )
    if logprobs is None and top_logprobs is None:
        return chosen
    return replace(chosen, logprobs=logprobs, top_logprobs=top_logprobs)


def _stop(fields: Fields) -> tuple[str, ...] | None:
    match fields.any("stop"):
        case None:
            return None
        case str(one):
            return (one,)
        case list(several) if all(isinstance(each, str) for each in several):
            return tuple(several) or None
        case _:
            raise fields.wrong("stop", "must be a string or an array of strings")


def _logit_bias(fields: Fields) -> dict[str, float] | None:
    given = fields.object("logit_bias")
    if given is None:
        return None
    bias = {token: given.number(token, -100, 100) for token in given.rest()}
    return {token: value for token, value in bias.items() if value is not None}
