"""Decodes token counts, under any of the names that servers use, and encodes them."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.core.item import JSON
from dragoman.core.response import Usage

from .json import FAR, merge, whole

_INPUT, _OUTPUT = "prompt_tokens_details", "completion_tokens_details"
_DETAILS = (_INPUT, _OUTPUT, "input_tokens_details", "output_tokens_details")

USAGE_NAMES: dict[str, tuple[str, ...]] = {
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
"""Our counts and their names; the first is the protocol's own."""

_WRITTEN = {field: names[0].rpartition(".")[::2] for field, names in USAGE_NAMES.items()}
"""Our counts, by the object of the protocol that they are in, if any, and their names there."""

_FIELDS = {name: field for field, names in USAGE_NAMES.items() for name in names}


def decode_usage(value: JSON, wire: str) -> Usage | None:
    """The reported counts; None without any. Unknown fields are those of the wire.

    >>> usage = decode_usage({"prompt_eval_count": "7", "eval_count": 2.0}, "chat")
    >>> usage.input_tokens, usage.output_tokens, usage.total_tokens
    (7, 2, None)
    """
    if not isinstance(value, dict):
        return None
    left: dict[str, JSON] = {}  # the details by `outer.inner` names
    for name, given in value.items():
        if name in _DETAILS and isinstance(given, dict):
            left |= {f"{name}.{key}": inner for key, inner in given.items() if inner is not None}
        elif given is not None:
            left[name] = given
    known: list[Any] = [*map(_FIELDS.get, left)]
    given = [*left.values()]
    if (
        {*map(type, given)} == {int}
        and None not in known
        and [*dict.fromkeys(known)] == known
        and min(given) >= 0
        and max(given) < FAR
    ):
        return Usage(**dict(zip(known, given, strict=True)))
    # Counts under several names, or not encoded as numbers, or beside unknown fields.
    counts: dict[str, Any] = {}
    for field, names in USAGE_NAMES.items():
        found = {name: _number(left[name]) for name in names if name in left}
        numbers = [number for number in found.values() if number is not None]
        if numbers:
            counts[field] = next(filter(None, numbers), 0)
        for name, number in found.items():
            if number is None or number == counts[field]:
                del left[name]
    more: dict[str, JSON] = {}
    for name, given in left.items():
        outer, dot, key = name.partition(".")
        if dot and outer in _DETAILS:
            more.setdefault(outer, {})[key] = given
        else:
            more[name] = given
    return Usage(**counts, extra={wire: more} if more else None) if counts or more else None


def encode_usage(usage: Usage, wire: str) -> dict[str, JSON]:
    """The counts under the protocol's names; unreported ones are absent."""
    asked, answered = usage.input_tokens, usage.output_tokens
    if usage.total_tokens is None and asked is not None and answered is not None:
        usage = replace(usage, total_tokens=asked + answered)
    counted: dict[str, JSON] = {}
    reported = to_builtins(usage)  # without what was not
    extra = reported.pop("extra", {})
    for field, number in reported.items():
        outer, name = _WRITTEN[field]
        group = counted.setdefault(outer, {}) if outer else counted
        group[name] = number
    return merge(counted, extra.get(wire, {})) if extra else counted


def _number(value: JSON) -> int | None:
    """A count in any encoding; None for an invalid one."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:15])
    return whole(value)
