"""Token counts, in both directions, under every name servers give them.

A number that was reported is kept, zero included; what was not reported stays absent. Nothing is
estimated: the only sum made here is the total of two counts that were both reported.
"""

from __future__ import annotations

from dragoman.core.item import JSON
from dragoman.core.response import Usage

from .extras import keep, restore

_INPUT, _OUTPUT = "prompt_tokens_details", "completion_tokens_details"
_DETAILS = (_INPUT, _OUTPUT, "input_tokens_details", "output_tokens_details")

NAMES: dict[str, tuple[str, ...]] = {
    "input_tokens": ("prompt_tokens", "input_tokens", "prompt_eval_count"),
    "output_tokens": ("completion_tokens", "output_tokens", "eval_count"),
    "total_tokens": ("total_tokens",),
    "cached_tokens": (
        f"{_INPUT}.cached_tokens",
        "input_tokens_details.cached_tokens",
        "cache_read_input_tokens",
        "prompt_cache_hit_tokens",
    ),
    "cache_write_tokens": (
        f"{_INPUT}.cache_write_tokens",
        "input_tokens_details.cache_write_tokens",
        "cache_creation_input_tokens",
    ),
    "input_audio_tokens": (f"{_INPUT}.audio_tokens",),
    "input_text_tokens": (f"{_INPUT}.text_tokens",),
    "input_image_tokens": (f"{_INPUT}.image_tokens",),
    "reasoning_tokens": (
        f"{_OUTPUT}.reasoning_tokens",
        "output_tokens_details.reasoning_tokens",
        "reasoning_tokens",
    ),
    "output_audio_tokens": (f"{_OUTPUT}.audio_tokens",),
    "output_text_tokens": (f"{_OUTPUT}.text_tokens",),
    "accepted_prediction_tokens": (f"{_OUTPUT}.accepted_prediction_tokens",),
    "rejected_prediction_tokens": (f"{_OUTPUT}.rejected_prediction_tokens",),
}
"""Our counts and the names they go by; the first is the protocol's own."""

_SAID = tuple(
    (
        outer,
        tuple(
            (names[0].removeprefix(f"{outer}."), field)
            for field, names in NAMES.items()
            if names[0].startswith(outer)
        ),
    )
    for outer in (_INPUT, _OUTPUT)
)
"""The fields of the details, in the protocol's own words."""

_FIELDS = {name: field for field, names in NAMES.items() for name in names}


def decode(value: JSON) -> Usage | None:
    """The counts that were reported; None where nothing was.

    >>> usage = decode({"prompt_eval_count": "7", "eval_count": 2.0})
    >>> usage.input_tokens, usage.output_tokens, usage.total_tokens
    (7, 2, None)
    """
    if not isinstance(value, dict):
        return None
    left = _flat(value)
    counts: dict[str, JSON] = {}
    for name, number in left.items():
        known = _FIELDS.get(name)
        if known is None or known in counts or type(number) is not int:
            return _decode_odd(left)
        counts[known] = number
    return Usage(**counts) if counts else None


def _decode_odd(left: dict[str, JSON]) -> Usage | None:
    """Counts under several names, or not written as numbers, or beside what we do not know."""
    counts: dict[str, JSON] = {}
    for field, names in _named(left).items():
        found = {name: _number(left[name]) for name in names}
        said = [number for number in found.values() if number is not None]
        if said:
            counts[field] = next(filter(None, said), 0)
        for name, number in found.items():
            if number is None or number == counts[field]:
                del left[name]
    extra = keep(_nested(left)) if left else None
    return Usage(**counts, extra=extra) if counts or extra else None


def _named(flat: dict[str, JSON]) -> dict[str, list[str]]:
    """The counts that are there, each with the names it is given under, the best first."""
    named: dict[str, list[str]] = {}
    for name in flat:
        if (field := _FIELDS.get(name)) is not None:
            named.setdefault(field, []).append(name)
    for field, names in named.items():
        if len(names) > 1:
            names.sort(key=NAMES[field].index)
    return named


def encode(usage: Usage) -> dict[str, JSON]:
    """The counts under the protocol's names; those never reported are not there."""
    asked, said, total = usage.input_tokens, usage.output_tokens, usage.total_tokens
    if total is None and asked is not None and said is not None:
        total = asked + said
    counted: dict[str, JSON] = {}
    for name, number in (("prompt", asked), ("completion", said), ("total", total)):
        if number is not None:
            counted[f"{name}_tokens"] = number
    for outer, fields in _SAID:
        inner = None
        for name, field in fields:
            number = getattr(usage, field)
            if number is not None:
                if inner is None:
                    inner = counted[outer] = {}
                inner[name] = number
    return restore(counted, usage.extra)


def _flat(value: dict[str, JSON]) -> dict[str, JSON]:
    """The details by `outer.inner` names; nulls left out."""
    flat: dict[str, JSON] = {}
    for name, inner in value.items():
        if name in _DETAILS and isinstance(inner, dict):
            flat |= {f"{name}.{key}": each for key, each in inner.items() if each is not None}
        elif inner is not None:
            flat[name] = inner
    return flat


def _nested(flat: dict[str, JSON]) -> dict[str, JSON]:
    nested: dict[str, JSON] = {}
    for name, value in flat.items():
        outer, dot, inner = name.partition(".")
        if dot and outer in _DETAILS:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[name] = value
    return nested


def _number(value: JSON) -> int | None:
    """A count, however it was written; None for what is no number."""
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if abs(value) < 1e15:
            return int(value)
        case str() if value.strip().isdecimal():
            return int(value.strip()[:18])
        case _:
            return None
