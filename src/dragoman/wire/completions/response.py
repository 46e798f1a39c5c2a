"""Completions answers, decoded and encoded, streamed and whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar

from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, Progress, Started
from dragoman.core.item import JSON, Item, Message, Text, Token
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.turn import MAX_CHOICES
from dragoman.wire import error, json, sse
from dragoman.wire.choices import CHOICES, ChoicesDecoder, ChoicesEncoder, decode_tokens
from dragoman.wire.json import merge
from dragoman.wire.protocol import Dialect
from dragoman.wire.usage import encode_usage

from .request import NAME

_WORDS: dict[str, str] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "out_of_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
"""The finish reasons that do not mean stop; `stop`, `eos`, `eos_token`, `eom` and others do."""

_FINISH_REASONS = {reason: reason for reason in ("stop", *_WORDS.values())}

_BYTES = "bytes:"
"""The protocol's notation for a token that is a part of a character: `bytes:\\xe2\\x80`."""
_ESCAPES = re.compile(r"(?:\\x[0-9a-f]{2})+")


def decode_logprobs(value: JSON, text: str) -> tuple[Token, ...]:
    """The tokens of a chunk with this text.

    >>> [(token.text, token.logprob) for token in decode_logprobs(-0.5, "Hi")]
    [('Hi', -0.5)]
    >>> listed = {"tokens": ["Hi", "!"], "token_logprobs": [-0.5, -2]}
    >>> [(token.text, token.logprob) for token in decode_logprobs(listed, "Hi!")]
    [('Hi', -0.5), ('!', -2)]
    """
    if (number := _number(value)) is not None:
        return (Token(text, number),)
    if not isinstance(value, dict):
        return ()
    if isinstance(listed := value.get("content"), list):  # as in Chat: an object for each token
        return decode_tokens(listed, NAME)
    names, values, maps = (value.get(n) for n in ("tokens", "token_logprobs", "top_logprobs"))
    if any(isinstance(each, list) for each in (names, values, maps)):
        return tuple(_zipped(_listed(names), _listed(values), _listed(maps), text))
    alternatives = value.get("top_logprobs", {} if "token_logprobs" in value else value)
    top = _map(alternatives) if isinstance(alternatives, dict) else ()
    return (_chosen(top, text),) if top else ()


