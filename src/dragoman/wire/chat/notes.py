"""Annotations on the text of an answer, in both directions.

The protocol knows citations of addresses; what else a server notes is kept for readers of this
wire. Places are counted in the whole content, which may hold more than one text.
"""

from __future__ import annotations

from dragoman.core.item import JSON, Annotation

from .extras import keep, kept, restore

_CITATION = "url_citation"


def decode(value: JSON) -> Annotation | None:
    """An annotation; None for what is none."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return None
    rest = {name: each for name, each in value.items() if name != "type" and each is not None}
    if kind != _CITATION:
        return Annotation(kind, extra=keep(rest))
    if isinstance(rest.get(_CITATION), dict):
        cited = dict(rest.pop(_CITATION))
    else:
        cited, rest = rest, {}  # without the inner object, as seen in the wild
    start, end = _taken(cited, "start_index", int), _taken(cited, "end_index", int)
    url, title = _taken(cited, "url", str), _taken(cited, "title", str)
    left = {name: each for name, each in cited.items() if each is not None}
    return Annotation(_CITATION, start, end, url, title, extra=keep(rest, url_citation=left))


def _taken(left: dict[str, JSON], name: str, wanted: type) -> JSON:
    return left.pop(name) if isinstance(left.get(name), wanted) else None


def encode(note: Annotation, offset: int = 0) -> JSON:
    """An annotation whose text begins at `offset`; None where this wire has no form for it."""
    if note.kind != _CITATION:
        return {"type": note.kind, **kept(note.extra)} if kept(note.extra) else None
    places = {"start_index": note.start, "end_index": note.end}
    inner: dict[str, JSON] = {k: place + offset for k, place in places.items() if place is not None}
    words = {"url": note.url, "title": note.title}
    inner |= {name: word for name, word in words.items() if word is not None}
    return restore({"type": _CITATION, _CITATION: inner}, note.extra)
