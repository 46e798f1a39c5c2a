"""Usage, log-probabilities, annotations and unknown fields of Chat objects, read and written."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.item import JSON, Annotation, Extra, Token
from dragoman.core.response import Usage
from dragoman.wire.choices import merge

NAME = "chat"
"""The key of this wire in every `extra`."""


def to_extra(rest: dict[str, JSON], **nested: dict[str, JSON]) -> Extra | None:
    """The extra with unknown fields, and those of objects inside; None if there are none.

    >>> to_extra({"a": 1}, function={"b": 2}), to_extra({}, function={})
    ({'chat': {'a': 1, 'function': {'b': 2}}}, None)
    """
    kept = rest | {name: fields for name, fields in nested.items() if fields}
    return {NAME: kept} if kept else None


def from_extra(extra: Extra | None) -> dict[str, JSON]:
    """The unknown fields of this wire."""
    return extra.get(NAME, {}) if extra else {}


def restore(fields: dict[str, JSON], extra: Extra | None) -> dict[str, JSON]:
    """The fields, and the unknown ones with them; a field that is there stands.

    >>> restore({"id": "1", "function": {"name": "f"}}, to_extra({"id": "2"}, function={"b": 2}))
    {'id': '1', 'function': {'name': 'f', 'b': 2}}
    """
    return merge(fields, from_extra(extra)) if extra else fields


_KNOWN = ("token", "logprob", "bytes", "top_logprobs", "id")


def decode_logprobs(value: JSON, kind: str) -> tuple[Token, ...]:
    """The tokens of one kind, `content` or `refusal`, in a choice's `logprobs`."""
    listed = value.get(kind) if isinstance(value, dict) else None
    return _tokens(listed)


def _tokens(listed: JSON) -> tuple[Token, ...]:
    if not isinstance(listed, list):
        return ()
    return tuple(_token(each) for each in listed if isinstance(each, dict))


def _token(value: dict[str, JSON]) -> Token:
    text, logprob, id = value.get("token"), value.get("logprob"), value.get("id")
    return Token(
        text if isinstance(text, str) else "",
        logprob if isinstance(logprob, int | float) and not isinstance(logprob, bool) else None,
        _bytes(value.get("bytes")),
        _tokens(value.get("top_logprobs")),
        id if isinstance(id, int) and not isinstance(id, bool) else None,
        extra=to_extra({k: v for k, v in value.items() if k not in _KNOWN and v is not None}),
    )


def _bytes(value: JSON) -> bytes | None:
    try:
        return bytes(value) if isinstance(value, list) else None
    except (TypeError, ValueError):
        return None


def encode_logprobs(tokens: Sequence[Token]) -> list[JSON]:
    """The tokens with their alternatives."""
    return [
        _encode_token(token) | {"top_logprobs": [_encode_token(top) for top in token.top]}
        for token in tokens
    ]


def _encode_token(token: Token) -> dict[str, JSON]:
    said: dict[str, JSON] = {} if token.id is None else {"id": token.id}
    said |= {"token": token.text, "logprob": token.logprob}
    said["bytes"] = None if token.bytes is None else list(token.bytes)
    return restore(said, token.extra)


_CITATION = "url_citation"


def decode_annotation(value: JSON) -> Annotation | None:
    """An annotation; None for what is none."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return None
    rest = {name: each for name, each in value.items() if name != "type" and each is not None}
    if kind != _CITATION:
        return Annotation(kind, extra=to_extra(rest))
    if isinstance(rest.get(_CITATION), dict):
        cited = dict(rest.pop(_CITATION))
    else:
        cited, rest = rest, {}  # without the inner object, as seen in the wild
    start, end = _taken(cited, "start_index", int), _taken(cited, "end_index", int)
    url, title = _taken(cited, "url", str), _taken(cited, "title", str)
    left = {name: each for name, each in cited.items() if each is not None}
    return Annotation(_CITATION, start, end, url, title, extra=to_extra(rest, url_citation=left))


def _taken(left: dict[str, JSON], name: str, wanted: type) -> JSON:
    return left.pop(name) if isinstance(left.get(name), wanted) else None


def encode_annotation(note: Annotation, offset: int = 0) -> JSON:
    """An annotation whose text begins at `offset`; None where this wire has no form for it."""
    if note.kind != _CITATION:
        return {"type": note.kind, **from_extra(note.extra)} if from_extra(note.extra) else None
    places = {"start_index": note.start, "end_index": note.end}
    inner: dict[str, JSON] = {k: place + offset for k, place in places.items() if place is not None}
    words = {"url": note.url, "title": note.title}
    inner |= {name: word for name, word in words.items() if word is not None}
    return restore({"type": _CITATION, _CITATION: inner}, note.extra)


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
"""Our counts and the names they go by; the first is the protocol's own."""

_DETAIL_FIELDS = tuple(
    (
        outer,
        tuple(
            (names[0].removeprefix(f"{outer}."), field)
            for field, names in USAGE_NAMES.items()
            if names[0].startswith(outer)
        ),
    )
    for outer in (_INPUT, _OUTPUT)
)
"""The fields of the details, in the protocol's own words."""

_FIELDS = {name: field for field, names in USAGE_NAMES.items() for name in names}


def decode_usage(value: JSON) -> Usage | None:
    """The counts that were reported; None where nothing was.

    >>> usage = decode_usage({"prompt_eval_count": "7", "eval_count": 2.0})
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
            return _decode_other_usage(left)
        counts[known] = number
    return Usage(**counts) if counts else None


def _decode_other_usage(left: dict[str, JSON]) -> Usage | None:
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
    extra = to_extra(_nested(left)) if left else None
    return Usage(**counts, extra=extra) if counts or extra else None


def _named(flat: dict[str, JSON]) -> dict[str, list[str]]:
    """The counts that are there, each with the names it is given under, the best first."""
    named: dict[str, list[str]] = {}
    for name in flat:
        if (field := _FIELDS.get(name)) is not None:
            named.setdefault(field, []).append(name)
    for field, names in named.items():
        if len(names) > 1:
            names.sort(key=USAGE_NAMES[field].index)
    return named


def encode_usage(usage: Usage) -> dict[str, JSON]:
    """The counts under the protocol's names; those never reported are not there."""
    asked, said, total = usage.input_tokens, usage.output_tokens, usage.total_tokens
    if total is None and asked is not None and said is not None:
        total = asked + said
    counted: dict[str, JSON] = {}
    for name, number in (("prompt", asked), ("completion", said), ("total", total)):
        if number is not None:
            counted[f"{name}_tokens"] = number
    for outer, fields in _DETAIL_FIELDS:
        inner = None
        for name, field in fields:
            number = getattr(usage, field)
            if number is not None:
                if inner is None:
                    inner = counted[outer] = {}
                inner[name] = number
    return restore(counted, usage.extra) if usage.extra else counted


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