def _listed(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def _zipped(tokens: list[JSON], values: list[JSON], maps: list[JSON], text: str) -> Iterable[Token]:
    """A token for each entry of the longest list; `tokens` has the one that was chosen."""
    for name, value, alternatives in zip_longest(tokens, values, maps):
        top = _map(alternatives) if isinstance(alternatives, dict) else ()
        if isinstance(name, str):
            found = _number(value)
            known = (each.logprob for each in top if each.text == name)
            yield _token(name, next(known, None) if found is None else found, top)
        else:
            token = _chosen(top, text)
            yield token
            name = token.text
        text = text.removeprefix(name)


def _chosen(top: tuple[Token, ...], text: str) -> Token:
    """The chosen token where only alternatives were sent: the longest prefix of the text."""
    fitting = (each for each in top if each.text and text.startswith(each.text))
    best = max(fitting, key=lambda each: len(each.text), default=None)
    return Token(text, top=top) if best is None else Token(best.text, best.logprob, top=top)


def _map(alternatives: dict[str, JSON]) -> tuple[Token, ...]:
    found = ((name, _number(value)) for name, value in alternatives.items())
    return tuple(_token(name, value) for name, value in found if value is not None)


def _token(name: str, logprob: float | None, top: tuple[Token, ...] = ()) -> Token:
    """A token by its name in the protocol, which may be its bytes."""
    escapes = name.removeprefix(_BYTES)
    if len(escapes) < len(name) and _ESCAPES.fullmatch(escapes):
        raw = bytes.fromhex(escapes.replace("\\x", ""))
        text = raw.decode("utf-8", "replace")
        if text.encode() != raw:
            return Token(text, logprob, raw, top)
    return Token(name, logprob, top=top)


def _number(value: JSON) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def encode_logprobs(tokens: Iterable[Token], offset: int) -> dict[str, JSON]:
    """The protocol's lists; `offset` is where in the choice's text the first token stands.

    The first token of an echoed prompt has no value and no alternatives: both are null.
    """
    names, values, maps, offsets = [], [], [], []
    for token in tokens:
        names.append(_name(token))
        values.append(token.logprob)
        top = {_name(each): each.logprob for each in token.top}
        maps.append(top or None)
        offsets.append(offset)
        offset += len(token.text)
    some = any(each is not None for each in maps)
    return {
        "tokens": names,
        "token_logprobs": values,
        "top_logprobs": maps if some else None,
        "text_offset": offsets,
    }


def _name(token: Token) -> str:
    """The token's text; of a part of a character, its bytes."""
    if token.bytes is None or token.text.encode("utf-8", "replace") == token.bytes:
        return token.text
    return _BYTES + "".join(f"\\x{each:02x}" for each in token.bytes)


OBJECT = "text_completion"
"""The `object` of an answer, and of a chunk."""
ID_PREFIX = "cmpl-"


def encode_response(response: Response, request: Request, dialect: Dialect) -> bytes:
    """The body of an answer."""
    extra = dict((response.extra or {}).get(NAME, {}))
    ends = {each["index"]: each for each in extra.pop(CHOICES, ())}
    asked = bool(request.sampling.logprobs)
    choices = [
        merge(_choice(number, reason, response.choice(number), asked), ends.get(number, {}))
        for number, reason in enumerate(response.reasons)
    ]
    encoded: dict[str, JSON] = {
        "id": ID_PREFIX + response.id,
        "object": OBJECT,
        "created": response.created_at,
        "model": response.model,
        "choices": choices,
    }
    if response.usage is not None:
        encoded["usage"] = encode_usage(response.usage, NAME)
    return json.dump(merge(encoded, extra))


def _choice(number: int, reason: str, items: tuple[Item, ...], asked: bool) -> dict[str, JSON]:
    parts = [part for item in items if isinstance(item, Message) for part in item.parts]
    texts = [part for part in parts if isinstance(part, Text)]
    tokens = [token for part in texts for token in part.tokens]
    return {
        "text": "".join(part.text for part in texts),
        "index": number,
        "logprobs": encode_logprobs(tokens, 0) if tokens or asked else None,
        "finish_reason": _FINISH_REASONS.get(reason, "stop"),
    }


class Encoder(ChoicesEncoder):
    """Encodes the events of one answer, with the options of the request."""

    name = NAME
    id_prefix = ID_PREFIX
    object = OBJECT
    blank: ClassVar[dict[str, JSON]] = {"text": ""}
    reasons = _FINISH_REASONS

    def feed(self, events: Sequence[Event]) -> bytes:
        """The bytes for these events; empty where this wire has none for them."""
        encoded = b""
        for event in events:
            match event:
                case Delta(kind="text"):
                    number, tokens = self._items[event.index], event.tokens
                    offset = self._choices.get(number, 0)  # the length of the text so far
                    self._choices[number] = offset + len(event.data)
                    logprobs = encode_logprobs(tokens, offset) if tokens else None
                    encoded += self._chunk(number, {"text": event.data}, logprobs=logprobs)
                case ItemAdded():
                    self._items.append(event.choice)
                case Started():
                    encoded += self._start(event)
                case Progress():
                    encoded += self._progress(event)
                case Finished():
                    encoded += self._finish(event)
                case Failed():
                    self._over = True
                    encoded += sse.frame(error.encode(event.fault))
        return encoded


class Decoder(ChoicesDecoder):
    """Decodes one answer into a turn, from pieces of any size."""

    name = NAME
    fields = frozenset({"index", "text", "delta", "message", "logprobs", "finish_reason", "error"})
    words = _WORDS
    most = MAX_CHOICES

    def _content(
        self, number: int, choice: dict[str, JSON], beside: dict[str, JSON], *, ends: bool
    ) -> dict[str, JSON]:
        text = text_of(choice) or ""
        tokens = decode_logprobs(choice.get("logprobs"), text)
        if text or tokens:
            self._turn.text(text, number, tokens)
        return {}


def text_of(choice: dict[str, JSON]) -> str | None:
    """The text of a choice, in any of its places; None if it has none.

    >>> text_of({"text": "a"}), text_of({"delta": {"content": "b"}}), text_of({"message": None})
    ('a', 'b', None)
    """
    inner = (choice.get(name) for name in ("delta", "message"))
    contents = [each.get("content") for each in inner if isinstance(each, dict)]
    for content in (*contents, choice.get("text")):
        match content:
            case str():
                return content
            case list():  # in parts
                texts = (part.get("text") for part in content if isinstance(part, dict))
                return "".join(text for text in texts if isinstance(text, str))
    return None
