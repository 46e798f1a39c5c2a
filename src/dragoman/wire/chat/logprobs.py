"""Log-probabilities of tokens, in both directions.

Every token keeps its own text, bytes and value beside its alternatives, in order. Every level may
be missing or null on the way in, since servers leave out any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.item import JSON, Token

from .extras import keep, restore

_KNOWN = ("token", "logprob", "bytes", "top_logprobs", "id")


def decode(value: JSON, kind: str) -> tuple[Token, ...]:
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
        extra=keep({k: v for k, v in value.items() if k not in _KNOWN and v is not None}),
    )


def _bytes(value: JSON) -> bytes | None:
    try:
        return bytes(value) if isinstance(value, list) else None
    except (TypeError, ValueError):
        return None


def encode(tokens: Sequence[Token]) -> list[JSON]:
    """The tokens with their alternatives."""
    return [_say(token) | {"top_logprobs": [_say(top) for top in token.top]} for token in tokens]


def _say(token: Token) -> dict[str, JSON]:
    said: dict[str, JSON] = {} if token.id is None else {"id": token.id}
    said |= {"token": token.text, "logprob": token.logprob}
    said["bytes"] = None if token.bytes is None else list(token.bytes)
    return restore(said, token.extra)
