"""Log-probabilities, in every shape servers of this wire give them, and in the protocol's own.

The protocol has parallel lists: tokens, their values, and for each a map of alternatives. Some
servers leave out some of the lists, some give a single number or map for a chunk, some the list
of objects that Chat has. All become the same tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest

from dragoman.core.item import JSON, Token

_BYTES = "bytes:"
"""How the protocol spells a token that is a part of a character: `bytes:\\xe2\\x80`."""
_ESCAPES = re.compile(r"(?:\\x[0-9a-f]{2})+")


def decode(value: JSON, text: str) -> tuple[Token, ...]:
    """The tokens a chunk with this text came with.

    >>> [(token.text, token.logprob) for token in decode(-0.5, "Hi")]
    [('Hi', -0.5)]
    >>> listed = {"tokens": ["Hi", "!"], "token_logprobs": [-0.5, -2]}
    >>> [(token.text, token.logprob) for token in decode(listed, "Hi!")]
    [('Hi', -0.5), ('!', -2)]
    """
    if (number := _number(value)) is not None:
        return (Token(text, number),)
    if not isinstance(value, dict):
        return ()
    if isinstance(listed := value.get("content"), list):
        return _objects(listed)
    names, values, maps = (value.get(n) for n in ("tokens", "token_logprobs", "top_logprobs"))
    if any(isinstance(each, list) for each in (names, values, maps)):
        return tuple(_zipped(_listed(names), _listed(values), _listed(maps), text))
    alternatives = value.get("top_logprobs", {} if "token_logprobs" in value else value)
    top = _map(alternatives) if isinstance(alternatives, dict) else ()
    return (_chosen(top, text),) if top else ()


def _listed(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def _zipped(tokens: list[JSON], values: list[JSON], maps: list[JSON], text: str) -> Iterable[Token]:
    """A token for each entry of the longest list; which one was chosen is told by `tokens`."""
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
    """The token itself where only alternatives were given: the longest the text goes on with."""
    said = (each for each in top if each.text and text.startswith(each.text))
    best = max(said, key=lambda each: len(each.text), default=None)
    return Token(text, top=top) if best is None else Token(best.text, best.logprob, top=top)


def _map(alternatives: dict[str, JSON]) -> tuple[Token, ...]:
    found = ((name, _number(value)) for name, value in alternatives.items())
    return tuple(_token(name, value) for name, value in found if value is not None)


def _objects(listed: list[JSON]) -> tuple[Token, ...]:
    """Chat's way: an object for each token."""
    return tuple(_object(each) for each in listed if isinstance(each, dict))


def _object(value: dict[str, JSON]) -> Token:
    text, raw, id = value.get("token"), value.get("bytes"), value.get("id")
    spelt = isinstance(raw, list) and all(type(each) is int and 0 <= each < 256 for each in raw)
    alternatives = value.get("top_logprobs")
    return Token(
        text if isinstance(text, str) else "",
        _number(value.get("logprob")),
        bytes(raw) if spelt and isinstance(raw, list) else None,
        _objects(alternatives) if isinstance(alternatives, list) else (),
        id if type(id) is int else None,
    )


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


def encode(tokens: Iterable[Token], offset: int) -> dict[str, JSON]:
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
