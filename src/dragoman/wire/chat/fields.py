"""Small values inside Chat objects, read and written: finish reasons, usage, log-probabilities,
annotations, reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.item import JSON, Annotation, Extra, Token
from dragoman.core.response import Usage

CHUNK = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
CHOICE = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason", "error"})
MESSAGE = frozenset(
    {
        "annotations",
        "audio",
        "content",
        "function_call",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "role",
        "tool_calls",
    }
)
ENTRY = frozenset({"index", "id", "type", "function", "custom"})
CALL = frozenset({"name", "namespace", "arguments", "input"})

MOST_CHOICES = 128
"""How many alternatives there may be; an index beyond is a mistake."""

_NOTHING: tuple[JSON, ...] = (None, [], {})


def rest(value: dict[str, JSON], known: frozenset[str]) -> dict[str, JSON]:
    """The fields we do not know, without empty ones."""
    if known.issuperset(value):
        return {}
    return {n: v for n, v in value.items() if n not in known and v not in _NOTHING}


def index(entry: dict[str, JSON]) -> int | None:
    """The index of a choice or a call, if it has one."""
    given = entry.get("index")
    return given if type(given) is int else None


def number(choice: dict[str, JSON], position: int) -> int:
    """The number of a choice: its index, or its position where the index is a mistake."""
    given = index(choice)
    return given if given is not None and 0 <= given < MOST_CHOICES else position


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


def merge(fields: dict[str, JSON], more: dict[str, JSON]) -> dict[str, JSON]:
    """The fields, with what `more` has besides, object by object; a null counts as absent."""
    for name, value in more.items():
        have = fields.get(name)
        if isinstance(have, dict) and isinstance(value, dict):
            fields[name] = merge(dict(have), value)
        elif have is None:
            fields[name] = value
    return fields


FINISH_WORDS: dict[str, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "safety": "content_filter",
}
"""The finish reasons of servers, by the protocol's own."""

_FINISH_REASONS = frozenset(FINISH_WORDS.values())

BROKEN = ("error", "abort")
"""Finish reasons of an answer that the server could not complete."""


def decode_finish(value: JSON) -> str | None:
    """The reason in the protocol's words; None where there is none yet.

    >>> [decode_finish(value) for value in ("tool-calls", "eos", "", None)]
    ['tool_calls', 'stop', None, None]
    """
    if value is None or value == "":
        return None
    word = value.lower().replace("-", "_") if isinstance(value, str) else ""
    return FINISH_WORDS.get(word, "stop")


def broken(value: JSON) -> bool:
    """Whether the reason is that the answer could not be finished."""
    return value in BROKEN


def encode_finish(reason: str, *, legacy: bool = False) -> str:
    """The reason for the client; `legacy` for one that knows functions and not tools.

    >>> encode_finish("tool_calls", legacy=True), encode_finish("max_tool_calls")
    ('function_call', 'stop')
    """
    if legacy and reason == "tool_calls":
        return "function_call"
    return reason if reason in _FINISH_REASONS else "stop"


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


_READABLE = ("text", "summary")
_JOINED = (*_READABLE, "data")


class Details:
    """The entries of one choice so far.

    >>> details = Details()
    >>> details.add([{"index": 0, "type": "reasoning.text", "text": "Hm"}])
    >>> details.add([{"index": 0, "type": "reasoning.text", "text": "m", "signature": "s"}])
    >>> details.take()
    [{'index': 0, 'type': 'reasoning.text', 'text': 'Hmm', 'signature': 's'}]
    """

    __slots__ = ("_entries", "_places")

    def __init__(self) -> None:
        self._entries: list[JSON] = []
        self._places: dict[tuple[int, str], int] = {}

    def add(self, pieces: list[JSON]) -> None:
        """The pieces of one chunk."""
        for piece in pieces:
            match piece:
                case {"index": int(index), "type": str(kind)}:
                    self._merge(piece, (index, kind))
                case _:
                    self._entries.append(piece)

    def take(self) -> list[JSON]:
        """The entries since the last call."""
        entries, self._entries, self._places = self._entries, [], {}
        return [_joined(entry) for entry in entries]

    def _merge(self, piece: dict[str, JSON], key: tuple[int, str]) -> None:
        place = self._places.setdefault(key, len(self._entries))
        if place == len(self._entries):
            self._entries.append({})
        entry = self._entries[place]
        for name, value in piece.items():
            if name in _JOINED and isinstance(value, str):
                if not isinstance(entry.get(name), _Pieces):
                    entry[name] = _Pieces()
                entry[name].append(value)
            elif value is not None or name not in entry:
                entry[name] = value


def readable(pieces: list[JSON]) -> list[str]:
    """The text in the pieces of one chunk.

    >>> readable([{"type": "reasoning.text", "text": "Hm"}, {"type": "reasoning.encrypted"}])
    ['Hm']
    """
    told = (piece.get(n) for piece in pieces if isinstance(piece, dict) for n in _READABLE)
    return [text for text in told if isinstance(text, str) and text]


class _Pieces(list[str]):
    """A text that is not joined yet."""


def _joined(entry: JSON) -> JSON:
    if not isinstance(entry, dict):
        return entry
    return {k: "".join(v) if isinstance(v, _Pieces) else v for k, v in entry.items()}
