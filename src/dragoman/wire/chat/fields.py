"""Log-probabilities, annotations and unknown fields of Chat objects, read and written."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.item import JSON, Annotation, Extra, Token
from dragoman.wire.json import merge

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
