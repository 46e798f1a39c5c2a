"""Reads decoded chunks and whole answers into a turn: one reader for both.

The text of a choice may stand in three places, and every level may be missing, null or of the
wrong type. What a field means for the answer is the turn's affair.
"""

from __future__ import annotations

from dragoman.core.error import Fault
from dragoman.core.item import JSON
from dragoman.core.turn import MAX_CHOICES, Turn
from dragoman.wire.error import describe

from . import finish, logprobs, usage
from .extras import CHOICES, NAME

_CHUNK = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_CHOICE = frozenset({"index", "text", "delta", "message", "logprobs", "finish_reason", "error"})
_NOTHING: tuple[JSON, ...] = (None, [], {})
BROKEN = Fault(
    "upstream_error", "The model's server broke the text off and did not say why.", "upstream"
)


class Reader:
    """Reads into one turn. `heard` tells whether anything was read so far."""

    def __init__(self, turn: Turn) -> None:
        self.heard = False
        self._turn = turn
        self._begun = False
        self._beside: dict[str, JSON] = {}  # unknown fields of chunks, as last given
        self._ends: dict[int, dict[str, JSON]] = {}  # unknown fields of finished choices

    def read(self, value: dict[str, JSON]) -> None:
        """One chunk, or one whole answer."""
        self.heard = True
        choices = value.get("choices")
        error = describe(value) if value.get("error") or value.get("object") == "error" else None
        if error is None or choices:
            self._header(value)
        if (counted := usage.decode(value.get("usage"))) is not None:
            self._turn.usage = counted
        if isinstance(choices, list):
            for position, choice in enumerate(choices):
                if isinstance(choice, dict):
                    self._choice(choice, position)
        if error is not None:
            self._turn.fail(error)

    def close(self) -> None:
        """Nothing more will be read: what waited for the end is said now."""
        if self._ends:
            ends = [{"index": number, **rest} for number, rest in sorted(self._ends.items())]
            self._turn.header(extra={NAME: {CHOICES: ends}})

    def _header(self, value: dict[str, JSON]) -> None:
        rest = _rest(value, _CHUNK)
        if self._begun:
            fresh = {name: v for name, v in rest.items() if self._beside.get(name) != v}
            self._beside |= fresh
            if fresh:
                self._turn.header(extra={NAME: fresh})
            return
        self._begun, self._beside = True, rest
        model = value.get("model")
        itself = {name: value[name] for name in ("id", "created") if value.get(name) is not None}
        extra = {name: fields for name, fields in (("upstream", itself), (NAME, rest)) if fields}
        self._turn.header(model if isinstance(model, str) else None, extra)

    def _choice(self, choice: dict[str, JSON], position: int) -> None:
        number = _number(choice, position)
        self._turn.expect(number)
        text = said(choice) or ""
        tokens = logprobs.decode(choice.get("logprobs"), text)
        if text or tokens:
            self._turn.text(text, number, tokens)
        reason = finish.decode(choice.get("finish_reason"))
        beside = _rest(choice, _CHOICE)
        if beside and reason is not None:
            self._ends.setdefault(number, {}).update(beside)
        elif beside:
            raw = {"index": number, **beside}
            self._turn.progress(None, "raw", {NAME: {CHOICES: [raw]}})
        self._end(number, choice, reason)

    def _end(self, number: int, choice: dict[str, JSON], reason: str | None) -> None:
        error = describe({"error": choice["error"]}) if choice.get("error") else None
        if error is None and finish.broken(choice.get("finish_reason")):
            error = BROKEN
        if error is not None:
            self._turn.fail(error)
        elif reason is not None:
            self._turn.finish(reason, number)


def said(choice: dict[str, JSON]) -> str | None:
    """The text of a choice, wherever it stands; None if it has none.

    >>> said({"text": "a"}), said({"delta": {"content": "b"}}), said({"message": None})
    ('a', 'b', None)
    """
    for name in ("delta", "message"):
        inner = choice.get(name)
        if isinstance(inner, dict) and (found := _text(inner.get("content"))) is not None:
            return found
    return _text(choice.get("text"))


def _text(content: JSON) -> str | None:
    """Text as it is, or in parts."""
    match content:
        case str():
            return content
        case list():
            texts = (part.get("text") for part in content if isinstance(part, dict))
            return "".join(text for text in texts if isinstance(text, str))
        case _:
            return None


def _number(choice: dict[str, JSON], position: int) -> int:
    """The number of a choice: its index, or its position where the index is a mistake."""
    given = choice.get("index")
    return given if type(given) is int and 0 <= given < MAX_CHOICES else position


def _rest(value: dict[str, JSON], known: frozenset[str]) -> dict[str, JSON]:
    """The fields we do not know, without those that say nothing."""
    return {n: v for n, v in value.items() if n not in known and v not in _NOTHING}
