"""Says the events of an answer as a stream of chunks.

Only text has a word here: whatever else an engine may say of an answer passes in silence.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.event import Delta, Event, Failed, Finished, ItemAdded, Progress, Started
from dragoman.core.item import JSON, Token
from dragoman.core.request import Request
from dragoman.wire import body, error, sse
from dragoman.wire.dialect import Dialect

from . import finish, logprobs, usage
from .extras import CHOICES, NAME, join, kept
from .response import ID_PREFIX, OBJECT

_OPENING, _CLOSING = sse.frame(b"\0").split(b"\0")


class Encoder:
    """Says the events of one answer. `request` tells what was asked to be said."""

    def __init__(self, request: Request, dialect: Dialect) -> None:
        options = request.stream_options
        self._wants_usage = bool(options and options.include_usage)
        self._envelope: dict[str, JSON] = {}
        self._head = self._tail = b""
        self._items: list[int] = []  # the choice each item belongs to
        self._offsets: dict[int, int] = {}  # the length of each choice's text
        self._ends: dict[int, dict[str, JSON]] = {}
        self._over = False

    def feed(self, event: Event) -> bytes:
        """The bytes for one event; empty when this wire has no word for it."""
        match event:
            case Delta(kind="text"):
                return self._text(self._items[event.index], event.data, event.tokens)
            case ItemAdded():
                self._items.append(event.choice)
                self._offsets.setdefault(event.choice, 0)
                return b""
            case Started():
                self._start(event)
                return b""
            case Progress():
                return self._progress(event)
            case Finished():
                return self._finish(event)
            case Failed():
                self._over = True
                return sse.frame(error.encode(event.fault))
            case _:
                return b""

    def feed_all(self, events: Sequence[Event]) -> bytes:
        """The bytes for several events."""
        return b"".join(map(self.feed, events))

    def heartbeat(self, *, data: bool = False) -> bytes:
        """A comment, or a chunk that adds nothing; empty outside of an answer."""
        if not self._head or self._over:
            return b""
        return self._chunk(0, "") if data else sse.comment("alive")

    def _start(self, event: Started) -> None:
        extra = dict(kept(event.extra))
        self._ends = {each["index"]: each for each in extra.pop(CHOICES, ())}
        known: dict[str, JSON] = {"id": ID_PREFIX + event.id, "object": OBJECT}
        known |= {"created": event.created_at, "model": event.model}
        self._open(join(known, extra))
        self._tail = (b'],"usage":null}' if self._wants_usage else b"]}") + _CLOSING

    def _open(self, envelope: dict[str, JSON]) -> None:
        self._envelope = envelope
        self._head = _OPENING + body.dump(envelope)[:-1] + b',"choices":['

    def _text(self, number: int, text: str, tokens: tuple[Token, ...]) -> bytes:
        weighed = logprobs.encode(tokens, self._offsets[number]) if tokens else None
        self._offsets[number] += len(text)
        return self._chunk(number, text, logprobs=weighed)

    def _progress(self, event: Progress) -> bytes:
        said = (event.data or {}).get(NAME, {}) if event.state == "raw" else {}
        return b"".join(self._chunk(each["index"], "", more=each) for each in said.get(CHOICES, ()))

    def _finish(self, event: Finished) -> bytes:
        self._over = True
        extra = dict(kept(event.extra))
        ends = self._ends | {each["index"]: each for each in extra.pop(CHOICES, ())}
        counted = event.usage if self._wants_usage else None
        said, last = b"", len(event.reasons) - 1
        for number, reason in enumerate(event.reasons):
            if counted is None and number == last:
                self._open(join(self._envelope, extra))
            word = finish.encode(reason)
            said += self._chunk(number, "", reason=word, more=ends.get(number))
        if counted is not None:
            chunk = {"choices": [], "usage": usage.encode(counted)}
            said += sse.frame(body.dump(join(self._envelope | chunk, extra)))
        return said + sse.DONE

    def _chunk(
        self,
        number: int,
        text: str,
        *,
        logprobs: JSON = None,
        reason: str | None = None,
        more: dict[str, JSON] | None = None,
    ) -> bytes:
        choice: dict[str, JSON] = {"text": text, "index": number}
        choice |= {"logprobs": logprobs, "finish_reason": reason}
        return self._head + body.dump(join(choice, more) if more else choice) + self._tail
